"""Where a module and its ONNX file part: the first node, the line of the module, and the difference there.

A freshly generated module is right, or the file could not have been generated. It and the module that is looked into
run side by side, one PyTorch function after the other; the first result that parts is looked up among the results of
the ONNX graph's nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.load import load
from onnxgen.names import printable
from onnxgen.options import Options
from onnxgen.verify import torch_side
from onnxgen.verify.convert import to_torch
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import Onnxruntime, Refused, proto
from onnxgen.verify.report import Located

MOST = 1 << 28  # bytes of results that a trace keeps; later ones are not looked at
SAME = 1e-4  # relative: results of a right module and of onnxruntime that are one
PARTS = 1e-5  # relative: results of two modules that part; the same code gives the same bits


@dataclass(frozen=True)
class Event:
    """The result of one PyTorch function, and the line of the module that asked for it."""

    function: str
    line: int
    results: list[NDArray[Any]]


class _Trace(TorchFunctionMode):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.events, self.room = file, list[Event](), MOST

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, Tensor)]
        self.room -= sum(t.numel() * t.element_size() for t in tensors)
        name = getattr(function, "__name__", str(function))
        if tensors and self.room > 0 and name != "__get__":
            self.events.append(Event(name, self._line(), [_numbers(t) for t in tensors]))
        return result

    def _line(self) -> int:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    plain = tensor.detach()
    return (plain.to(torch.complex128) if plain.is_complex() else plain.double()).numpy().copy()


def locate(
    path: Path, options: Options, graph: Graph, module: nn.Module, feeds: Mapping[str, Any], moved: Sequence[str]
) -> Located | None:
    """The first place where a module parts from its ONNX file on some inputs; None if none was found.

    Args:
        moved: initializers of which the module's weights hold other values; the first node that takes one is it.
    """
    model = proto(path, without_dropout=graph.training)
    if moved:
        return _user(model, moved[0])
    right = load(path, options)
    expected, got = _traced(right, graph, feeds), _traced(module, graph, feeds)
    for i, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one.function != other.function or not _equal(one.results, other.results, PARTS):
            return _looked_up(path, model, feeds, expected, got, i)
    return None


def _traced(module: nn.Module, graph: Graph, feeds: Mapping[str, Any]) -> list[Event]:
    file = sys.modules[type(module).__module__].__file__ if type(module).__module__ in sys.modules else None
    file = module.forward.__code__.co_filename if hasattr(module.forward, "__code__") else file
    trace = _Trace(file or "")
    with torch_side.in_mode(module, graph), torch.no_grad(), trace, suppress(Exception):
        module(*map(to_torch, feeds.values()))  # if it fails, what it did until then is what is asked for
    return trace.events


def _equal(a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]], rtol: float) -> bool:
    return len(a) == len(b) and all(_close(x, y, rtol) for x, y in zip(a, b, strict=True))


def _close(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    if a.shape != b.shape:
        return False
    finite = a[np.isfinite(a)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol * 0.1 * scale, equal_nan=True))


def _looked_up(
    path: Path,
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    expected: Sequence[Event],
    got: Sequence[Event],
    i: int,
) -> Located | None:
    """The first node of those that the parting event stands for, which may be many: a whole norm is one function.

    They end at the node whose result the right module has there, or has next. They begin behind the results that the
    module does have: it may compute one by one what a right module computes at once.
    """
    values = _intermediate(path, model, feeds)
    pairs = zip(expected[i].results, got[i].results, strict=False)
    alike = [(a, b) for a, b in pairs if a.shape == b.shape]
    with np.errstate(all="ignore"):
        largest = max((float(np.nan_to_num(np.abs(a - b)).max()) for a, b in alike if a.size), default=float("inf"))
    for event in expected[i:]:
        for how in (_close, _rearranged):
            for node in model.graph.node:
                if any(name in values and how(values[name], r, SAME) for name in node.output for r in event.results):
                    first = _first(model, node, values, got)
                    return Located(printable(first.name or first.output[0]), first.op_type, got[i].line, largest)
    return None


def _first(
    model: onnx.ModelProto, last: onnx.NodeProto, values: Mapping[str, NDArray[Any]], got: Sequence[Event]
) -> onnx.NodeProto:
    """The first node, in the graph's order, on the way to the last one whose floats the module does not have."""
    made = {name: node for node in model.graph.node for name in node.output}
    constant = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if all(name in constant or not name for name in node.input):
            constant.update(node.output)
    results = [r for event in got for r in event.results]
    todo, region = [last], [last]
    while todo:
        for name in todo.pop().input:
            node = made.get(name)
            if node is None or node in region or name in constant or name not in values:
                continue
            if any(_close(values[name], r, SAME) or _rearranged(values[name], r, SAME) for r in results):
                continue
            region.append(node)
            todo.append(node)
    return min(region, key=list(model.graph.node).index)


def _rearranged(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """The same numbers in another layout; a few numbers can be equal by chance."""
    return 3 < a.size == b.size and _close(np.sort(a, axis=None), np.sort(b, axis=None), rtol)


def _intermediate(path: Path, model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Every result of the main graph's nodes, by name, as onnxruntime computes it."""
    known = {value.name for value in model.graph.output}
    names = [n for node in model.graph.node for n in node.output if n and n not in known]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        session = Onnxruntime(path, model, ())
        found = session.run(feeds)
    except Refused:
        return {}
    named = zip((value.name for value in model.graph.output), found, strict=True)
    return {n: v.astype(np.float64) for n, v in named if isinstance(v, np.ndarray) and v.dtype.kind in "fb"}


def _user(model: onnx.ModelProto, name: str) -> Located | None:
    """The first node that takes an initializer, through the copies and casts that only hand it on."""
    names = {name}
    for node in model.graph.node:
        if names.isdisjoint(node.input):
            continue
        if node.op_type not in ("Identity", "Cast", "DequantizeLinear", "Transpose"):
            return Located(printable(node.name or node.output[0]), node.op_type, 0, float("nan"))
        names.update(node.output)
    return None
