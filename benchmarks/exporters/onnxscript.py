"""onnxscript: functions in Python, and its optimiser and rewriter over torch's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx
from onnxscript import FLOAT, optimizer, rewriter, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

from benchmarks.exporters.sources import sources

REQUIREMENTS = ["onnxscript", "onnx", "numpy"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Functions that call others; torch's networks after its optimiser, and after its rules for onnxruntime."""
    yield "functions", _functions
    for name, path in sources(out, "cnn", "causal", "encoder_pre", "window", "lstm", "diffuse"):
        yield f"{name}_optimized", partial(_changed, path, "optimizer")
    for name, path in sources(out, "causal", "encoder_pre", "encoder_post", tools=("torch_dynamo",)):
        yield f"{name}_rewritten", partial(_changed, path, "rewriter")


OWN = Opset("own.functions", 1)


@script(OWN, default_opset=op)
def gated(x, w):  # type: ignore[no-untyped-def]
    """A function of the file's own."""
    y = op.MatMul(x, w)
    return op.Mul(y, op.Sigmoid(y))


@script(default_opset=op)
def network(x: FLOAT[...], w: FLOAT[6, 6]):  # type: ignore[no-untyped-def]
    """A condition, and that function twice."""
    y = gated(x, w)
    if op.ReduceSum(y, keepdims=0) > 0.0:
        z = op.Relu(y)
    else:
        z = gated(y, w)
    return z


def _functions(path: Path) -> None:
    onnx.save(network.to_model_proto(), path)


def _changed(source: Path, how: str, path: Path) -> None:
    model = onnx.load(source)
    onnx.save(optimizer.optimize(model) if how == "optimizer" else rewriter.rewrite(model), path)
