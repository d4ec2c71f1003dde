"""ONNX's own backend tests, as the installed `onnx` has them, by ONNX's own runner.

Its comparison is strict on shape and dtype, and on values to what each test says. A test is left out only if
onnxruntime and ONNX's reference both differ from what it states; `test_excluded.py` holds the list to that.
"""

from __future__ import annotations

import onnx.backend.test

from tests.backend.road import Road

# What is left out, by the reason. ONNX's own runs of its reference leave them out, too.
EXCLUDED = {
    "test_bernoulli": "random numbers, which no two implementations draw alike: six tests",
    "test_loop16_seq_none": "the runner compares no list of scalars; test_excluded.py compares it",
}

# What the test states is numpy's transform in single precision, made anew in each run. Where the result is 0, numpy's
# rounding errors are left, up to 4e-7 of values up to 100; torch's are smaller. ONNX's own runs allow as much.
ROUNDED = {"test_dft_inverse": {"atol": 1e-6}, "test_dft_inverse_opset19": {"atol": 1e-6}}

suite = onnx.backend.test.BackendTest(Road, __name__, test_kwargs=ROUNDED)
for pattern in EXCLUDED:
    suite.exclude(pattern)

found = suite.test_cases
for cases in found.values():
    for name in list(vars(cases)):
        if name.endswith("_cuda"):
            delattr(cases, name)
globals().update(found)
