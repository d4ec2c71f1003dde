"""Replace dequantised stored integers by stored floats, which are computed when they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import PRODUCT, copy_all
from onnxgen.graph.nodes import all_graphs, all_nodes, made_by
from onnxgen.graph.operators import known
from onnxgen.passes.quantized.layers import PACKED
from onnxgen.passes.quantized.moved import Scaled, factors
from onnxgen.passes.quantized.pairs import fake_weight
from onnxgen.passes.rewrite import input_at, replace
from onnxgen.shapes.info import Info, set_info
from onnxgen.weights.dequantised import BITS, LINEAR, TABLE, Dequantised, DequantisedTensor
from onnxgen.weights.stored import stored

# suffixes that quantisers append to the name of a tensor
# _Transposed: the weight of a Gemm that became a MatMul (onnxruntime 1.32)
SUFFIX = re.compile(
    r"(_Transposed)?(_quantized|_quant|_DQ_Q\d+|_Q\d+(G\d+)?|_Bnb4|_[iq]nt8|_q8?|_DequantizeLinear_Output)$"
)


def weights(model: ir.Model, mode: str) -> None:
    """Replace every DequantizeLinear of a stored tensor. The same tensor and scale make one float tensor."""
    taken = set(_taken(model))
    initializers: dict[Dequantised, ir.Value] = {}
    faked: dict[tuple[Dequantised, object], ir.Value] = {}
    dequantisers = [(node, how) for node in all_nodes(model.graph) if (how := _how(node)) is not None]
    for node, how in dequantisers:  # searched first, since a new tensor may take over the name of its integers
        if how not in initializers:
            initializers[how] = _initializer(model, node, how, taken)
        if mode != "float" and (how, node.graph) not in faked:
            faked[how, node.graph] = fake_weight(node, initializers[how], how, mode)
        value = faked.get((how, node.graph), initializers[how])
        if node.outputs[0].is_graph_output() and node.graph is not model.graph:
            replace(node, ir.Node("", "Identity", [value]))  # an inner graph can't return an outer value directly
            continue
        node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)


def note_products(model: ir.Model) -> None:
    """Note at each bias of integers the scales of input and weight, if its own scale is their product."""
    for node in all_nodes(model.graph):
        places = (0, known(node).matrix, known(node).bias)
        dequantisers = [made_by(input_at(node, i), "DequantizeLinear") for i in places if i is not None]
        x, weight, bias = dequantisers if len(dequantisers) == 3 else (None, None, None)
        if x is None or weight is None or bias is None or len(bias.outputs[0].uses()) != 1:
            continue
        parts = _joint_factors(x, weight)
        if parts and _is_product(bias.inputs[1], parts):
            PRODUCT.set(bias, tuple(map(_name, parts)))


def _joint_factors(*dequantisers: ir.Node) -> list[ir.Value]:
    """Return the stored tensors whose product is that of the scales; [] if a scale is computed otherwise."""
    parts = [factors(Scaled.of(node).scale) for node in dequantisers]
    return [v for part in parts for v in part or ()] if all(parts) else []


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _is_product(scale: ir.Value | None, parts: list[ir.Value]) -> bool:
    """Return True if a stored scale is the product of other stored scales."""
    tensor, factor = stored(scale), np.ones(1, np.float32)
    for part in (stored(v) for v in parts):
        if part is None or tensor is None or part.size not in (1, tensor.size):
            return False
        factor = factor * part.numpy().astype(np.float32).reshape(-1)
    return tensor is not None and scale not in parts and bool(np.allclose(tensor.numpy().reshape(-1), factor, 1e-3, 0))


def _how(node: ir.Node) -> Dequantised | None:
    """Return how a node dequantises a stored tensor to floats. None for other nodes, or if anything is computed."""
    if node.op_type not in ("DequantizeLinear", PACKED) or node.inputs[0] is None or node.inputs[0].is_graph_input():
        return None
    return _packed(node) if node.op_type == PACKED else _linear(node)


def _linear(node: ir.Node) -> Dequantised | None:
    scaled, x = Scaled.of(node), node.inputs[0]
    tensor, scales = stored(x), factors(scaled.scale)
    if tensor is None or scales is None or x in scales or "output_dtype" in node.attributes:
        return None
    if scaled.zero is not None and stored(scaled.zero) is None:
        return None
    if not (tensor.dtype.is_integer() or tensor.dtype.is_floating_point()):
        return None
    shape = tuple(int(d) for d in tensor.shape.numpy())
    axis = 0 if scaled.is_single or not shape else scaled.axis % len(shape)
    block, names = 0 if scaled.is_single else scaled.block, tuple(map(_name, scales))
    return Dequantised(_name(x), names, _name(scaled.zero), shape, axis, block, LINEAR, product=PRODUCT.get(node))


def _packed(node: ir.Node) -> Dequantised | None:
    x, scale, zero = node.inputs[0], node.inputs[1], input_at(node, 2)
    if stored(x) is None or stored(scale) is None or zero is not None and stored(zero) is None:
        return None
    form, block = node.attributes["form"].as_string(), node.attributes["block"].as_int()
    bits = node.attributes["bits"].as_int() if form == BITS else 0
    kind = node.attributes["kind"].as_int() if form == TABLE else 0
    shape = tuple(int(d) for d in node.attributes["shape"].as_ints())
    return Dequantised(_name(x), (_name(scale),), _name(zero), shape, 1, block, form, bits, kind)


def _initializer(model: ir.Model, node: ir.Node, how: Dequantised, taken: set[str]) -> ir.Value:
    """Return a float initializer with the name that the tensor had before it was quantised."""
    source = node.inputs[0]
    assert source is not None
    values = (source, *(factors(Scaled.of(node).scale) or ()), *(v for v in [input_at(node, 2)] if v is not None))
    tensors = {name: t for name, v in zip(how.names, values, strict=True) if (t := stored(v)) is not None}
    tensor = DequantisedTensor(how, tensors, _take_over(taken, how.tensor, source, node.outputs[0]))
    shape = ir.Shape(how.shape)
    value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    copy_all(source, value)
    value.metadata_props.update(source.metadata_props)
    set_info(value, Info(tensor.dtype, how.shape))
    model.graph.register_initializer(value)
    return value


def _taken(model: ir.Model) -> Iterator[str]:
    """Yield the names of all values."""
    for graph in all_graphs(model.graph):
        yield from (v.name or "" for v in (*graph.inputs, *graph.initializers.values()))
        yield from (output.name or "" for node in graph for output in node.outputs)


def _take_over(taken: set[str], stored: str, integers: ir.Value, floats: ir.Value) -> str:
    """Return the name that a tensor had before it was quantised, as far as the other names show it.

    Args:
        stored: the name of the integers in the file.
        integers, floats: these values are renamed if they have the returned name.
    """
    name = SUFFIX.sub("", stored) or stored or "weight"
    if name == integers.name:
        integers.name = _free(taken, f"{name}.integers")
    elif name == floats.name:
        floats.name = _free(taken, f"{name}.floats")
    else:
        name = _free(taken, name)
    return name


def _free(taken: set[str], name: str) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
