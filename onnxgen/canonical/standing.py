"""Modules whose parametrised weights are parameters again, and how such weights are put into the module itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, weight_norm
from torch.nn.utils import remove_weight_norm as without_hook


def plain_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module, in evaluation mode. A weight that is computed from others is a parameter in it.

    That is so where the module can say what the others are for a given weight: weight norms, and parametrisations with
    an inverse.
    """
    computed = [getattr(part, hook.name) for part in module.modules() for hook in _weight_norms(part)]
    result = copy.deepcopy(module, {id(t): t.detach().clone() for t in computed}).eval()
    for part in list(result.modules()):
        names = _invertible(part)
        if names:  # removing changes the class, which the copy shares with the module
            kind = type(part)
            part.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
        for name in names:
            parametrize.remove_parametrizations(part, name, leave_parametrized=True)
        for hook in _weight_norms(part):
            without_hook(part, hook.name)
            part.register_parameter(hook.name, nn.Parameter(getattr(part, hook.name).detach()))
    return result


def _invertible(part: nn.Module) -> list[str]:
    """Return the parametrised tensors of a module that can be set."""
    if not parametrize.is_parametrized(part):
        return []
    every: Any = part.parametrizations
    return [name for name, chain in every.items() if all(hasattr(each, "right_inverse") for each in chain)]


def _weight_norms(part: nn.Module) -> list[Any]:
    return [h for h in part._forward_pre_hooks.values() if isinstance(h, weight_norm.__globals__["WeightNorm"])]


def put(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set parameters and buffers of a module, by the paths that they have in its plain copy."""
    with torch.no_grad():
        for path, value in values.items():
            owner, _, name = path.rpartition(".")
            part = module.get_submodule(owner)
            hook = next((h for h in _weight_norms(part) if h.name == name), None)
            if name in _invertible(part):
                setattr(part, name, value.detach().to(getattr(part, name)))
            elif hook is not None:
                direction, size = getattr(part, f"{name}_v"), getattr(part, f"{name}_g")
                direction.copy_(value)
                size.copy_(torch.norm_except_dim(direction, 2, hook.dim))
            else:
                getattr(part, name).copy_(value)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by path, tied ones under each of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
