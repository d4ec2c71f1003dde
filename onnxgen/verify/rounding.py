"""Differences that rounding explains: those that the oracle's own answers have, too.

Other answers are as correct as the first. onnxruntime computes in another order with optimisations
on, quantises activations if a node's `accuracy_level` allows it, approximates functions in float32,
and rounds every result. If the oracle's own answers differ as much because of these, a module's
difference is rounding. Each answer is computed; no tolerance is loosened. Notes say where a
difference was ignored.

One answer is that of a copy of the file that computes in float64 wherever onnxruntime has a kernel
for that (`in_float64`). The Sigmoid of onnxruntime 1.32 in float32 is wrong by up to 1e-7, whatever
the size of the result: a map of probabilities near 1e-8 consists of such errors. With float64 these
are gone, and the rest is the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto

from onnxgen.common.names import printable
from onnxgen.errors import counted
from onnxgen.graph.operators import card, having
from onnxgen.graph.traits import RECURRENT, RESAMPLES, VIEW
from onnxgen.reader.protos import every_node
from onnxgen.verify import feeds as drawing
from onnxgen.verify import torch_side
from onnxgen.verify.compare import MAX_SLACK_PART, SLACK_FACTOR, Tolerance, slack_of
from onnxgen.verify.convert import widened
from onnxgen.verify.oracle import Answer, Onnxruntime, Refused, copied
from onnxgen.verify.report import Run
from onnxgen.verify.trace import stepwise

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.verify.check import Check


_WIDER: dict[int, int] = {TensorProto.FLOAT: TensorProto.DOUBLE}


def in_float64(path: Path, model: onnx.ModelProto, types: Mapping[str, int]) -> onnx.ModelProto:
    """Return the copy: each node that has such a kernel is put between casts. Raises `Refused` if none has.

    Args:
        types: ONNX's element types of the graph's values, as far as they are known.
    """
    wide = copied(model)
    graph = wide.graph
    kinds = {**types, **{tensor.name: tensor.data_type for tensor in graph.initializer}}
    kinds |= {v.name: v.type.tensor_type.elem_type for v in graph.input if v.type.HasField("tensor_type")}
    has_kernel: dict[bytes, bool] = {}
    nodes: list[NodeProto] = []
    for node in graph.node:
        key = _key(node, kinds)
        if key is not None and key not in has_kernel:
            has_kernel[key] = _runs(path, wide, node, kinds)
        nodes += _between_casts(node, kinds) if key is not None and has_kernel[key] else [node]
    if not any(has_kernel.values()):
        raise Refused("onnxruntime computes nothing of it in float64")
    del graph.node[:]
    graph.node.extend(nodes)
    return wide


def _key(node: NodeProto, kinds: Mapping[str, int]) -> bytes | None:
    """Return what decides if there is a kernel; None for a node that takes or returns no float32, or is not known."""
    names = [name for name in (*node.input, *node.output) if name]
    floats = [any(kinds.get(n) in _WIDER for n in side) for side in (node.input, node.output)]
    if not all(floats) or not all(kinds.get(name) for name in names):
        return None
    bare = NodeProto()
    bare.CopyFrom(node)
    bare.name = ""
    bare.input[:] = [str(kinds.get(name, 0)) for name in node.input]
    bare.output[:] = [str(kinds.get(name, 0)) for name in node.output]
    return bytes(bare.SerializeToString())


def _runs(path: Path, model: onnx.ModelProto, node: NodeProto, kinds: Mapping[str, int]) -> bool:
    """Return True if onnxruntime loads the node alone, with float64 for float32."""

    def port(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, _WIDER.get(kinds[name], kinds[name]), None)

    taken, returned = ([port(name) for name in dict.fromkeys(side) if name] for side in (node.input, node.output))
    alone = onnx.ModelProto(ir_version=model.ir_version)
    alone.opset_import.extend(model.opset_import)
    alone.functions.extend(model.functions)
    alone.graph.CopyFrom(onnx.helper.make_graph([node], "alone", taken, returned))
    try:
        Onnxruntime(path, alone, ())
    except Refused:
        return False
    return True


def _between_casts(node: NodeProto, kinds: Mapping[str, int]) -> list[NodeProto]:
    """Return the node in float64, with a cast of each input and output."""
    wide, before, after = NodeProto(), list[NodeProto](), list[NodeProto]()
    wide.CopyFrom(node)
    for i, name in enumerate(node.input):
        if kinds.get(name) in _WIDER:
            wide.input[i] = f"{node.output[0]}/wide/{i}"
            before.append(cast(name, wide.input[i], _WIDER[kinds[name]]))
    for i, name in enumerate(node.output):
        if kinds.get(name) in _WIDER:
            wide.output[i] = f"{name}/wide"
            after.append(cast(wide.output[i], name, kinds[name]))
    return [*before, wide, *after]


def cast(source: str, target: str, kind: int) -> NodeProto:
    """Return a node that converts a value to an element type of ONNX."""
    return onnx.helper.make_node("Cast", [source], [target], to=kind)


NOISY_VARIANTS = 4  # number of variants with noise in every operator's result
FLOAT32_NOISE = 2.0**-23  # relative noise for float32: the effect of one rounding, up or down
HALF_NOISE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # the same for 16-bit types
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}
_HALVES: dict[int, str] = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}
NOISE = "with noise"  # name of the variants with noise


class Freedom:
    """The other answers of onnxruntime to one file. Sessions are made on first use."""

    def __init__(self, path: Path, model: onnx.ModelProto, types: Mapping[str, int], dtype: str = "") -> None:
        """`model`: the file's graph, or the compared part of it. `types`: ONNX's element types of its values, as far as
        they are known. `dtype`: the type that the module computes in, if it isn't the file's."""
        self.path, self.model, self.types, self.dtype = path, model, types, dtype
        self.sessions: list[tuple[str, Onnxruntime]] | None = None

    def answers(self, feeds: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
        """Return the name and outputs of each variant that runs on these inputs."""
        if self.sessions is None:
            self.sessions = list(self._made())
        answers = []
        for name, session in self.sessions:
            try:
                answers.append((name, session.run(feeds)))
            except Refused:
                continue
        return answers

    def _made(self) -> Iterator[tuple[str, Onnxruntime]]:
        model = self.model
        how: list[tuple[str, Callable[[], onnx.ModelProto]]] = [("optimised", lambda: model)]
        how += [("on one thread", lambda: model), ("in full precision", partial(_in_full, model))]
        how += [(NOISE, partial(_noisy, model, self.types, seed, self.dtype)) for seed in range(NOISY_VARIANTS)]
        how += [("in float64", partial(in_float64, self.path, model, self.types))]
        for name, changed in how:
            try:
                # DynamicQuantizeLSTM (1.32) quantises each thread's part of the batch separately
                session = {"optimised": name == "optimised", "alone": name == "on one thread"}
                yield name, Onnxruntime(self.path, changed(), (), **session)
            except Refused:
                continue


def _in_full(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which no node may quantise its activations (`accuracy_level`)."""
    copy = copied(model)
    for node in every_node(copy):
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    return copy


def _noisy(model: onnx.ModelProto, types: Mapping[str, int], seed: int, dtype: str) -> onnx.ModelProto:
    """Return a copy in which each floating point result of the main graph is multiplied by numbers close to 1.

    The inputs of recurrent layers are multiplied too, since these round in every step. If the module computes in half
    precision, the numbers differ from 1 by its rounding error, and weights are multiplied too, since they are rounded.
    """
    noisy = copied(model)
    writer = _NoiseWriter(noisy.graph, types, seed, dtype)
    writer.scales = {n for node in every_node(noisy) if node.op_type in having(RESAMPLES) for n in node.input[1:]}
    if dtype in HALF_NOISE:
        writer.weights()
    for node in noisy.graph.node:
        writer.node(node)
    del noisy.graph.node[:]
    noisy.graph.node.extend(writer.nodes)
    outputs = {value.name for value in noisy.graph.output}
    for value in [value for value in noisy.graph.value_info if value.name in outputs]:
        noisy.graph.value_info.remove(value)
    return noisy


class _NoiseWriter:
    """Writes the nodes of a noisy copy.

    Attributes:
        nodes: those that are written so far.
        scales: the values that say how large a resampled tensor becomes, which get no noise.
    """

    def __init__(self, graph: onnx.GraphProto, types: Mapping[str, int], seed: int, dtype: str) -> None:
        self.graph, self.types, self.seed, self.dtype = graph, types, seed, dtype
        self.nodes: list[NodeProto] = []
        self.scales: set[str] = set()

    def weights(self) -> None:
        """Add noise to the stored weights."""
        inputs = {value.name: value for value in self.graph.input}
        for weight in self.graph.initializer:
            if weight.data_type not in _FLOATS or not weight.dims or weight.name in self.scales:
                continue
            if weight.name in inputs:  # before IR version 4 every initializer is also listed as an input
                self.graph.input.remove(inputs[weight.name])
            name, weight.name = weight.name, f"{weight.name}/exact"
            self._add(weight.name, name, weight.data_type)

    def node(self, node: NodeProto) -> None:
        """Write a node, with noise in its results, and in the inputs of a recurrent layer."""
        for i, name in enumerate(node.input if RECURRENT in card(node.domain, node.op_type).traits else ()):
            if self.types.get(name) in _FLOATS:
                node.input[i] = f"{name}/into/{len(self.nodes)}"
                self._add(name, node.input[i], self.types[name])
        self.nodes.append(node)
        if node.op_type == "Constant" or node.op_type in having(VIEW):
            return
        for i, name in enumerate(node.output):
            if self.types.get(name) in _FLOATS | _HALVES.keys() and name not in self.scales:
                node.output[i] = f"{name}/exact"
                self._add(node.output[i], name, self.types[name])

    def _add(self, exact: str, name: str, kind: int) -> None:
        """Make the value `name` of the value `exact`, whose elements are of the type `kind`."""
        unit = max(HALF_NOISE.get(self.dtype, FLOAT32_NOISE), HALF_NOISE.get(_HALVES.get(kind, ""), FLOAT32_NOISE))
        noise, seed = f"{name}/noise", float(self.seed * 7919 + len(self.nodes))
        wide, moved = (exact, name) if kind in _FLOATS else (f"{name}/wide", f"{name}/moved")
        draw = onnx.helper.make_node("RandomUniformLike", [wide], [noise], low=1 - unit, high=1 + unit, seed=seed)
        nodes = [draw, onnx.helper.make_node("Mul", [wide, noise], [moved])]
        if kind not in _FLOATS:  # no 16-bit random numbers, whose steps around 1 are too coarse
            nodes = [cast(exact, wide, TensorProto.FLOAT), *nodes, cast(moved, name, kind)]
        self.nodes += nodes


def explained(expected: Any, got: Any, others: Sequence[Any], tolerance: Tolerance) -> float | None:
    """Return the spread of the oracle's answers if it explains the difference of `got` from the first, else None.

    The spread is a part of the output's size, in root mean square. A wrong answer could hide in a spread above
    `compare.MAX_SLACK_PART`. Integers must equal those of some answer, element by element. The differences of floats,
    sorted by size, must be at most `SLACK_FACTOR` times those of the answers; differences within the tolerance do not
    count.
    """
    arrays = [v for v in (expected, got, *others) if isinstance(v, np.ndarray)]
    if len(arrays) < len(others) + 2 or not others or any(v.shape != arrays[0].shape for v in arrays):
        return None
    expected, got, *others = map(widened, arrays)
    if expected.dtype != got.dtype:
        return None
    if expected.dtype.kind in "biu":
        return 0.0 if np.any([got == other for other in (expected, *others)], axis=0).all() else None
    return _movement(expected, got, others, tolerance) if expected.dtype.kind in "fV" else None


def _movement(
    expected: NDArray[Any], got: NDArray[Any], others: Sequence[NDArray[Any]], tolerance: Tolerance
) -> float | None:
    first = expected.astype(np.float64)
    if not np.array_equal(np.isfinite(first), np.isfinite(got.astype(np.float64))):
        return None
    with np.errstate(all="ignore"):
        differs = np.nan_to_num(np.abs(got.astype(np.float64) - first), nan=0.0)
        moves = [np.nan_to_num(np.abs(o.astype(np.float64) - first), nan=0.0, posinf=0.0) for o in others]
        differs[differs <= tolerance.below(first) + tolerance.rtol * np.abs(first)] = 0.0
    moved = np.max(moves, axis=0)
    if (np.sort(differs, axis=None) > SLACK_FACTOR * np.sort(moved, axis=None)).any():
        return None
    size = float(np.square(np.nan_to_num(first, nan=0.0, posinf=0.0, neginf=0.0)).sum())
    total = float(np.square(moved).sum())
    return float(np.sqrt(total / size)) if size else float(total > 0)


NUDGED_RUNS = 3  # runs of the oracle on changed inputs, which measure the conditioning of an output


def conditioning(check: Check, run: Run, answer: Answer, expected: list[Any], got: list[Any]) -> None:
    """Ignore differences as large as the oracle's own, when inputs change in their last bits.

    A saturated softmax, the normalisation of nearly equal numbers or a rounding to integers amplify the rounding errors
    by which any two correct implementations differ.
    """
    oracle, seed = answer.oracle, answer.seed
    precision = max([FLOAT32_NOISE, *(HALF_NOISE.get(dtype, 0.0) for dtype in check.halves)])
    try:
        others = [oracle.run(drawing.nudged(answer.feeds, precision, seed + i)) for i in range(NUDGED_RUNS)]
    except Refused:
        return
    for i, (name, e, g) in enumerate(zip(check.graph.outputs, expected, got, strict=True)):
        moved = [torch_side.cast_numpy(o[i], check.cast) for o in others]
        slack = slack_of(e, moved, drawing.MAX_NUDGE_ULPS * precision)
        if not run.outputs[i].why or run.outputs[i].expected != run.outputs[i].got or slack is None:
            continue
        again = check.output(name, e, g, slack)
        if again.agrees:
            check.notes.append(
                f"run {seed % 1000}, output {printable(name)}: {run.outputs[i].why}; but the output of {oracle.name} "
                "moves as much when the inputs change in their last bits, so this is not counted"
            )
            run.outputs[i] = again


def freedom(check: Check, network: nn.Module, run: Run, answer: Answer, expected: list[Any], got: list[Any]) -> None:
    """Ignore differences that also occur between answers of onnxruntime.

    If these answers differ so much that they could hide a wrong module, the module is compared step by step.
    """
    feeds, seed = answer.feeds, answer.seed
    if not isinstance(answer.oracle, Onnxruntime) or run.agrees:
        return
    dtype = str(check.cast).removeprefix("torch.")
    dtype = dtype if dtype in HALF_NOISE else ""
    if check.freedom is None:
        check.freedom = Freedom(check.path, check.proto(), check.graph.types, dtype)
    answers = [(n, [torch_side.cast_numpy(v, check.cast) for v in a]) for n, a in check.freedom.answers(feeds)]
    steps = cache(partial(_steps, check, network, feeds))  # for the first output that needs it
    rounded = dtype or "result"
    for i, (output, e, g) in enumerate(zip(run.outputs, expected, got, strict=True)):
        if not output.why:
            continue
        why, moved = _excuse(check, output.name, e, g, [(name, a[i]) for name, a in answers], rounded)
        if moved > MAX_SLACK_PART:
            stepped = steps()
            if stepped is not None and check.output(output.name, stepped[1][i], g).agrees:
                results = counted(stepped[0], "intermediate result")
                why += f", and from each of {results} to the next it computes the same"
            else:
                what = f"rounding every {rounded}"
                check.coarse[output.name] = f"{what} moves onnxruntime's own answer by {moved:.0%} of its size"
        if why:
            check.notes.append(
                f"run {seed % 1000}, output {output.name}: {output.why}; but {why}, so this is not counted"
            )
            run.outputs[i] = replace(output, why="")


def _excuse(
    check: Check, output: str, expected: Any, got: Any, answers: Sequence[tuple[str, Any]], rounded: str
) -> tuple[str, float]:
    """Return how onnxruntime's answers explain a difference, and how much they differ themselves; "" if they do not."""
    noise = f"of one unit in the last place of every {rounded}"
    for name, answer in answers:
        if check.output(output, answer, got).agrees:
            return f"onnxruntime {name}{f' {noise}' if name == NOISE else ''} computes the same", 0.0
    moved = explained(expected, got, [answer for _, answer in answers], check.tolerance)
    if moved is None:
        return "", 0.0
    ways = f"optimisations, one thread, accuracy_level, noise {noise}"
    return f"the results of onnxruntime differ as much among themselves ({ways})", moved


def _steps(check: Check, network: nn.Module, feeds: dict[str, Any]) -> tuple[int, list[Any]] | None:
    """Return the result of `stepwise`, or None if the module has another dtype or batch than the file."""
    if check.cast is not None or check.freed is not None:
        return None
    return stepwise(check.path, check.proto(), check.graph, network, feeds)
