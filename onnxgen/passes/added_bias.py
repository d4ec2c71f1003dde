"""A stored tensor that is added to a layer's result and varies along its channels is that layer's bias.

CNTK, Paddle and TensorFlow's converters write it so.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import ROOT
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import flattened, input_at
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Views


def added_bias(model: ir.Model, options: Options) -> None:
    """Give every convolution without a bias the one that is added to its result."""
    views = Views(model, options)
    for node in all_nodes(model.graph):
        if node.op_type in ("Conv", "ConvTranspose") and node.domain == "" and input_at(node, 2) is None:
            found = bias_of(node, 1, views)
            if found is not None:
                add, bias = found
                inputs = [*node.inputs[:2], flattened(bias, add)]
                attributes = list(node.attributes.values())
                replace(add, ir.Node("", node.op_type, inputs, attributes, version=node.version), origin=node)


def bias_of(node: ir.Node, channel: int, views: Views) -> tuple[ir.Node, ir.Value] | None:
    """The one Add that uses a layer's result, and the bias in it, which varies along the axis `channel` only."""
    result = node.outputs[0]
    shape, add = info(result).shape, only_user(result)
    if add is None or add.op_type != "Add" or add.domain != "" or add.attributes or shape is None:
        return None
    bias = add.inputs[1] if add.inputs[0] is result else add.inputs[0]
    dims, channels = info(bias).shape, shape[channel]
    if bias is None or dims is None or not dims or len(dims) > len(shape) or not isinstance(channels, int):
        return None
    aligned = [1] * (len(shape) - len(dims)) + list(dims)
    if aligned[channel] != channels or any(d != 1 for axis, d in enumerate(aligned) if axis != channel):
        return None
    return (add, bias) if _is_own(bias, node.inputs[1], views) else None


def _is_own(bias: ir.Value, weight: ir.Value | None, views: Views) -> bool:
    """Whether the names allow a stored bias to be the weight's partner: `conv.weight` has none called `shift`."""
    source, partner = views(bias), views(weight)
    if source is None or partner is None or ROOT.has(_beginning(bias)):
        return False
    module = {path[:-1] for name in partner.names if (path := param_path(name)) is not None}
    return all(path is None or path[:-1] in module for path in map(param_path, source.names))


def _beginning(value: ir.Value) -> ir.Value:
    """What a chain of views begins with."""
    producer = value.producer()
    while producer is not None and producer.inputs and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value
