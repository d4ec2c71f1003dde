"""Oracles that run the ONNX file: onnxruntime, or `onnx.reference` if onnxruntime cannot.

`limited` sets a time limit: a loop of the network may run on for some inputs, in a module as in an
oracle. `Stacked` is the oracle for `--dynamic-batch`: it runs a file with a fixed batch several
times and stacks the results.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.built import json_object
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.graph.operators import card
from onnxgen.passes.batch import Freed
from onnxgen.passes.standard.batchwise import time_first
from onnxgen.reader.inputs import Given, cut_graph, fix_constants
from onnxgen.reader.protos import every_node, opset_of
from onnxgen.record.sidecar import noted
from onnxgen.record.way_back import Cut

LOOP_SECONDS = 20.0  # seconds for one run of a network with a loop, on drawn inputs
SLOWER = 50.0  # a module's loop may take so many times as long as the oracle's


class TimedOut(Exception):
    """Something ran for longer than its limit."""


class _Stop(BaseException):
    """Raised in the thread that runs for too long. No handler of `Exception` catches it on its way."""


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise `TimedOut` in this thread when the block has run for so long; None: no limit.

    Python only notices between two of its own instructions, so a single long call is not interrupted.
    """
    if seconds is None:
        yield
        return
    lock, thread, is_over = threading.Lock(), threading.get_ident(), False

    def stop() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Stop))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except _Stop:
        raise TimedOut(f"it was stopped after {seconds:.0f} s") from None
    finally:
        with lock:
            is_over = True
        timer.cancel()


# Without it, sums of products of uint8 and int8 saturate at 16 bits on processors with AVX2 but without VNNI.
# onnxruntime rewrites the graph for it, which needs optimisations, and weights in the file.
EXACT = ("session.x64quantprecision", "1")
FOLDER = "session.model_external_initializers_file_folder_path"
TIMEOUT_SECONDS = 300.0  # seconds for one run; a loop's trip count can be an input
_PLAIN = {"float", "double", "float16", "bool", "string", "int8", "int16", "int32", "int64"}
_PLAIN |= {"uint8", "uint16", "uint32", "uint64", "complex64", "complex128"}
_EXOTIC = {"bfloat16": ir.DataType.BFLOAT16, "float8e4m3fn": ir.DataType.FLOAT8E4M3FN}
_EXOTIC |= {"float8e4m3fnuz": ir.DataType.FLOAT8E4M3FNUZ, "float8e5m2": ir.DataType.FLOAT8E5M2}
_EXOTIC |= {"float8e5m2fnuz": ir.DataType.FLOAT8E5M2FNUZ}
_NEWEST_POOL = 7  # the opset from which the reference evaluator computes AveragePool


class Refused(Exception):
    """The oracle cannot load a model, or cannot run it on an input."""


class RanOn(Refused):
    """The oracle was stopped: it ran for longer than its limit."""


class Oracle(Protocol):
    """Runs an ONNX model: maps inputs by name to outputs in graph order. Raises `Refused`.

    Attributes:
        seconds: the limit for one run; None for no limit of its own.
    """

    name: str
    seconds: float | None

    def run(self, feeds: Mapping[str, Any]) -> list[Any]: ...


@dataclass(frozen=True)
class Answer:
    """Inputs that an oracle accepted, with its outputs.

    Attributes:
        sizes: of dynamic dims, by name.
        seed: the seed of the inputs.
        feeds: the inputs by name.
        seconds: the time that the oracle took.
    """

    sizes: dict[str, int]
    seed: int
    feeds: dict[str, Any]
    oracle: Oracle
    outputs: list[Any]
    seconds: float = 0.0


class Onnxruntime:
    """onnxruntime on the CPU, or on CUDA.

    Args:
        changed: the model, if it is not the file itself.
        optimised: graph optimisations are on.
        alone: it runs on one core.
        exact: see `EXACT`.
        cuda: it runs on CUDA, if onnxruntime has that.

    Raises:
        Refused: it can't load the model.
    """

    name = "onnxruntime"
    seconds: float | None = None

    def __init__(
        self,
        path: Path,
        changed: onnx.ModelProto | None,
        new_ops: Sequence[Any],
        *,
        optimised: bool = False,
        alone: bool = False,
        exact: bool = False,
        cuda: bool = False,
    ) -> None:
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise Refused(f"onnxruntime is not installed ({error})") from None
        self.ort = ort
        model: Any = str(path)
        if changed is not None:
            model = changed.SerializeToString()
        wanted = [*(["CUDAExecutionProvider"] if cuda else []), "CPUExecutionProvider"]
        providers = [name for name in wanted if name in ort.get_available_providers()] if cuda else wanted
        ways = [{"optimised": optimised}]
        if optimised or exact:  # the rewritten graph may need kernels that do not exist; then load without `EXACT`
            ways.insert(0, {"optimised": optimised, "exact": True})
        for way in ways:
            options = _session_options(None if changed is None else path, alone=alone, **way)
            try:
                self.session = ort.InferenceSession(model, options, providers=providers)
                break
            except Exception as error:
                refusal = _line(error)
        else:
            raise Refused(refusal)
        ports = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.types = {port.name: _element(port.type) for port in ports}
        unknown = sorted(set(self.types.values()) - _PLAIN - set(_EXOTIC))
        if unknown:
            raise Refused(f"the Python interface of onnxruntime has no {', '.join(unknown)}")

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        options = self.ort.RunOptions()
        options.log_severity_level = 4
        seconds = self.seconds or TIMEOUT_SECONDS
        timer = threading.Timer(seconds, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            if any(kind in _EXOTIC for kind in self.types.values()):
                return self._run_raw(feeds, options)
            return [_maps(v) for v in self.session.run(None, dict(feeds), options)]
        except Exception as error:
            if options.terminate:
                raise RanOn(f"it was stopped after {seconds:.0f} s") from None
            raise Refused(_line(error)) from None
        finally:
            timer.cancel()

    def _run_raw(self, feeds: Mapping[str, Any], options: Any) -> list[Any]:
        """Run with OrtValues: numpy has no bfloat16 or float8 that onnxruntime supports."""
        make = self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type
        values = {}
        for name, array in feeds.items():
            if not isinstance(array, np.ndarray):
                raise Refused("the Python interface of onnxruntime can't mix sequences with these types")
            exotic = _EXOTIC.get(self.types[name])
            plain = self.ort.OrtValue.ortvalue_from_numpy
            values[name] = plain(array) if exotic is None else make(_bits(array), int(exotic))
        return [_from_ort(v) for v in self.session.run_with_ort_values(None, values, options)]


def _session_options(path: Path | None, *, optimised: bool, alone: bool, exact: bool = False) -> Any:
    """Return session options. `path`: the ONNX file; external data of a changed model lie beside it."""
    import onnxruntime as ort

    options, levels = ort.SessionOptions(), ort.GraphOptimizationLevel
    plain = levels.ORT_ENABLE_EXTENDED if exact else levels.ORT_DISABLE_ALL
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else plain
    options.log_severity_level = 4
    options.intra_op_num_threads = 1 if alone else 0
    if exact:
        options.add_session_config_entry(*EXACT)
    if path is not None:
        options.add_session_config_entry(FOLDER, str(path.resolve().parent))
    return options


def _maps(value: Any) -> Any:
    """Return a value with the numbers of its maps as arrays; onnxruntime returns Python numbers."""
    if isinstance(value, dict):
        kinds = {float: np.float32, int: np.int64, str: object}
        return {key: np.asarray(held, kinds.get(type(held))) for key, held in value.items()}
    return [_maps(v) for v in value] if isinstance(value, list) else value


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(np.uint16 if array.dtype.itemsize == 2 else np.uint8).reshape(array.shape)


def _from_ort(value: Any) -> Any:
    exotic = _EXOTIC.get(_element(value.data_type()))
    if exotic is None:
        return value.numpy()
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(data, exotic.numpy()).reshape(value.shape())


def _element(kind: str) -> str:
    """Return the element type: `seq(tensor(float))` -> `float`."""
    return kind.rpartition("(")[2].rstrip(")")


class Reference:
    """The evaluator of the onnx package.

    Raises:
        Refused: it can't load the model, or is known to compute one of its operators wrongly.
    """

    name = "onnx.reference"
    seconds: float | None = None

    def __init__(self, path: Path, changed: onnx.ModelProto | None, new_ops: Sequence[Any]) -> None:
        from onnx.reference import ReferenceEvaluator

        model = changed if changed is not None else onnx.load(path)
        opset = opset_of(model)
        nodes = [node for node in every_node(model) if not node.domain]
        wrong = {n.op_type for n in nodes if opset < card("", n.op_type).since}  # it computes the newest meaning
        wrong |= {n.op_type for n in nodes if n.op_type == "AveragePool" and opset < _NEWEST_POOL}
        if wrong:
            raise Refused(
                f"onnx.reference computes {', '.join(sorted(wrong))} of opset {opset} by the rules of a later opset"
            )
        try:
            self.evaluator = ReferenceEvaluator(model, new_ops=list(new_ops))
        except Exception as error:
            raise Refused(_line(error)) from None

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            try:
                with limited(self.seconds):
                    return [_tidy(v) for v in self.evaluator.run(None, dict(feeds))]
            except TimedOut as error:
                raise RanOn(str(error)) from None
            except Exception as error:
                raise Refused(_line(error)) from None


def _tidy(value: Any) -> Any:
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        return {key: np.asarray(held) for key, held in value.items()}
    return [_tidy(v) for v in value] if isinstance(value, list) else np.asarray(value)


def oracles(
    path: Path,
    *,
    without_dropout: bool,
    part: ModelPart | None = None,
    exact: bool = False,
    new_ops: Sequence[Any] = (),
) -> Iterator[Oracle | Refused]:
    """Yield the oracles in the order to try them. An oracle that cannot load the file is yielded as a `Refused`.

    Args:
        without_dropout: compare a copy of the model in which no Dropout drops anything.
        part: the part of the network that is compared.
        exact: the model multiplies uint8 by int8 (see `EXACT`).
        new_ops: reference implementations of plugins' operators (`plugins.evaluating`), for onnx's evaluator.
    """
    changed = proto(path, without_dropout=without_dropout, part=part) if without_dropout or part else None
    kinds: list[tuple[str, Callable[..., Oracle]]]
    kinds = [(Onnxruntime.name, partial(Onnxruntime, exact=exact)), (Reference.name, Reference)]
    for name, kind in kinds:
        try:
            yield _loaded(kind, path, changed, new_ops)
        except Refused as refusal:
            yield Refused(f"{name} can't load it: {refusal}")


def _loaded(kind: Callable[..., Oracle], path: Path, changed: onnx.ModelProto | None, new_ops: Sequence[Any]) -> Oracle:
    """Return an oracle, which may have recurrent layers with the time first, where it refuses those of the file."""
    try:
        return kind(path, changed, new_ops)
    except Refused:
        model = copied(changed) if changed is not None else proto(path, without_dropout=False)
        if not time_first(model):
            raise
        return kind(path, model, new_ops)


@dataclass(frozen=True)
class ModelPart:
    """A part of a network, with the types of its inputs; and inputs that have a value.

    Attributes:
        cut: None for the whole network.
        const, shapes: see `fix_constants`.
    """

    cut: Cut | None
    types: Mapping[str, onnx.TypeProto]
    const: Given
    shapes: Mapping[str, Sequence[int]]


def proto(path: Path, *, without_dropout: bool, part: ModelPart | None = None) -> onnx.ModelProto:
    """Return the model or a part of it. `without_dropout` puts every Dropout in evaluation mode."""
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise OnnxgenError(f"{path}: {_line(error)}") from None
    if part is not None:
        if part.cut is not None:
            cut_graph(model.graph, part.cut, part.types)
        fix_constants(model.graph, part.const, part.shapes)
    for node in every_node(model):
        # before opset 12 the oracles have no Dropout that drops anything
        if without_dropout and node.op_type == "Dropout" and len(node.input) > 2:
            node.input[2] = ""
    return model


def intermediate(path: Path, model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return all floating point and boolean values of the main graph, as onnxruntime computes them."""
    model = copied(model)
    known = {value.name for value in model.graph.output}
    names = [n for node in model.graph.node for n in node.output if n and n not in known]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        results = Onnxruntime(path, model, ()).run(feeds)
    except Refused:
        return {}
    named = zip((value.name for value in model.graph.output), results, strict=True)
    return {n: v.astype(np.float64) for n, v in named if isinstance(v, np.ndarray) and v.dtype.kind in "fb"}


def nan_node(path: Path, model: onnx.ModelProto, feeds: Mapping[str, Any]) -> onnx.NodeProto | None:
    """Return the first node that computes a NaN from these inputs, or None. The outputs need not have one."""
    values = intermediate(path, model, feeds)
    bad = {name for name, value in values.items() if np.isnan(value).any()}
    return next((node for node in model.graph.node if not bad.isdisjoint(node.output)), None)


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _line(error: BaseException) -> str:
    return one_line(error) or type(error).__name__


def freed_of(space: Mapping[str, Any]) -> Freed | None:
    """Return the batch that a generated file made free, as its sidecar records; None if it did not."""

    def parsed(text: str) -> Freed:
        fields = json_object(text)
        return Freed(int(fields["size"]), dict(fields["inputs"]), dict(fields["outputs"]))

    return noted(space, "batch", parsed)


def is_free(model: ir.Model, freed: Freed) -> bool:
    """Return True if a freshly read model already has a free batch."""
    shapes = {value.name or "": value.shape for value in model.graph.inputs}
    return all(
        (shape := shapes.get(name)) is None or not isinstance(shape[axis], int) for name, axis in freed.inputs.items()
    )


def free_inputs(model: ir.Model, freed: Freed) -> None:
    """Give the inputs of a freshly read model a free batch, to draw samples for."""
    for value in model.graph.inputs:
        axis = freed.inputs.get(value.name or "")
        if axis is not None and value.shape is not None:
            dims: list[int | ir.SymbolicDim] = list(value.shape)
            dims[axis] = ir.SymbolicDim("batch")
            value.shape = ir.Shape(dims)


class Stacked:
    """Runs the file once per portion of the batch, and concatenates the results."""

    def __init__(self, oracle: Oracle, freed: Freed, outputs: list[str]) -> None:
        self.oracle, self.freed, self.outputs = oracle, freed, outputs
        self.seconds = oracle.seconds
        self.name = f"{oracle.name}, stacked runs of {freed.size}"

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        counts = {feeds[name].shape[axis] for name, axis in self.freed.inputs.items()}
        if len(counts) != 1 or 0 in counts:
            raise Refused("the inputs do not have the same number of samples")
        (count,) = counts
        runs = [self.oracle.run(part) for part in self._parts(feeds, count)]
        return [self._joined(name, [run[i] for run in runs], count) for i, name in enumerate(self.outputs)]

    def _parts(self, feeds: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Yield the samples in portions of the file's batch. The last one is filled up with the last sample."""
        for start in range(0, count, self.freed.size):
            chosen = [min(start + i, count - 1) for i in range(self.freed.size)]
            yield {
                name: np.take(value, chosen, self.freed.inputs[name]) if name in self.freed.inputs else value
                for name, value in feeds.items()
            }

    def _joined(self, name: str, parts: list[Any], count: int) -> Any:
        """Return the rows of an output from all runs. An output without a batch is that of the first run."""
        axis = self.freed.outputs.get(name)
        if axis is None:
            return parts[0]
        rows = parts[0].shape[axis] // self.freed.size
        return np.take(np.concatenate(parts, axis), range(count * rows), axis)
