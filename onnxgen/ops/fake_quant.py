"""Fake quantisation (`--quantized qat`): a module for activations, a part of the layer for a layer's weight."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import unless
from onnxgen.graph.annotations import is_trained
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import PASSES_ON, SAME, WEIGHT
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.math import unary
from onnxgen.ops.parametrised import parametrised
from onnxgen.shapes import own
from onnxgen.shapes.infer_elementwise import unchanged
from onnxgen.shapes.info import info
from onnxgen.weights.provenance import Source

FAKE = "FakeQuantize"
FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class QuantizedLayer:
    """What to build a layer from, whose weight may be fake-quantised, or made by `nn.utils.parametrizations`.

    Attributes:
        name: the class, `nn.Linear` or `QuantizedLinear`.
        weight: a stored tensor of the weight's shape; None if the weight is computed otherwise.
        options: further arguments of the class, for the quantiser.
        keys: the stored tensors of the weight and its quantiser, or those of which the weight is made.
        around: the function that the layer is given to, and its options.
    """

    name: str
    weight: Source | None
    options: dict[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Source | tuple[Source, tuple[int, ...]] | None] = field(default_factory=dict)
    around: tuple[str, dict[str, Any]] | None = None

    def build(self, b: Builder, *args: Any, **options: Any) -> ast.expr:
        """Return the expression that makes the layer with these arguments."""
        made = b.call(self.name, *args, **options, **self.options)
        return made if self.around is None else b.call(self.around[0], made, **self.around[1])

    @classmethod
    def plain(cls, name: str, weight: Source | None) -> QuantizedLayer:
        """Return the layer of a stored weight."""
        return cls(f"nn.{name}", weight, keys={"weight": weight})


def layer(b: Builder, weight: Arg, name: str, transposed: bool = False) -> QuantizedLayer:
    """Return the torch layer with this weight; `transposed`: the layer stores the transposed matrix."""
    value, flips = weight.value, transposed
    node = None if value is None else value.producer()
    while node is not None and _transposes(node):
        value, flips = node.inputs[0], not flips
        node = None if value is None else value.producer()
    made_by = parametrised(b, node, weight) if node is not None and not flips else None
    if made_by is not None:
        return QuantizedLayer(f"nn.{name}", made_by.weight, keys=made_by.tensors, around=made_by.function)
    if node is None or node.op_type != FAKE or node.domain != DOMAIN:
        source = weight.source
        return QuantizedLayer.plain(name, source.transpose((1, 0)) if source is not None and transposed else source)
    source = b.source(node.inputs[0])
    made = None if source is None else _quantizer(b, node, len(source.shape), flips)
    if source is None or made is None or "Transpose" in name:  # there is no QuantizedConvTranspose2d
        return QuantizedLayer.plain(name, None)
    keys = {f"quantize.{key}": found for key, found in made[1].items()}
    weight_source = source.transpose((1, 0)) if flips else source
    return QuantizedLayer(f"Quantized{name}", weight_source, {"quantize": made[0]}, {"weight": weight_source, **keys})


def _transposes(node: ir.Node) -> bool:
    """Return True if the node transposes a matrix."""
    if node.op_type != "Transpose" or info(node.inputs[0]).rank != 2:
        return False
    return "perm" not in node.attributes or list(node.attributes["perm"].as_ints()) == [1, 0]


@op(
    FAKE, domain=DOMAIN, traits=[PASSES_ON, SAME, WEIGHT], weights="scale", still="scale zero", infer=unchanged,
    reference=own.FakeQuantize,
)  # fmt: skip
def fake_quantize(
    b: Builder, x: Arg, scale: Arg, zero: Arg | None = None, *,
    axis: int = 1, block: int = 0, low: int = -128, high: int = 127, to: int = 0,
) -> ast.expr:  # fmt: skip
    made = _quantizer(b, b.node, x.known_rank if scale.shape not in ((), (1,)) else 0)
    module = None if made is None else b.module("quant", made[0], **made[1])
    if module is None:
        raise b.error("the scale of the quantiser is computed, not stored", "generate with --quantized float")
    return b("m(x)", m=module, x=x)


_reference = own.FakeQuantizeDynamic
op("FakeQuantizeDynamic", domain=DOMAIN, infer=unchanged, reference=_reference)(unary("fake_quantize_dynamic(x)"))


def _quantizer(
    b: Builder, node: ir.Node, rank: int, transposed: bool = False
) -> tuple[ast.expr, dict[str, Source]] | None:
    """Return the expression that builds the quantiser of a node, and its tensors; None if these are computed."""
    given = {name: int(attribute.value) for name, attribute in node.attributes.items()}
    axis, block = given.get("axis", 1), given.get("block", 0)
    keys: dict[str, Source] = {}
    for key, value in zip(("scale", "zero"), node.inputs[1:]):
        source = None if value is None else b.source(value)
        if value is not None and source is None:
            return None
        if source is not None:
            found = _shaped(source.cast(FLOAT) if key == "zero" else source, rank, axis, block)
            keys[key] = found.transpose((1, 0)) if transposed and len(found.shape) == 2 else found
    shape, scale = keys["scale"].shape, node.inputs[1]
    learned = scale is not None and is_trained(scale)
    if "to" in given:
        dtype = ir.DataType(given["to"])
        return b.call("FakeQuantizeFloat", *shape, dtype=dtype, learned=unless(learned, False)), keys
    at = (1 - axis if transposed else axis) - rank if block else -1
    build = b.call(
        FAKE, *shape, low=unless(given["low"], -128), high=unless(given["high"], 127), axis=unless(at, -1),
        block=unless(block, 0), shifted=unless("zero" in keys, False), learned=unless(learned, False),
    )  # fmt: skip
    return build, keys


def _shaped(source: Source, rank: int, axis: int, block: int) -> Source:
    """Return a scale or zero point in a shape that broadcasts."""
    if int(np.prod(source.shape)) == 1:
        return source.reshape(())
    if block:
        return source
    return source.reshape((*[1] * (axis % rank), -1, *[1] * (rank - 1 - axis % rank)))
