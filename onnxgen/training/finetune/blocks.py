"""Finds the blocks of a network, in order from the input to the head."""

from __future__ import annotations

from torch import nn


def blocks(model: nn.Module) -> list[str]:
    """Return the paths of the model's blocks, in order of registration. A block is frozen, or has a rate, as a whole.

    Blocks are the children of the model that have parameters. A list (`nn.Sequential`, `nn.ModuleList`), or an only
    child, is replaced by its own children. Parameters of the model itself belong to no block.
    """
    return _below(model, "")


def _below(module: nn.Module, path: str) -> list[str]:
    children = [(n, m) for n, m in module.named_children() if any(True for _ in m.parameters())]
    found = []
    for name, child in children:
        inner = f"{path}.{name}" if path else name
        listed = isinstance(child, (nn.Sequential, nn.ModuleList, nn.ModuleDict)) or len(children) == 1
        below = _below(child, inner) if listed and next(child.parameters(recurse=False), None) is None else []
        found += below or [inner]
    return found
