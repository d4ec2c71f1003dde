"""`nn.MultiheadAttention`, where `passes.multihead` found one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import shortest, unless
from onnxgen.errors import BUG
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.passes.causal import causal
from onnxgen.passes.multihead_masks import HIDES
from onnxgen.shapes import own_transformer
from onnxgen.weights.provenance import Source, concat

PROJECTIONS = ("q", "k", "v")
Keys = dict[str, Source | Arg | tuple[Source, tuple[int, ...]] | None]  # see `Builder.module_at`


@op("MultiheadAttention", domain=DOMAIN, matrix="q_weight", reference=own_transformer.MultiheadAttention)
def multihead_attention(
    b: Builder, query: Arg, key: Arg, value: Arg, q_weight: Arg, k_weight: Arg, v_weight: Arg, q_bias: Arg | None,
    k_bias: Arg | None, v_bias: Arg | None, out_weight: Arg, out_bias: Arg | None, attn_mask: Arg | None = None,
    key_padding_mask: Arg | None = None, *,
    heads: int, starts: list[int], transposed: int, batch_first: int, dropout: float, need_weights: int, average: int,
) -> Any:  # fmt: skip
    """`y, weights = self.attn(query, key, value)`; the matrices are [in, out], and q, k and v start at `starts`."""
    for arg, name in ((attn_mask, "mask"), (key_padding_mask, "padding_mask")):
        b.role(arg, name)
    tensors = (q_weight, k_weight, v_weight, q_bias, k_bias, v_bias, out_weight, out_bias)
    keys, (width, kdim, vdim) = tensors_of(tensors, starts, transposed, first=3)
    build = b.call(
        "nn.MultiheadAttention",
        width,
        heads,
        dropout=unless(shortest(dropout, ir.DataType.FLOAT), 0.0),
        bias=unless(q_bias is not None, True),
        kdim=unless(kdim, width),
        vdim=unless(vdim, width),
        batch_first=unless(bool(batch_first), False),
        dtype=unless(out_weight.dtype, ir.DataType.FLOAT),
    )
    module = b.module_at(b.scope, "attn", build, keys)
    if module is None:
        raise b.error("the weights of the attention belong to other modules", BUG)
    if q_bias is not None and out_bias is None:  # the file has no place for it, so it stays zeros
        module.member.extra["out_proj.bias"] = np.zeros(width, (out_weight.dtype or ir.DataType.FLOAT).numpy())
        module.member.frozen.add("out_proj.bias")
    mask = with_length(b, attn_mask, query, batch_first, key_padding_mask)
    made = b.call(
        module, query, key, value,
        key_padding_mask=unless(key_padding_mask, None),
        need_weights=unless(bool(need_weights), True),
        attn_mask=unless(mask, None),
        average_attn_weights=unless(bool(average), True),
    )  # fmt: skip
    return b.unpack(made, 2) if len(b.node.outputs) > 1 else b("x[0]", x=made)


def with_length(b: Builder, mask: Arg | None, query: Arg, batch_first: int, padding: Arg | None = None) -> Any:
    """Return a mask, or a new one of the query's length: if it is stored, and hides later positions and no others."""
    found = None if mask is None or mask.constant is None else causal(mask.value)
    length = query.shape[batch_first] if query.shape else None
    if found is None or found.kept or found.inside != 0 or not found.rows == found.columns == length:
        return mask
    # torch takes masks of one type
    is_bool = mask is not None and mask.dtype == ir.DataType.BOOL
    if not is_bool and (found.outside > HIDES or (padding is not None and padding.dtype != ir.DataType.BOOL)):
        return mask
    return b.let(b("causal_mask(x.shape[i], x.device)", x=query, i=batch_first), "mask")


def tensors_of(
    tensors: Sequence[Arg | None], starts: Sequence[int], transposed: int, first: int
) -> tuple[Keys, tuple[int, ...]]:
    """Return the tensors of one layer by their keys, and the sizes of query, key and value.

    Args:
        tensors: the weights of q, k and v, their biases, and the weight and bias of the output.
        starts: the first column of q, k and v in their weights, which are [in, out].
        transposed: 1 if the weight of the output is [in, out].
        first: the index of the first tensor among the node's inputs.
    """
    *projections, out_weight, out_bias = [None if t is None else t.source for t in tensors]
    assert out_weight is not None
    width = out_weight.shape[0]
    weights = [w.slice(1, at, at + width).transpose() for w, at in zip(projections[:3], starts) if w is not None]
    biases = [v.slice(0, at, at + width) for v, at in zip(projections[3:], starts) if v is not None]
    keys: Keys = {}
    if {w.shape for w in weights} == {(width, width)}:
        keys["in_proj_weight"] = concat(weights, 0), (first, first + 1, first + 2)
    else:
        keys |= {f"{name}_proj_weight": (w, (first + i,)) for i, (name, w) in enumerate(zip(PROJECTIONS, weights))}
    if biases:
        keys["in_proj_bias"] = concat(biases, 0), (first + 3, first + 4, first + 5)
    keys["out_proj.weight"] = (out_weight.transpose() if transposed else out_weight), (first + 6,)
    if out_bias is not None:
        keys["out_proj.bias"] = out_bias, (first + 7,)
    return keys, tuple(w.shape[1] for w in weights)
