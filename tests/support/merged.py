"""Merged decoders, by optimum's rules: an `If` whose branches are one network with and without a key/value cache."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

CONDITION = "use_cache_branch"


def merged(with_cache: onnx.ModelProto, without: onnx.ModelProto) -> onnx.ModelProto:
    """Merge two files. Equal weights are stored once, with a suffix; missing outputs are empty constants."""
    first, other = with_cache.graph, without.graph
    shared = _shared_weights([first, other])
    missing = [o for o in other.output if o.name not in {each.name for each in first.output}]
    for output in missing:
        dims = [d.dim_value or 1 for d in output.type.tensor_type.shape.dim]
        empty = numpy_helper.from_array(np.zeros([0, *dims[1:]], np.float32))
        first.node.append(helper.make_node("Constant", [], [output.name], value=empty))
        first.output.append(output)
    order = {o.name: i for i, o in enumerate(other.output)}
    outputs = sorted(first.output, key=lambda o: order[o.name])
    branches = {
        "then_branch": helper.make_graph(first.node, "with_past", [], outputs),
        "else_branch": helper.make_graph(other.node, "no_past", [], list(other.output)),
    }
    node = helper.make_node("If", [CONDITION], list(order), name="optimum::if", **branches)
    inputs = {i.name: i for graph in (other, first) for i in graph.input}
    condition = helper.make_tensor_value_info(CONDITION, onnx.TensorProto.BOOL, [1])
    graph = helper.make_graph([node], "merged", [*inputs.values(), condition], list(other.output), shared)
    made = helper.make_model(graph, opset_imports=with_cache.opset_import, producer_name="optimum-onnx", ir_version=9)
    onnx.checker.check_model(made)
    return made


def _shared_weights(graphs: list[onnx.GraphProto]) -> list[onnx.TensorProto]:
    """Return all weights, equal ones once. Those of both files get a suffix, and the nodes are given their names."""
    made: dict[bytes, onnx.TensorProto] = {}
    for graph in graphs:
        names = {}
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            content = repr((array.dtype, array.shape)).encode() + array.tobytes()
            if content in made and graph is graphs[1] and not made[content].name.endswith("_merged_0"):
                names[made[content].name] = made[content].name + "_merged_0"
                for node in graphs[0].node:
                    _rename(node, {made[content].name: made[content].name + "_merged_0"})
                made[content].name += "_merged_0"
            names[tensor.name] = made.setdefault(content, tensor).name
        for node in graph.node:
            _rename(node, names)
    return list(made.values())


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    for i, name in enumerate(node.input):
        node.input[i] = names.get(name, name)
