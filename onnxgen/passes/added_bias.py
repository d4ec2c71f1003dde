"""A stored tensor that is added to a convolution's result and varies along its channels only is its bias.

CNTK, Paddle and TensorFlow's converters write biases so.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import ROOT
from onnxgen.graph.catalogue import having_all
from onnxgen.graph.traits import PRODUCT, SAMPLES
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import flattened, input_at
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Views


def added_bias(model: ir.Model, options: Options) -> None:
    """Give every convolution without a bias the one that is added to its result."""
    views = Views(model, options)
    for node in standard_nodes(model, *having_all(PRODUCT, SAMPLES)):
        found = added_vector(node, 1) if input_at(node, 2) is None else None
        if found is not None and _may_belong_together(found[1], node.inputs[1], views):
            add, bias = found
            inputs, attributes = [*node.inputs[:2], flattened(bias, add)], list(node.attributes.values())
            replace(add, ir.Node("", node.op_type, inputs, attributes, version=node.version), origin=node)


def added_vector(node: ir.Node, axis: int) -> tuple[ir.Node, ir.Value] | None:
    """Return the Add that is the only user of a node, and its other operand if that varies along one static axis."""
    result = node.outputs[0]
    shape, add = info(result).shape, only_user(result, "Add")
    vector = None if add is None else other(add, result)
    dims = info(vector).shape
    if add is None or add.attributes or vector is None or not shape or not dims or len(dims) > len(shape):
        return None
    wanted: list[object] = [1] * len(shape)
    wanted[axis] = shape[axis]
    if not isinstance(shape[axis], int) or [1] * (len(shape) - len(dims)) + list(dims) != wanted:
        return None
    return add, vector


def _may_belong_together(bias: ir.Value, weight: ir.Value | None, views: Views) -> bool:
    """True if both are stored, and their names are not of different modules (`conv.weight`, `shift.bias`)."""
    source, partner = views(bias), views(weight)
    if source is None or partner is None or ROOT.has(_source(bias)):
        return False
    modules = {path[:-1] for name in partner.names if (path := param_path(name)) is not None}
    return all(path is None or path[:-1] in modules for path in map(param_path, source.names))


def _source(value: ir.Value) -> ir.Value:
    """Follow the first inputs of a chain of views to its start."""
    producer = value.producer()
    while producer is not None and producer.inputs and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value
