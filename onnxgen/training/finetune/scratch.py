"""`reset`: initialises a model again, to train it from scratch."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.owners import owners


def reset(model: nn.Module) -> nn.Module:
    """Give the parameters of a model the values of a new model, in place.

    Devices, dtypes, `requires_grad`, hooks and optimizers stay. After the same `torch.manual_seed`, the values are
    those of `type(model)()`. A replaced head is initialised by its layers' `reset_parameters`. So is the whole model,
    if its class needs arguments or a new one has other parameters.

    Returns:
        the model.

    Raises:
        OnnxgenError: a module has parameters, but no method that initialises them.
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
    """Return the parameters of a new model of the class; None if it can't be built or has other parameters."""
    kinds = inspect.signature(type(model)).parameters.values()
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in kinds):
        return None
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if not names or type(model).__module__.startswith("torch.nn"):
        return None
    state = torch.get_rng_state()
    try:
        fresh: dict[str, Tensor] = dict(type(model)().named_parameters(remove_duplicate=False))
    except Exception:  # it needs arguments in `**kwargs`, or a sidecar that no longer exists
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
        if initialise := _initialiser(module):
            initialise()
        else:
            for name in names:
                _like(getattr(module, name.rpartition(".")[2]), fresh[name])


def _like(parameter: Tensor, fresh: Tensor) -> None:
    """Initialise a plain parameter as generated code does: constant (ones, zeros) or normally distributed."""
    if bool((fresh == fresh.flatten()[0]).all()):
        parameter.fill_(fresh.flatten()[0].item())
    else:
        nn.init.normal_(parameter, std=0.02)


def _by_module(model: nn.Module, names: set[str]) -> list[tuple[nn.Module, list[str]]]:
    held: dict[int, tuple[nn.Module, list[str]]] = {}
    for places in owners(model).values():
        for owner in places:
            if owner.path in names:
                held.setdefault(id(owner.module), (owner.module, []))[1].append(owner.path)
    return list(held.values())


def _reset_layers(model: nn.Module) -> None:
    initialisers, plain = [], []
    for path, module in model.named_modules():
        own = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
        if own and (initialise := _initialiser(module)):
            initialisers.append(initialise)
        else:
            plain += own
    if plain:
        what = f"onnxgen does not know how to initialise {', '.join(plain)}"
        raise OnnxgenError(what, help="add a method reset_parameters() to their module")
    for initialise in initialisers:
        initialise()


def _initialiser(module: nn.Module) -> Callable[[], object] | None:
    """Return the layer's method that initialises its parameters; None if it has none."""
    function = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return function if callable(function) else None
