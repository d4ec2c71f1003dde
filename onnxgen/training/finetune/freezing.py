"""`freeze` and `unfreeze` choose what is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from torch import nn

from onnxgen.surgery.owners import check_patterns, is_below
from onnxgen.training.finetune.blocks import blocks


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
    found = [norm for norm in modules if has_statistics(norm) and "train" not in vars(norm)]
    for norm in found:
        norm.train = partial(_stay, norm)  # type: ignore[method-assign]
        norm.training = False
    return found


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
    """Yield the norms with running statistics."""
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
