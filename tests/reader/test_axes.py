"""Axes out of range: what onnxruntime refuses to load is refused at generation, and what it runs is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from onnxgen import OnnxgenError, Options
from onnxgen.pipeline import build

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,4,5] x, float s) => (y) {'
OPTIONS = ort.SessionOptions()
OPTIONS.log_severity_level = 4  # what it refuses is raised, too
AXES = "i = Constant<value_ints=[{}]>() "
BROKEN = [
    "y = Softmax<axis=7>(x)",
    "y = LogSoftmax<axis=-9>(x)",
    "y = Hardmax<axis=4>(x)",
    "y = Concat<axis=7>(x)",
    "y = Concat<axis=-5>(x, x)",
    "y = Flatten<axis=5>(x)",
    "y = ArgMax<axis=4>(x)",
    "y = ReduceMax<axes=[1, 9]>(x)",
    "y = LayerNormalization<axis=9>(x, x)",
    "y = LpNormalization<axis=9>(x)",
    AXES.format("0") + "y = Gather<axis=9>(x, i)",
    AXES.format("9") + "y = Unsqueeze(x, i)",
    AXES.format("9") + "y = Squeeze(x, i)",
    AXES.format("9") + "y = ReduceSum(x, i)",
    AXES.format("9") + "z = Constant<value_ints=[0]>() e = Constant<value_ints=[1]>() y = Slice(x, z, e, i)",
    "y, z = Split<axis=9>(x)",
]
FINE = [
    "y = Softmax<axis=-4>(x)",
    "y = Flatten<axis=4>(x)",
    AXES.format("5, 0") + "y = Unsqueeze(x, i)",
    AXES.format("-5") + "y = Unsqueeze(x, i)",
    "n = Cast<to=7>(x) d = Constant<value_int=3>() v = Constant<value_floats=[0.0, 1.0]>() y = OneHot<axis=4>(n, d, v)",
    "y = QuantizeLinear<axis=9>(x, s)",
    AXES.format("-1") + "y = ReduceSum(x, i)",
]


def _model(body: str, folder: Path) -> Path:
    path = folder / "net.onnx"
    onnx.save(onnx.parser.parse_model(f"{HEAD} {body} }}"), path)
    return path


@pytest.mark.parametrize("body", BROKEN)
def test_refused(body: str, tmp_path: Path) -> None:
    path = _model(body, tmp_path)
    inputs = {"x": np.zeros((2, 3, 4, 5), np.float32), "s": np.array(1, np.float32)}
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match="(?i)axis|axes|infer|rank"):
        ort.InferenceSession(path, OPTIONS).run(None, inputs)
    with pytest.raises(OnnxgenError, match="out of range.*run onnx.checker.check_model on the file"):
        build(path, Options(), tmp_path / "net.py")


@pytest.mark.parametrize("body", FINE)
def test_taken(body: str, tmp_path: Path) -> None:
    path = _model(body, tmp_path)
    ort.InferenceSession(path, OPTIONS)
    build(path, Options(), tmp_path / "net.py")


def test_never_taken(tmp_path: Path) -> None:
    """A branch need not fit the ranks; but no tensor has 2^40 axes."""
    text = """c = Constant<value = bool {{0}}>()
    y = If (c) <then_branch = g1 () => (a) {{ a = Softmax<axis={}>(x) }},
                else_branch = g2 () => (b) {{ b = Identity(x) }}>"""
    build(_model(text.format(7), tmp_path), Options(), tmp_path / "net.py")
    with pytest.raises(OnnxgenError, match="axis 1099511627776 is out of range for any tensor"):
        build(_model(text.format(2**40), tmp_path), Options(), tmp_path / "net.py")
