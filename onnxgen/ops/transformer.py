"""`nn.TransformerEncoderLayer`, `nn.TransformerEncoder` and those of decoders, where `passes.transformer` found one."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, shortest, unless
from onnxgen.errors import BUG
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.multihead import Keys, tensors_of, with_length
from onnxgen.passes.causal import causal
from onnxgen.passes.transformer_stacks import FIRST
from onnxgen.shapes import own_transformer

ATTENTIONS = {"encoder": ("self_attn",), "decoder": ("self_attn", "multihead_attn")}


@op("Transformer", domain=DOMAIN, reference=own_transformer.Transformer)
def transformer(
    b: Builder, source: Arg, target: Arg | None, src_mask: Arg | None, tgt_mask: Arg | None, memory_mask: Arg | None,
    *tensors: Arg | None, stacked: int, encoders: int, decoders: int, norms: int, heads: int, batch_first: int,
    norm_first: int, dropout: float, activation: str, epsilon: float, norm_epsilon: float, starts: list[int],
    transposed: list[int],
) -> ast.expr:  # fmt: skip
    """`self.encoder(source, mask)` or `self.decoder(source, memory)`.

    `tensors`: those of each layer: of its attentions, of both linear layers, of its norms; then of the stack's norm.
    """
    given, keys = _Tensors(tensors, starts, transposed), Keys()
    for i in range(encoders or decoders):
        given.layer(keys, f"layers.{i}." if stacked else "", ATTENTIONS["encoder" if encoders else "decoder"])
    if norms:
        given.pair(keys, "norm")
    linear, size = tensors[8 if encoders else 16], None if source.shape is None else source.shape[-1]
    assert linear is not None and linear.shape is not None
    dtype, bias = unless(source.dtype, ir.DataType.FLOAT), unless(tensors[7] is not None, True)
    options = {
        "dropout": unless(shortest(dropout, ir.DataType.FLOAT), 0.1),
        "activation": unless(activation, "relu"),
        "layer_norm_eps": unless(shortest(epsilon, ir.DataType.FLOAT), 1e-5),
        "batch_first": unless(bool(batch_first), False),
        "norm_first": unless(bool(norm_first), False),
        "bias": bias,
        "dtype": dtype,
    }
    inner = unless(linear.shape[-1], 2048)
    build = b.call(f"nn.Transformer{'Encoder' if encoders else 'Decoder'}Layer", size, heads, inner, **options)
    if stacked:
        norm = _norm(b, size, norm_epsilon, tensors[-1] is not None, dtype) if norms else OMIT
        is_fast = batch_first and not norm_first and heads % 2 == 0 and bias is OMIT
        build = _stack(b, build, encoders, decoders, norm, bool(is_fast))
    module = b.module_at(b.scope, "transformer", build, keys)
    if module is None:
        raise b.error("the weights of the transformer belong to other modules", BUG)
    masks = _masks(b, stacked, encoders, src_mask, tgt_mask, memory_mask)
    for name in masks.keys() & {"mask", "src_mask", "tgt_mask"}:
        query = target if name == "tgt_mask" and encoders else source
        masks[name] = masks[name] if query is None else with_length(b, masks[name], query, batch_first)
    return b.call(module, source, unless(target, None), **masks)


def _norm(b: Builder, size: Any, epsilon: float, has_bias: bool, dtype: Any) -> ast.expr:
    """Return the norm behind a stack."""
    eps = unless(shortest(epsilon, ir.DataType.FLOAT), 1e-5)
    return b.call("nn.LayerNorm", size, eps=eps, bias=unless(has_bias, True), dtype=dtype)


def _stack(b: Builder, layer: ast.expr, encoders: int, decoders: int, norm: Any, is_fast: bool) -> ast.expr:
    """Return a stack. torch warns if an encoder is asked for nested tensors, the default, but can't use them."""
    if decoders:
        return b.call("nn.TransformerDecoder", layer, decoders, norm=norm)
    return b.call(
        "nn.TransformerEncoder", layer, encoders, norm=norm, enable_nested_tensor=OMIT if is_fast else False
    )  # fmt: skip


def _masks(
    b: Builder, stacked: int, encoders: int, src_mask: Arg | None, tgt_mask: Arg | None, memory_mask: Arg | None
) -> dict[str, Any]:
    """Return the masks as keywords. Stacks look at the numbers of a mask unless they are told that it is causal."""
    names = "mask" if stacked and encoders else "src_mask", "tgt_mask", "memory_mask"
    made: dict[str, Any] = {}
    for name, mask in zip(names, (src_mask, tgt_mask, memory_mask)):
        if mask is None:
            continue
        b.role(mask, "mask")
        made[name] = mask
        if stacked and name != "memory_mask":
            found = causal(mask.value)
            hint = "is_causal" if name == "mask" else name.replace("mask", "is_causal")
            made[hint] = found is not None and bool(found.inside == 0)
    return made


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
            made, _ = tensors_of(part, self.starts[3 * n : 3 * n + 3], self.transposed[n], FIRST + self.taken)
            keys |= {f"{prefix}{name}.{key}": value for key, value in made.items()}
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
