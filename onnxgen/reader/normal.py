"""Rewrite unusual but unambiguous forms of the protobuf into those that onnx_ir understands.

- `normalize`: the model must have passed `check`, and still computes the same. These forms are rewritten: missing
  attribute types, types that onnx_ir cannot hold, subgraphs that return an outer value, types spelled as text, a
  missing axis that was once optional, an operand that counts for nothing, sparse constants, a missing ai.onnx import.
- `drop_duplicates` removes repeated Constant nodes: those with the same output name and the same contents in one graph.
  onnxruntime loads such files. It also loads files where constants of one name differ, and silently picks one.
  `reader.check` refuses those.
- `distinct` gives every value of a file a name of its own, since names are scoped in ONNX. Two branches, loop bodies or
  merged networks may each store a tensor `w`, and a value of an inner graph may hide one of a graph around it (IR.md,
  "Names within a graph"). Behind the reader, and in the sidecar's record, a name is one value. The names of the main
  graph stay, and of several inner values with one name the first keeps it.
- `separate`: tools write `?`, `None`, `-1` or `unk` for every size that they do not know, so one such text at two axes
  does not promise that they are equal, as `batch` does: each axis becomes a size of its own. A name that occurs once
  stays: it is as good as any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx

from onnxgen.common.names import INNER
from onnxgen.reader.check import attribute_type
from onnxgen.reader.protos import declared, every_node, graphs_of, inner_graphs, put, with_inner
from onnxgen.reader.tensors import dense, settle_type


def distinct(model: onnx.ModelProto) -> dict[str, str]:
    """Rename values of inner graphs, in place, so that no two values of the graph, or of a function, have one name.

    Returns:
        the name in the file of each new name; `restore` takes them.
    """
    roots = [model.graph, *model.functions]
    if not any(True for whole in roots for node in whole.node for _ in inner_graphs(node)):
        return {}
    every, original = set[str]().union(*map(all_names, roots)), dict[str, str]()
    for whole in roots:
        walk = _Distinct(every, original, set(declared(whole)))
        for node in whole.node:
            walk.node(node, {})
    return original


def restore(model: onnx.ModelProto, original: Mapping[str, str]) -> None:
    """Give values the names of the file again, where `distinct` has given them others."""
    for node in every_node(model) if original else ():
        _rename(node, original)
        for graph in inner_graphs(node):
            _rename_own(graph, original)


def all_names(whole: onnx.GraphProto | onnx.FunctionProto) -> set[str]:
    """Return the names of all values of a graph or a function, and of its inner graphs."""
    graphs = [inner for node in with_inner(whole.node) for inner in inner_graphs(node)]
    return set[str]().union(*map(declared, (whole, *graphs)))


class _Distinct:
    """Renames the values of the inner graphs of one graph or function.

    Attributes:
        every: all names of the file.
        original: the name in the file of each new name.
        used: the names that a value of this graph or function has by now.
    """

    def __init__(self, every: set[str], original: dict[str, str], used: set[str]) -> None:
        self.every, self.original, self.used = every, original, used
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
            self.original[new] = name
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


def drop_duplicates(proto: onnx.ModelProto) -> None:
    """Remove repeated Constant nodes from every graph and function."""
    _in_nodes(proto.graph.node)
    for function in proto.functions:
        _in_nodes(function.node)


def _in_nodes(nodes: Any) -> None:
    first: dict[str, onnx.AttributeProto] = {}
    kept = []
    for node in nodes:
        is_constant = node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        if is_constant and len(node.output) == len(node.attribute) == 1:
            name, value = node.output[0], node.attribute[0]
            if name in first and first[name] == value:
                continue
            first.setdefault(name, value)
        kept.append(node)
    if len(kept) < len(nodes):
        put(nodes, kept)
    for node in nodes:
        for graph in inner_graphs(node):
            _in_nodes(graph.node)


# Words that say "unknown": of CNTK and onnxmltools (None), tf2onnx and onnxruntime (unk__6), exporters' scripts.
UNKNOWN = frozenset(
    "none null nil nan na unk unknown undefined undef undetermined unspecified unnamed any dynamic dyn variable".split()
)
_SIZES = frozenset("dim dims dimension axis size length shape".split())  # they add nothing: `unknown_dim`
_WRITTEN = re.compile(r"[\w\s.:+*/%(),-]+")  # a name, or an expression as torch writes it: `s0 + 1`, `floor(h/2)`


def is_placeholder(text: str | bytes) -> bool:
    """Return True if the name of a dim, or an expression with it, only says that its size is unknown."""
    if isinstance(text, bytes) or _WRITTEN.fullmatch(text) is None:  # protobuf returns bytes that are not UTF-8
        return True
    words = [re.findall(r"[^\W\d_]+", word.lower()) for word in re.split(r"[^\w]+", text)]
    words = [parts for parts in words if parts]
    return not words or any(_says_unknown(parts) for parts in words)


def _says_unknown(parts: list[str]) -> bool:
    return any(part in UNKNOWN for part in parts) and all(part in UNKNOWN or part in _SIZES for part in parts)


def separate(model: onnx.ModelProto) -> None:
    """Remove, in place, the placeholders that stand for several sizes. The propagation names such dims by their axis.

    No later stage reads a size from the declarations of other values than inputs, so those lose every placeholder.
    """
    dims = list(_dims(model.graph.input))
    count = Counter(dim.dim_param for dim in dims)
    stale = [dim for dim in dims if count[dim.dim_param] > 1]
    stale += _dims([*model.graph.output, *model.graph.value_info])
    for graph in (inner for node in every_node(model) for inner in inner_graphs(node)):
        stale += _dims([*graph.input, *graph.output, *graph.value_info])
    for dim in stale:
        if dim.HasField("dim_param") and is_placeholder(dim.dim_param):
            dim.ClearField("dim_param")


def _dims(values: Iterable[onnx.ValueInfoProto]) -> Iterator[onnx.TensorShapeProto.Dimension]:
    return (dim for value in values for dim in _dims_of(value.type))


def _dims_of(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the dims of a tensor, or those of the elements of a list or an optional."""
    for inner in (kind.sequence_type, kind.optional_type):
        if inner.HasField("elem_type"):
            yield from _dims_of(inner.elem_type)
    yield from kind.tensor_type.shape.dim
    yield from kind.sparse_tensor_type.shape.dim


def normalize(proto: onnx.ModelProto) -> None:
    """Rewrite `proto` in place (see the module docstring)."""
    if not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
        # Files before IR version 3 use opset 1. In newer files no node is of ai.onnx, as `check` has made sure.
        proto.opset_import.append(onnx.OperatorSetIdProto(domain="", version=1))
    _graph(proto.graph, set())
    for function in proto.functions:
        for attribute in function.attribute_proto:
            _attribute(attribute, set())
        for info in function.value_info:
            settle_type(info)
        _nodes(function.node, {*function.input, *(name for node in function.node for name in node.output)})


def _graph(graph: onnx.GraphProto, outer: set[str]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        settle_type(info)
    _declare_once(graph)
    graph.initializer.extend(dense(sparse) for sparse in graph.sparse_initializer)
    graph.ClearField("sparse_initializer")
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    _copy_outer_outputs(graph, own, outer)
    _nodes(graph.node, outer | own if any(True for node in graph.node for _ in inner_graphs(node)) else outer)


def _declare_once(graph: onnx.GraphProto) -> None:
    """Keep the first declaration of an input that is also an output: onnx_ir would keep the last, with less detail."""
    inputs = {info.name: info.type for info in graph.input if info.type.tensor_type.HasField("shape")}
    for info in (*graph.output, *graph.value_info):
        if info.name in inputs:
            info.type.CopyFrom(inputs[info.name])


def _copy_outer_outputs(graph: onnx.GraphProto, own: set[str], outer: set[str]) -> None:
    """Insert an Identity where a subgraph returns a value of an outer graph: onnx_ir would lose that output."""
    for info in graph.output:
        if info.name not in own and info.name in outer:
            name = info.name + "_copy"
            while name in own or name in outer:
                name += "_"
            graph.node.append(onnx.NodeProto(op_type="Identity", input=[info.name], output=[name]))
            info.name = name
            own.add(name)


def _nodes(nodes: Iterable[onnx.NodeProto], names: set[str]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            _attribute(attribute, names)
            if (node.op_type, attribute.name, attribute.type) == ("Cast", "to", onnx.AttributeProto.STRING):
                _type_as_number(attribute)
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense(attribute.sparse_tensor)))
        if not node.domain and len(node.input) == 3 and any(a.name == "beta" and a.f == 0 for a in node.attribute):
            del node.input[2:]  # Gemm's C counts for nothing, whatever it is
        if (node.domain, node.op_type) == ("", "Concat") and not any(a.name == "axis" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("axis", 1))  # the default of Concat-1


def _type_as_number(attribute: onnx.AttributeProto) -> None:
    """Replace a type spelled as text by its number (Cast-1 has "FLOAT")."""
    name = attribute.s.decode("utf-8", "replace").upper()
    types = dict(onnx.TensorProto.DataType.items())
    if name in types:
        attribute.ClearField("s")
        attribute.type, attribute.i = onnx.AttributeProto.INT, types[name]


def _attribute(attribute: onnx.AttributeProto, names: set[str]) -> None:
    if not attribute.type and not attribute.ref_attr_name:
        attribute.type = attribute_type(attribute)  # type: ignore[assignment]
    for graph in graphs_of(attribute):
        _graph(graph, names)
