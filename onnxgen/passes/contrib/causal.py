"""Convolutions of each channel for itself that see nothing that comes later, and hand on what the next call needs."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.passes.contrib.gated import size_of
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.shapes.info import info

Results = list[ir.Value | None]
GPU = "a {} runs on GPUs only", FOR_CPU
ACTIVATIONS = ("none", "silu", "swish")
END = 2**63 - 1


@body("CausalConvWithState")
def causal_conv_with_state(
    g: Writer, input: ir.Value, weight: ir.Value, bias: ir.Value | None = None, past_state: ir.Value | None = None, *,
    activation: str = "none", channels_last: int = 0, dilation: int = 1, ndim: int = 1, state_window: int = 0,
    state_length: int = 0, state_channels_last: int = -1, state_update_capacity: int = 0, input_channels: int = 0,
    input_channel_offset: int = 0,
) -> Results:  # fmt: skip
    """A convolution of the last inputs of the call before and those of this one, as Mamba and Gated DeltaNet have it.

    The inputs that the next call needs are its second output. Without a state zeros stand before the first input.
    """
    sliced = (
        state_length or state_channels_last != -1 or state_update_capacity or input_channels or input_channel_offset
    )
    if ndim != 1 or state_window or sliced:
        asked = (
            "convolution of several axes" if ndim != 1 else "window of states" if state_window else "slice of channels"
        )
        raise Refused(GPU[0].format(asked), GPU[1])
    if activation not in ACTIVATIONS or dilation < 1:
        raise Refused(
            f"activation {activation!r} must be none, silu or swish, and dilation {dilation} at least 1", WRITER
        )
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


def _extended(g: Writer, x: ir.Value, past: ir.Value | None, before: int, axis: int) -> ir.Value:
    """The inputs behind those of the call before, or behind zeros."""
    if before == 0:
        return x
    if past is not None:
        return g("Concat", past, x, axis=axis)
    rank = g.rank(x)
    return g("Pad", x, g.ints(*(before * (i == axis) for i in range(rank)), *[0] * rank))


def _convolved(
    g: Writer, x: ir.Value, weight: ir.Value, bias: ir.Value | None, channels_last: bool, dilation: int, like: ir.Value
) -> ir.Value:
    """The convolution without padding; channels that are the last axes are one axis for it, and several behind it."""
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
