"""A learned scale and a learned bias for a whole map."""

from __future__ import annotations

import ast

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import ELEMENTWISE
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.shapes import own


@op("Affine", domain=DOMAIN, traits=[ELEMENTWISE], weights="scale bias", reference=own.Affine)
def affine(b: Builder, x: Arg, scale: Arg, bias: Arg) -> ast.expr:
    """`scale * x + bias`, with single numbers."""
    sources = {"scale": scale.source, "bias": bias.source}
    keys = {key: None if source is None else source.reshape((1,)) for key, source in sources.items()}
    dtype = OMIT if scale.source is None else unless(scale.source.dtype, ir.DataType.FLOAT)
    build = b.call("LearnableAffine", dtype=dtype)
    module = b.module("affine", build, **keys) if all(keys.values()) else None
    return b("m(x)", m=module, x=x) if module is not None else b("s * x + b", s=scale, x=x, b=bias)
