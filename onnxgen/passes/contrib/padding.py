"""Batches whose rows are of several lengths, without their padding and with it again.

onnxruntime has kernels of these for GPUs only: what is written here follows their documentation.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.passes.contrib.writer import Writer, body

INT32 = ir.DataType.INT32.value


@body("RemovePadding")
def remove_padding(g: Writer, input: ir.Value, sequence_token_count: ir.Value) -> list[ir.Value]:
    """The tokens of all rows, one after the other; where they were; where rows begin; and how long the longest is."""
    lengths = g("Cast", sequence_token_count, to=ir.DataType.INT64.value)
    places = g.range(None, g("Shape", input, start=1, end=2))
    keeps = g("Less", places, g("Unsqueeze", lengths, g.ints(1)))
    flat = g("Reshape", keeps, g.ints(-1))
    kept = g("Squeeze", g("NonZero", flat), g.ints(0))
    others = g("Squeeze", g("NonZero", g("Not", flat)), g.ints(0))
    tokens = g("Flatten", input, axis=2)
    offsets = g("Reshape", g("Concat", kept, others, axis=0), g("Shape", keeps))
    starts = g("Concat", g.ints(0), g("CumSum", lengths, g.constant(np.asarray(0, np.int64))), axis=0)
    longest = g("ReduceMax", lengths, g.ints(0), keepdims=1)
    return [g("Gather", tokens, kept), *(g("Cast", x, to=INT32) for x in (offsets, starts, longest))]


@body("RestorePadding")
def restore_padding(g: Writer, input: ir.Value, token_offset: ir.Value) -> ir.Value:
    """The tokens where they were, among zeros."""
    offsets = g("Cast", g("Reshape", token_offset, g.ints(-1)), to=ir.DataType.INT64.value)
    kept = g("Slice", offsets, g.ints(0), g("Shape", input, start=0, end=1))
    size = g("Shape", input, start=1, end=2)
    zeros = g("Expand", g.number(0, input), g("Concat", g("Shape", offsets), size, axis=0))
    filled = g("ScatterND", zeros, g("Unsqueeze", kept, g.ints(1)), input)
    return g("Reshape", filled, g("Concat", g("Shape", token_offset), size, axis=0))
