"""Stands in for torch_directml: its simulated device lacks what DirectML lacks."""

from __future__ import annotations

import torch

from tests.training.standin.simulated import install

_DEVICE = install(lacking=True)


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def device_name(index: int) -> str:
    return "Simulated Adapter\0"


def device(index: int | None = None) -> torch.device:
    return _DEVICE
