"""Compare a module with its file step by step, if one comparison from inputs to outputs is not conclusive.

A network that ranks, rounds or normalises nearly equal numbers turns rounding errors into large differences. So the
file runs on the module's intermediate results. The file computes each such value from the module's earlier values, and
later nodes take the module's value. If every step agrees, the module's outputs differ from the file's by at most one
rounding error per step. It does not matter which result of the module is chosen for a value: a wrong choice fails in
the next comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from torch import nn

from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import Onnxruntime, Refused, intermediate
from onnxgen.verify.trace import same, traced

MAX_DISTANCE = 0.5  # results at this distance are another value; a part of the value's size, in root mean square
_TYPES: dict[int, type[np.floating[Any]]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.FLOAT16: np.float16,
}
MODULE = "/of the module"


def stepwise(
    path: Path, model: onnx.ModelProto, graph: Graph, module: nn.Module, feeds: Mapping[str, Any]
) -> tuple[int, list[Any]] | None:
    """Run the file on the module's intermediate results. `model`: the file's graph; it is changed.

    Returns:
        the number of those results and the file's outputs; None if a step differs, or there are no such results.
    """
    values = _of_module(intermediate(path, model, feeds), module, graph, feeds)
    outputs = {value.name for value in model.graph.output}
    steps = {
        name: value.astype(_TYPES[graph.types[name]])
        for name, value in values.items()
        if graph.types.get(name) in _TYPES and name not in outputs
    }
    if not steps:
        return None
    _force(model, steps)
    try:
        found = Onnxruntime(path, model, ()).run({**feeds, **{name + MODULE: value for name, value in steps.items()}})
    except Refused:
        return None
    named = dict(zip((value.name for value in model.graph.output), found, strict=True))
    rtol = same(graph)
    if not all(_agree(named[name], value, rtol) for name, value in steps.items()):
        return None
    return len(steps), found[: len(outputs)]


def _of_module(
    values: Mapping[str, NDArray[Any]], module: nn.Module, graph: Graph, feeds: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Return the module's nearest result for each value of the file, in the value's shape."""
    by_size: dict[int, list[NDArray[Any]]] = {}
    for event in traced(module, graph, feeds):
        for result in event.results:
            by_size.setdefault(result.size, []).append(result)
    found = {}
    for name, value in values.items():
        near = [result.reshape(value.shape) for result in by_size.get(value.size, []) if result.dtype.kind == "f"]
        distances = [_distance(value, result) for result in near]
        if value.size > 1 and distances and min(distances) < MAX_DISTANCE:
            found[name] = near[distances.index(min(distances))]
    return found


def _distance(value: NDArray[Any], result: NDArray[Any]) -> float:
    """Return the distance relative to the value's size, both in root mean square."""
    with np.errstate(all="ignore"):
        size, far = float(np.square(value).sum()), float(np.square(value - result).sum())
    return np.inf if not np.isfinite(far) or not size else float(np.sqrt(far / size))


def _force(model: onnx.ModelProto, steps: Mapping[str, NDArray[Any]]) -> None:
    """Add main graph inputs for values, and let nodes use these. The file still computes the values, as outputs."""
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name in steps:
                node.input[i] = name + MODULE
    for name, value in steps.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name + MODULE, kind, value.shape))
        model.graph.output.append(onnx.ValueInfoProto(name=name))


def _agree(expected: Any, got: NDArray[Any], rtol: float) -> bool:
    if not isinstance(expected, np.ndarray) or expected.shape != got.shape:
        return False
    a, b = expected.astype(np.float64), got.astype(np.float64)
    size = float(np.sqrt(np.mean(np.square(a[np.isfinite(a)])))) if np.isfinite(a).any() else 0.0
    return bool(np.allclose(b, a, rtol=rtol, atol=rtol * size, equal_nan=True))
