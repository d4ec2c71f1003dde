"""Stored integers that are dequantised become stored floats, which are computed when they are written."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import PRODUCT, copy_all
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.quantized.fakes import fake_weight
from onnxgen.passes.quantized.layers import PACKED
from onnxgen.passes.quantized.scales import Scaled, factors
from onnxgen.passes.rewrite import replace
from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import Info, set_info
from onnxgen.weights.dequantised import BITS, LINEAR, TABLE, Dequantised, DequantisedTensor
from onnxgen.weights.stored import stored

BIASED = {"Conv", "ConvTranspose", "Gemm"}
# what quantisers append to the name of a tensor
# _Transposed: of a Gemm's weight for a MatMul (onnxruntime 1.32)
SUFFIX = re.compile(
    r"(_Transposed)?(_quantized|_quant|_DQ_Q\d+|_Q\d+(G\d+)?|_Bnb4|_[iq]nt8|_q8|_DequantizeLinear_Output)$"
)


def weights(model: ir.Model, mode: str) -> None:
    """Replace every such DequantizeLinear; those of one tensor and one scale are one float tensor."""
    names = _Names(model)
    made: dict[Dequantised, ir.Value] = {}
    faked: dict[tuple[Dequantised, object], ir.Value] = {}
    found = [(node, how) for node in all_nodes(model.graph) if (how := _how(node)) is not None]
    for node, how in found:  # all are found before the first is made, which may take the name of its integers
        if how not in made:
            made[how] = _initializer(model, node, how, names)
        if mode != "float" and (how, node.graph) not in faked:
            faked[how, node.graph] = fake_weight(node, made[how], how, mode)
        value = faked.get((how, node.graph), made[how])
        if node.outputs[0].is_graph_output() and node.graph is not model.graph:
            replace(node, ir.Node("", "Identity", [value]))  # an inner graph cannot hand out an outer value itself
            continue
        node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)


def note_products(model: ir.Model) -> None:
    """Note of each bias of integers the scales of input and weight, whose product its own is."""
    for node in all_nodes(model.graph):
        operands = [v.producer() if v is not None else None for v in node.inputs[:3]]
        if node.op_type not in BIASED or len(operands) < 3 or any(p is None for p in operands):
            continue
        x, weight, bias = (p for p in operands if p is not None)
        if all(p.op_type == "DequantizeLinear" for p in (x, weight, bias)) and len(bias.outputs[0].uses()) == 1:
            scales = [factors(Scaled.of(p).scale) for p in (x, weight)]
            if all(scales) and _is_product(bias.inputs[1], [v for found in scales for v in found or ()]):
                PRODUCT.set(bias, tuple(v.name or "" for found in scales for v in found or ()))


def _is_product(scale: ir.Value | None, parts: list[ir.Value]) -> bool:
    """Whether a stored scale is what some stored scales come to."""
    tensor, factor = stored(scale), np.ones(1, np.float32)
    for part in (stored(v) for v in parts):
        if part is None or tensor is None or part.size not in (1, tensor.size):
            return False
        factor = factor * part.numpy().astype(np.float32).reshape(-1)
    return tensor is not None and scale not in parts and bool(np.allclose(tensor.numpy().reshape(-1), factor, 1e-3, 0))


def _how(node: ir.Node) -> Dequantised | None:
    """How the stored tensor that a node dequantises stands for floats; None if that is another node, or computed."""
    if node.op_type not in ("DequantizeLinear", PACKED) or node.inputs[0] is None or node.inputs[0].is_graph_input():
        return None
    return _packed(node) if node.op_type == PACKED else _linear(node)


def _linear(node: ir.Node) -> Dequantised | None:
    """How the stored tensor of a DequantizeLinear stands for floats; None if anything is computed."""
    scaled, x = Scaled.of(node), node.inputs[0]
    tensor, scales = stored(x), factors(scaled.scale)
    if tensor is None or scales is None or x is None or "output_dtype" in node.attributes:
        return None
    if scaled.zero is not None and stored(scaled.zero) is None:
        return None
    if x in scales or not (tensor.dtype.is_integer() or tensor.dtype.is_floating_point()):
        return None
    shape = tuple(int(d) for d in tensor.shape.numpy())
    axis = 0 if scaled.is_single or not shape else scaled.axis % len(shape)
    block = 0 if scaled.is_single else scaled.block
    zero = "" if scaled.zero is None else scaled.zero.name or ""
    names, product = tuple(v.name or "" for v in scales), PRODUCT.get(node)
    return Dequantised(x.name or "", names, zero, shape, axis, block, LINEAR, product=product)


def _packed(node: ir.Node) -> Dequantised | None:
    x, scale, zero = node.inputs[0], node.inputs[1], input_at(node, 2)
    if x is None or scale is None or any(stored(v) is None for v in (x, scale)):
        return None
    if zero is not None and stored(zero) is None:
        return None
    form = node.attributes["form"].as_string()
    bits = node.attributes["bits"].as_int() if form == BITS else 0
    kind = node.attributes["kind"].as_int() if form == TABLE else 0
    shape = tuple(int(d) for d in node.attributes["shape"].as_ints())
    block, name = node.attributes["block"].as_int(), "" if zero is None else zero.name or ""
    return Dequantised(x.name or "", (scale.name or "",), name, shape, 1, block, form, bits, kind)


def _initializer(model: ir.Model, node: ir.Node, how: Dequantised, names: _Names) -> ir.Value:
    """A float initializer, under the name that the tensor had before it was quantised."""
    source = node.inputs[0]
    assert source is not None
    values = (source, *(factors(Scaled.of(node).scale) or ()), *(v for v in [input_at(node, 2)] if v is not None))
    tensors = {name: t for name, v in zip(how.names, values, strict=True) if (t := stored(v)) is not None}
    tensor = DequantisedTensor(how, tensors, names.take_over(how.tensor, source, node.outputs[0]))
    shape = ir.Shape(how.shape)
    value = ir.Value(name=tensor.name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    copy_all(source, value)
    value.metadata_props.update(source.metadata_props)
    set_info(value, Info(tensor.dtype, how.shape))
    model.graph.register_initializer(value)
    return value


class _Names:
    """Names that nothing in the graph has."""

    def __init__(self, model: ir.Model) -> None:
        self.taken = {v.name for g in model.graphs() for v in (*g.inputs, *g.initializers.values())}
        self.taken |= {o.name for node in all_nodes(model.graph) for o in node.outputs}

    def take_over(self, stored: str, integers: ir.Value, floats: ir.Value) -> str:
        """What a tensor was called before it was quantised, as far as the names of its integers and floats tell.

        Args:
            stored: what the file calls the integers.
            integers, floats: which may be renamed, if they have that name.
        """
        name = SUFFIX.sub("", stored) or stored or "weight"
        if name == integers.name:
            integers.name = self._free(f"{name}.integers")
        elif name == floats.name:
            floats.name = self._free(f"{name}.floats")
        else:
            name = self._free(name)
        return name

    def _free(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name
