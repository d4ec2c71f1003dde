"""Modules that are called twice: PyTorch's TorchScript exporter names the second call of `shared` `shared_1`.

A module may also really be called `shared_1`. So the suffix is only removed if every weight used under `shared_1` is
used under `shared` too (an activation has none), and no parameter is called `shared_1.something`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping

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
