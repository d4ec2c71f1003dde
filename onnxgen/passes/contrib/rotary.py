"""Rotary embeddings: pairs of elements are rotated by angles that grow with the position."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import FIX_SHAPE, WRITER
from onnxgen.passes.contrib.writer import FLOAT, Maybe, Refused, Results, Value, Writer, body, flag_of, size_of, widened
from onnxgen.shapes import drawn, ranges
from onnxgen.shapes.infer_elementwise import same
from onnxgen.shapes.info import Info, info, set_info

BFLOAT16 = ir.DataType.BFLOAT16


@body(
    "RotaryEmbedding",
    infer=same,
    axes="b l h; b l; r d; r d",
    ranges=ranges.microsoft_rotary_embedding,
    drawn={1: drawn.rows(2)},
)
def rotary_embedding(
    g: Writer, input: Value, position_ids: Value, cos_cache: Value, sin_cache: Value, *,
    interleaved: int = 0, is_packed_batching: int = 0, num_heads: int = 0, rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Value:  # fmt: skip
    """Rotate pairs of elements by the angles of their position. Pairs are halves of a head, or neighbours.

    onnxruntime 1.31 accepts `scale` and `is_packed_batching` and ignores them.
    """
    places = _positions(g, position_ids, input, 1 if g.rank(input) == 3 else 2)
    tables = [g.detached(g("Gather", cache, places)) for cache in (cos_cache, sin_cache)]
    return embedded(g, input, tables, cos_cache, interleaved, num_heads, rotary_embedding_dim)


@body("MRotaryEmbedding", infer=same, axes="b l h; 3 b l; r d; r d", drawn={1: drawn.rows(2)})
def mrotary_embedding(
    g: Writer, input: Value, position_ids: Value, cos_cache: Value, sin_cache: Value, *,
    mrope_section: list[int], interleaved: int = 0, is_packed_batching: int = 0, mrope_layout: int = 0,
    num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Value:  # fmt: skip
    """RotaryEmbedding in which each angle belongs to one of three positions: time, height or width."""
    if len(mrope_section) != 3 or min(mrope_section) < 0:
        raise Refused(f"attribute 'mrope_section' must be 3 sizes, not {mrope_section}", WRITER)
    if mrope_layout:
        chosen = np.zeros(sum(mrope_section), np.int64)
        for which in (1, 2):
            chosen[which : 3 * mrope_section[which] : 3] = which
    else:
        chosen = np.repeat(np.arange(3), mrope_section)
    tables = []
    for cache in (cos_cache, sin_cache):
        every = g("Gather", cache, position_ids)  # [3, batch, length, half]
        time, height, width = (g("Gather", every, g.int64(i), axis=0) for i in range(3))
        other = g("Where", g.constant(chosen == 1), height, width)
        tables.append(g.detached(g("Where", g.constant(chosen == 0), time, other)))
    return embedded(g, input, tables, cos_cache, interleaved, num_heads, rotary_embedding_dim)


def embedded(
    g: Writer, input: Value, tables: list[Value], cos_cache: Value, interleaved: int, num_heads: int,
    rotary_embedding_dim: int,
) -> Value:  # fmt: skip
    """Rotate pairs by the cosines and sines in `tables`, of shape [batch, length, half]."""
    rank = g.rank(input)
    x = input
    if rank == 3:  # [batch, length, heads * size]
        size = (info(cos_cache).shape or (None, None))[1]
        if not num_heads and not isinstance(size, int):
            raise Refused("the number of heads is unknown", FIX_SHAPE)
        x = g("Reshape", x, g.ints(0, 0, *((num_heads, -1) if num_heads else (-1, int(str(size)) * 2))))
    made = _turned(g, x, tables, 2 if rank == 3 else 1, interleaved, rotary_embedding_dim)
    return g("Reshape", made, g("Shape", input)) if rank == 3 else made


def _turned(g: Writer, x: Value, tables: list[Value], axis: int, interleaved: int, rotary_embedding_dim: int) -> Value:
    """Rotate the first elements of each head. `axis` is the axis of the heads, of four."""
    cos, sin = (g("Unsqueeze", table, g.ints(axis)) for table in tables)
    rest = None
    if rotary_embedding_dim:
        rest = g("Slice", x, g.ints(rotary_embedding_dim), g.ints(2**31), g.ints(3))
        x = g("Slice", x, g.ints(0), g.ints(rotary_embedding_dim), g.ints(3))
    made = _pairs(g, x, cos, sin) if interleaved else _halves(g, x, cos, sin)
    return made if rest is None else g("Concat", made, rest, axis=-1)


@body("RMSNormRotary")
def rms_norm_rotary(
    g: Writer, X: Value, scale: Value, position_ids: Value, cosine: Value, sine: Value, prefill_numerics: Maybe = None,
    *, rotary_embedding_dim: int, epsilon: float = 1e-6, flatten_batch: int = 0, input_start: int = 0,
    input_width: int = 0, output_fp16: int = 0, use_fp32_arithmetic: int = 1,
) -> Results:  # fmt: skip
    """RMSNormalization of heads (or of a slice of each), then rotation of their first elements.

    onnxruntime has a GPU kernel only. With only bfloat16 inputs and outputs, it computes in bfloat16 too. The
    documentation does not say which elements are rotated: the first are, as in RotaryEmbedding. Nor does it say what
    holds without `prefill_numerics`: the same as with 0.
    """
    heads, width, stride = size_of(X, 2), size_of(scale, 0), size_of(X, 3)
    if input_start < 0 or (input_width or stride) != width or input_start + width > stride:
        raise Refused(f"scale has {width} elements, but the slice of the input has another size", WRITER)
    x = widened(g, X)
    if width != stride:
        x = g("Slice", x, g.ints(input_start), g.ints(input_start + width), g.ints(3))
    normed = g("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
    set_info(normed, Info(FLOAT))
    is_coarse = is_narrow = not output_fp16 and all(info(v).dtype == BFLOAT16 for v in (X, cosine))
    if is_narrow:
        normed = g.like(g("Cast", normed, to=BFLOAT16), X)
        is_coarse = not use_fp32_arithmetic
        is_prompt = "whether the node computes as for a prompt"
        is_coarse |= prefill_numerics is not None and flag_of(prefill_numerics, is_prompt)
    x, *caches = (v if is_coarse else widened(g, v) for v in (normed, cosine, sine))
    if info(position_ids).shape == (1, 1):
        position_ids = g("Reshape", position_ids, g.ints(1))
        set_info(position_ids, Info(ir.DataType.INT64, (1,)))
    places = _positions(g, position_ids, X, 1)
    tables = [g.detached(g("Gather", cache, places)) for cache in caches]
    made = _turned(g, x, tables, 2, 0, rotary_embedding_dim)
    if not is_coarse:
        made = g("Cast", made, to=ir.DataType.FLOAT16 if output_fp16 else BFLOAT16)
    made = g("Reshape", made, g.ints(0, 0, -1))
    return [g("Reshape", made, g.ints(1, -1, heads * width)) if flatten_batch else made, widened(g, normed)]


def _positions(g: Writer, position_ids: Value, input: Value, axis: int) -> Value:
    """Return the position of each token: as given, or counted from an offset."""
    if g.rank(position_ids) == 2:
        return position_ids
    length = g("Shape", input, start=axis, end=axis + 1)
    return g("Unsqueeze", g("Add", g.range(None, length), position_ids), g.ints(0))


def _halves(g: Writer, x: Value, cos: Value, sin: Value) -> Value:
    first, second = g.several(2, "Split", x, axis=3, num_outputs=2)
    turned = g("Concat", g("Neg", second), first, axis=-1)
    cos, sin = (g("Concat", c, c, axis=-1) for c in (cos, sin))
    return g("Add", g("Mul", x, cos), g("Mul", turned, sin))


def _pairs(g: Writer, x: Value, cos: Value, sin: Value) -> Value:
    paired = g("Reshape", x, g.ints(0, 0, 0, -1, 2))
    even, odd = (g("Gather", paired, g.int64(i), axis=4) for i in (0, 1))
    real = g("Sub", g("Mul", even, cos), g("Mul", odd, sin))
    imaginary = g("Add", g("Mul", even, sin), g("Mul", odd, cos))
    made = (real, imaginary)
    joined = g("Concat", *(g("Unsqueeze", m, g.ints(4)) for m in made), axis=4)
    return g("Reshape", joined, g.ints(0, 0, 0, -1))
