"""Builds a network with fresh weights that are in files: each layer's as soon as the layer is made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook


def built_outside(build: Callable[[], nn.Module]) -> nn.Module:
    """Return what `build` returns, with its parameters mapped from temporary files, which are deleted already.

    So no more than the parameters of one layer are in memory. The values are those that `build` gives them: random
    numbers are drawn in the same order. Buffers stay in memory.

    Raises:
        OSError: the folder for temporary files (TMPDIR) is full.
    """
    done: dict[int, nn.Parameter] = {}

    def move(module: nn.Module) -> None:
        for parameter in module.parameters():
            if id(parameter) not in done and parameter.numel() and parameter.device.type == "cpu":
                parameter.data = _mapped(parameter.detach())
                done[id(parameter)] = parameter

    def added(module: nn.Module, name: str, child: nn.Module | None) -> None:
        if child is not None:
            move(child)

    hook = register_module_module_registration_hook(added)
    try:
        model = build()
    finally:
        hook.remove()
    move(model)
    return model


def _mapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values that a file holds. What is written to it goes into the file."""
    handle, name = tempfile.mkstemp(prefix="onnxgen-")
    os.close(handle)
    try:
        found = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        return found.view(tensor.shape).copy_(tensor)
    finally:
        os.unlink(name)
