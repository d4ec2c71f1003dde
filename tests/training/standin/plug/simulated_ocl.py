"""Stands in for an external back end with its own name: importing it registers the device "ocl"."""

from __future__ import annotations

from tests.training.standin.simulated import install

install("ocl")
