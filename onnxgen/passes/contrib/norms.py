"""Norms, alone or fused with the sum before them, and BERT's embedding."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxgen.graph.traits import NORMALISES
from onnxgen.passes.contrib.writer import FLOAT, INT32, Maybe, Refused, Results, Value, Writer, body, nchw, nhwc
from onnxgen.shapes import drawn, infer_microsoft, ranges
from onnxgen.shapes.infer_elementwise import same
from onnxgen.shapes.info import info

STATISTICS = "the mean of a fused norm that has none is used", "optimise the model for inference, not for training"


@body("SkipLayerNormalization", infer=infer_microsoft.skip_norm, axes="b l h; b l h; h; h; h")
def skip_layer_normalization(
    g: Writer, input: Value, skip: Value, gamma: Value, beta: Maybe = None, bias: Maybe = None, *,
    epsilon: float = 1e-12,
) -> Results:  # fmt: skip
    """LayerNormalization of `input + skip + bias`, with its mean and inverse deviation. The sum is an output too."""
    total = _total(g, input, skip, bias)
    count = 3 if g.wants(1) or g.wants(2) else 1
    made = g.several(count, "LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [*made, *[None] * (3 - count), total]


@body("SkipSimplifiedLayerNormalization", infer=infer_microsoft.skip_norm, axes="b l h; b l h; h; h")
def skip_simplified_layer_normalization(
    g: Writer, input: Value, skip: Value, gamma: Value, bias: Maybe = None, *, epsilon: float = 1e-12
) -> Results:
    if g.wants(1):
        raise Refused(*STATISTICS)  # onnxruntime computes none
    total = _total(g, input, skip, bias)
    normal = g.like(total, input) if g.wants(2) else total
    made, *deviation = _rms(g, normal, gamma, g.wants(2), -1, epsilon, 1)
    return [made, None, *(deviation or [None]), total]


def _total(g: Writer, input: Value, skip: Value, bias: Maybe) -> Value:
    total = g("Add", input, skip)
    return total if bias is None else g("Add", total, bias)


@body("LayerNormalization", infer=infer_microsoft.layer_norm)
def layer_normalization(
    g: Writer, X: Value, Scale: Value, B: Maybe = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    return g.several(3, "LayerNormalization", X, Scale, B, axis=axis, epsilon=epsilon, stash_type=stash_type)


@body("SimplifiedLayerNormalization", domain="", traits=[NORMALISES], infer=infer_microsoft.layer_norm)
@body("SimplifiedLayerNormalization", traits=[NORMALISES], infer=infer_microsoft.layer_norm)
def simplified_layer_normalization(
    g: Writer, X: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Results:
    """RMSNormalization, and the inverse deviation if it is used."""
    return _rms(g, X, scale, g.wants(1), axis, epsilon, stash_type)


def _rms(
    g: Writer, X: Value, scale: Value, with_deviation: bool, axis: int, epsilon: float, stash_type: int
) -> Results:
    made = g("RMSNormalization", X, scale, axis=axis, epsilon=epsilon, stash_type=stash_type)
    if not with_deviation:
        return [made]
    rank = g.rank(X)
    wide = g("Cast", X, to=stash_type)
    square = g("ReduceMean", g("Mul", wide, wide), g.ints(*range(axis % rank, rank)))
    stash = g("Cast", g.constant(ir.tensor([epsilon], FLOAT).numpy()), to=stash_type)
    return [made, g("Reciprocal", g("Sqrt", g("Add", square, stash)))]


@body("GroupNorm", infer=same)
def group_norm(
    g: Writer, X: Value, gamma: Value, beta: Value, *, activation: int, groups: int, channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Value:  # fmt: skip
    """GroupNormalization of NHWC (or NCHW), optionally followed by SiLU."""
    inner = nchw(g, X, g.rank(X)) if channels_last else X
    weights = [w if info(w).dtype == info(X).dtype else g("CastLike", w, X) for w in (gamma, beta)]
    made = g("GroupNormalization", inner, *weights, num_groups=groups, epsilon=epsilon)
    made = nhwc(g, made, g.rank(X)) if channels_last else made
    return g("Mul", made, g("Sigmoid", made)) if activation else made


@body("SkipGroupNorm", infer=infer_microsoft.pairs)
def skip_group_norm(
    g: Writer, X: Value, gamma: Value, beta: Value, skip: Value, bias: Maybe = None, *,
    activation: int, groups: int, channels_last: int = 1, epsilon: float = 1e-5,
) -> Results:  # fmt: skip
    """GroupNorm of `X + skip + bias`. `skip` may be [N, C], and `bias` is [C]."""
    rank, skip_rank = g.rank(X), g.rank(skip)
    inner = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
    if skip_rank == 2 and rank > 2:
        skip = g("Unsqueeze", skip, g.ints(*inner))
    if bias is not None and not channels_last:
        bias = g("Unsqueeze", bias, g.ints(*range(1, rank - 1)))
    total = g("Add", X, skip)
    total = total if bias is None else g("Add", total, bias)
    made = group_norm(
        g, g.like(total, X), gamma, beta, activation=activation, groups=groups, channels_last=channels_last,
        epsilon=epsilon,
    )  # fmt: skip
    return [made, total]


@body(
    "EmbedLayerNormalization", infer=infer_microsoft.embed,
    axes="b l; b l; v h; p h; s h; h; h", ranges=ranges.embed_layer_norm,
    drawn={0: drawn.rows(2), 1: drawn.rows(4), 8: drawn.rows(3)},
)  # fmt: skip
def embed_layer_normalization(
    g: Writer, input_ids: Value, segment_ids: Maybe, word_embedding: Value, position_embedding: Value,
    segment_embedding: Maybe, gamma: Value, beta: Value, mask: Maybe = None, position_ids: Maybe = None, *,
    epsilon: float = 1e-12, mask_index_type: int = 1,
) -> Results:  # fmt: skip
    """The normalised sum of two or three embeddings; the number of tokens that the mask keeps in each row; the sum."""
    if position_ids is None:
        length = g("Shape", input_ids, start=1, end=2)
        positions = g("Slice", position_embedding, g.ints(0), length, g.ints(0))
    else:
        positions = g("Gather", position_embedding, position_ids)
    total = g("Add", g("Gather", word_embedding, input_ids), positions)
    if segment_embedding is not None and segment_ids is not None:
        total = g("Add", total, g("Gather", segment_embedding, segment_ids))
    made = g("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return [made, _kept(g, input_ids, mask), total]


def _kept(g: Writer, input_ids: Value, mask: Maybe) -> Maybe:
    if not g.wants(1):
        return None
    if mask is not None:  # onnxruntime counts the elements that are exactly 1
        ones = g("Cast", g("Equal", mask, g.number(1, mask)), to=INT32)
        return g("ReduceSum", ones, g.ints(1), keepdims=0)
    zeros = ir.tensor([0], INT32)
    return g("ConstantOfShape", g("Shape", input_ids, start=0, end=1), value=zeros)
