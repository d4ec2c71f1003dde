"""Attention-23 and torch's own, for what `F.scaled_dot_product_attention` computes."""

from __future__ import annotations

import ast
import math
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, Ref, shortest, unless
from onnxgen.graph.annotations import DROPOUT
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.views import MAX_CHAIN, arranges
from onnxgen.shapes.dims import Dim, floordiv
from onnxgen.shapes.info import info

# what an exporter's steps in a dtype leave of a scale, relatively
NEAR = {ir.DataType.FLOAT: 3e-7, ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 2e-2}
KNOWN = {"is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap", "softmax_precision"}


def _is_plain(node: ir.Node) -> bool:
    """No cache, no cap, no window, one result, one kind of mask, and heads that are known to fit."""
    attributes = {name: a.value for name, a in node.attributes.items()}
    inputs = [*node.inputs, *[None] * (7 - len(node.inputs))]
    if any(v is not None for v in inputs[4:]) or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return False
    if (
        attributes.keys() - KNOWN
        or attributes.get("softcap")
        or (attributes.get("is_causal") and inputs[3] is not None)
    ):
        return False
    heads = _heads(inputs[0], attributes.get("q_num_heads")), _heads(inputs[1], attributes.get("kv_num_heads"))
    ranks = {info(v).rank for v in inputs[:3]}
    if len(ranks) > 1 or heads[0] is None or heads[1] is None:
        return False
    return heads[0] == heads[1] or (
        isinstance(heads[0], int) and isinstance(heads[1], int) and heads[0] % heads[1] == 0
    )


def _heads(value: ir.Value | None, given: int | None) -> Dim | None:
    shape = info(value).shape
    return None if shape is None else shape[1] if len(shape) == 4 else given or None


@op("Attention", since=23, takes=_is_plain)
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
) -> ast.expr:
    """Q, K, V as [batch, heads, length, size], or the heads side by side in [batch, length, heads * size]."""
    if not _is_plain(b.node):
        raise b.error("this form of attention has no PyTorch function", "export the model with opset 22 or older")
    queries, keys = _heads(Q.value, q_num_heads), _heads(K.value, kv_num_heads)
    operands = []
    for arg, name, heads in ((Q, "q", queries), (K, "k", keys), (V, "v", keys)):
        _name(b, arg, name)
        x = arg.expr if arg.rank == 4 else b("x.unflatten(-1, (n, -1)).transpose(1, 2)", x=arg, n=heads)
        if heads != queries and isinstance(queries, int) and isinstance(heads, int):
            x = b("x.repeat_interleave(n, dim=1)", x=x, n=queries // heads)
        operands.append(x if isinstance(x, Ref) else b.let(x, name))
    if attn_mask is not None:
        _name(b, attn_mask, "mask")
    size = None if Q.shape is None else Q.shape[3] if Q.rank == 4 else floordiv(Q.shape[2], q_num_heads)
    made = b.call(
        "F.scaled_dot_product_attention", *operands,
        attn_mask=OMIT if attn_mask is None else _mask(b, Q, attn_mask),
        is_causal=True if is_causal else OMIT,
        scale=_scale(Q.dtype, size, scale),
    )  # fmt: skip
    return made if Q.rank == 4 else b("x.transpose(1, 2).flatten(2)", x=made)


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
        scale=_scale(q.dtype, None if q.shape is None else q.shape[-1], scale),
    )  # fmt: skip


def _dropout(b: Builder, ratio: float) -> ast.expr:
    build = b.call("nn.Dropout", unless(shortest(ratio, ir.DataType.FLOAT), 0.5))
    module = b.at(DROPOUT.get(b.node)).module("dropout", build)
    assert module is not None
    return b("m.p if self.training else 0.0", m=module)


def _name(b: Builder, arg: Arg | None, name: str) -> None:
    """Call an input by its role, and what it is a mere view of."""
    b.role(arg, name)
    value = None if arg is None else arg.value
    for _ in range(MAX_CHAIN):
        node = None if value is None else value.producer()
        value = None if node is None or not arranges(node) else node.inputs[0]
        if value is None or only_user(value) is None:
            return
        b.role(Arg(b, info(value), value), name)


def _mask(b: Builder, q: Arg, mask: Arg) -> Any:
    """A mask of numbers is added to the scores, whatever its type; torch takes only the queries' own."""
    if mask.dtype in (ir.DataType.BOOL, q.dtype) or mask.dtype is None or q.dtype is None:
        return mask
    return b("m.to(d)", m=mask, d=q.dtype)


def _scale(dtype: ir.DataType | None, size: Dim | None, scale: float | None) -> Any:
    """The scale, unless it is the inverse root of the head size, to the roundings of an exporter's steps."""
    near = 1e-12 if dtype is None else NEAR.get(dtype, 1e-12)
    if scale is None or (isinstance(size, int) and math.isclose(scale, 1 / math.sqrt(size), rel_tol=near)):
        return OMIT
    digits = (float(f"{scale:.{n}g}") for n in range(1, 18))
    return next(short for short in digits if math.isclose(short, scale, rel_tol=near))
