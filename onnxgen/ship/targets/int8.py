"""ONNX files of 8-bit integers, by onnxruntime's own quantisation, which lose no more than they may.

Layers that multiply matrices (MatMul, Gemm, LSTM) and tables get integers with the scale of each call, as onnxruntime
advises for transformers and recurrent networks. Convolutions, and what lies between two of them, get scales that
training samples tell, as it advises for convolutional ones. Weights have a scale for each channel. All else stays in
floats, since there onnxruntime has no integer kernel, or one that loses much and saves little.

Where the file loses more than it may by the metric of its run, the layers with the most noise stay in floats, and no
more of them than are needed. The noise of a layer is how far the network's outputs are away on training samples if this
layer alone has integers.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto
from torch import Tensor

from onnxgen.errors import OnnxgenError, counted
from onnxgen.ship.comparison import seconds_of
from onnxgen.ship.target import Job, Target, quietly
from onnxgen.ship.targets.onnxruntime import NEEDS, fed, run_onnx, write_onnx

FIXED = ("Conv", "ConvTranspose")  # layers that get scales from training samples
HEARD = 4  # samples with which the noise of layers is measured
TOLD = 10  # layers that a note lists
TINY = 1e-12


def _called() -> set[str]:
    """Return the layers that get the scale of each call: those that onnxruntime quantises so, but convolutions."""
    from onnxruntime.quantization.registry import IntegerOpsRegistry

    return {*IntegerOpsRegistry} - {*FIXED}


def _with_kernels() -> set[str]:
    """Return what keeps integers between two convolutions: onnxruntime has kernels of integers for these."""
    from onnxruntime.quantization.registry import QLinearOpsRegistry

    return {*QLinearOpsRegistry, "Slice"} - {*FIXED, *_called(), "Gemm", "Softmax"}  # a Softmax loses much


def write_int8(job: Job, path: Path) -> list[str]:
    """Write a file of integers that loses no more than `job.judge` allows.

    Raises:
        OnnxgenError: there is none, or the network has no layer that onnxruntime has integers for.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors: files may declare shapes that they do not keep
    with tempfile.TemporaryDirectory() as folder:
        network = Network(job, Path(folder))
        left, told = _fewest(job, network)
        network.written(left).replace(path)
        model, original = onnx.load(path), onnx.load(network.whole, load_external_data=False)
        del model.metadata_props[:]
        model.metadata_props.extend(original.metadata_props)
        onnx.save(model, path)
        return [*network.notes, *_told(job, network, path, left), told]


def _fewest(job: Job, network: Network) -> tuple[list[str], str]:
    """Return the layers that stay in floats, the noisiest first, and what the file then loses, as a sentence.

    Their number is found by doubling and then by halving, so few files are tried. It is at most half of the layers.
    """
    if not network.layers:
        already = any("Integer" in node.op_type or "Quantize" in node.op_type for node in network.model.graph.node)
        why = "its layers have integers already" if already else "onnxruntime has integers for no layer of the network"
        raise OnnxgenError(f"--to onnx-int8 can't be written: {why}", help="ship --to onnx")
    told: dict[int, str] = {}

    def lost(count: int) -> float:
        points, told[count] = job.judge.lost(run_onnx(job, network.written(network.noisiest[:count] if count else ())))
        return points

    fails, holds, most = -1, 0, len(network.layers) // 2
    first = now = lost(0)
    while now > job.judge.most:
        if holds == most:
            what = f"8-bit integers lose more than {job.judge.most:g} points, also in half of the layers: {told[0]}"
            allow = f", or allow it: --may-lose {math.ceil(first)}" if math.isfinite(first) else ""
            raise OnnxgenError(what, help=f"ship --to onnx{allow}")
        fails, holds = holds, min(2 * holds or 1, most)
        now = lost(holds)
    while holds - fails > 1:
        middle = (fails + holds) // 2
        if lost(middle) > job.judge.most:
            fails = middle
        else:
            holds = middle
    return network.noisiest[:holds] if holds else [], told[holds]


def _told(job: Job, network: Network, path: Path, left: Sequence[str]) -> Iterator[str]:
    """Yield what a person must know of a file."""
    count, (integers, floats) = len(network.layers), _elements(path)
    share, size = integers / max(integers + floats, 1), path.stat().st_size / network.whole.stat().st_size
    ours, theirs = seconds_of((run_onnx(job, network.whole), run_onnx(job, path)), job.example)
    yield f"{count - len(left)} of {counted(count, 'layer')} and {share:.0%} of the numbers are 8-bit integers"
    yield f"beside --to onnx: {size:.2f} times the size, {theirs / ours:.2f} times the time"
    if left:
        names = [f"{name} ({network.noise[name]:.2g})" for name in left[:TOLD]]
        more = f", and {len(left) - TOLD} more" if len(left) > TOLD else ""
        yield f"in floats, since they lose most (noise in the outputs): {', '.join(names)}{more}"


def _elements(path: Path) -> tuple[int, int]:
    """Return how many stored numbers of a file are integers of 8 bits, and how many are floats."""
    counts = [0, 0]
    for tensor in _stored(onnx.load(path).graph):
        kinds = ((onnx.TensorProto.INT8, onnx.TensorProto.UINT8), (onnx.TensorProto.FLOAT,))
        for n, kind in enumerate(kinds):
            counts[n] += math.prod(tensor.dims) if tensor.data_type in kind else 0
    return counts[0], counts[1]


def _stored(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the stored tensors of a graph, and of those inside it."""
    yield from graph.initializer
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        for inner in (attribute.g, *attribute.graphs):
            yield from _stored(inner)


@dataclass
class Network:
    """The network of a job in floats, made ready for integers.

    Attributes:
        job: see there.
        folder: where its files are.
    """

    job: Job
    folder: Path

    def __post_init__(self) -> None:
        from onnxruntime.quantization.onnx_model import ONNXModel
        from onnxruntime.quantization.shape_inference import quant_pre_process

        self.whole, self.ready = self.folder / "whole.onnx", self.folder / "ready.onnx"
        self.notes = write_onnx(self.job, self.whole)
        newer = _of_opset_13(self.whole, self.folder / "newer.onnx")
        with quietly():
            quant_pre_process(newer, self.ready, skip_symbolic_shape=True)
            made = ONNXModel(onnx.load(self.ready))
            made.replace_gemm_with_matmul()
        self.model = made.model
        named: set[str] = set()
        for number, node in enumerate(self.model.graph.node):
            if not node.name or node.name in named:
                node.name = f"{node.op_type}_{number}"
            named.add(node.name)
        onnx.save(self.model, self.ready)
        stored = {x.name: x.data_type for x in self.model.graph.initializer}
        self.layers = {node.name: node for node in self.model.graph.node if _is_layer(node, stored)}

    def written(self, left: Collection[str]) -> Path:
        """Return a file of integers, in which the layers `left` stay in floats."""
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        layers = [node for name, node in self.layers.items() if name not in left]
        fixed = [node.name for node in layers if node.op_type in FIXED]
        called = [node.name for node in layers if node.op_type in _called()]
        half, path = self.folder / "half.onnx", self.folder / "integers.onnx"
        with quietly():
            if fixed:
                some = [*fixed, *_between(self.model.graph.node, {*fixed})]
                whole = onnx.load(self.ready)
                made = QDQQuantizer(
                    whole, True, False, QuantType.QInt8, QuantType.QInt8, self._ranges, some, [],
                    [*FIXED, *_with_kernels()], {},
                )  # fmt: skip
                made.quantize_model()
                made.model.save_model_to_file(half)
            before = half if fixed else self.ready
            if called:
                quantize_dynamic(before, path, [*_called()], True, False, QuantType.QInt8, called)
            else:
                path.write_bytes(before.read_bytes())
        return path

    @cached_property
    def _ranges(self) -> Any:
        """The range of each value in training samples."""
        from onnxruntime.quantization import CalibrationDataReader, create_calibrator

        job, samples = self.job, self.job.calibration()

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def get_next(self) -> dict[str, Any] | None:
                arguments = next(samples, None)
                return None if arguments is None else fed(job, arguments)

        with quietly():
            calibrator = create_calibrator(self.ready, [*FIXED, *_with_kernels()], str(self.folder / "ranges.onnx"))
            calibrator.collect_data(Reader())
            return calibrator.compute_data()

    @cached_property
    def noisiest(self) -> list[str]:
        """The names of the layers, those with the most noise first."""
        return sorted(self.layers, key=lambda name: -self.noise[name])

    @cached_property
    def noise(self) -> Mapping[str, float]:
        """The noise of each layer by its name: how far the network's outputs are away if it alone has integers."""
        heard = [*islice(self.job.calibration(), HEARD)]

        def outputs(path: Path) -> list[Tensor]:
            run = run_onnx(self.job, path)
            return [x for arguments in heard for x in run(arguments) if x.is_floating_point()]

        own = outputs(self.whole)
        return {name: _noise(own, outputs(self.written({*self.layers} - {name}))) for name in self.layers}


def _of_opset_13(path: Path, other: Path) -> Path:
    """Return the path of the same network in opset 13 or newer: before, integers had one scale for all channels."""
    from onnx.version_converter import convert_version

    model = onnx.load(path)
    if any(entry.domain in ("", "ai.onnx") and entry.version < 13 for entry in model.opset_import):
        onnx.save(convert_version(model, 13), other)
        return other
    return path


def _is_layer(node: NodeProto, stored: Mapping[str, int]) -> bool:
    """Return True if a node has weights, and onnxruntime integers for it. `stored`: the type of each stored tensor."""
    places = {"LSTM": (1, 2), "Gather": (0,)}.get(node.op_type, (1,))
    weights = [stored.get(node.input[n]) for n in places if n < len(node.input)]
    return node.op_type in {*FIXED, *_called()} and {*weights} == {onnx.TensorProto.FLOAT}


def _between(nodes: Iterable[NodeProto], layers: Collection[str]) -> set[str]:
    """Return the names of the nodes on the way from one of these layers to another that has integers all along."""
    behind, made, between = set[str](), set[str](), _with_kernels()
    ordered = list(nodes)
    for node in ordered:
        if node.name in layers or (node.op_type in between and made & {*node.input}):
            made.update(node.output)
            behind.add(node.name)
    before, taken = set(), set[str]()
    for node in reversed(ordered):
        if node.name in layers or (node.op_type in between and taken & {*node.output}):
            taken.update(node.input)
            before.add(node.name)
    return behind & before - {*layers}


def _noise(signal: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return how far outputs are away, as a share of them; the mean over the outputs."""
    shares = [(a.double() - b.double()).norm() / a.double().norm().clamp(min=TINY) for a, b in zip(signal, other)]
    return float(sum(shares)) / max(len(shares), 1)


TARGETS = [Target("onnx-int8", ".onnx", "8-bit integers by onnxruntime", write=write_int8, rounds=True, **NEEDS)]
