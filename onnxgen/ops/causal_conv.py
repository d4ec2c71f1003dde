"""Causal convolutions of onnxruntime over sequences of several lengths."""

from __future__ import annotations

import ast

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.cast import as_float32
from onnxgen.ops.microsoft import MICROSOFT


@op("VarlenCausalConvWithState", domain=MICROSOFT, weights="weight bias")
def varlen_causal_conv_with_state(
    b: Builder, input: Arg, weight: Arg, cumulative_sequence_length: Arg, bias: Arg | None, initial_state: Arg,
    capture_count: Arg | None = None, kernel_delta: Arg | None = None, previous_mask: Arg | None = None, *,
    activation: str = "none", dilation: int = 1, state_update_capacity: int = 0, group_size: int = 1,
    delta_offset: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """Convolve each channel by itself, in float32; also returns the inputs that the next call needs."""
    if kernel_delta is not None or previous_mask is not None or group_size != 1 or delta_offset:
        raise b.error("kernel_delta, previous_mask, group_size and delta_offset run on GPUs only", FOR_CPU)
    if activation not in ("none", "silu", "swish") or dilation < 1:
        raise b.error(
            f"activation {activation!r} must be none, silu or swish, and dilation {dilation} at least 1", WRITER
        )
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count must be given exactly if state_update_capacity is positive", WRITER)
    x, w, past = (as_float32(b, v) for v in (input, weight, initial_state))
    offset = OMIT if bias is None else as_float32(b, bias)
    made = b.call("packed_causal_conv", x, w, cumulative_sequence_length, past, offset, dilation=unless(dilation, 1))
    if activation != "none":
        made = b("F.silu(y)", y=made)
    if input.dtype != ir.DataType.FLOAT:
        made = b("y.to(x.dtype)", y=made, x=input)
    state = b.call("packed_conv_state", input, cumulative_sequence_length, initial_state)
    if not b.wants(2) or capture_count is None:
        return [made, state]
    first = b.call("leading_inputs", input, cumulative_sequence_length, capture_count, state_update_capacity)
    return [made, state, first]
