"""Finds the node inputs of the file that each state-dict tensor stands for, if the file shares one tensor.

Exporters store equal tensors once, such as the biases of layers before training. Passes have rewritten the graph, so
the file's nodes were recorded when they were read (`graph.sites`). What a layer's node computes now in one step is, in
that record, between its outputs and the other values that the graph still has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnxgen.code.module_def import Member
from onnxgen.graph.sites import Site
from onnxgen.weights.sites import Finder


def uses(model: ir.Model, members: Iterable[Member], tensors: Collection[str]) -> dict[str, dict[str, list[Site]]]:
    """Return, for each of `tensors` (ONNX names), the sites that use it, by the state-dict key for these sites."""
    finder = Finder(model)
    found: dict[str, dict[str, set[Site]]] = {name: {} for name in tensors}
    for member in members if found else ():
        for key, (state_key, source) in zip(member.keys, member.state_keys(), strict=True):
            for name in found.keys() & set(source.names):
                sites = found[name].setdefault(state_key, set())
                for node, indices in member.users.get(key, ()):
                    sites |= finder.sites(name, node, indices)
    return {name: {key: sorted(sites) for key, sites in keys.items()} for name, keys in found.items()}
