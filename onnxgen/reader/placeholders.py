"""Dims whose names stand for "unknown": each axis is a size of its own.

Tools write `?`, `None`, `-1` or `unk` for every size that they do not know, so one such text at two axes does not
promise that they are equal, as `batch` does. A name that occurs once stays: it is as good as any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import onnx

from onnxgen.reader.protos import every_node, inner_graphs

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
    dims = [dim for value in model.graph.input for dim in _dims(value.type)]
    count = Counter(dim.dim_param for dim in dims)
    graphs = [model.graph, *(inner for node in every_node(model) for inner in inner_graphs(node))]
    declared = [value for graph in graphs for value in (*graph.output, *graph.value_info)]
    declared += [value for graph in graphs[1:] for value in graph.input]
    for dim in dims:
        if count[dim.dim_param] > 1 and is_placeholder(dim.dim_param):
            dim.ClearField("dim_param")
    for value in declared:
        for dim in _dims(value.type):
            if dim.HasField("dim_param") and is_placeholder(dim.dim_param):
                dim.ClearField("dim_param")


def _dims(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the dims of a tensor, or those of the elements of a list or an optional."""
    for inner in (kind.sequence_type, kind.optional_type):
        if inner.HasField("elem_type"):
            yield from _dims(inner.elem_type)
    yield from kind.tensor_type.shape.dim
    yield from kind.sparse_tensor_type.shape.dim
