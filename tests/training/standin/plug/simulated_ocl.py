"""Stands in for a back end from outside under a name of its own: importing it registers the device "ocl"."""

from __future__ import annotations

from tests.training.standin.simulated import install

install("ocl")
