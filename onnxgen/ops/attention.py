"""Attention-23, for what `F.scaled_dot_product_attention` computes."""

from __future__ import annotations

import ast
import math
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, shortest, unless
from onnxgen.ops.arg import Arg
from onnxgen.ops.builder import Builder
from onnxgen.ops.registry import op
from onnxgen.passes.attention import default_scale
from onnxgen.passes.linear import DOMAIN
from onnxgen.passes.match import made_by
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.views import LONGEST, VIEWS
from onnxgen.propagate.info import info


@op("Attention", since=23)
def attention(
    b: Builder,
    Q: Arg,
    K: Arg,
    V: Arg,
    attn_mask: Arg | None = None,
    past_key: Arg | None = None,
    past_value: Arg | None = None,
    nonpad_kv_seqlen: Arg | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> Any:
    """Q, K, V as [batch, heads, length, size] with equally many heads, without a cache."""
    plain = past_key is None and past_value is None and nonpad_kv_seqlen is None and softcap == 0.0
    same_heads = Q.shape is not None and K.shape is not None and Q.rank == 4 and Q.shape[1] == K.shape[1]
    if not plain or not same_heads or any(b.wants(i) for i in (1, 2, 3)) or (is_causal and attn_mask is not None):
        raise b.error("this form of attention is not supported yet", "export the model with opset 22 or older")
    for arg, name in ((Q, "q"), (K, "k"), (V, "v"), (attn_mask, "mask")):
        _name(b, arg, name)
    return b.call(
        "F.scaled_dot_product_attention", Q, K, V,
        attn_mask=OMIT if attn_mask is None else _mask(b, Q, attn_mask),
        is_causal=True if is_causal else OMIT,
        scale=_scale(Q, scale),
    )  # fmt: skip


@op("Attention", domain=DOMAIN)
def scaled_dot_product(
    b: Builder,
    q: Arg,
    k: Arg,
    v: Arg,
    mask: Arg | None = None,
    *,
    scale: float,
    is_causal: int = 0,
    dropout: float = 0.0,
) -> ast.expr:
    """`F.scaled_dot_product_attention` of q, k, v as [..., length, size]; the rate of Dropout is that of a module."""
    for arg, name in ((q, "q"), (k, "k"), (v, "v"), (mask, "mask")):
        _name(b, arg, name)
    return b.call(
        "F.scaled_dot_product_attention", q, k, v,
        attn_mask=OMIT if mask is None else mask,
        dropout_p=_dropout(b, dropout) if dropout else OMIT,
        is_causal=True if is_causal else OMIT,
        scale=_scale(q, scale),
    )  # fmt: skip


def _dropout(b: Builder, ratio: float) -> ast.expr:
    inside = Builder(b.lowering, b.node, b.opset)
    inside.scope = b.node.meta.get("dropout", b.scope)
    module = inside.module("dropout", b.call("nn.Dropout", unless(shortest(ratio, ir.DataType.FLOAT), 0.5)))
    assert module is not None
    return b("m.p if self.training else 0.0", m=module)


def _name(b: Builder, arg: Arg | None, name: str) -> None:
    """Call an input by its role, and what it is a mere view of."""
    b.role(arg, name)
    value = None if arg is None else arg.value
    for _ in range(LONGEST):
        node = made_by(value, *VIEWS)
        value = None if node is None else node.inputs[0]
        if value is None or only_user(value) is None:
            return
        b.role(Arg(b, info(value), value), name)


def _mask(b: Builder, q: Arg, mask: Arg) -> Any:
    """A mask of numbers is added to the scores, whatever its type; torch takes only the queries' own."""
    if mask.dtype in (ir.DataType.BOOL, q.dtype) or mask.dtype is None or q.dtype is None:
        return mask
    return b("m.to(d)", m=mask, d=q.dtype)


def _scale(q: Arg, scale: float | None) -> Any:
    """The scale, unless it is the inverse root of the head size; in float32 to the roundings of an exporter's steps."""
    size = q.shape[-1] if q.shape is not None else None
    near = 3e-7 if q.dtype == ir.DataType.FLOAT else 1e-12
    if scale is None or (isinstance(size, int) and math.isclose(scale, default_scale(size), rel_tol=near)):
        return OMIT
    digits = (float(f"{scale:.{n}g}") for n in range(1, 18))
    return next(short for short in digits if math.isclose(short, scale, rel_tol=near))
