"""Writes a tuned file as the original graph with optional inputs, and the values of these as an adapter.

onnxruntime takes such adapters at run time: one session of the base runs with several of them in turn
(`onnxruntime.LoraAdapter`, `RunOptions.add_active_adapter`). Without one, the base computes what the original does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.export import files
from onnxgen.export.beside import Moved, add_beside, optional_input, sum_of, with_floats
from onnxgen.export.places import Array, StoredTensor, places
from onnxgen.options import Options
from onnxgen.reader.protos import with_inner
from onnxgen.verify.check import Check
from onnxgen.verify.oracle import Refused

SUFFIX = ".onnx_adapter"
FIRST_RANK = 4  # tried first; doubled until the product is exact
SPARE = 8  # columns drawn beyond the rank, so that the rank that is found does not depend on what was drawn
OLDEST_OPSET = 7  # before, an Add of two shapes needs attributes
EXACT = "session.qdq_matmulnbits_accuracy_level", "1"  # else products with dequantised matrices are of 8 bits
EXTERNAL = 1 << 30  # bytes of tensors, from which on they are written to a file of their own


def write_adapter(
    original: Path, tuned: Path, out: Path, *, force: bool = False, moved: Sequence[Moved] = ()
) -> tuple[list[Path], int, int]:
    """Write the original graph with optional inputs to `out`, and the difference to the tuned file beside it.

    Each tensor that differs becomes `tensor + B @ A` with inputs A and B, which are zero by default; or, if its
    difference has no low rank (a bias), an input whose default is the original's tensor.

    Args:
        original: the file before training; it is not touched.
        tuned: the same graph with other values.
        out: the base; the adapter's file has the same name, and the suffix `SUFFIX`.
        force: overwrite any file.
        moved: the trained floats of tensors that both files store as integers. These stay as in the original, and the
            results of their products are adapted.

    Returns:
        the files, the number of adapted tensors, and the number of elements in the adapter.

    Raises:
        OnnxgenError: the graphs differ, a tensor is in a local function, a file can't be written, or onnxruntime does
            not compute with base and adapter what it computes with the tuned file.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "AdapterFormat"):
        what = f"onnxruntime {onnxruntime.__version__} has no adapters"
        raise OnnxgenError(what, help="install onnxruntime 1.20 or newer, or export without --adapter")
    files.refuse_overwriting(out, original, files.original_files(original), force)
    model, values = _adapted(original, tuned, moved)
    with files.workshop(out) as made:
        _save(model, made)
        _save_values(made.with_suffix(SUFFIX), values)
        adapter = made.with_suffix(SUFFIX)
        if moved:
            _compare(_exact_file(model, tuned), adapter, float_file(tuned, moved))
        else:
            _compare(made, adapter, tuned)
        wrote = files.put_in_place(made, out)
    names = {name.rpartition(".lora_")[0] or name for name in values}
    return wrote, len(names), sum(value.size for value in values.values())


def float_file(tuned: Path, moved: Sequence[Moved]) -> Path:
    """Write a file beside the tuned one that has trained floats in place of rounded integers. Returns its path."""
    path = tuned.with_name(f"{tuned.stem}-floats.onnx")
    if not path.exists():
        model = onnx.load(tuned)
        with_floats(model, moved)
        _save(model, path)
    return path


def _exact_file(base: onnx.ModelProto, tuned: Path) -> Path:
    """Write the base beside the tuned file, without leave to compute products in 8 bits. Returns its path."""
    model = onnx.ModelProto()
    model.CopyFrom(base)
    for node in model.graph.node:
        kept = [entry for entry in node.attribute if entry.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(kept)
    path = tuned.with_name(f"{tuned.stem}-exact.onnx")
    _save(model, path)
    return path


def _save(model: onnx.ModelProto, path: Path) -> None:
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(model, path, save_as_external_data=size > EXTERNAL, location=files.data_path(path).name)


def _adapted(original: Path, tuned: Path, moved: Sequence[Moved]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the original with optional inputs, and their values in the tuned file."""
    model, other = onnx.load(original), onnx.load(tuned, load_external_data=False)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    if [n.SerializeToString() for n in _computing(model)] != [n.SerializeToString() for n in _computing(other)]:
        what = "the tuned file has another graph than the original, such as another number of classes"
        raise OnnxgenError(what, help="export it without --adapter")
    if opset < OLDEST_OPSET:
        raise OnnxgenError(f"{original} has opset {opset}: an adapter needs {OLDEST_OPSET} or newer")
    model.ir_version = max(model.ir_version, 4)  # before, every initializer is an input
    new = {place.name: place for place in places(other)}
    values: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []
    integers = {one.how.tensor for one in moved}
    for place in (place for place in list(places(model)) if place.name not in integers):
        before = place.read(original.absolute().parent).numpy()
        after = new[place.name].read(tuned.absolute().parent).numpy() if place.name in new else before
        if before.shape != after.shape:
            what = f"{printable(place.name)} has another shape than in the original"
            raise OnnxgenError(what, help="export it without --adapter")
        if before.tobytes() != after.tobytes():
            nodes += _open(model, place, before, after, values)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    add_beside(model, moved, _factors_of, values)
    return model, values


def _computing(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield copies of all nodes, without their attributes, which may hold tensors."""
    for node in with_inner([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.attribute[:]
        yield copy


def _open(
    model: onnx.ModelProto, place: StoredTensor, before: Array, after: Array, values: dict[str, Array]
) -> list[onnx.NodeProto]:
    """Make a tensor an input, or add the product of two inputs to it. Returns new nodes for the graph's beginning."""
    shown = printable(place.name)
    if place.tensor is None or place.graph is not None and place.graph is not model.graph:
        raise OnnxgenError(f"{shown} is in a subgraph, or no plain tensor", help="export without --adapter")
    if place.graph is None:
        _make_initializer(model, place)
    kind = place.tensor.data_type
    found = _factors_of(before, after) if before.dtype == np.float32 else None
    if found is None:
        values[place.name] = after
        if all(value.name != place.name for value in model.graph.input):  # older files list every initializer
            model.graph.input.append(helper.make_tensor_value_info(place.name, kind, before.shape))
        return []
    names = [f"{place.name}.lora_{letter}" for letter in "BA"]
    (rows, _), (_, columns) = (factor.shape for factor in found)
    shapes: list[tuple[int | str, ...]] = [(rows, f"{place.name}.rank"), (f"{place.name}.rank", columns)]
    for name, factor, shape in zip(names, found, shapes):
        values[name] = factor.astype(np.float32)
        optional_input(model, name, shape)
    return _added(model, place.name, names, before.shape)


def _make_initializer(model: onnx.ModelProto, place: StoredTensor) -> None:
    """Replace the constant node of a tensor by an initializer."""
    node = next((n for n in model.graph.node if not n.input and place.name in n.output), None)
    if node is None or place.tensor is None:
        way = "export without --adapter"
        raise OnnxgenError(f"{printable(place.name)} is a constant of a subgraph or a local function", help=way)
    tensor = onnx.TensorProto()
    tensor.CopyFrom(place.tensor)
    tensor.name = place.name
    model.graph.node.remove(node)
    model.graph.initializer.append(tensor)
    place.tensor, place.graph = tensor, model.graph


def _added(model: onnx.ModelProto, name: str, factors: list[str], shape: tuple[int, ...]) -> list[onnx.NodeProto]:
    """Return the nodes that add the product to a tensor, whose users use the sum from now on."""
    for node in with_inner(model.graph.node):
        node.input[:] = [f"{name}.adapted" if one == name else one for one in node.input]
    return sum_of(model, name, factors, shape)


def _factors_of(before: Array, after: Array) -> tuple[Array, Array] | None:
    return _factors(before.astype(np.float64), after.astype(np.float64), float(np.finfo(np.float32).eps))


def _factors(before: Array, after: Array, eps: float) -> tuple[Array, Array] | None:
    """Return two matrices whose product is `after - before`, up to the rounding of the two; None if they are no
    smaller.

    The columns of the first one span the range of the difference (Halko, Martinsson & Tropp 0909.4061).
    """
    if before.ndim < 2 or not before.size:
        return None
    difference = (after - before).reshape(len(before), -1)
    rows, columns = difference.shape
    allowed = 4 * eps * max(np.abs(after).max(), np.abs(before).max())
    rank = FIRST_RANK
    while rank * (rows + columns) < rows * columns:
        drawn = np.random.default_rng(0).normal(size=(columns, min(rank + SPARE, rows, columns)))
        basis = np.linalg.qr(difference @ drawn)[0]
        left, sizes, right = np.linalg.svd(basis.T @ difference, full_matrices=False)
        root = np.sqrt(sizes)
        first, second = basis @ left * root, root[:, None] * right
        kept = _terms(difference, first, second, allowed)
        if kept is not None:
            return (first[:, :kept], second[:kept]) if kept * (rows + columns) < rows * columns else None
        rank *= 2
    return None


def _terms(whole: Array, left: Array, right: Array, allowed: float) -> int | None:
    """Return how many columns and rows of a product, at least one, are enough for a matrix; None if all are not."""
    rest = whole.copy()
    for n in range(len(right)):
        rest -= np.outer(left[:, n], right[n])
        if np.abs(rest).max() <= allowed:
            return n + 1
    return None


def _save_values(path: Path, values: dict[str, Array]) -> None:
    import onnxruntime

    form = onnxruntime.AdapterFormat()
    form.set_adapter_version(1)
    form.set_model_version(1)
    form.set_parameters(
        {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(v)) for n, v in values.items()}
    )
    form.export_adapter(str(path))


def _compare(base: Path, adapter: Path, tuned: Path) -> None:
    """Raise `OnnxgenError` unless onnxruntime computes the same with base and adapter as with the tuned file."""
    check = Check(tuned, Options(), rtol=1e-3, atol=1e-5)
    for answer in check.answers(2, 0, None):
        found = _run(base, adapter, answer.feeds, len(answer.outputs))
        for name, expected, got in zip(check.graph.outputs, answer.outputs, found):
            said = check.output(name, expected, got)
            if said.why:
                what = f"with the adapter, {printable(name)} would differ from the trained module: {said.why}"
                raise OnnxgenError(what, help="export without --adapter")


def _run(base: Path, adapter: Path, feeds: dict[str, Any], outputs: int) -> list[Any]:
    import onnxruntime

    options, session_options = onnxruntime.RunOptions(), onnxruntime.SessionOptions()
    session_options.log_severity_level = 3
    session_options.add_session_config_entry(*EXACT)
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(adapter))
    options.add_active_adapter(loaded)
    try:
        session = onnxruntime.InferenceSession(str(base), session_options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds, run_options=options))[:outputs]
    except Exception as error:
        raise OnnxgenError(f"onnxruntime can't run the file with its adapter: {Refused(error)}") from error
