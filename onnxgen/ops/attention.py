"""Attention that `F.scaled_dot_product_attention` computes: ONNX's Attention-23 and the one that passes write."""

from __future__ import annotations

import ast
import math
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, Ref, shortest, unless
from onnxgen.graph.annotations import DROPOUT, REFUSED
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.rules import rules
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.views import MAX_CHAIN, arranges
from onnxgen.shapes import own
from onnxgen.shapes.dims import Dim, floordiv, known_less
from onnxgen.shapes.info import info

# Relative error of a scale that an exporter computes step by step in a dtype.
SCALE_ERRORS = {ir.DataType.FLOAT: 3e-7, ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 2e-2}
KNOWN_ATTRIBUTES = set(
    "is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision".split()
)


def _is_plain(node: ir.Node) -> bool:
    """True if there is no cache, softcap or window, only one output, one kind of mask, and the numbers of heads fit."""
    attributes = {name: a.value for name, a in node.attributes.items()}
    inputs = [*node.inputs, *[None] * (7 - len(node.inputs))]
    if any(v is not None for v in inputs[4:]) or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return False
    if attributes.keys() - KNOWN_ATTRIBUTES or attributes.get("softcap"):
        return False
    if attributes.get("is_causal") and inputs[3] is not None or len({info(v).rank for v in inputs[:3]}) > 1:
        return False
    mask, keys = info(inputs[3]).shape, info(inputs[1]).shape
    if mask and keys and known_less(mask[-1], keys[-2]):
        return False
    heads = _heads(inputs[0], attributes.get("q_num_heads"))
    shared = _heads(inputs[1], attributes.get("kv_num_heads"))
    if heads == shared:
        return heads is not None
    return isinstance(heads, int) and isinstance(shared, int) and heads % shared == 0


def _heads(value: ir.Value | None, given: int | None) -> Dim | None:
    shape = info(value).shape
    return None if shape is None else shape[1] if len(shape) == 4 else given or None


@op("Attention", since=23, takes=_is_plain, **rules("attention"))
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
        what = "this form of attention has no PyTorch function", "export the model with opset 22 or older"
        raise b.error(*(REFUSED.get(b.node) or what))
    queries, keys = _heads(Q.value, q_num_heads), _heads(K.value, kv_num_heads)
    operands = []
    for arg, name, heads in ((Q, "q", queries), (K, "k", keys), (V, "v", keys)):
        _set_role(b, arg, name)
        x = arg.expr if arg.rank == 4 else b("x.unflatten(-1, (n, -1)).transpose(1, 2)", x=arg, n=heads)
        if heads != queries and isinstance(queries, int) and isinstance(heads, int):
            x = b("x.repeat_interleave(n, dim=1)", x=x, n=queries // heads)
        operands.append(x if isinstance(x, Ref) else b.let(x, name))
    _set_role(b, attn_mask, "mask")
    size = None if Q.shape is None else Q.shape[3] if Q.rank == 4 else floordiv(Q.shape[2], q_num_heads)
    made = b.call(
        "F.scaled_dot_product_attention", *operands,
        attn_mask=OMIT if attn_mask is None else _mask(b, Q, attn_mask),
        is_causal=True if is_causal else OMIT,
        scale=_scale(Q.dtype, size, scale),
    )  # fmt: skip
    return made if Q.rank == 4 else b("x.transpose(1, 2).flatten(2)", x=made)


@op("Attention", domain=DOMAIN, reference=own.Attention)
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
    """`F.scaled_dot_product_attention` of q, k, v as [..., length, size]; an `nn.Dropout` has the dropout rate."""
    for arg, name in ((q, "q"), (k, "k"), (v, "v"), (mask, "mask")):
        _set_role(b, arg, name)
    return b.call(
        "F.scaled_dot_product_attention", q, k, v,
        attn_mask=unless(mask, None),
        dropout_p=_dropout(b, dropout) if dropout else OMIT,
        is_causal=True if is_causal else OMIT,
        scale=_scale(q.dtype, None if q.shape is None else q.shape[-1], scale),
    )  # fmt: skip


def _dropout(b: Builder, ratio: float) -> ast.expr:
    build = b.call("nn.Dropout", unless(shortest(ratio, ir.DataType.FLOAT), 0.5))
    module = b.at(DROPOUT.get(b.node)).module("dropout", build)
    assert module is not None
    return b("m.p if self.training else 0.0", m=module)


def _set_role(b: Builder, arg: Arg | None, name: str) -> None:
    """Name an input, and the values that it is only a view of, by its role."""
    b.role(arg, name)
    value = None if arg is None else arg.value
    for _ in range(MAX_CHAIN):
        node = None if value is None else value.producer()
        value = None if node is None or not arranges(node) else node.inputs[0]
        if value is None or only_user(value) is None:
            return
        b.role(Arg(b, info(value), value), name)


def _mask(b: Builder, q: Arg, mask: Arg) -> Any:
    """Return the mask for torch, which takes bools or the queries' dtype; ONNX takes numbers of any dtype."""
    if mask.dtype in (ir.DataType.BOOL, q.dtype) or mask.dtype is None or q.dtype is None:
        return mask
    return b("m.to(d)", m=mask, d=q.dtype)


def _scale(dtype: ir.DataType | None, size: Dim | None, scale: float | None) -> Any:
    """Return the scale in few digits, or OMIT if it is the default, the inverse root of the head size."""
    near = 1e-12 if dtype is None else SCALE_ERRORS.get(dtype, 1e-12)
    if scale is None or (isinstance(size, int) and math.isclose(scale, 1 / math.sqrt(size), rel_tol=near)):
        return OMIT
    digits = (float(f"{scale:.{n}g}") for n in range(1, 18))
    return next(short for short in digits if math.isclose(short, scale, rel_tol=near))
