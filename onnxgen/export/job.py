"""One export job, step by step.

An edited module is exported with PyTorch's exporter (`anew`), under the original names of inputs and outputs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import torch
from torch import nn

from onnxgen.common.names import Namer, printable
from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError
from onnxgen.export import files
from onnxgen.export.changes import DTYPE, LEFT_OUT, Changed, choices
from onnxgen.export.files import record_metadata
from onnxgen.export.heads import Head
from onnxgen.export.places import CannotWriteBack, same, used_names
from onnxgen.export.report import ANEW, BACK, DiffersError, ExportReport
from onnxgen.export.state import Origin, bare, bare_model, build, is_constant, misfits, origin_of, state_of, tied
from onnxgen.options import Options
from onnxgen.output.write import Output
from onnxgen.reader.protos import inner_graphs, opset_of, put
from onnxgen.record.asked import recorded_options
from onnxgen.record.sidecar import metadata_of, shapes_of
from onnxgen.record.way_back import recorded_cut
from onnxgen.runtime.checkpoint import read_weights
from onnxgen.runtime.load import from_pretrained, imported
from onnxgen.surgery.replacing import resize_head
from onnxgen.verify import feeds
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch
from onnxgen.verify.report import VerifyReport
from onnxgen.verify.sizes import sizes as candidates
from onnxgen.weights.sidecar import Array

UNCHANGED = "the network has not changed since it was generated"
# for an edited module, by whether it is verified: the reason for writing it back, and a note
CHANGED = {
    False: (
        "keys and shapes have not changed",
        "the network was changed: the original graph may compute something else",
    ),
    True: (
        "the network was changed, and computes the same as the original graph",
        "what an edit changes in training alone, such as the rate of a Dropout, is not in the file",
    ),
}


@dataclass(frozen=True)
class Verification:
    """The settings for comparing the new file with the module (see `onnxgen.verify`)."""

    runs: int
    seed: int
    rtol: float
    atol: float
    plugins: Sequence[str] = ()

    def compare(self, draft: Path, network: nn.Module, origin: Origin, done: ExportReport) -> VerifyReport:
        """Compare the file at `draft`, which reports call `done.out`. Raises `OnnxgenError` if no oracle can run it."""
        try:
            options = replace(_options(origin), plugins=self.plugins, const={})  # the module's are known
            check = Check(draft, options, rtol=self.rtol, atol=self.atol)
            how = {"is_rounded": bool(done.changed or done.below), "is_anew": done.method == ANEW}
            report = check.forward(network, origin.space, runs=self.runs, seed=self.seed, **how)
        except OnnxgenError as error:
            way = "write the file unchecked with --no-verify"
            whats = (problem.what.replace(str(draft), done.out) for problem in error.problems)
            raise OnnxgenError(*(replace(p, what=w, help=way) for p, w in zip(error.problems, whats))) from error
        report.model, report.module = done.out, str(origin.module)
        return report


@dataclass(frozen=True)
class ExportJob:
    """One export job, from a trained module to an ONNX file (see `export` for the arguments and errors).

    Attributes:
        keeps_scales: integers are rounded by the file's scales, also where trained values are beyond their range.
    """

    module: Path
    onnx: Path | None
    weights: Path | nn.Module | None
    out: Path | None
    force: bool
    same_graph: bool
    metadata: Mapping[str, str]
    keeps_scales: bool = False

    def run(self, wanted: Verification | None) -> ExportReport:
        if wanted is not None and importlib.util.find_spec("onnxruntime") is None:
            what = "verifying an export needs onnxruntime"
            raise OnnxgenError(what, help=f"{installing('verify')}, or skip the check with --no-verify")
        with imported(self.module) as file:
            origin = origin_of(self.module, vars(file), self.onnx)
            out = self.out or self.module.with_name(f"{origin.onnx.stem}-tuned.onnx")
            own = {self.weights} if isinstance(self.weights, Path) else set[Path]()
            kept = files.original_files(origin.onnx) | origin.files | own
            files.refuse_overwriting(out, origin.onnx, kept, self.force)
            network = self.trained(origin, file)
            report = ExportReport(str(origin.onnx), str(self.module), str(out))
            with files.workshop(out) as draft:
                state, facts = state_of(network), self.metadata
                attempt = _Attempt(draft, origin, network, state, report, wanted, facts, self.keeps_scales)
                attempt.run(self.same_graph)
                report.wrote = files.put_in_place(draft, out)
        return report

    def trained(self, origin: Origin, file: ModuleType) -> nn.Module:
        """Return the network with its trained weights."""
        if isinstance(self.weights, nn.Module):
            return bare(self.weights)
        if self.weights is None:
            return from_pretrained(file, self.module)
        return build(origin, read_weights(self.weights), self.weights)


@dataclass(frozen=True)
class _Attempt:
    """Writes the new file to `draft`: `network` with the tensors `state`."""

    draft: Path
    origin: Origin
    network: nn.Module
    state: Mapping[str, Array]
    report: ExportReport
    wanted: Verification | None
    metadata: Mapping[str, str]
    keeps_scales: bool

    def run(self, same_graph: bool) -> None:
        """Write the values back into the original graph, or export anew if that is not possible."""
        report, origin = self.report, self.origin
        generated, current = _shapes(origin, self.network, self.state)
        head, differing = Head.between(generated, current), misfits(generated, current)
        why = f"the network was changed: it {differing}"
        if not differing or head is not None:
            reason = self._back(same_graph, head)
            if not reason:
                return
            why = f"{why}; the original graph can't hold that: {reason}" if differing else reason
        for path in self.draft.parent.iterdir():  # files that writing back left
            path.unlink()
        report.forget()
        report.method, report.why = ANEW, why
        export_anew(self.network, origin, self.draft, _options(origin), report)
        record_metadata(self.draft, self.metadata, report)
        if not self._agrees():
            raise DiffersError(report)

    def _back(self, same_graph: bool, head: Head | None) -> str:
        """Write the values into the original graph. Returns the reason if that is not possible, else "".

        A `head` with another number of classes is fitted in. The file also has the changes by options of the
        generation. Changes with which it does not compute the same as the module are left out.
        """
        is_changed, report = self._is_changed(head), self.report
        why, note = self._why(is_changed, head)
        changed = Changed(self.origin, _options(self.origin), self.state, head, self.keeps_scales)
        tried: list[frozenset[str]] = []
        for changes in [frozenset[str]()] if same_graph else choices():
            report.forget()
            report.method, report.why = BACK, why
            try:
                done = changed.write(self.draft, report, changes)
            except CannotWriteBack as reason:
                return str(reason)
            if done in tried:
                continue
            report.notes += [LEFT_OUT[change] for change in sorted(tried[0] - done if tried else ())]
            tried.append(done)
            report.notes += [note] if note else []
            record_metadata(self.draft, self.metadata, report)
            try:
                if self._agrees(is_retyped=DTYPE in done):
                    return ""
            except OnnxgenError as error:  # perhaps no oracle runs the changed file, in another type say
                if not done and head is not None:
                    return str(error)
                if not done:
                    raise
        if not is_changed and head is None:
            raise DiffersError(report)
        return "the network was changed: it no longer computes the same as the original graph"

    def _why(self, is_changed: bool, head: Head | None) -> tuple[str, str]:
        """Return the reason for writing values back, and a note if the module was edited."""
        why, note = CHANGED[self.wanted is not None] if is_changed else (UNCHANGED, "")
        return why if head is None else f"{head.told}: {', '.join(head.axes)}", note

    def _agrees(self, is_retyped: bool = False) -> bool:
        """Return True if the new file computes the same as the module, or is not to be compared."""
        if self.wanted is None:
            return True
        report = self.report
        report.verified = self.wanted.compare(self.draft, self.network, self.origin, report)
        if not report.verified.differs:
            report.notes += _without_kernels(report.verified, is_retyped)
        return not report.verified.differs

    def _is_changed(self, head: Head | None) -> bool:
        """Return True if the module was edited: its file, or the layers of the module in memory."""
        file, model = self.origin.module, bare_model(self.origin, "meta" if head is None else "cpu")
        text = file.read_text(encoding="utf-8", errors="replace")
        if head is not None:
            resize_head(model, {key: array.shape for key, array in self.state.items()})
        return Output(file, Options()).is_edited(text) or repr(self.network) != repr(model)


def _without_kernels(verified: VerifyReport, is_retyped: bool) -> list[str]:
    """Return a note if onnxruntime can't run the new file on this machine. `is_retyped`: it has the module's type."""
    reason = next((note for note in verified.notes if note.startswith("onnxruntime can't load it")), "")
    way = "; keep the original types with --same-graph" if is_retyped else ""
    return [f"{reason}{way}"] if reason else []


_Shapes = dict[str, tuple[int, ...]]


def _shapes(origin: Origin, network: nn.Module, state: Mapping[str, Array]) -> tuple[_Shapes, _Shapes]:
    """Return the shapes of the state dict as it was generated, and now. Tied tensors count once."""
    generated = shapes_of(origin.space)
    current = {key: array.shape for key, array in state.items()}
    # The sidecar has a tied tensor once. A tied buffer that was moved to a device is a separate object.
    equal = [names for names in tied(bare_model(origin)) if _are_equal(names, state)]
    for names in [*tied(network), *equal]:
        known = [name for name in names if name in generated]
        current = {key: shape for key, shape in current.items() if not known or key in known[:1] or key not in names}
    return {key: shape for key, shape in generated.items() if key in current or not is_constant(key, state)}, current


def _are_equal(names: list[str], state: Mapping[str, Array]) -> bool:
    return all(name in state and same(state[name], state[names[0]]) for name in names)


def _options(origin: Origin) -> Options:
    """Return the options for the part of the file and the input sizes that the module was generated for."""
    shapes = {
        port.name: tuple(dim if isinstance(dim, int) else -1 for dim in port.dims)
        for port in origin.signature.inputs
        if port.dims is not None and port.kind == "tensor"
    }
    metadata = metadata_of(origin.space)
    cut = recorded_cut(metadata) or ((), ())
    recorded = recorded_options(metadata, origin.module.parent) or Options()
    shapes = {name: dims for name, dims in recorded.input_shapes.items() if name in recorded.const} | shapes
    return Options(input_shapes=shapes, const=recorded.const, inputs=cut[0], outputs=cut[1])


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
    exporters: list[tuple[str, _Exporter, range]] = [("TorchScript", _legacy, LEGACY)]
    if importlib.util.find_spec("onnxscript") is not None:
        exporters.insert(0 if opset in DYNAMO else 1, ("dynamo", _dynamo, DYNAMO))
    return exporters


def _example(origin: Origin, options: Options) -> tuple[Any, ...]:
    """Return inputs for tracing that the original graph would accept."""
    graph = Check(origin.onnx, options, rtol=0.0, atol=0.0).graph
    sizes = next(iter(candidates(graph, 0)))
    return tuple(to_torch(value) for value in feeds.draw(graph, sizes, "plain", 0).values())


def _dynamic(origin: Origin, outputs: bool) -> dict[str, dict[int, str]]:
    """Return the axes of symbolic size by input (and output), each with its symbol."""
    ports = (*origin.signature.inputs, *(origin.signature.outputs if outputs else ()))
    return {
        port.name: {axis: dim for axis, dim in enumerate(port.dims or ()) if isinstance(dim, str)} for port in ports
    }


def _names(origin: Origin) -> dict[str, list[str]]:
    ports = {"input_names": origin.signature.inputs, "output_names": origin.signature.outputs}
    return {key: [port.name for port in group] for key, group in ports.items()}


def _legacy(network: nn.Module, arguments: tuple[Any, ...], origin: Origin, out: Path, opset: int) -> None:
    settings: dict[str, Any] = {**_names(origin), "dynamic_axes": _dynamic(origin, outputs=True)}
    torch.onnx.export(network, arguments, out, dynamo=False, opset_version=opset, **settings)
    _keep_inputs(origin, out)


def _keep_inputs(origin: Origin, out: Path) -> None:
    """Add unused inputs, which the older exporter drops, so that callers of the original file still work."""
    model = onnx.load(out, load_external_data=False)
    names = [port.name for port in origin.signature.inputs]
    values = {value.name: value for value in onnx.load(origin.onnx, load_external_data=False).graph.input}
    values |= {value.name: value for value in model.graph.input}
    if [value.name for value in model.graph.input] != names:
        put(model.graph.input, [values[name] for name in names if name in values])
        onnx.save(model, out)


def _dynamo(network: nn.Module, arguments: tuple[Any, ...], origin: Origin, out: Path, opset: int) -> None:
    """Export with names that nothing else has, since this exporter gives a name to two values if it is asked to."""
    names = _names(origin)
    own = {key: [f"onnxgen.{key}.{i}" for i in range(len(group))] for key, group in names.items()}
    settings: dict[str, Any] = {**own, "dynamic_shapes": tuple(_dynamic(origin, outputs=False).values())}
    settings |= {"external_data": False, "verbose": False}
    torch.onnx.export(network, arguments, out, dynamo=True, opset_version=opset, **settings)
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
        with warnings.catch_warnings(record=True) as caught, hidden[0], hidden[1], _no_graphs():
            warnings.simplefilter("always")
            yield
        if any(w.category.__name__ == "TracerWarning" and "Python boolean" in str(w.message) for w in caught):
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
