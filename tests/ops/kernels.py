"""Which kernels the installed onnxruntime has: operators that are newer than it have no oracle."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper


@cache
def _kernels() -> frozenset[str]:
    """The operators of com.microsoft that its CPU provider has a kernel of."""
    found: Any = onnxruntime.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
    return frozenset(k.op_name for k in found if k.provider == "CPUExecutionProvider" and k.domain == "com.microsoft")


def needs(*names: str, since: tuple[int, int] = (0, 0)) -> pytest.MarkDecorator:
    """Skips a test where there is no kernel of one of these, or where all is older than a version."""
    absent = ", ".join(name for name in names if name not in _kernels() or not _runs_here(name))
    is_old = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < since
    what = f"no CPU kernel of {absent}" if absent else f"an older one of {', '.join(names)}"
    return pytest.mark.skipif(bool(absent) or is_old, reason=f"onnxruntime {onnxruntime.__version__} has {what}")


@cache
def _runs_here(name: str) -> bool:
    """Whether the processor can do it: MatMulFpQ4 asks for AVX512, and is refused when a file with it is loaded."""
    if name != "MatMulFpQ4":
        return True
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=[1, 32])
    stored = [numpy_helper.from_array(a, n) for n, a in (("b", np.zeros(20, np.uint8)), ("s", np.array([32, 1])))]
    node = helper.make_node(name, ["x", "b", "s"], ["y"], domain="com.microsoft")
    graph = helper.make_graph([node], "g", [value("x")], [helper.make_empty_tensor_value_info("y")], stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return "hardware platform" not in str(error)
    return True
