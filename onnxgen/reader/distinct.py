"""Names are scoped in ONNX. `distinct` gives every value of a file a name of its own.

Two branches, loop bodies or merged networks may each store a tensor `w`, and a value of an inner graph may hide one of
a graph around it (ONNX's IR.md, "Names within a graph"). Behind the reader, and in the sidecar's record, a name is one
value. The names of the main graph stay, and of several inner values with one name the first keeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import onnx

from onnxgen.common.names import INNER
from onnxgen.reader.protos import declared, every_node, inner_graphs, with_inner


def distinct(model: onnx.ModelProto) -> dict[str, str]:
    """Rename values of inner graphs, in place, so that no two values of the graph, or of a function, have one name.

    Returns:
        the name in the file of each name that was given; `restore` gives it back.
    """
    roots = [model.graph, *model.functions]
    if not any(True for whole in roots for node in whole.node for _ in inner_graphs(node)):
        return {}
    every, given = set[str]().union(*map(all_names, roots)), dict[str, str]()
    for whole in roots:
        walk = _Distinct(every, given, set(declared(whole)))
        for node in whole.node:
            walk.node(node, {})
    return given


def restore(model: onnx.ModelProto, given: Mapping[str, str]) -> None:
    """Give values the names of the file again, where `distinct` has given them others."""
    for node in every_node(model) if given else ():
        _rename(node, given)
        for graph in inner_graphs(node):
            _rename_own(graph, given)


def all_names(whole: onnx.GraphProto | onnx.FunctionProto) -> set[str]:
    """Return the names of all values of a graph or a function, and of its inner graphs."""
    graphs = [inner for node in with_inner(whole.node) for inner in inner_graphs(node)]
    return set[str]().union(*map(declared, (whole, *graphs)))


class _Distinct:
    """Renames the values of the inner graphs of one graph or function.

    Attributes:
        every: all names of the file.
        given: the new names, with those of the file.
        used: the names that a value of this graph or function has by now.
    """

    def __init__(self, every: set[str], given: dict[str, str], used: set[str]) -> None:
        self.every, self.given, self.used = every, given, used
        self.counts = Counter[str]()  # the last number of each name

    def node(self, node: onnx.NodeProto, names: Mapping[str, str]) -> None:
        """Rename what a node takes and makes, and what is in its graphs; `names`: those that are others by now."""
        _rename(node, names)
        for inner in inner_graphs(node):
            self.graph(inner, names)

    def graph(self, graph: onnx.GraphProto, outer: Mapping[str, str]) -> None:
        own = {name: self.own(name) for name in dict.fromkeys(declared(graph))}
        names = {name: new for name, new in outer.items() if name not in own}
        names |= {name: new for name, new in own.items() if name != new}
        _rename_own(graph, names)
        for node in graph.node:
            self.node(node, names)

    def own(self, name: str) -> str:
        """Return a name that no value has yet: this one, or with a number."""
        new = name
        while new in self.used or (new != name and new in self.every):
            self.counts[name] += 1
            new = f"{name}{INNER}{self.counts[name] + 1}"
        self.used.add(new)
        if new != name:
            self.every.add(new)
            self.given[new] = name
        return new


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename what a node takes and makes."""
    for listed in (node.input, node.output) if names else ():
        for index, name in enumerate(listed):
            if name in names:
                listed[index] = names[name]


def _rename_own(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename inputs, outputs and stored tensors of a graph."""
    stored = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    for value in (*graph.input, *graph.output, *graph.value_info, *stored) if names else ():
        if value.name in names:
            value.name = names[value.name]
