"""Other answers of the oracle to the same inputs, which are as correct as the first.

onnxruntime computes in another order with optimisations on, quantises activations if a node's `accuracy_level` allows
it, approximates functions in float32 (`wide.py`), and rounds every result. If the oracle's own answers differ as much
because of these, a module's difference is rounding. Each answer is computed; no tolerance is loosened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from onnxgen.graph.catalogue import having
from onnxgen.graph.traits import RECURRENT, RESAMPLES, VIEW
from onnxgen.reader.protos import every_node
from onnxgen.verify.compare import SLACK_FACTOR, Tolerance
from onnxgen.verify.convert import widened
from onnxgen.verify.oracle import Onnxruntime, Refused, copied
from onnxgen.verify.wide import cast, in_float64

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
        found = []
        for name, session in self.sessions:
            try:
                found.append((name, session.run(feeds)))
            except Refused:
                continue
        return found

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
    made = copied(model)
    for node in every_node(made):
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    return made


def _noisy(model: onnx.ModelProto, types: Mapping[str, int], seed: int, dtype: str) -> onnx.ModelProto:
    """Return a copy in which each floating point result of the main graph is multiplied by numbers close to 1.

    The inputs of recurrent layers are multiplied too, since these round in every step. If the module computes in half
    precision, the numbers differ from 1 by its rounding error, and weights are multiplied too, since they are rounded.
    """
    made = copied(model)
    outputs = {value.name for value in made.graph.output}
    nodes: list[onnx.NodeProto] = []

    def noised(exact: str, name: str, kind: int) -> None:
        unit = max(HALF_NOISE.get(dtype, FLOAT32_NOISE), HALF_NOISE.get(_HALVES.get(kind, ""), FLOAT32_NOISE))
        nodes.extend(_with_noise(exact, name, kind, unit, float(seed * 7919 + len(nodes))))

    scales = {name for node in every_node(made) if node.op_type in having(RESAMPLES) for name in node.input[1:]}
    inputs = {value.name: value for value in made.graph.input}
    for weight in made.graph.initializer if dtype in HALF_NOISE else ():
        if weight.data_type not in _FLOATS or not weight.dims or weight.name in scales:
            continue
        if weight.name in inputs:  # before IR version 4 every initializer is also listed as an input
            made.graph.input.remove(inputs[weight.name])
        name, weight.name = weight.name, f"{weight.name}/exact"
        noised(weight.name, name, weight.data_type)
    for node in made.graph.node:
        for i, name in enumerate(node.input if node.op_type in having(RECURRENT) else ()):
            if types.get(name) in _FLOATS:
                node.input[i] = f"{name}/into/{len(nodes)}"
                noised(name, node.input[i], types[name])
        nodes.append(node)
        if node.op_type == "Constant" or node.op_type in having(VIEW):
            continue
        for i, name in enumerate(node.output):
            if types.get(name) not in _FLOATS | _HALVES.keys() or name in scales:
                continue
            node.output[i] = f"{name}/exact"
            noised(node.output[i], name, types[name])
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    for value in [value for value in made.graph.value_info if value.name in outputs]:
        made.graph.value_info.remove(value)
    return made


def _with_noise(exact: str, name: str, kind: int, unit: float, seed: float) -> list[onnx.NodeProto]:
    noise = f"{name}/noise"
    wide, moved = (exact, name) if kind in _FLOATS else (f"{name}/wide", f"{name}/moved")
    draw = onnx.helper.make_node("RandomUniformLike", [wide], [noise], low=1 - unit, high=1 + unit, seed=seed)
    nodes = [draw, onnx.helper.make_node("Mul", [wide, noise], [moved])]
    if kind not in _FLOATS:  # no 16-bit random numbers, whose steps around 1 are too coarse
        nodes.insert(0, cast(exact, wide, onnx.TensorProto.FLOAT))
        nodes.append(cast(moved, name, kind))
    return nodes


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
