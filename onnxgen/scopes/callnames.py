"""Calls whose names are not the modules' paths.

PyTorch's TorchScript exporter names the second call of `shared` `shared_1`. A module may also really be called
`shared_1`. So the suffix is only removed if every weight used under `shared_1` is used under `shared` too (an
activation has none), and no parameter is called `shared_1.something`.

A module whose parts are called without it (`self.model.decoder(x)`) is in the names of parameters, and in no name of a
node: `/decoder/layers.0/fc1/MatMul` takes `model.decoder.layers.0.fc1.weight`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from onnxgen.common.names import ModulePath


def one_module(
    found: Mapping[Hashable, tuple[ModulePath, frozenset[str]]], known: set[ModulePath]
) -> dict[ModulePath, ModulePath]:
    """Return, for each recorded scope, the scope of the module's first call.

    Args:
        found: for each node, its recorded scope and the weights that it takes.
        known: the modules that certainly exist, by parameter names.
    """
    weights: dict[ModulePath, set[str]] = defaultdict(set)  # of all nodes in a scope
    for scope, names in found.values():
        for i in range(len(scope) + 1):
            weights[scope[:i]] |= names
    first: dict[ModulePath, ModulePath] = {(): ()}  # parents come before children: sorted by length
    for scope in sorted(weights, key=lambda s: (len(s), s)):
        if scope:
            parent = first[scope[:-1]]
            match = re.fullmatch(r"(.+)_[1-9][0-9]*", scope[-1])
            earlier = (*parent, match[1] if match and scope not in known else scope[-1])
            is_one = earlier in weights and weights[scope] <= weights[earlier]
            first[scope] = earlier if is_one else (*parent, scope[-1])
    return first


def passed_over(found: Iterable[tuple[ModulePath, ModulePath]], known: set[ModulePath]) -> dict[ModulePath, ModulePath]:
    """Return the full paths of the modules that are called without the module around them, by their recorded paths.

    Args:
        found: recorded scopes of nodes, each with the module of a parameter that the node takes.
        known: the modules that certainly exist, by parameter names.
    """
    full: dict[ModulePath, set[ModulePath]] = defaultdict(set)
    for scope, parent in found:
        n = 0
        while n < min(len(scope), len(parent)) and scope[-1 - n] == parent[-1 - n]:
            n += 1
        around = scope[: len(scope) - n]
        if n and len(parent) > len(scope) and parent[: len(around)] == around:
            full[scope[: len(around) + 1]].add(parent[: len(parent) - n + 1])
    return {scope: paths.pop() for scope, paths in full.items() if len(paths) == 1 and scope not in known}


def spelled_out(scope: ModulePath, full: Mapping[ModulePath, ModulePath]) -> ModulePath:
    """Return a recorded scope with the modules that its name passes over."""
    at = next((n for n in range(1, len(scope) + 1) if scope[:n] in full), 0)
    return full[scope[:at]] + scope[at:] if at else scope
