"""Whether a training step's gradients can be used."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.writer import Refused, Writer, body


@body("IsAllFinite")
def is_all_finite(g: Writer, *input: ir.Value, isinf_only: int = 0, isnan_only: int = 0) -> ir.Value:
    """Whether no input has an infinity or a NaN. onnxruntime has kernels for GPUs only."""
    if isinf_only and isnan_only:
        raise Refused("isinf_only and isnan_only must not both be 1", WRITER)
    counts: list[ir.Value] = []
    for x in input:
        for name, wanted in (("IsInf", not isnan_only), ("IsNaN", not isinf_only)):
            if wanted:
                found = g("Cast", g(name, x), to=ir.DataType.INT64.value)
                counts.append(g("ReduceSum", found, keepdims=0))
    total = counts[0]
    for count in counts[1:]:
        total = g("Add", total, count)
    return g("Equal", total, g.constant(np.asarray(0, np.int64)))
