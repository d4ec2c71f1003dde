"""Weight norm and spectral norm: part of the layer whose weight they make, if its tensors have torch's names."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.passes.reparametrised import SPECTRAL, WHOLE
from onnxgen.shapes import own
from onnxgen.shapes.infer_elementwise import unchanged
from onnxgen.weights.provenance import Source

TENSORS = {"WeightNorm": ("original1", "original0"), "SpectralNorm": SPECTRAL}  # keys of the inputs, in their order


@dataclass(frozen=True)
class Parametrised:
    """How torch makes a layer's weight.

    Attributes:
        weight: the stored tensor that has the weight's shape.
        tensors: all stored tensors by key of the layer, each with the index of the layer's input.
        function: torch's function that takes the layer, with its options.
    """

    weight: Source
    tensors: dict[str, tuple[Source, tuple[int, ...]]]
    function: tuple[str, dict[str, Any]]


def parametrised(b: Builder, node: ir.Node, layer: str, weight: Arg) -> Parametrised | None:
    """Return how the weight of a layer is made by a node; None if that is none of these."""
    if node.domain != DOMAIN or node.op_type not in TENSORS:
        return None
    sources = [source for value in node.inputs if (source := b.source(value)) is not None]
    if len(sources) < len(TENSORS[node.op_type]):
        return None
    indices = tuple(i for i, value in enumerate(b.node.inputs) if value is weight.value)
    keys = (f"parametrizations.weight.{key}" for key in TENSORS[node.op_type])
    dim = node.attributes.get_int("dim", 0)
    usual = 1 if node.op_type == "SpectralNorm" and "Transpose" in layer else 0
    name = "weight_norm" if node.op_type == "WeightNorm" else "spectral_norm"
    function = f"nn.utils.parametrizations.{name}", {"dim": unless(None if dim == WHOLE else dim, usual)}
    return Parametrised(sources[0], {key: (source, indices) for key, source in zip(keys, sources)}, function)


@op("WeightNorm", domain=DOMAIN, infer=unchanged, reference=own.WeightNorm)
def weight_norm(b: Builder, v: Arg, g: Arg, *, dim: int) -> ast.expr:
    """`v * g / |v|` with the norm of each slice along an axis, or of the whole."""
    return b.call("torch._weight_norm", v, g, unless(dim, 0) if dim != WHOLE else dim)


@op("SpectralNorm", domain=DOMAIN, infer=unchanged, reference=own.SpectralNorm)
def spectral_norm(b: Builder, w: Arg, u: Arg, v: Arg, *, dim: int) -> ast.expr:
    """`w / (u @ matrix @ v)`, where the rows of the matrix are an axis of w."""
    rank = w.known_rank
    moved = b("w.movedim(d, 0)", w=w, d=dim) if dim else w.expr
    matrix = b("m.flatten(1)", m=moved) if rank > 2 else moved
    return b("w / (u @ (m @ v))", w=w, u=u, m=matrix, v=v)
