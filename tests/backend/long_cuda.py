"""ONNX's own backend tests on a CUDA device. Without one, they are skipped.

TF32 is off: the tests' bounds are those of float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx.backend.test
import pytest
import torch

from tests.backend.exclusions import EXCLUDED, ROUNDED
from tests.backend.road import Road

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield


# Its weights are all equal. Its logits are a thousand equal numbers near 1e12, and softmax shows the last bit of each.
LAST_BIT = "test_squeezenet"

suite = onnx.backend.test.BackendTest(Road, __name__, test_kwargs=ROUNDED)
for pattern in (*EXCLUDED, LAST_BIT):
    suite.exclude(pattern)

found = suite.test_cases
for cases in found.values():
    for name in list(vars(cases)):
        if name.endswith("_cpu"):
            delattr(cases, name)
globals().update(found)
