"""A check that the gradients of a training step can be used."""

from __future__ import annotations

import functools

from onnxgen.errors import WRITER
from onnxgen.graph.gradients import INTEGERS
from onnxgen.passes.contrib.writer import INT64, Refused, Value, Writer, body
from onnxgen.shapes import infer_microsoft


@body("IsAllFinite", infer=infer_microsoft.is_all_finite, flat=INTEGERS)
def is_all_finite(g: Writer, *input: Value, isinf_only: int = 0, isnan_only: int = 0) -> Value:
    """True if no input has an infinity or a NaN. onnxruntime has GPU kernels only."""
    if isinf_only and isnan_only:
        raise Refused("isinf_only and isnan_only must not both be 1", WRITER)
    kinds = [name for name, skipped in (("IsInf", isnan_only), ("IsNaN", isinf_only)) if not skipped]
    found = [g("ReduceSum", g("Cast", g(kind, x), to=INT64), keepdims=0) for x in input for kind in kinds]
    return g("Equal", functools.reduce(lambda a, b: g("Add", a, b), found), g.int64(0))
