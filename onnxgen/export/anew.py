"""Export an edited module with PyTorch's exporter, under the original names of inputs and outputs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from onnxgen.common.names import Namer, printable
from onnxgen.errors import OnnxgenError
from onnxgen.export.origin import Origin
from onnxgen.export.report import ExportReport
from onnxgen.export.shared import used_names
from onnxgen.options import Options
from onnxgen.reader.protos import inner_graphs, opset_of, put
from onnxgen.verify import feeds as drawing
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch
from onnxgen.verify.sizes import sizes as candidates

LEGACY = range(9, 21)  # opsets that torch's older exporter supports
DYNAMO = range(18, 24)  # opsets that torch's newer exporter supports


def export_anew(network: nn.Module, origin: Origin, out: Path, options: Options, report: ExportReport) -> None:
    """Write the network, in eval mode, to `out` with PyTorch's exporter.

    Raises:
        OnnxgenError: no exporter can write it; the message has the reason of each.
    """
    opset = opset_of(onnx.load(origin.onnx, load_external_data=False), default=17)
    arguments = _example(origin, options)
    reasons = []
    modes = {m: m.training for m in network.modules()}
    try:
        network.eval()
        for name, exporter, opsets in _exporters(opset):
            version = min(max(opset, opsets.start), opsets.stop - 1)
            try:
                with _quiet():
                    exporter(network, arguments, origin, out, version)
            except Exception as error:  # exporters raise errors of every kind
                reasons.append(f"the {name} exporter: {type(error).__name__}: {printable(str(error), 200)}")
                continue
            note = "" if version == opset else f", since it can't write the original opset {opset}"
            report.notes.append(f"exported by torch's {name} exporter at opset {version}{note}")
            return
    finally:
        for module, mode in modes.items():
            module.training = mode
    what = f"the changed module can't be exported ({'; '.join(reasons)}); not written back, because {report.why}"
    raise OnnxgenError(what, help="keep the architecture, or call torch.onnx.export yourself")


_Exporter = Callable[[nn.Module, tuple[Any, ...], Origin, Path, int], None]


def _exporters(opset: int) -> list[tuple[str, _Exporter, range]]:
    """Return the available exporters: the newer one first, unless only the older one supports the original's opset."""
    found: list[tuple[str, _Exporter, range]] = [("TorchScript", _legacy, LEGACY)]
    if importlib.util.find_spec("onnxscript") is not None:
        found.insert(0 if opset in DYNAMO else 1, ("dynamo", _dynamo, DYNAMO))
    return found


def _example(origin: Origin, options: Options) -> tuple[Any, ...]:
    """Return inputs for tracing that the original graph would accept."""
    graph = Check(origin.onnx, options, rtol=0.0, atol=0.0).graph
    sizes = next(iter(candidates(graph, 0)))
    return tuple(to_torch(value) for value in drawing.draw(graph, sizes, "plain", 0).values())


def _dynamic(origin: Origin, outputs: bool) -> dict[str, dict[int, str]]:
    """Return the axes of symbolic size by input (and output), each with its symbol."""
    ports = (*origin.signature.inputs, *(origin.signature.outputs if outputs else ()))
    return {
        port.name: {axis: dim for axis, dim in enumerate(port.dims or ()) if isinstance(dim, str)} for port in ports
    }


def _names(origin: Origin) -> dict[str, list[str]]:
    ports = {"input_names": origin.signature.inputs, "output_names": origin.signature.outputs}
    return {key: [port.name for port in found] for key, found in ports.items()}


def _legacy(network: nn.Module, arguments: tuple[Any, ...], origin: Origin, out: Path, opset: int) -> None:
    given: dict[str, Any] = {**_names(origin), "dynamic_axes": _dynamic(origin, outputs=True)}
    torch.onnx.export(network, arguments, out, dynamo=False, opset_version=opset, **given)
    _keep_inputs(origin, out)


def _keep_inputs(origin: Origin, out: Path) -> None:
    """Add unused inputs, which the older exporter drops, so that callers of the original file still work."""
    model = onnx.load(out, load_external_data=False)
    names = [port.name for port in origin.signature.inputs]
    found = {value.name: value for value in onnx.load(origin.onnx, load_external_data=False).graph.input}
    found |= {value.name: value for value in model.graph.input}
    if [value.name for value in model.graph.input] != names:
        put(model.graph.input, [found[name] for name in names if name in found])
        onnx.save(model, out)


def _dynamo(network: nn.Module, arguments: tuple[Any, ...], origin: Origin, out: Path, opset: int) -> None:
    """Export with names that nothing else has, since this exporter gives a name to two values if it is asked to."""
    names = _names(origin)
    own = {key: [f"onnxgen.{key}.{i}" for i in range(len(found))] for key, found in names.items()}
    given: dict[str, Any] = {**own, "dynamic_shapes": tuple(_dynamic(origin, outputs=False).values())}
    given |= {"external_data": False, "verbose": False}
    torch.onnx.export(network, arguments, out, dynamo=True, opset_version=opset, **given)
    model = onnx.load(out)
    wanted = {one: other for key in names for one, other in zip(own[key], names[key], strict=True)}
    _rename(model.graph, _free(model.graph, wanted))
    onnx.save(model, out)


def _free(graph: onnx.GraphProto, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the new names of values, by the old: those that are wanted, and others for the values that have these."""
    used = [*used_names(graph)]
    namer = Namer([*used, *wanted.values()])
    return {**{name: namer.take(name) for name in wanted.values() if name in used}, **wanted}


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename the values of a graph, and of the graphs inside it, in place."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for inner in inner_graphs(node):
            _rename(inner, names)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and other output of exporters. Raises `TypeError` if one recorded one branch of an `if`."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        hidden = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with warnings.catch_warnings(record=True) as said, hidden[0], hidden[1], _no_graphs():
            warnings.simplefilter("always")
            yield
        if any(w.category.__name__ == "TracerWarning" and "Python boolean" in str(w.message) for w in said):
            raise TypeError("it would record one branch of an if that depends on values")
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _no_graphs() -> Iterator[None]:
    """Discard the graph that the older exporter prints past Python's stdout when it fails, even with logging off."""
    function = getattr(torch._C, "_jit_onnx_log", None)
    if function is None:
        yield
        return
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = function
