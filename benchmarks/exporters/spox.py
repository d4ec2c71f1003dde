"""spox: graphs that are written operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

REQUIREMENTS = ["spox", "onnx", "numpy"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """A network, and operators with graphs of their own."""
    for name in ("mlp", "conv", "chosen", "normed", "gathered", "inlined"):
        yield name, partial(_build, name)


def _build(name: str, path: Path) -> None:
    import numpy as np
    import onnx
    import spox
    import spox.opset.ai.onnx.v19 as op

    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return op.constant(value=(rng.standard_normal(shape) / 4).astype(np.float32))

    def const(value: Any) -> Any:
        return op.constant(value=np.asarray(value))

    shape = ("batch", 3, 8, 8) if name == "conv" else ("batch", 6)
    x = spox.argument(spox.Tensor(np.float32, shape))
    if name == "mlp":
        y = op.gemm(op.relu(op.gemm(x, weight(6, 8), weight(8))), weight(4, 8), weight(4), transB=1)
    elif name == "conv":
        y = op.max_pool(op.conv(x, weight(4, 3, 3, 3), weight(4), pads=[1, 1, 1, 1]), kernel_shape=[2, 2])[0]
        y = op.reduce_mean(op.hard_swish(y), const([2, 3]), keepdims=0)
    elif name == "chosen":
        positive = op.greater(op.reduce_sum(x, keepdims=0), const(np.float32(0)))
        (y,) = op.if_(positive, then_branch=lambda: [op.exp(x)], else_branch=lambda: [op.neg(x)])
    elif name == "normed":
        y = op.layer_normalization(x, weight(6), weight(6))[0]
        y = op.mul(y, op.sigmoid(op.einsum([y, weight(6, 6)], equation="bi,ij->bj")))
    elif name == "gathered":
        values, places = op.top_k(x, const([3]))
        y = op.add(values, op.gather(weight(6), places))
    else:
        inner = spox.argument(spox.Tensor(np.float32, ("n", 6)))
        model = spox.build({"a": inner}, {"b": op.softmax(op.matmul(inner, weight(6, 6)))})
        y = next(iter(spox.inline(model)(a=x).values()))
    onnx.save(spox.build({"x": x}, {"y": y}), path)
