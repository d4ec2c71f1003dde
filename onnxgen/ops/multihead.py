"""`nn.MultiheadAttention`, where `passes.multihead` found one."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import shortest, unless
from onnxgen.errors import BUG
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.weights.provenance import Source, concat

PROJECTIONS = ("q", "k", "v")


@op("MultiheadAttention", domain=DOMAIN, matrix="q_weight")
def multihead_attention(
    b: Builder, query: Arg, key: Arg, value: Arg, q_weight: Arg, k_weight: Arg, v_weight: Arg, q_bias: Arg | None,
    k_bias: Arg | None, v_bias: Arg | None, out_weight: Arg, out_bias: Arg | None, attn_mask: Arg | None = None,
    key_padding_mask: Arg | None = None, *,
    heads: int, starts: list[int], transposed: int, batch_first: int, dropout: float, need_weights: int, average: int,
) -> Any:  # fmt: skip
    """`y, weights = self.attn(query, key, value)`; the matrices are [in, out], and q, k and v start at `starts`."""
    for arg, name in ((attn_mask, "mask"), (key_padding_mask, "padding_mask")):
        b.role(arg, name)
    weights = [_part(w, start, query) for w, start in zip((q_weight, k_weight, v_weight), starts)]
    biases = [_part(a, start, query) for a, start in zip((q_bias, k_bias, v_bias), starts) if a is not None]
    projection = out_weight.source
    assert projection is not None
    keys = _keys(weights, biases, projection.transpose() if transposed else projection, out_bias)
    width, kdim, vdim = (w.shape[1] for w in weights)
    build = b.call(
        "nn.MultiheadAttention",
        width,
        heads,
        dropout=unless(shortest(dropout, ir.DataType.FLOAT), 0.0),
        bias=unless(bool(biases), True),
        kdim=unless(kdim, width),
        vdim=unless(vdim, width),
        batch_first=unless(bool(batch_first), False),
        dtype=unless(projection.dtype, ir.DataType.FLOAT),
    )
    module = b.module_at(b.scope, "attn", build, keys)
    if module is None:
        raise b.error("the weights of the attention belong to other modules", BUG)
    made = b.call(
        module, query, key, value,
        key_padding_mask=unless(key_padding_mask, None),
        need_weights=unless(bool(need_weights), True),
        attn_mask=unless(attn_mask, None),
        average_attn_weights=unless(bool(average), True),
    )  # fmt: skip
    return b.unpack(made, 2) if len(b.node.outputs) > 1 else b("x[0]", x=made)


def _part(arg: Arg, start: int, query: Arg) -> Source:
    """Return the rows of one projection's matrix [out, in], or its part of the bias."""
    source, width = arg.source, query.shape[-1] if query.shape else 0
    assert source is not None and isinstance(width, int)
    if len(source.shape) == 1:
        return source.slice(0, start, start + width)
    return source.slice(1, start, start + width).transpose()


def _keys(weights: list[Source], biases: list[Source], out: Source, out_bias: Arg | None) -> dict[str, Source | None]:
    """Return the tensors by their keys: one matrix for all projections if query, key and value have one size."""
    keys: dict[str, Source | None] = {}
    if len({w.shape for w in weights}) == 1:
        keys["in_proj_weight"] = concat(weights, 0)
    else:
        keys |= {f"{name}_proj_weight": w for name, w in zip(PROJECTIONS, weights)}
    keys["in_proj_bias"] = concat(biases, 0) if biases else None
    return keys | {"out_proj.weight": out, "out_proj.bias": None if out_bias is None else out_bias.source}
