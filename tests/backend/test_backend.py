"""ONNX's own backend tests, as the installed `onnx` has them, by ONNX's own runner.

Its comparison is strict on shape and dtype, and on values to what each test says. A test is left out only if
onnxruntime and ONNX's reference both differ from what it states; `exclusions.py` has the list.
"""

from __future__ import annotations

import onnx.backend.test

from tests.backend.exclusions import EXCLUDED, ROUNDED
from tests.backend.road import Road

suite = onnx.backend.test.BackendTest(Road, __name__, test_kwargs=ROUNDED)
for pattern in EXCLUDED:
    suite.exclude(pattern)

found = suite.test_cases
for cases in found.values():
    for name in list(vars(cases)):
        if name.endswith("_cuda"):
            delattr(cases, name)
globals().update(found)
