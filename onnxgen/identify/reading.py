"""The steps of an ONNX file.

The file is read as for a generation: what exporters, optimisers and quantisers spell differently is one operator then.
Only the passes that make layers of several steps are left out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import TypeGuard

import onnx_ir as ir

from onnxgen.errors import WrongRewrite
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes, subgraphs
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ACTIVATION, ADDS, CONVOLUTION, NORM, PRODUCT, RECURRENT, SCALES, SOFTMAX
from onnxgen.identify.steps import NOTHING, Network, Sources, Table
from onnxgen.options import Options
from onnxgen.passes import simplified
from onnxgen.plugins import plugged
from onnxgen.reader import read
from onnxgen.shapes.info import Info, info

LAYERS_OF_STEPS = dict.fromkeys(("transformer", "multihead", "recurrent"), "its steps are counted")
OPTIONS = Options(quantized="float")
QUANTISED = re.compile("QLinear|Quantize|Integer|QAttention|QGemm|QEmbed|MatMulNBits")
STANDARD = ("", DOMAIN)

# What the tables call a step, where that isn't the operator's name in small letters.
SHORT = {"leakyrelu": "leaky", "swish": "silu", "logsoftmax": "softmax", "sum": "add", "concat": "cat"}


def steps_of(path: Path) -> Reading:
    """Read the steps of a file. Raises `OnnxgenError` if it can't be read."""
    with plugged(OPTIONS):
        model, quantised = simplified_model(path)
        reading = reading_of(model.graph)
    reading.quantised = quantised
    return reading


def simplified_model(path: Path) -> tuple[ir.Model, bool]:
    """Read a file and run the passes, without those that hide steps. Returns also if it has quantised operators."""
    left_out, options, may_be_quantised = dict(LAYERS_OF_STEPS), Options(), True
    while True:
        model = read(path, options)
        if (
            may_be_quantised
            and options is not OPTIONS
            and any(QUANTISED.search(node.op_type) for node in all_nodes(model.graph))
        ):
            options = OPTIONS
            continue
        try:
            if simplified(model, options, left_out):
                return model, options is OPTIONS
        except WrongRewrite:
            if options is not OPTIONS:
                raise
            # the check refuses the floats of these integers, as it does in a generation: they stay integers
            options, may_be_quantised, left_out = Options(), False, dict(LAYERS_OF_STEPS)


def reading_of(graph: ir.Graph) -> Reading:
    """Return the steps of a graph that the passes have seen."""
    reading = Reading()
    reading.dynamic.update({value: frozenset({value.name or ""}) for value in graph.inputs})
    images = [dims[-1] for value in graph.inputs if len(dims := _dims(info(value))) == 4]
    reading.network.size = images[0] if len(images) == 1 else None
    reading.block(graph)
    reading.network.outputs = reading.union(graph.outputs)
    return reading


class Reading:
    """One walk over a graph.

    Attributes:
        network: the steps.
        sources: the steps that each value is made of, if any.
        dynamic: the values that the inputs of the graph decide, with the names of these inputs.
        matrices: the weights of the layers.
        quantised: the file has quantised operators.
    """

    def __init__(self) -> None:
        self.network, self.quantised = Network(), False
        self.sources: dict[ir.Value, Sources] = {}
        self.dynamic: dict[ir.Value, frozenset[str]] = {}
        self.matrices: list[ir.Value] = []

    def shares_weights(self) -> bool:
        """Return True if most layers have the same weights as another layer."""
        digests = Counter(weights_of(value) for value in self.matrices)
        return 2 * sum(count for count in digests.values() if count > 1) > len(self.matrices) > 1

    def block(self, graph: ir.Graph) -> None:
        for node in graph:
            inputs = [value for value in node.inputs if value is not None]
            inner = list(subgraphs(node))
            for body in inner:
                self.dynamic.update(dict.fromkeys(body.inputs, frozenset[str]()))
                self.block(body)
                inputs += list(body.outputs)
            sources = self.node(node, inputs)
            decided = [self.dynamic[value] for value in inputs if value in self.dynamic]
            for value in node.outputs:
                if (decided or inner) and node.op_type not in ("Shape", "Size"):
                    self.dynamic[value] = frozenset[str]().union(*decided)
                if sources:
                    self.sources[value] = sources

    def of(self, value: ir.Value | None) -> Sources:
        return NOTHING if value is None else self.sources.get(value, NOTHING)

    def union(self, values: Iterable[ir.Value]) -> Sources:
        return NOTHING.union(*(self.of(value) for value in values))

    def node(self, node: ir.Node, inputs: list[ir.Value]) -> Sources:
        """Add the steps of a node, and return those that its results are made of."""
        union = self.union(inputs)
        if node.domain not in STANDARD:
            return union
        rule = self.rule(node)
        if rule is not None:
            return rule(node)
        name = node.op_type.lower()
        kind = SHORT.get(name, name)
        mode = node.attributes.get_string("mode", "constant") if kind == "pad" else "constant"
        if union and mode != "constant":
            return self.network.add(kind, str(mode), union)
        if is_a(node, ACTIVATION, SOFTMAX) and union:
            return self.network.add(kind, _parameter(node), union)
        if kind in ("mul", "affine") and union and (size := self.scaled(inputs)):
            return self.network.scale(size, union)
        if is_a(node, ADDS, SCALES) or kind == "cat":
            return self.network.join(kind, "", map(self.of, inputs))
        return union

    def rule(self, node: ir.Node) -> Callable[[ir.Node], Sources] | None:
        """Return what reads a layer, and other operators of which more counts than that they are there."""
        if is_a(node, RECURRENT):
            return self.recurrent
        if is_a(node, NORM):
            return self.norm if _norm(node) in NORMS else None
        if node.op_type in ("Conv", "ConvTranspose") or node.op_type == "DynamicConv":
            return self.conv
        if (is_a(node, PRODUCT) and not is_a(node, CONVOLUTION)) or node.op_type.endswith("Linear"):
            return self.product
        own = {
            "attention": self.attention,
            "gather": self.gather,
            "clip": self.clip,
            "maxpool": self.pool,
            "glu": self.glu,
        }
        return own.get(node.op_type.lower())

    def scaled(self, inputs: list[ir.Value]) -> int:
        """Return the size of the stored vector that a node multiplies by, or 0."""
        shapes = [_sizes(info(value)) for value in inputs[:2] if self.fixed(value)]
        return vector(shapes[0]) if len(shapes) == 1 else 0

    # ---- rules ----

    def conv(self, node: ir.Node) -> Sources:
        x, weight = node.inputs[:2]
        shape, taken = _sizes(info(weight)), self.of(x)
        if weight is None or self.of(weight) or len(shape) < 3:
            return self.network.add("conv", "computed", taken | self.of(weight))
        self.matrices.append(weight)
        transposed, groups = node.op_type == "ConvTranspose", node.attributes.get_int("group", 1)
        out, wide = (shape[1] * groups, shape[0]) if transposed else (shape[0], shape[1] * groups)
        ones = [1] * (len(shape) - 2)
        strides = list(node.attributes.get_ints("strides", ones) or ones)
        spaces = list(node.attributes.get_ints("dilations", ones) or ones)
        return convolution(self.network, wide, out, shape[2:], strides, spaces, groups, transposed, taken)

    def product(self, node: ir.Node) -> Sources:
        first, second = node.inputs[:2]
        for x, matrix, left in ((first, second, False), (second, first, True)):
            shape = _sizes(info(matrix))
            if self.fixed(matrix) and len(shape) >= 2:
                self.matrices.append(matrix)
                turned = bool(node.attributes.get_int("transA" if left else "transB", 0)) != left
                wide, out = shape[-2:][::-1] if turned else shape[-2:]
                return self.network.dense(wide, out, self.of(x))
        if not self.of(first) or not self.of(second):
            return self.of(first) | self.of(second)
        return self.network.add("product", heads_of(_dims(info(first))), self.of(first) | self.of(second))

    def attention(self, node: ir.Node) -> Sources:
        query, key, value = (self.of(v) for v in node.inputs[:3])
        heads = node.attributes.get_int("q_num_heads", 0)
        return self.network.attention(str(heads) if heads else heads_of(_dims(info(node.inputs[0]))), query, key, value)

    def recurrent(self, node: ir.Node) -> Sources:
        ways = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
        detail = f"{node.op_type.lower()} {node.attributes.get_int('hidden_size', 0)} {ways}"
        return self.network.add("recurrent", detail, self.of(node.inputs[0]))

    def norm(self, node: ir.Node) -> Sources:
        scale = info(node.inputs[1]).shape if len(node.inputs) > 1 else None
        taken = self.of(node.inputs[0])
        if scale is None or not all(isinstance(size, int) for size in scale):
            return taken
        size = prod(_sizes(info(node.inputs[1])))
        return self.network.add("norm", norm_detail(_norm(node), size, node.attributes.get_int("num_groups", 0)), taken)

    def gather(self, node: ir.Node) -> Sources:
        table, rows = node.inputs[:2]
        if not self.fixed(table):
            return self.of(table)
        shape, kind = _sizes(info(table)), info(table).dtype
        if len(shape) == 2 and kind is not None and kind.is_floating_point() and rows is not None:
            self.network.tables.append(Table(shape[0], shape[1], self.dynamic.get(rows, frozenset())))
        return NOTHING

    def clip(self, node: ir.Node) -> Sources:
        taken = self.union(value for value in node.inputs[:1] if value is not None)
        limits = [info(value).constant for value in node.inputs[1:]]
        if taken and len(limits) == 2 and all(limit is not None and limit.size == 1 for limit in limits):
            low, high = (float(limit.item()) for limit in limits if limit is not None)
            if (low, high) == (0.0, 6.0):
                return self.network.add("relu6", "", taken)
        return taken

    def pool(self, node: ir.Node) -> Sources:
        kernel = node.attributes.get_ints("kernel_shape", ()) or ()
        strides = node.attributes.get_ints("strides", [1] * len(kernel)) or ()
        taken = self.of(node.inputs[0])
        return self.network.add("maxpool", numbers(kernel, strides), taken) if taken else taken

    def glu(self, node: ir.Node) -> Sources:
        taken = self.of(node.inputs[0])
        return gated(self.network, taken)

    def fixed(self, value: ir.Value | None) -> TypeGuard[ir.Value]:
        return value is not None and value not in self.dynamic


NORMS = ("layer", "rms", "instance", "group")  # a batch norm is part of the layer before it


def _norm(node: ir.Node) -> str:
    return node.op_type.removesuffix("Normalization").lower()


def convolution(
    network: Network,
    wide: int,
    out: int,
    kernel: Iterable[int],
    strides: Iterable[int],
    spaces: Iterable[int],
    groups: int,
    transposed: bool,
    taken: Sources,
) -> Sources:
    """Add a convolution. One of single elements is a dense layer."""
    kernel, strides, spaces = list(kernel), list(strides), list(spaces)
    if groups == 1 and all(size == 1 for size in (*kernel, *strides)):
        return network.dense(wide, out, taken)
    spaces = [space if size > 1 else 1 for space, size in zip(spaces, kernel, strict=True)]
    # the channels of the input are not part of the architecture: images are grey, or have a depth
    network.channels.update(() if taken else (wide,))
    shape = f"{'up ' if transposed else ''}{wide if taken else '*'} {out} g{groups} {numbers(kernel, strides, spaces)}"
    return network.add("conv", shape, taken)


def norm_detail(kind: str, size: int, groups: int) -> str:
    """Return what a norm is known by: a group for each channel makes an instance norm."""
    if kind == "group":
        return f"instance {size}" if groups == size else f"group {size} {groups}"
    return f"{kind} {size}"


def gated(network: Network, taken: Sources) -> Sources:
    """Add the steps of a gated linear unit."""
    if not taken:
        return taken
    return network.join("mul", "", (taken, network.add("sigmoid", "", taken)))


def weights_of(value: ir.Value) -> str:
    """Return a digest of stored weights, also of those that are computed of one stored tensor."""
    node = value.producer()
    while node is not None and node.inputs and node.inputs[0] is not None and value.const_value is None:
        value, node = node.inputs[0], node.inputs[0].producer()
    tensor = value.const_value
    return str(id(value)) if tensor is None else hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def heads_of(dims: list[int | None]) -> str:
    """Return the number of heads as text, of operands [N, heads, T, size]; "" for others."""
    return str(dims[1]) if len(dims) == 4 and dims[1] is not None else ""


def vector(shape: Iterable[int]) -> int:
    """Return the size of a shape with one axis that is not 1, else 0."""
    sizes = [size for size in shape if size != 1]
    return sizes[0] if len(sizes) == 1 else 0


def numbers(*groups: Iterable[int]) -> str:
    """Return sizes as text: `3x3 2x2`."""
    return " ".join("x".join(map(str, group)) for group in groups)


def _parameter(node: ir.Node) -> str:
    if node.op_type == "Gelu":
        return "" if node.attributes.get_string("approximate", "none") == "none" else "tanh"
    if node.op_type == "Swish":
        alpha = node.attributes.get_float("alpha", 1.0)
        return "" if alpha == 1 else f"{alpha:.3g}"
    return f"{node.attributes.get_float('alpha', 0.01):.3g}" if node.op_type == "LeakyRelu" else ""


def _dims(facts: Info) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in facts.shape or ()]


def _sizes(facts: Info) -> list[int]:
    sizes = _dims(facts)
    return [size for size in sizes if size is not None] if None not in sizes else []
