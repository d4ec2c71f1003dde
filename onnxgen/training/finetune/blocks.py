"""The blocks of a network in their order, from the input to the head."""

from __future__ import annotations

from torch import nn


def blocks(model: nn.Module) -> list[str]:
    """Paths of the modules that are frozen and given rates as one, in order of registration.

    They are the children of the model; lists (`nn.Sequential`, `nn.ModuleList`), and a module that has all there is in
    it, count by their own children. Each holds parameters; those of the model itself belong to none.
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
