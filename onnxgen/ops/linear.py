"""Matrix products, linear layers, and what may compute a weight: weight norm, fake quantisation.

`linear` is the layer that a pass makes of MatMul and Add. Weight norm is part of the layer whose
weight it makes, if its tensors have torch's names. Fake quantisation (`--quantized qat`) is a
module for activations, and a part of the layer for a layer's weight.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, MemberRef, unless
from onnxgen.graph.annotations import is_trained
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import PASSES_ON, PRODUCT, SAME, WEIGHT, WHOLE
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.cast import INTEGERS, computed
from onnxgen.ops.math import unary
from onnxgen.ops.rules import rules
from onnxgen.passes.reparametrised import WHOLE as WHOLE_WEIGHT
from onnxgen.scopes.origin import param_path
from onnxgen.shapes import own
from onnxgen.shapes.infer_math import unchanged
from onnxgen.shapes.info import info
from onnxgen.weights.dequantised import DequantisedTensor
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import viewed_from

KEYS = ("original1", "original0")  # of the inputs, in their order


@op("WeightNorm", traits=[WEIGHT], domain=DOMAIN, infer=unchanged, reference=own.WeightNorm)
def weight_norm(b: Builder, v: Arg, g: Arg, *, dim: int) -> ast.expr:
    """`v * g / |v|` with the norm of each slice along an axis, or of the whole."""
    return b.call("torch._weight_norm", v, g, unless(dim, 0) if dim != WHOLE_WEIGHT else dim)


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
        expression = b.call(self.name, *args, **options, **self.options)
        return expression if self.around is None else b.call(self.around[0], expression, **self.around[1])

    @classmethod
    def plain(cls, name: str, weight: Source | None) -> QuantizedLayer:
        """Return the layer of a stored weight."""
        return cls(f"nn.{name}", weight, keys={"weight": weight})


def layer(b: Builder, weight: Arg, name: str, transposed: bool = False) -> QuantizedLayer:
    """Return the torch layer with this weight; `transposed`: the layer stores the transposed matrix."""
    node, flips = _maker(weight.value, transposed)
    normed = _weight_normed(b, node, weight, name) if node is not None and not flips else None
    if normed is not None:
        return normed
    if node is None or node.op_type != FAKE or node.domain != DOMAIN:
        source = weight.source
        return QuantizedLayer.plain(name, source.transpose((1, 0)) if source is not None and transposed else source)
    source = b.source(node.inputs[0])
    quantizer = None if source is None else _quantizer(b, node, len(source.shape), flips)
    if source is None or quantizer is None or "Transpose" in name:  # there is no QuantizedConvTranspose2d
        return QuantizedLayer.plain(name, None)
    keys = {f"quantize.{key}": tensor for key, tensor in quantizer[1].items()}
    weight_source = source.transpose((1, 0)) if flips else source
    return QuantizedLayer(
        f"Quantized{name}", weight_source, {"quantize": quantizer[0]}, {"weight": weight_source, **keys}
    )


def _weight_normed(b: Builder, node: ir.Node, weight: Arg, name: str) -> QuantizedLayer | None:
    """Return the torch layer whose weight a node makes; None if that is no weight norm."""
    if (node.domain, node.op_type) != (DOMAIN, "WeightNorm"):
        return None
    sources = [source for value in node.inputs if (source := b.source(value)) is not None]
    if len(sources) < len(KEYS):
        return None
    indices = tuple(i for i, value in enumerate(b.node.inputs) if value is weight.value)
    keys = {f"parametrizations.weight.{key}": (source, indices) for key, source in zip(KEYS, sources)}
    dim = node.attributes.get_int("dim", 0)
    around = "nn.utils.parametrizations.weight_norm", {"dim": unless(None if dim == WHOLE_WEIGHT else dim, 0)}
    return QuantizedLayer(f"nn.{name}", sources[0], keys=keys, around=around)


def _maker(value: ir.Value | None, flips: bool) -> tuple[ir.Node | None, bool]:
    """Return the node that makes a matrix which others only transpose; `flips` changes with each of these."""
    while True:
        node = None if value is None else value.producer()
        if node is None or not _transposes(node):
            return node, flips
        value, flips = node.inputs[0], not flips


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
    quantizer = _quantizer(b, b.node, x.known_rank if scale.shape not in ((), (1,)) else 0)
    module = None if quantizer is None else b.module("quant", quantizer[0], **quantizer[1])
    if module is None:
        raise b.error("the scale of the quantiser is computed, not stored", "generate with --quantized float")
    return b("m(x)", m=module, x=x)


_reference = own.FakeQuantizeDynamic
op("FakeQuantizeDynamic", domain=DOMAIN, infer=unchanged, reference=_reference)(unary("fake_quantize_dynamic(x)"))


def _quantizer(
    b: Builder, node: ir.Node, rank: int, transposed: bool = False
) -> tuple[ast.expr, dict[str, Source]] | None:
    """Return the expression that builds the quantiser of a node, and its tensors; None if these are computed."""
    attributes = {name: int(attribute.value) for name, attribute in node.attributes.items()}
    axis, block = attributes.get("axis", 1), attributes.get("block", 0)
    keys: dict[str, Source] = {}
    for key, value in zip(("scale", "zero"), node.inputs[1:]):
        source = None if value is None else b.source(value)
        if value is not None and source is None:
            return None
        if source is not None:
            shaped = _shaped(source.cast(FLOAT) if key == "zero" else source, rank, axis, block)
            keys[key] = shaped.transpose((1, 0)) if transposed and len(shaped.shape) == 2 else shaped
    shape, scale = keys["scale"].shape, node.inputs[1]
    learned = scale is not None and is_trained(scale)
    if "to" in attributes:
        dtype = ir.DataType(attributes["to"])
        return b.call("FakeQuantizeFloat", *shape, dtype=dtype, learned=unless(learned, False)), keys
    at = (1 - axis if transposed else axis) - rank if block else -1
    build = b.call(
        FAKE, *shape, low=unless(attributes["low"], -128), high=unless(attributes["high"], 127), axis=unless(at, -1),
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


@op("MatMul", traits=[WHOLE, PRODUCT], matrix="B", **rules("matmul"))
def matmul(b: Builder, A: Arg, B: Arg) -> ast.expr:
    return computed(b, A.dtype, lambda x, y: b("x @ y", x=x, y=y), A, B)


@op("Linear", traits=[PRODUCT], domain=DOMAIN, matrix="weight", bias="bias", reference=own.Linear)
def linear(b: Builder, x: Arg, weight: Arg, bias: Arg | None = None) -> ast.expr:
    """`x @ weight + bias`, with the weight as [in, out]."""
    if bias is None or bias.source is not None:
        module = _module(b, weight, None if bias is None else bias.source, transposed=True)
        if module is not None:
            return b("m(x)", m=module, x=x)
    label = _original_name(weight, bias)
    if label and weight.is_trainable:
        original = b.parameter(weight, label, transposed=True)
        inside = bias is not None and bias.rank == 1
        product = b.call("F.linear", x, original, bias if inside else OMIT)
        return product if bias is None or inside else b("p + c", p=product, c=bias)
    product = b("x @ w", x=x, w=weight)
    return product if bias is None else b("p + c", p=product, c=bias)


def _original_name(weight: Arg, bias: Arg | None) -> str:
    """Return the original name of a matrix that an exporter transposed and stored without its name; "" if unknown.

    The dynamo exporter records it. Otherwise it follows from the bias: `attn.in_proj_bias` belongs to
    `attn.in_proj_weight`.
    """
    if weight.value is None or param_path(weight.name) is not None:
        return ""
    recorded = viewed_from(weight.value)
    path = param_path(bias.name) if bias is not None else None
    if recorded or path is None or "bias" not in path[-1]:
        return recorded
    return ".".join((*path[:-1], path[-1].replace("bias", "weight")))


def _module(b: Builder, weight: Arg, bias: Source | None, transposed: bool) -> MemberRef | None:
    """Return the layer of a stored weight, given as [in, out] if `transposed`, else as torch has it: [out, in]."""
    if weight.rank != 2:
        return None
    return linear_module(b, bias, layer(b, weight, "Linear", transposed))


def linear_module(b: Builder, bias: Source | None, spec: QuantizedLayer) -> MemberRef | None:
    """Return the layer `spec` of a stored weight [out, in].

    A parameter that still has its dotted name has the orientation that its author gave it. So one that is stored as
    [in, out] was not an `nn.Linear` (e.g. GPT-2's Conv1D) and stays a parameter. Quantised weights are an exception:
    onnxruntime's quantiser transposes the matrix of a Gemm and keeps its name.
    """
    weight = spec.weight
    if weight is None or len(weight.shape) != 2 or not weight.dtype.is_floating_point():
        return None
    if len(weight.names) == 1 and param_path(weight.names[0]) is not None and not weight.is_identity:
        if not any(isinstance(piece.tensor, DequantisedTensor) for piece in weight.pieces):
            return None
    columns, rows = weight.shape[1], weight.shape[0]
    dtype = unless(weight.dtype, ir.DataType.FLOAT)
    if bias is not None and bias.shape != (rows,):
        if any(d != 1 for d in bias.shape[:-1]) or bias.shape[-1:] != (rows,):
            return None
        bias = bias.reshape((rows,))
    build = spec.build(b, columns, rows, bias=unless(bias is not None, True), dtype=dtype)
    return b.module("fc", build, **spec.keys, bias=bias)


@op("Gemm", traits=[PRODUCT], since=1, matrix="B", bias="C", weights="A B C", **rules("gemm"))
def gemm(
    b: Builder,
    A: Arg,
    B: Arg,
    C: Arg | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> ast.expr:
    """`alpha * A' @ B' + beta * C`, where C broadcasts (before opset 7 only if `broadcast`)."""
    a = b("x.T", x=A) if transA else A.expr
    if alpha == 1.0 and (C is None or (beta == 1.0 and C.source is not None)):
        module = _module(b, B, None if C is None else C.source, transposed=not transB)
        if module is not None:
            return b("m(x)", m=module, x=a)
    if A.dtype in INTEGERS:
        if not (alpha.is_integer() and beta.is_integer()):
            raise b.error("attribute 'alpha' or 'beta' scales integers by a fraction", "cast the inputs to float")
        alpha, beta = int(alpha), int(beta)

    def formula(x: Any, y: Any, c: Any = None) -> ast.expr:
        product = b("a @ y", a=b("x.T", x=x) if transA else x, y=b("x.T", x=y) if transB else y)
        if alpha != 1:
            product = b("alpha * p", alpha=alpha, p=product)
        if c is None:
            return product
        return b("p + c", p=product, c=c) if beta == 1 else b("p + beta * c", p=product, beta=beta, c=c)

    return computed(b, A.dtype, formula, A, B, *([] if C is None or beta == 0 else [C]))
