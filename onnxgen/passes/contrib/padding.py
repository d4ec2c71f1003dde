"""Remove the padding of batches whose rows have different lengths, and restore it.

onnxruntime has GPU kernels only. The bodies follow its documentation.
"""

from __future__ import annotations

from onnxgen.passes.contrib.writer import INT32, INT64, Value, Writer, body
from onnxgen.shapes import infer_microsoft


@body("RemovePadding", infer=infer_microsoft.unpadded)
def remove_padding(g: Writer, input: Value, sequence_token_count: Value) -> list[Value]:
    """The tokens of all rows in sequence; their places, and those of padding; where rows begin; the longest row."""
    lengths = g("Cast", sequence_token_count, to=INT64)
    places = g.range(None, g("Shape", input, start=1, end=2))
    keeps = g("Less", places, g("Unsqueeze", lengths, g.ints(1)))
    flat = g("Reshape", keeps, g.ints(-1))
    kept = g("Squeeze", g("NonZero", flat), g.ints(0))
    others = g("Squeeze", g("NonZero", g("Not", flat)), g.ints(0))
    tokens = g("Flatten", input, axis=2)
    offsets = g("Reshape", g("Concat", kept, others, axis=0), g("Shape", keeps))
    starts = g("Concat", g.ints(0), g("CumSum", lengths, g.int64(0)), axis=0)
    longest = g("ReduceMax", lengths, g.ints(0), keepdims=1)
    return [g("Gather", tokens, kept), *(g("Cast", x, to=INT32) for x in (offsets, starts, longest))]


@body("RestorePadding", infer=infer_microsoft.restore_padding)
def restore_padding(g: Writer, input: Value, token_offset: Value) -> Value:
    """The tokens at their places, and zeros elsewhere."""
    offsets = g("Cast", g("Reshape", token_offset, g.ints(-1)), to=INT64)
    kept = g("Slice", offsets, g.ints(0), g("Shape", input, start=0, end=1))
    size = g("Shape", input, start=1, end=2)
    zeros = g("Expand", g.number(0, input), g("Concat", g("Shape", offsets), size, axis=0))
    filled = g("ScatterND", zeros, g("Unsqueeze", kept, g.ints(1)), input)
    return g("Reshape", filled, g("Concat", g("Shape", token_offset), size, axis=0))
