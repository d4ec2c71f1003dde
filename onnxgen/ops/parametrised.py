"""Weight norm: part of the layer whose weight it makes, if its tensors have torch's names."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import WEIGHT
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.passes.reparametrised import WHOLE
from onnxgen.shapes import own
from onnxgen.shapes.infer_elementwise import unchanged
from onnxgen.weights.provenance import Source

KEYS = ("original1", "original0")  # of the inputs, in their order


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


def parametrised(b: Builder, node: ir.Node, weight: Arg) -> Parametrised | None:
    """Return how the weight of a layer is made by a node; None if that is no weight norm."""
    if (node.domain, node.op_type) != (DOMAIN, "WeightNorm"):
        return None
    sources = [source for value in node.inputs if (source := b.source(value)) is not None]
    if len(sources) < len(KEYS):
        return None
    indices = tuple(i for i, value in enumerate(b.node.inputs) if value is weight.value)
    keys = (f"parametrizations.weight.{key}" for key in KEYS)
    dim = node.attributes.get_int("dim", 0)
    function = "nn.utils.parametrizations.weight_norm", {"dim": unless(None if dim == WHOLE else dim, 0)}
    return Parametrised(sources[0], {key: (source, indices) for key, source in zip(keys, sources)}, function)


@op("WeightNorm", traits=[WEIGHT], domain=DOMAIN, infer=unchanged, reference=own.WeightNorm)
def weight_norm(b: Builder, v: Arg, g: Arg, *, dim: int) -> ast.expr:
    """`v * g / |v|` with the norm of each slice along an axis, or of the whole."""
    return b.call("torch._weight_norm", v, g, unless(dim, 0) if dim != WHOLE else dim)
