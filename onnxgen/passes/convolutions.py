"""Convolutions and pools as torch's layers: their padding, their bias, one row, global means.

    conv(F.pad(x, (1, 1, 1, 1)))            is    nn.Conv2d(..., padding=1)
    Squeeze(Conv(Unsqueeze(x, 2), w), 2)    is    Conv(x, Squeeze(w, 2)), which is an nn.Conv1d

Padding is the layer's own for zeros before a convolution or before an average pool that counts them, and for -inf
before a max pool. Unequal sides stay a Pad: torch's layers pad both sides alike. TensorFlow computes Conv1D as a
convolution of images with one row, and its converters write it so.

A stored tensor that is added to a convolution's result and varies along its channels only is its bias. CNTK, Paddle and
TensorFlow's converters write biases so.

The mean over all axes behind the channels, with `keepdims`, becomes GlobalAveragePool. Torch's dynamo exporter writes
adaptive pooling to one element like this. The pass only rewrites images and volumes: the mean over the last axis of a
sequence is more often a statistic.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxgen.graph.annotations import ROOT
from onnxgen.graph.nodes import FLOATS, made_by
from onnxgen.graph.operators import having_all, is_a
from onnxgen.graph.traits import PICKS, PRODUCT, SAMPLES
from onnxgen.options import Options
from onnxgen.passes.match import ints, other, reduction, scalar, shape_of, standard_nodes
from onnxgen.passes.rewrite import drop, flattened, input_at, insert, known_ints, only_user, replace
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import Info, info
from onnxgen.weights.stored import Views, stored

ROW = 2  # the axis of the one row


def one_row(model: ir.Model, options: Options) -> None:
    """Take the row out before every such convolution."""
    for node in standard_nodes(model, "Conv"):
        squeeze = only_user(node.outputs[0], "Squeeze")
        x, weight = node.inputs[:2]
        if squeeze is None or x is None or weight is None or stored(weight) is None or not _has_one_row(node):
            continue
        turned = made_by(x, "Transpose")
        is_new = made_by(x if turned is None else turned.inputs[0], "Unsqueeze") is not None
        if is_new and ints(squeeze, "axes", 1) in ([ROW], [ROW - 4]):
            name = squeeze.outputs[0].name
            inputs = [_without_row(node, x, f"{name}.x"), _without_row(node, weight, f"{name}.w"), *node.inputs[2:]]
            attributes = [_of_columns(attribute) for attribute in node.attributes.values()]
            replace(squeeze, ir.Node("", "Conv", inputs, attributes, version=node.version), origin=node)


def _has_one_row(node: ir.Node) -> bool:
    """True if an image has one row, and the kernel, which neither pads rows nor steps over them."""
    shape, kernel = shape_of(node.inputs[0]), shape_of(node.inputs[1])
    pads = node.attributes.get_ints("pads", [0] * 4)
    return len(shape) == len(kernel) == 4 and shape[ROW] == kernel[ROW] == 1 and pads[0] == pads[2] == 0


def _of_columns(attribute: ir.Attr) -> ir.Attr:
    if attribute.name not in ("kernel_shape", "strides", "dilations", "pads"):
        return attribute
    return ir.AttrInt64s(attribute.name, attribute.as_ints()[1::2])


def _without_row(node: ir.Node, value: ir.Value, name: str) -> ir.Value:
    shape, squeeze = shape_of(value), ir.node("Squeeze", [value, known_ints([ROW])], version=13)
    return insert(node, squeeze, name, Info(info(value).dtype, (*shape[:ROW], *shape[ROW + 1 :])), node)


def paddings(model: ir.Model, options: Options) -> None:
    """Move the padding of every Pad that only one layer uses into the layer."""
    for node in standard_nodes(model, "Conv", "AveragePool", "MaxPool"):
        pad = made_by(node.inputs[0], "Pad")
        if pad is None or only_user(pad.outputs[0]) is not node or pad.inputs[0] is None:
            continue
        pads = _total(node, pad)
        if pads is None or _number(pad) != (-math.inf if is_a(node, PICKS) else 0.0):
            continue
        node.replace_input_with(0, pad.inputs[0])
        node.attributes.add(ir.AttrInt64s("pads", pads))
        node.attributes.pop("auto_pad", None)
        if node.op_type == "AveragePool":
            node.attributes.add(ir.AttrInt64("count_include_pad", 1))
        drop(pad)


def _total(node: ir.Node, pad: ir.Node) -> list[int] | None:
    """Return the sum of both paddings as the layer's attribute `pads`; None if one layer cannot apply it."""
    rank, sides = info(pad.inputs[0]).rank, _sides(pad)
    if not rank or sides is None or len(sides) != 2 * rank or any(sides[:2]) or any(sides[rank : rank + 2]):
        return None
    outer, auto_pad = [*sides[2:rank], *sides[rank + 2 :]], node.attributes.get_string("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID"):
        return None
    pads = node.attributes.get_ints("pads", None) if auto_pad == "NOTSET" else None
    own = [0] * len(outer) if pads is None else list(pads)
    half = len(outer) // 2
    total = [a + b for a, b in zip(outer, own)]
    if min(outer) < 0 or len(own) != len(outer) or total[:half] != total[half:]:
        return None
    return total if node.op_type == "Conv" or _can_pool(node, own, total) else None


def _can_pool(node: ir.Node, own: list[int], total: list[int]) -> bool:
    """True if torch's pool allows so much padding, and the pool's own padding, if any, is of the same kind."""
    kernel, has = node.attributes.get_ints("kernel_shape", ()), node.attributes.get_int
    if node.op_type == "AveragePool" and any(own) and not has("count_include_pad", 0):
        return False
    if has("ceil_mode", 0) or len(node.outputs) > 1:
        return False
    return len(kernel) * 2 == len(total) and all(2 * p <= k for p, k in zip(total, kernel))


def _sides(pad: ir.Node) -> list[int] | None:
    """Return the padding of a constant Pad for each axis, all beginnings first; None if unknown or of other mode."""
    rank = info(pad.inputs[0]).rank
    if pad.attributes.get_string("mode", "constant") != "constant" or not rank:
        return None
    pads = ints(pad, "paddings" if "paddings" in pad.attributes else "pads", 1)
    axes = list(range(rank)) if input_at(pad, 3) is None else [a % rank for a in ints(pad, "axes", 3) or ()]
    if pads is None or len(pads) != 2 * len(axes) or not axes:
        return None
    sides = [0] * 2 * rank
    for axis, begin, end in zip(axes, pads, pads[len(axes) :]):
        sides[axis], sides[rank + axis] = begin, end
    return sides


def _number(pad: ir.Node) -> float | None:
    value = input_at(pad, 2)
    return pad.attributes.get_float("value", 0.0) if value is None else scalar(value)


def added_bias(model: ir.Model, options: Options) -> None:
    """Give every convolution without a bias the one that is added to its result."""
    views = Views(model, options)
    for node in standard_nodes(model, *having_all(PRODUCT, SAMPLES)):
        added = added_vector(node, 1) if input_at(node, 2) is None else None
        if added is not None and _may_belong_together(added[1], node.inputs[1], views):
            add, bias = added
            inputs, attributes = [*node.inputs[:2], flattened(bias, add)], list(node.attributes.values())
            replace(add, ir.Node("", node.op_type, inputs, attributes, version=node.version), origin=node)


def added_vector(node: ir.Node, axis: int) -> tuple[ir.Node, ir.Value] | None:
    """Return the Add that is the only user of a node, and its other operand if that varies along one static axis."""
    result = node.outputs[0]
    shape, add = shape_of(result), only_user(result, "Add")
    vector = None if add is None else other(add, result)
    dims = shape_of(vector)
    if add is None or add.attributes or vector is None or not dims or len(dims) > len(shape):
        return None
    wanted: list[object] = [1] * len(shape)
    wanted[axis] = shape[axis]
    is_vector = isinstance(shape[axis], int) and [1] * (len(shape) - len(dims)) + list(dims) == wanted
    return (add, vector) if is_vector else None


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


def pooling(model: ir.Model, options: Options) -> None:
    """Rewrite every such mean; a Squeeze that removes the pooled axes becomes Flatten, as a person would write it."""
    for node in standard_nodes(model, "ReduceMean", "Squeeze"):
        facts = info(node.outputs[0])
        if node.op_type == "ReduceMean":
            mean = reduction(node.outputs[0], "ReduceMean") if facts.dtype in FLOATS else None
            rank = None if mean is None else info(mean.x).rank
            if mean is not None and rank in (4, 5) and mean.axes == tuple(range(2, rank)) and mean.keepdims:
                replace(node, ir.node("GlobalAveragePool", [mean.x], version=1))
        elif made_by(node.inputs[0], "GlobalAveragePool", "GlobalMaxPool") and facts.rank == 2:
            if facts.shape == (info(node.inputs[0]).shape or ())[:2]:
                replace(node, ir.node("Flatten", [node.inputs[0]], {"axis": 1}, version=13))
