"""A copy of a file that computes in float64 wherever onnxruntime has a kernel for that.

Its float32 kernels approximate some functions. The Sigmoid of 1.32 is wrong by up to 1e-7, whatever the size of the
result: a map of probabilities near 1e-8 consists of such errors. With float64 these are gone, and the rest is the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto

from onnxgen.verify.oracle import Onnxruntime, Refused, copied

_WIDER: dict[int, int] = {TensorProto.FLOAT: TensorProto.DOUBLE}


def in_float64(path: Path, model: onnx.ModelProto, types: Mapping[str, int]) -> onnx.ModelProto:
    """Return the copy: each node that has such a kernel is put between casts. Raises `Refused` if none has.

    Args:
        types: ONNX's element types of the graph's values, as far as they are known.
    """
    made = copied(model)
    graph = made.graph
    kinds = {**types, **{tensor.name: tensor.data_type for tensor in graph.initializer}}
    kinds |= {v.name: v.type.tensor_type.elem_type for v in graph.input if v.type.HasField("tensor_type")}
    has_kernel: dict[bytes, bool] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        key = _key(node, kinds)
        if key is not None and key not in has_kernel:
            has_kernel[key] = _runs(path, made, node, kinds)
        nodes += _between_casts(node, kinds) if key is not None and has_kernel[key] else [node]
    if not any(has_kernel.values()):
        raise Refused("onnxruntime computes nothing of it in float64")
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _key(node: NodeProto, kinds: Mapping[str, int]) -> bytes | None:
    """Return what decides if there is a kernel; None for a node that takes or returns no float32, or is not known."""
    names = [name for name in (*node.input, *node.output) if name]
    floats = [any(kinds.get(n) in _WIDER for n in side) for side in (node.input, node.output)]
    if not all(floats) or not all(kinds.get(name) for name in names):
        return None
    bare = NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    bare.input[:] = [str(kinds.get(name, 0)) for name in node.input]
    bare.output[:] = [str(kinds.get(name, 0)) for name in node.output]
    return bytes(bare.SerializeToString())


def _runs(path: Path, model: onnx.ModelProto, node: NodeProto, kinds: Mapping[str, int]) -> bool:
    """Return True if onnxruntime loads the node alone, with float64 for float32."""

    def port(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, _WIDER.get(kinds[name], kinds[name]), None)

    taken, given = ([port(name) for name in dict.fromkeys(side) if name] for side in (node.input, node.output))
    alone = onnx.ModelProto(ir_version=model.ir_version)
    alone.opset_import.extend(model.opset_import)
    alone.functions.extend(model.functions)
    alone.graph.CopyFrom(onnx.helper.make_graph([node], "alone", taken, given))
    try:
        Onnxruntime(path, alone, ())
    except Refused:
        return False
    return True


def _between_casts(node: NodeProto, kinds: Mapping[str, int]) -> list[NodeProto]:
    """Return the node in float64, with a cast of each input and output."""
    wide, made, after = NodeProto(), list[NodeProto](), list[NodeProto]()
    wide.CopyFrom(node)
    for i, name in enumerate(node.input):
        if kinds.get(name) in _WIDER:
            wide.input[i] = f"{node.output[0]}/wide/{i}"
            made.append(cast(name, wide.input[i], _WIDER[kinds[name]]))
    for i, name in enumerate(node.output):
        if kinds.get(name) in _WIDER:
            wide.output[i] = f"{name}/wide"
            after.append(cast(wide.output[i], name, kinds[name]))
    return [*made, wide, *after]


def cast(source: str, target: str, kind: int) -> NodeProto:
    """Return a node that converts a value to an element type of ONNX."""
    return onnx.helper.make_node("Cast", [source], [target], to=kind)
