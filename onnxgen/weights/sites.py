"""Finds the inputs of the file's nodes that an input of a rewritten graph's node stands for (see `graph.sites`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import onnx_ir as ir

from onnxgen.graph.annotations import NODES, SITES
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.sites import Site, site
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import stored, view_of

Place = tuple[int, ir.Node, int, Source]  # an input of a new node; an older node, its input, and what that is made of


class Finder:
    """Finds the sites of stored tensors in a graph that passes have rewritten."""

    def __init__(self, model: ir.Model) -> None:
        self.nodes = NODES.get(model)
        self.model = model

    def sites(self, tensor: str, node: ir.Node, indices: Iterable[int]) -> set[Site]:
        """Return the sites of `tensor` that these inputs of a node of the rewritten graph stand for."""
        found: set[Site] = set()
        noted = SITES.get(node)
        for index in indices:
            if index in noted:
                found |= noted[index].get(tensor, frozenset())
                continue
            value = node.inputs[index]
            inputs = dict(self.nodes.get(node.outputs[0].name or "", ()))
            if value is not None and stored(value) is None and value.name in self.nodes:
                found |= self._above([value.name], tensor, set())
            elif inputs.get(site(node, index)) == tensor:
                found.add(site(node, index))
            else:
                found |= self._above([o.name for o in node.outputs if o.name], tensor, self._others)
        return found

    def note(self, new: ir.Node, places: Iterable[Place]) -> None:
        """Note the sites of a new node's inputs, while the nodes that it stands for are still there."""
        noted = {}
        for index, node, old, source in places:
            noted[index] = {name: frozenset(self.sites(name, node, [old])) for name in source.names}
        SITES.set(new, noted)

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
        nodes = (node for node in all_nodes(self.model.graph) if view_of(node) is None)
        return {o.name for node in nodes for o in node.outputs if o.name}
