"""What bodies of the standard's operators and of plugins' share: heads of attention, rotary embeddings, and a causal
convolution that continues the previous call's.
"""

from __future__ import annotations

from onnxgen.errors import FIX_SHAPE, WRITER
from onnxgen.passes.contrib.writer import Maybe, Refused, Results, Value, Writer, size_of
from onnxgen.shapes.info import info

ACTIVATIONS = ("none", "silu", "swish")
END = 2**63 - 1


def heads_of(g: Writer, x: Value, heads: int) -> Value:
    """Reshape [batch, length, heads * size] to [batch, heads, length, size]."""
    if heads < 1:
        raise Refused(f"the number of heads must be at least 1, not {heads}", WRITER)
    return g("Transpose", g("Reshape", x, g.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def merged_heads(g: Writer, x: Value) -> Value:
    """Reshape [batch, heads, length, size] to [batch, length, heads * size]."""
    return g("Reshape", g("Transpose", x, perm=[0, 2, 1, 3]), g.ints(0, 0, -1))


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
    turned = rotated(g, x, tables, 2 if rank == 3 else 1, interleaved, rotary_embedding_dim)
    return g("Reshape", turned, g("Shape", input)) if rank == 3 else turned


def rotated(g: Writer, x: Value, tables: list[Value], axis: int, interleaved: int, rotary_embedding_dim: int) -> Value:
    """Rotate the first elements of each head. `axis` is the axis of the heads, of four."""
    cos, sin = (g("Unsqueeze", table, g.ints(axis)) for table in tables)
    rest = None
    if rotary_embedding_dim:
        rest = g("Slice", x, g.ints(rotary_embedding_dim), g.ints(2**31), g.ints(3))
        x = g("Slice", x, g.ints(0), g.ints(rotary_embedding_dim), g.ints(3))
    turned = _pairs(g, x, cos, sin) if interleaved else _halves(g, x, cos, sin)
    return turned if rest is None else g("Concat", turned, rest, axis=-1)


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
    parts = (real, imaginary)
    joined = g("Concat", *(g("Unsqueeze", m, g.ints(4)) for m in parts), axis=4)
    return g("Reshape", joined, g.ints(0, 0, 0, -1))


def causal_conv(
    g: Writer, input: Value, weight: Value, bias: Maybe, past_state: Maybe, *,
    activation: str, channels_last: bool = False, dilation: int = 1,
) -> Results:  # fmt: skip
    """Convolve each channel with its past, and return the inputs that the next call needs if they are used.

    Without a state, zeros precede the first input.
    """
    if activation not in ACTIVATIONS or dilation < 1:
        what = f"activation {activation!r} must be none, silu or swish, and dilation {dilation} at least 1"
        raise Refused(what, WRITER)
    channels, kernel = size_of(weight, 0), size_of(weight, 2)
    if channels < 1 or kernel < 1 or not channels_last and g.rank(input) != 3:
        raise Refused("the input must be [batch, channels, length], and the weight not be empty", WRITER)
    before, axis = (kernel - 1) * dilation, 1 if channels_last else 2
    length = (info(input).shape or ())[axis:][:1]
    whole = _extended(g, input, past_state, before, axis)
    convolved = input if length == (0,) else _convolved(g, whole, weight, bias, channels_last, dilation, input)
    if activation != "none":
        convolved = g("Mul", convolved, g("Sigmoid", convolved))
    if not g.wants(1):
        return [convolved]
    state = g("Slice", whole, g.ints(-before if before else 0), g.ints(END if before else 0), g.ints(axis))
    return [convolved, state]


def _extended(g: Writer, x: Value, past: Maybe, before: int, axis: int) -> Value:
    """Return the inputs behind those of the previous call, or behind zeros."""
    if before == 0:
        return x
    if past is not None:
        return g("Concat", past, x, axis=axis)
    rank = g.rank(x)
    return g("Pad", x, g.ints(*(before * (i == axis) for i in range(rank)), *[0] * rank))


def _convolved(
    g: Writer, x: Value, weight: Value, bias: Maybe, channels_last: bool, dilation: int, like: Value
) -> Value:
    """Convolve without padding. With channels last, several axes of channels are one axis for the convolution."""
    channels, kernel, rank = size_of(weight, 0), size_of(weight, 2), g.rank(like)
    if channels_last:
        x = g("Reshape", x, g.ints(0, 0, channels)) if rank > 3 else x
        x = g("Transpose", x, perm=[0, 2, 1])
    convolved = g("Conv", x, weight, bias, group=channels, dilations=[dilation], kernel_shape=[kernel])
    if channels_last:
        convolved = g("Transpose", convolved, perm=[0, 2, 1])
    if channels_last and rank > 3:
        convolved = g("Reshape", convolved, g.ints(0, 0, *(size_of(like, axis) for axis in range(2, rank))))
    return convolved
