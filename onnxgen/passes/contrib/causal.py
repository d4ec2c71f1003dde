"""Causal depthwise convolutions with a state for the next call."""

from __future__ import annotations

from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.passes.contrib.writer import Maybe, Refused, Results, Value, Writer, body, size_of
from onnxgen.shapes import infer_attention
from onnxgen.shapes.info import info

ACTIVATIONS = ("none", "silu", "swish")
END = 2**63 - 1


@body("CausalConvWithState", infer=infer_attention.causal_conv)
def causal_conv_with_state(
    g: Writer, input: Value, weight: Value, bias: Maybe = None, past_state: Maybe = None, *,
    activation: str = "none", channels_last: int = 0, dilation: int = 1, ndim: int = 1, state_window: int = 0,
    state_length: int = 0, state_channels_last: int = -1, state_update_capacity: int = 0, input_channels: int = 0,
    input_channel_offset: int = 0,
) -> Results:  # fmt: skip
    """A convolution over the last inputs of the previous call and the inputs of this one (Mamba, Gated DeltaNet).

    The second output holds the inputs that the next call needs. Without a state, zeros precede the first input.
    """
    is_sliced = (
        state_length or state_channels_last != -1 or state_update_capacity or input_channels or input_channel_offset
    )
    for what, is_asked in (
        ("convolution of several axes", ndim != 1), ("window of states", state_window), ("slice of channels", is_sliced)
    ):  # fmt: skip
        if is_asked:
            raise Refused(f"a {what} runs on GPUs only", FOR_CPU)
    if activation not in ACTIVATIONS or dilation < 1:
        what = f"activation {activation!r} must be none, silu or swish, and dilation {dilation} at least 1"
        raise Refused(what, WRITER)
    channels, kernel = size_of(weight, 0), size_of(weight, 2)
    if channels < 1 or kernel < 1 or not channels_last and g.rank(input) != 3:
        raise Refused("the input must be [batch, channels, length], and the weight not be empty", WRITER)
    before, axis = (kernel - 1) * dilation, 1 if channels_last else 2
    length = (info(input).shape or ())[axis:][:1]
    whole = _extended(g, input, past_state, before, axis)
    made = input if length == (0,) else _convolved(g, whole, weight, bias, bool(channels_last), dilation, input)
    if activation != "none":
        made = g("Mul", made, g("Sigmoid", made))
    if not g.wants(1):
        return [made]
    state = g("Slice", whole, g.ints(-before if before else 0), g.ints(END if before else 0), g.ints(axis))
    return [made, state]


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
    made = g("Conv", x, weight, bias, group=channels, dilations=[dilation], kernel_shape=[kernel])
    if channels_last:
        made = g("Transpose", made, perm=[0, 2, 1])
    if channels_last and rank > 3:
        made = g("Reshape", made, g.ints(0, 0, *(size_of(like, axis) for axis in range(2, rank))))
    return made
