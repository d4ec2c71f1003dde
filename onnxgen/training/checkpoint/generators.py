"""Captures and restores the random number generators that training may use."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import torch


def capture(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, numpy's, torch's and the device's generator, in types that `torch.load` allows.

    Lightning's states hold numpy arrays, which `torch.load` refuses with `weights_only`.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        with suppress(AttributeError, RuntimeError):  # a back end without its own generator (DirectML)
            states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore(states: dict[str, Any], device: torch.device) -> None:
    """Restore the states that `capture` returned. Without a state for this device, its generator is not changed."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type].cpu(), device)
