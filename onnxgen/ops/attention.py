"""Attention: `F.scaled_dot_product_attention`, and torch's modules where a pass found one.

Those are `nn.MultiheadAttention` (`passes.multihead`) and `nn.TransformerEncoderLayer`,
`nn.TransformerEncoder` and those of decoders (`passes.transformer`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, Ref, shortest, unless
from onnxgen.errors import BUG
from onnxgen.graph.annotations import DROPOUT, REFUSED
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.rules import rules
from onnxgen.passes.attention_masks import HIDES, causal
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.transformer_stacks import FIRST
from onnxgen.passes.views import MAX_CHAIN, arranges
from onnxgen.shapes import own, own_layers
from onnxgen.shapes.dims import Dim, floordiv, known_less
from onnxgen.shapes.info import info
from onnxgen.weights.provenance import Source, concat

# Relative error of a scale that an exporter computes step by step in a dtype.
SCALE_ERRORS = {ir.DataType.FLOAT: 3e-7, ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 2e-2}
KNOWN_ATTRIBUTES = set(
    "is_causal kv_num_heads q_num_heads qk_matmul_output_mode scale softcap softmax_precision".split()
)


def _is_plain(node: ir.Node) -> bool:
    """True if there is no cache, softcap or window, only one output, one kind of mask, and the numbers of heads fit."""
    attributes = {name: a.value for name, a in node.attributes.items()}
    inputs = [*node.inputs, *[None] * (7 - len(node.inputs))]
    if {*inputs[4:]} != {None} or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return False
    if attributes.keys() - KNOWN_ATTRIBUTES or attributes.get("softcap"):
        return False
    if attributes.get("is_causal") and inputs[3] is not None or len({info(v).rank for v in inputs[:3]}) > 1:
        return False
    mask, keys = info(inputs[3]).shape, info(inputs[1]).shape
    if mask and keys and known_less(mask[-1], keys[-2]):
        return False
    return _share(_heads(inputs[0], attributes.get("q_num_heads")), _heads(inputs[1], attributes.get("kv_num_heads")))


def _share(queries: Dim | None, keys: Dim | None) -> bool:
    """True if each head of the keys has the same number of heads of the queries."""
    if queries == keys:
        return queries is not None
    return isinstance(queries, int) and isinstance(keys, int) and queries % keys == 0


def _heads(value: ir.Value | None, num_heads: int | None) -> Dim | None:
    shape = info(value).shape
    return None if shape is None else shape[1] if len(shape) == 4 else num_heads or None


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
    output = b.call(
        "F.scaled_dot_product_attention", *operands,
        attn_mask=OMIT if attn_mask is None else _mask(b, Q, attn_mask),
        is_causal=True if is_causal else OMIT,
        scale=_scale(Q.dtype, size, scale),
    )  # fmt: skip
    return output if Q.rank == 4 else b("x.transpose(1, 2).flatten(2)", x=output)


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
    rate: Any = OMIT
    if dropout:
        build = b.call("nn.Dropout", unless(shortest(dropout, ir.DataType.FLOAT), 0.5))
        rate = b("m.p if self.training else 0.0", m=b.at(DROPOUT.get(b.node)).module("dropout", build))
    return b.call(
        "F.scaled_dot_product_attention", q, k, v,
        attn_mask=unless(mask, None),
        dropout_p=rate,
        is_causal=True if is_causal else OMIT,
        scale=_scale(q.dtype, None if q.shape is None else q.shape[-1], scale),
    )  # fmt: skip


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
    is_fit = mask.dtype in (ir.DataType.BOOL, q.dtype, None) or q.dtype is None
    return mask if is_fit else b("m.to(d)", m=mask, d=q.dtype)


def _scale(dtype: ir.DataType | None, size: Dim | None, scale: float | None) -> Any:
    """Return the scale in few digits, or OMIT if it is the default, the inverse root of the head size."""
    near = 1e-12 if dtype is None else SCALE_ERRORS.get(dtype, 1e-12)
    if scale is None or (isinstance(size, int) and math.isclose(scale, 1 / math.sqrt(size), rel_tol=near)):
        return OMIT
    digits = (float(f"{scale:.{n}g}") for n in range(1, 18))
    return next(short for short in digits if math.isclose(short, scale, rel_tol=near))


PROJECTIONS = ("q", "k", "v")
Keys = dict[str, Source | Arg | tuple[Source, tuple[int, ...]] | None]  # see `Builder.module_at`


@op("MultiheadAttention", domain=DOMAIN, matrix="q_weight", reference=own_layers.MultiheadAttention)
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
    outputs = b.call(
        module, query, key, value,
        key_padding_mask=unless(key_padding_mask, None),
        need_weights=unless(bool(need_weights), True),
        attn_mask=unless(mask, None),
        average_attn_weights=unless(bool(average), True),
    )  # fmt: skip
    return b.unpack(outputs, 2) if len(b.node.outputs) > 1 else b("x[0]", x=outputs)


def with_length(b: Builder, mask: Arg | None, query: Arg, batch_first: int, padding: Arg | None = None) -> Any:
    """Return a mask, or a new one of the query's length: if it is stored, and hides later positions and no others."""
    triangle = None if mask is None or mask.constant is None else causal(mask.value)
    length = query.shape[batch_first] if query.shape else None
    if triangle is None or triangle.kept or triangle.inside != 0 or not triangle.rows == triangle.columns == length:
        return mask
    # torch takes masks of one type
    is_bool = mask is not None and mask.dtype == ir.DataType.BOOL
    if not is_bool and (triangle.outside > HIDES or (padding is not None and padding.dtype != ir.DataType.BOOL)):
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


ATTENTIONS = {"Encoder": ("self_attn",), "Decoder": ("self_attn", "multihead_attn")}


@op("Transformer", domain=DOMAIN, reference=own_layers.Transformer)
def transformer(
    b: Builder, source: Arg, target: Arg | None, src_mask: Arg | None, tgt_mask: Arg | None, memory_mask: Arg | None,
    *tensors: Arg | None, stacked: int, encoders: int, decoders: int, norms: int, heads: int, batch_first: int,
    norm_first: int, dropout: float, activation: str, epsilon: float, norm_epsilon: float, starts: list[int],
    transposed: list[int],
) -> ast.expr:  # fmt: skip
    """`self.encoder(source, mask)` or `self.decoder(source, memory)`.

    `tensors`: those of each layer: of its attentions, of both linear layers, of its norms; then of the stack's norm.
    """
    kind, count = ("Encoder", encoders) if encoders else ("Decoder", decoders)
    cursor, keys = _Tensors(tensors, starts, transposed), Keys()
    for i in range(count):
        cursor.layer(keys, f"layers.{i}." if stacked else "", ATTENTIONS[kind])
    if norms:
        cursor.pair(keys, "norm")
    linear, size = tensors[8 * len(ATTENTIONS[kind])], None if source.shape is None else source.shape[-1]
    assert linear is not None and linear.shape is not None
    dtype, has_bias = unless(source.dtype, ir.DataType.FLOAT), tensors[7] is not None
    options = {
        "dropout": unless(shortest(dropout, ir.DataType.FLOAT), 0.1),
        "activation": unless(activation, "relu"),
        "layer_norm_eps": unless(shortest(epsilon, ir.DataType.FLOAT), 1e-5),
        "batch_first": unless(bool(batch_first), False),
        "norm_first": unless(bool(norm_first), False),
        "bias": unless(has_bias, True),
        "dtype": dtype,
    }
    build = b.call(f"nn.Transformer{kind}Layer", size, heads, unless(linear.shape[-1], 2048), **options)
    if stacked:
        eps, norm_bias = unless(shortest(norm_epsilon, ir.DataType.FLOAT), 1e-5), unless(tensors[-1] is not None, True)
        norm = b.call("nn.LayerNorm", size, eps=eps, bias=norm_bias, dtype=dtype) if norms else OMIT
        # torch warns if an encoder is asked for nested tensors, the default, but can't use them
        is_fast = all((batch_first, not norm_first, heads % 2 == 0, has_bias))
        nested = OMIT if decoders or is_fast else False
        build = b.call(f"nn.Transformer{kind}", build, count, norm=norm, enable_nested_tensor=nested)
    module = b.module_at(b.scope, "transformer", build, keys)
    if module is None:
        raise b.error("the weights of the transformer belong to other modules", BUG)
    names = "mask" if stacked and encoders else "src_mask", "tgt_mask", "memory_mask"
    masks = dict(zip(names, (src_mask, tgt_mask, memory_mask)))
    return b.call(module, source, unless(target, None), **_masks(b, masks, stacked, source, batch_first))


def _masks(b: Builder, masks: dict[str, Arg | None], stacked: int, query: Arg, batch_first: int) -> dict[str, Any]:
    """Return the masks as keywords. Stacks look at the numbers of a mask unless they are told that it is causal."""
    keywords: dict[str, Any] = {}
    for name, mask in masks.items():
        if mask is None:
            continue
        b.role(mask, "mask")
        keywords[name] = mask if name == "memory_mask" else with_length(b, mask, query, batch_first)
        if stacked and name != "memory_mask":
            triangle = causal(mask.value)
            keywords[name.replace("mask", "is_causal")] = triangle is not None and bool(triangle.inside == 0)
    return keywords


@dataclass
class _Tensors:
    """The tensors of a node, which are taken one by one."""

    tensors: Sequence[Arg | None]
    starts: list[int]
    transposed: list[int]
    taken: int = 0
    attentions: int = 0

    def layer(self, keys: Keys, prefix: str, attentions: Sequence[str]) -> None:
        """Add the tensors of one layer."""
        for name in attentions:
            n = self.attentions
            part = self.tensors[self.taken : self.taken + 8]
            sources, _ = tensors_of(part, self.starts[3 * n : 3 * n + 3], self.transposed[n], FIRST + self.taken)
            keys |= {f"{prefix}{name}.{key}": value for key, value in sources.items()}
            self.taken += 8
            self.attentions += 1
        for name in ("linear1", "linear2"):
            self.pair(keys, prefix + name, transposed=True)
        for i in range(len(attentions) + 1):
            self.pair(keys, f"{prefix}norm{i + 1}")

    def pair(self, keys: Keys, name: str, transposed: bool = False) -> None:
        """Add a weight and a bias."""
        for key in ("weight", "bias"):
            arg = self.tensors[self.taken]
            if arg is not None:
                source = arg.source
                assert source is not None
                turned = transposed and key == "weight"
                keys[f"{name}.{key}"] = (source.transpose() if turned else source), (FIRST + self.taken,)
            self.taken += 1
