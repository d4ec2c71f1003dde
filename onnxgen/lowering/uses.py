"""Finds the node inputs of the file that each state-dict tensor stands for, if the file shares one tensor.

Exporters store equal tensors once, such as the biases of layers before training. Passes have rewritten the graph, so
the file's nodes were recorded when they were read (`graph.sites`). What a layer's node computes now in one step is, in
that record, between its outputs and the other values that the graph still has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import onnx_ir as ir

from onnxgen.code.module_def import Member
from onnxgen.graph.annotations import NODES
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.sites import Site, site
from onnxgen.weights.stored import VIEWS, stored


def uses(model: ir.Model, members: Iterable[Member], tensors: Collection[str]) -> dict[str, dict[str, list[Site]]]:
    """Return, for each of `tensors` (ONNX names), the sites that use it, by the state-dict key for these sites."""
    finder = _Finder(model)
    found: dict[str, dict[str, set[Site]]] = {name: {} for name in tensors}
    for member in members if found else ():
        for key, (state_key, source) in zip(member.keys, member.state_keys(), strict=True):
            for name in found.keys() & set(source.names):
                sites = found[name].setdefault(state_key, set())
                for node, indices in member.users.get(key, ()):
                    sites |= finder.sites(name, node, indices)
    return {name: {key: sorted(sites) for key, sites in keys.items()} for name, keys in found.items()}


class _Finder:
    def __init__(self, model: ir.Model) -> None:
        self.nodes = NODES.get(model)
        self.model = model

    def sites(self, tensor: str, node: ir.Node, indices: Iterable[int]) -> set[Site]:
        """Return the sites of `tensor` that these inputs of a node of the rewritten graph stand for."""
        found: set[Site] = set()
        for index in indices:
            value = node.inputs[index]
            inputs = dict(self.nodes.get(node.outputs[0].name or "", ()))
            if value is not None and stored(value) is None and value.name in self.nodes:
                found |= self._above([value.name], tensor, set())
            elif inputs.get(site(node, index)) == tensor:
                found.add(site(node, index))
            else:
                found |= self._above([o.name for o in node.outputs if o.name], tensor, self._others)
        return found

    def _above(self, names: list[str], tensor: str, ends: Collection[str]) -> set[Site]:
        """Return the sites of `tensor` among the nodes that these values are computed by, back to `ends`."""
        found: set[Site] = set()
        pending, seen = list(names), set(names)
        while pending:
            for where, name in self.nodes.get(pending.pop(), ()):
                if name == tensor:
                    found.add(where)
                elif name not in seen and name not in ends:
                    seen.add(name)
                    pending.append(name)
        return found

    @cached_property
    def _others(self) -> set[str]:
        """The values that nodes of the rewritten graph compute."""
        nodes = (node for node in all_nodes(self.model.graph) if node.op_type not in VIEWS)
        return {o.name for node in nodes for o in node.outputs if o.name}
