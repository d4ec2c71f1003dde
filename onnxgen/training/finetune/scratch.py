"""`reset`: train from scratch."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.owners import owners


def reset(model: nn.Module) -> nn.Module:
    """Forget what was learnt: values as those of a new model, in the same parameters.

    Devices, dtypes, `requires_grad`, hooks and optimizers that hold the parameters stay. What is drawn is what
    `type(model)()` draws: `torch.manual_seed(0)` before gives the very values. A model whose class needs arguments, or
    that has other parameters than a new one, is initialised layer by layer (`reset_parameters`), as is a replaced head.

    Returns:
        the model.

    Raises:
        OnnxgenError: the model has plain parameters that nothing tells how to initialise.
    """
    fresh = _fresh(model)
    if fresh is None:
        _reset_layers(model)
    else:
        _copy(model, fresh)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.reset_running_stats()
    for parameter in model.parameters():
        parameter.grad = None
    return model


def _fresh(model: nn.Module) -> dict[str, Tensor] | None:
    """Parameters of a new model of the class, if it can be built and has the same ones."""
    kinds = inspect.signature(type(model)).parameters.values()
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in kinds):
        return None
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if not names or type(model).__module__.startswith("torch.nn"):
        return None
    state = torch.get_rng_state()
    try:
        fresh: dict[str, Tensor] = dict(type(model)().named_parameters(remove_duplicate=False))
    except Exception:  # what it needs is no longer there: arguments under `**kwargs`, a sidecar with constants
        fresh = {}
    if fresh.keys() != names:
        torch.set_rng_state(state)
        return None
    return fresh


@torch.no_grad()
def _copy(model: nn.Module, fresh: dict[str, Tensor]) -> None:
    resized = set()
    for name, parameter in model.named_parameters():
        if parameter.shape == fresh[name].shape:
            parameter.copy_(fresh[name])
        else:
            resized.add(name)
    for module, names in _by_module(model, resized):
        if not _reset_layer(module):
            for name in names:
                _like(getattr(module, name.rpartition(".")[2]), fresh[name])


def _like(parameter: Tensor, fresh: Tensor) -> None:
    """As generated code starts a plain parameter: with ones, with zeros, or normally distributed."""
    if bool((fresh == fresh.flatten()[0]).all()):
        parameter.fill_(fresh.flatten()[0].item())
    else:
        nn.init.trunc_normal_(parameter, std=0.02)


def _by_module(model: nn.Module, names: set[str]) -> list[tuple[nn.Module, list[str]]]:
    held: dict[int, tuple[nn.Module, list[str]]] = {}
    for places in owners(model).values():
        for owner in places:
            if owner.path in names:
                held.setdefault(id(owner.module), (owner.module, []))[1].append(owner.path)
    return list(held.values())


def _reset_layers(model: nn.Module) -> None:
    plain = []
    for path, module in model.named_modules():
        own = list(module.named_parameters(recurse=False))
        if own and not _reset_layer(module, try_only=True):
            plain += [f"{path}.{name}" if path else name for name, _ in own]
    if plain:
        what = f"onnxgen does not know how to initialise {', '.join(plain)}"
        raise OnnxgenError(what, help="add a method reset_parameters() to their module")
    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            _reset_layer(module)


def _reset_layer(module: nn.Module, try_only: bool = False) -> bool:
    """Call a layer's own initialisation; False if it has none."""
    function: Any = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(function) and not try_only:
        function()
    return callable(function)
