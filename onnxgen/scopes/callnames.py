"""A module that is called twice: PyTorch's TorchScript exporter names its second call `shared_1`.

A module may really be called `shared_1`, though, so the suffix goes only where both names are provably one module, or
where it makes no difference: every weight used under `shared_1` is used under `shared` too (perhaps there is
none, as in an activation), and no parameter is called `shared_1.something`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping

from onnxgen.common.names import ModulePath


def one_module(
    found: Mapping[Hashable, tuple[ModulePath, frozenset[str]]], known: set[ModulePath]
) -> dict[ModulePath, ModulePath]:
    """Scopes as recorded, each to the scope of the module's first call.

    Args:
        found: for each node, its recorded scope and the weights that it takes.
        known: modules that certainly exist, by parameter names.
    """
    weights: dict[ModulePath, set[str]] = defaultdict(set)  # of all nodes at or under a scope
    for scope, names in found.values():
        for i in range(len(scope) + 1):
            weights[scope[:i]] |= names
    first: dict[ModulePath, ModulePath] = {(): ()}  # parents come before children: sorted by length
    for scope in sorted(weights, key=lambda s: (len(s), s)):
        if scope:
            first[scope] = _first_call(scope, first[scope[:-1]], weights, known)
    return first


def _first_call(
    scope: ModulePath, parent: ModulePath, weights: Mapping[ModulePath, set[str]], known: set[ModulePath]
) -> ModulePath:
    """The scope of the first call of the module at `scope`, whose parent's first call is `parent`."""
    match = re.fullmatch(r"(.+)_[1-9][0-9]*", scope[-1])
    if match and scope not in known:
        earlier = (*parent, match[1])
        if earlier in weights and weights[scope] <= weights[earlier]:
            return earlier
    return (*parent, scope[-1])
