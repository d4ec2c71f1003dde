"""Which kernels the installed onnxruntime has: operators that are newer than it have no oracle."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnxruntime
import pytest


@cache
def _kernels() -> frozenset[str]:
    """The operators of com.microsoft that its CPU provider has a kernel of."""
    found: Any = onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
    return frozenset(k.op_name for k in found if k.provider == "CPUExecutionProvider" and k.domain == "com.microsoft")


def needs(*names: str, since: tuple[int, int] = (0, 0)) -> pytest.MarkDecorator:
    """Skips a test where there is no kernel of one of these, or where all is older than a version."""
    absent = ", ".join(name for name in names if name not in _kernels())
    is_old = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < since
    what = f"no CPU kernel of {absent}" if absent else f"an older one of {', '.join(names)}"
    return pytest.mark.skipif(bool(absent) or is_old, reason=f"onnxruntime {onnxruntime.__version__} has {what}")
