"""`freeze` and `unfreeze`: what is trained, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn

from onnxgen.surgery.owners import check_patterns, is_below
from onnxgen.training.finetune.blocks import blocks


def freeze(model: nn.Module, *patterns: str) -> list[str]:
    """Train neither parameters nor statistics of what patterns name.

    A pattern is the path of a module, with all that is in it, or of a parameter: "layer1", "layer1.*",
    "encoder.layers.?.attn", "**.bias" (`*` and `?` stand within one part, `**` for any number of parts). Without a
    pattern it is the whole model. Normalisations with running statistics (BatchNorm) stay in evaluation mode,
    `model.train()` or not: they normalise with their statistics, and don't change them. Dropout stays as it is.

    Returns:
        the names of the parameters that the patterns match.

    Raises:
        OnnxgenError: a pattern matches nothing; what is like it is listed.
    """
    check_patterns(model, patterns)
    for norm in _norms(model, patterns):
        norm.train = partial(_stay, norm)  # type: ignore[method-assign]
        norm.training = False
    return _set(model, patterns, trained=False)


def unfreeze(model: nn.Module, *patterns: str) -> list[str]:
    """Train again what patterns name; see `freeze`. Without a pattern it is the whole model.

    Raises:
        OnnxgenError: a pattern matches nothing.
    """
    check_patterns(model, patterns)
    for norm in _norms(model, patterns):
        if vars(norm).pop("train", None) is not None:
            norm.train(model.training)
    return _set(model, patterns, trained=True)


def unfreeze_next(model: nn.Module) -> list[str]:
    """Unfreeze the last block (see `blocks`) of which something is frozen; one more at each call.

    Returns:
        the names of the parameters that are trained now and were not; empty once nothing is frozen.
    """
    for block in reversed(blocks(model)):
        frozen = [f"{block}.{n}" for n, p in model.get_submodule(block).named_parameters() if not p.requires_grad]
        if frozen:
            unfreeze(model, block)
            return frozen
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    return unfreeze(model, *frozen) if frozen else []


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """In place of `train`: a held norm stays in evaluation mode. Copies and pickles of a model keep it."""
    return module


def _norms(model: nn.Module, patterns: tuple[str, ...]) -> Iterator[nn.Module]:
    """Those with running statistics."""
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            if not patterns or is_below(path, patterns):
                yield module


def _set(model: nn.Module, patterns: tuple[str, ...], *, trained: bool) -> list[str]:
    names = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not patterns or is_below(name, patterns):
            parameter.requires_grad_(trained)
            names.append(name)
    return names
