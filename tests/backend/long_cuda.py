"""ONNX's own backend tests on a CUDA device. Without one, they are skipped.

TF32 is off: the tests' bounds are those of float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.backend.exclusions import EXCLUDED
from tests.backend.road import cases_on

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield


# Its weights are all equal. Its logits are a thousand equal numbers near 1e12, and softmax shows the last bit of each.
LAST_BIT = "test_squeezenet"

globals().update(cases_on("cuda", (*EXCLUDED, LAST_BIT), __name__))
