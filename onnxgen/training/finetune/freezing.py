"""What of a model is trained, and how: `freeze` and `unfreeze`, `param_groups`, and `reset`.

`param_groups` makes parameter groups for an optimizer, with their own learning rates and weight decay. `reset`
initialises a model again, to train it from scratch. Blocks of a network are in order from the input to the head.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.head import last_layers
from onnxgen.surgery.ports import NORMS, Example, check_patterns, example_for, is_below, near, owners


def freeze(model: nn.Module, *patterns: str) -> list[str]:
    """Stop training the parameters and statistics that match the patterns.

    A pattern is the path of a parameter, or of a module with everything in it: "layer1", "layer1.*",
    "encoder.layers.?.attn", "**.bias" (`*` and `?` match within one part, `**` any number of parts). Without a pattern
    the whole model is frozen. Norms with running statistics (BatchNorm) stay in evaluation mode even after
    `model.train()`: they use their statistics, and don't change them. Dropout is not affected.

    Returns:
        the names of the parameters that the patterns match.

    Raises:
        OnnxgenError: a pattern matches nothing (the error lists similar names).
    """
    check_patterns(model, patterns)
    held(_norms(model, patterns))
    return _set(model, patterns, trained=False)


def unfreeze(model: nn.Module, *patterns: str) -> list[str]:
    """Train again what matches the patterns; see `freeze`. Without a pattern it is the whole model.

    Raises:
        OnnxgenError: a pattern matches nothing.
    """
    check_patterns(model, patterns)
    release(_norms(model, patterns), model.training)
    return _set(model, patterns, trained=True)


def unfreeze_next(model: nn.Module) -> list[str]:
    """Unfreeze the last block (see `blocks`) that has frozen parameters. Each call unfreezes one more.

    Returns:
        the names of the parameters that were unfrozen; empty if nothing was frozen.
    """
    for block in reversed(blocks(model)):
        frozen = [f"{block}.{n}" for n, p in model.get_submodule(block).named_parameters() if not p.requires_grad]
        if frozen:
            unfreeze(model, block)
            return frozen
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return unfreeze(model, *frozen) if frozen else []


def held(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Keep norms with running statistics in evaluation mode. Return those that were not kept so before."""
    norms = [norm for norm in modules if has_statistics(norm) and "train" not in vars(norm)]
    for norm in norms:
        norm.train = partial(_stay, norm)  # type: ignore[method-assign]
        norm.training = False
    return norms


def release(norms: Iterable[nn.Module], training: bool = True) -> None:
    """Undo `held`."""
    for norm in norms:
        if vars(norm).pop("train", None) is not None:
            norm.train(training)


def has_statistics(module: nn.Module) -> bool:
    """Return True for a norm with running statistics (BatchNorm)."""
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """Replace `train` of a frozen norm, which stays in evaluation mode. Copies and pickles of the model keep this."""
    return module


def _norms(model: nn.Module, patterns: tuple[str, ...]) -> Iterator[nn.Module]:
    for path, module in model.named_modules(remove_duplicate=False):
        if has_statistics(module) and (not patterns or is_below(path, patterns)):
            yield module


def _set(model: nn.Module, patterns: tuple[str, ...], *, trained: bool) -> list[str]:
    names = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not patterns or is_below(name, patterns):
            parameter.requires_grad_(trained)
            names.append(name)
    return names


def blocks(model: nn.Module) -> list[str]:
    """Return the paths of the model's blocks, in order of registration. A block is frozen, or has a rate, as a whole.

    Blocks are the children of the model that have parameters. A list (`nn.Sequential`, `nn.ModuleList`), or an only
    child, is replaced by its own children. Parameters of the model itself belong to no block.
    """
    return _below(model, "")


def _below(module: nn.Module, path: str) -> list[str]:
    children = [(n, m) for n, m in module.named_children() if any(True for _ in m.parameters())]
    paths = []
    for name, child in children:
        inner = f"{path}.{name}" if path else name
        listed = isinstance(child, (nn.Sequential, nn.ModuleList, nn.ModuleDict)) or len(children) == 1
        below = _below(child, inner) if listed and next(child.parameters(recurse=False), None) is None else []
        paths += below or [inner]
    return paths


def param_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    head_lr: float = 1.0,
    weight_decay: float | None = None,
    layer_decay: float | None = None,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
) -> list[dict[str, Any]]:
    """Return all parameters, once each, in groups for any optimizer of `torch.optim`.

    Norms, biases and other parameters with one dim get no weight decay. Frozen parameters are included: they have no
    gradient, so an optimizer does not change them until they are unfrozen.

    Args:
        model: any module.
        lr: the learning rate; None: the optimizer's.
        head_lr: the rate of the head, or the heads of several outputs, as a multiple of `lr`.
        weight_decay: None: the optimizer's.
        layer_decay: the rate of each block (see `blocks`) as a multiple of the next block's rate.
        head: the path of the module that gets `head_lr`, or of several, if it is not the last layer with weights.
        example: see `find_head`; the model is run only if `head_lr` is not 1.

    Returns:
        dicts with "params", "name" ("head", "body no decay", "layer1 no decay"), and "lr" and "weight_decay" if given.

    Raises:
        OnnxgenError: a rate depends on `lr`, which is missing, or the head can't be found.
    """
    if lr is None and (head_lr != 1 or layer_decay is not None):
        raise OnnxgenError("head_lr and layer_decay are factors of lr, which is missing", help="give lr=")
    top = _head(model, head, example) if head_lr != 1 else ()
    order = blocks(model)
    plain = _without_decay(model)

    def placed(name: str) -> tuple[str, float]:
        """Return the part of the model that a parameter is in, and its rate as a multiple of `lr`."""
        if any(f"{name}.".startswith(f"{path}.") for path in top):
            return "head", head_lr
        if layer_decay is None:
            return "body", 1.0
        for later, block in enumerate(reversed(order)):
            if f"{name}.".startswith(f"{block}."):
                return block, layer_decay**later
        return "root", layer_decay ** len(order)

    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        part, factor = placed(name)
        decays = name not in plain
        key = part if decays else f"{part} no decay"
        group: dict[str, Any] = {"name": key, "params": []}
        group |= {} if lr is None else {"lr": lr * factor}
        decay = weight_decay if decays else 0.0
        group |= {} if decay is None else {"weight_decay": decay}
        groups.setdefault(key, group)["params"].append(parameter)
    return list(groups.values())


def _head(model: nn.Module, head: str | Sequence[str] | None, example: Example | None) -> tuple[str, ...]:
    if head is None:
        return last_layers(model, example_for(model, example))
    paths = (head,) if isinstance(head, str) else tuple(head)
    for path in paths:
        if not any(f"{name}.".startswith(f"{path}.") for name, _ in model.named_parameters()):
            raise OnnxgenError(f"no layer is called {path!r}", help=near(path, [n for n, _ in model.named_modules()]))
    return paths


def _without_decay(model: nn.Module) -> set[str]:
    """Return the names of norms' parameters, of biases, and of parameters with at most one dim longer than 1."""
    names = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            matrix = name.startswith("weight") and isinstance(
                module, (nn.Linear, nn.Bilinear, nn.Embedding, nn.modules.conv._ConvNd)
            )
            flat = parameter.numel() == max(parameter.shape, default=1) and not matrix
            if isinstance(module, NORMS) or "bias" in name or parameter.ndim < 2 or flat:
                names.add(f"{path}.{name}" if path else name)
    return names


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
