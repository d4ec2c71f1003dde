"""Writes what was trained apart from the graph (`--adapter`).

That is the original with optional inputs, and the values of these as an adapter.

onnxruntime takes such adapters at run time: one session of the base runs with several of them in turn
(`onnxruntime.LoraAdapter`, `RunOptions.add_active_adapter`). Without one, the base computes what the original does.
Beside weights that the file stores as integers, the integers keep their bytes, and a low-rank product is added.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted
from onnxgen.export import files
from onnxgen.export.job import ExportJob, Verification
from onnxgen.export.places import Array, Integers, StoredTensor, places, places_of
from onnxgen.export.report import BACK, DiffersError, ExportReport
from onnxgen.export.state import Origin, origin_of, state_of
from onnxgen.options import Options
from onnxgen.plugins import plugged
from onnxgen.reader.protos import opset_of, with_inner
from onnxgen.runtime.load import imported
from onnxgen.verify.check import Check
from onnxgen.verify.oracle import Refused
from onnxgen.weights.dequantised import Dequantised
from onnxgen.weights.provenance import rebuild

VERIFYING = ("runs", "seed", "rtol", "atol", "plugins")


def export_apart(module: Path, **arguments: Any) -> ExportReport:
    """Write the original graph with optional inputs, and what was trained as an adapter beside it.

    Weights that the file stores as integers keep their bytes.

    Args:
        module: the generated module.
        arguments: the other arguments of `export`.

    Raises:
        OnnxgenError: as `export` and `write_adapter`.
    """
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder, imported(module) as file:
        origin = origin_of(module, vars(file), arguments["onnx"])
        network = _job(module, arguments).trained(origin, file)
        moved = moved_weights(origin, state_of(network)) if origin.record.quantised else []
        tuned = Path(folder) / "tuned.onnx"
        verify = arguments["verify"] and not moved  # rounded, it would not compute what the module does
        job = replace(_job(module, arguments), out=tuned, weights=network, keeps_scales=True)
        with plugged(Options(plugins=list(arguments.get("plugins", ())))):
            report = job.run(_wanted(arguments) if verify else None)
        if report.method != BACK:
            what = f"{module.name} has another graph than the original: {report.why}"
            raise OnnxgenError(what, help="export it without --adapter")
        out = arguments["out"] or module.with_name(f"{Path(report.model).stem}-base.onnx")
        report.out = str(out)
        if moved:
            _without_rounding(report, moved)
            if arguments["verify"]:
                _verify(float_file(tuned, moved), network, origin, report, arguments)
        wrote = write_adapter(Path(report.model), tuned, out, force=arguments["force"], moved=moved)
    report.wrote, tensors, elements = wrote
    what = f"{counted(tensors, 'tensor')} in {elements:,} numbers"
    report.notes.append(f"the {SUFFIX} file has {what}; without it the .onnx file computes what the original does")
    return report


def _job(module: Path, arguments: dict[str, Any]) -> ExportJob:
    onnx, weights, out, force = (arguments[name] for name in ("onnx", "weights", "out", "force"))
    return ExportJob(module, onnx, weights, out, force, arguments.get("same_graph", False), {})


def _wanted(arguments: dict[str, Any]) -> Verification:
    return Verification(*(arguments[name] for name in VERIFYING))


def _without_rounding(report: ExportReport, moved: list[Moved]) -> None:
    """Report the integers as what they are: unchanged."""
    kept = {one.how.tensor for one in moved}
    report.changed, report.below = ([n for n in names if n not in kept] for names in (report.changed, report.below))
    report.rounded = []
    report.notes.append(f"{counted(len(kept), 'tensor')} of integers keep their bytes")


def _verify(floats: Path, network: nn.Module, origin: Origin, report: ExportReport, arguments: dict[str, Any]) -> None:
    """Compare the module with the file that has its floats, as base and adapter are, too.

    Raises:
        DiffersError: they do not compute the same.
    """
    report.changed, changed = ["weights"], report.changed  # so that the comparison knows that they were trained
    report.verified = _wanted(arguments).compare(floats, network, origin, report)
    report.changed = changed
    if report.verified.differs:
        raise DiffersError(report)


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
    with files.workshop(out) as draft:
        _save(model, draft)
        _save_values(draft.with_suffix(SUFFIX), values)
        adapter = draft.with_suffix(SUFFIX)
        if moved:
            _compare(_exact_file(model, tuned), adapter, float_file(tuned, moved))
        else:
            _compare(draft, adapter, tuned)
        wrote = files.put_in_place(draft, out)
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
    opset = opset_of(model)
    if [n.SerializeToString() for n in _computing(model)] != [n.SerializeToString() for n in _computing(other)]:
        what = "the tuned file has another graph than the original, such as another number of classes"
        raise OnnxgenError(what, help="export it without --adapter")
    if opset < OLDEST_OPSET:
        raise OnnxgenError(f"{original} has opset {opset}: an adapter needs {OLDEST_OPSET} or newer")
    model.ir_version = max(model.ir_version, 4)  # before, every initializer is an input
    new = {place.name: place for place in places(other)}
    values: dict[str, Array] = {}
    nodes: list[onnx.NodeProto] = []
    kept = {one.how.tensor for one in moved}
    for place in [place for place in places(model) if place.name in new and place.name not in kept]:
        before = place.read(original.absolute().parent).numpy()
        after = new[place.name].read(tuned.absolute().parent).numpy()
        if before.shape != after.shape:
            what = f"{printable(place.name)} has another shape than in the original"
            raise OnnxgenError(what, help="export it without --adapter")
        if before.tobytes() != after.tobytes():
            nodes += _open(model, place, before, after, values)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    add_beside(model, moved, values)
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
    factors = _factors_of(before, after) if before.dtype == np.float32 else None
    if factors is None:
        values[place.name] = after
        if all(value.name != place.name for value in model.graph.input):  # older files list every initializer
            model.graph.input.append(helper.make_tensor_value_info(place.name, kind, before.shape))
        return []
    names = [f"{place.name}.lora_{letter}" for letter in "BA"]
    (rows, _), (_, columns) = (factor.shape for factor in factors)
    shapes: list[tuple[int | str, ...]] = [(rows, f"{place.name}.rank"), (f"{place.name}.rank", columns)]
    for name, factor, shape in zip(names, factors, shapes):
        values[name] = factor.astype(np.float32)
        optional_input(model, name, shape)
    for node in with_inner(model.graph.node):  # which use the sum from now on
        node.input[:] = [f"{place.name}.adapted" if name == place.name else name for name in node.input]
    return sum_of(model, place.name, names, before.shape)


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


def _factors_of(before: Array, after: Array) -> tuple[Array, Array] | None:
    """Return two matrices whose product is `after - before`, up to the rounding of the two; None if they are no
    smaller.

    The columns of the first one span the range of the difference (Halko, Martinsson & Tropp 0909.4061).
    """
    if before.ndim < 2 or not before.size:
        return None
    before, after = before.astype(np.float64), after.astype(np.float64)
    difference = (after - before).reshape(len(before), -1)
    rows, columns = difference.shape
    allowed = 4 * float(np.finfo(np.float32).eps) * max(np.abs(after).max(), np.abs(before).max())
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
    make = onnxruntime.OrtValue.ortvalue_from_numpy
    form.set_parameters({name: make(np.ascontiguousarray(value)) for name, value in values.items()})
    form.export_adapter(str(path))


def _compare(base: Path, adapter: Path, tuned: Path) -> None:
    """Raise `OnnxgenError` unless onnxruntime computes the same with base and adapter as with the tuned file."""
    check = Check(tuned, Options(), rtol=1e-3, atol=1e-5)
    for answer in check.answers(2, 0, None):
        outputs = _run(base, adapter, answer.feeds, len(answer.outputs))
        for name, expected, got in zip(check.graph.outputs, answer.outputs, outputs):
            check_result = check.output(name, expected, got)
            if check_result.why:
                what = f"with the adapter, {printable(name)} would differ from the trained module: {check_result.why}"
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


PRODUCTS = {"MatMulNBits": 5, "MatMulBnb4": None}  # of packed matrices [N, K]; which input is the bias
NARROW = 64  # rows or columns
WAY = "merge it in Python, which rounds the weights: onnxgen.export(module, weights=open_model(run))"


@dataclass(frozen=True)
class Moved:
    """A float tensor that the file stores as integers, and that training changed.

    Attributes:
        how: which integers, and what they stand for.
        before, after: the floats.
    """

    how: Dequantised
    before: Array
    after: Array

    @property
    def shown(self) -> str:
        return printable(self.how.tensor)


def moved_weights(origin: Origin, state: Mapping[str, Array]) -> list[Moved]:
    """Return the tensors that are stored as integers and differ from the state dict."""
    record, folder = origin.record, origin.onnx.absolute().parent
    stored = places_of(origin.onnx)

    def before(name: str) -> Array:
        return stored[name].read(folder).numpy()

    moved = []
    for name, how in Integers(record.tensors, record.quantised, state.__getitem__, before).floats.items():
        floats = how.floats(before)
        now = np.asarray(rebuild(record.tensors, name, state.__getitem__, floats))
        if not np.array_equal(now, floats):
            moved.append(Moved(how, floats, now))
    return moved


def optional_input(model: onnx.ModelProto, name: str, shape: Sequence[int | str]) -> None:
    """Add an input of floats that is zero by default. A named size is 1 then."""
    zeros = np.zeros([size if isinstance(size, int) else 1 for size in shape], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(zeros, name))
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def add_beside(model: onnx.ModelProto, moved: Sequence[Moved], values: dict[str, Array]) -> None:
    """Add to the users of each tensor's floats what the change of the floats adds to their results.

    Args:
        model: the original, which is changed.
        values: gets the values of the new optional inputs.

    Raises:
        OnnxgenError: a change has no low rank, or the operator computes with the integers themselves.
    """
    for one in moved:
        if one.before.dtype != np.float32:
            raise OnnxgenError(f"the scales of {one.shown} are {one.before.dtype}: an adapter needs float32", help=WAY)
        pair = _factors_of(one.before, one.after) or _narrow(one.after - one.before)
        if pair is None:
            what = f"the change of {one.shown} has no low rank, as after --dora"
            raise OnnxgenError(what, help=f"train with --lora alone, or {WAY}")
        names = tuple(f"{one.how.tensor}.lora_{letter}" for letter in "AB")
        users = _users(model, one)
        packed = any(node.op_type in PRODUCTS for node in users)
        # The product is [rows, r] @ [r, columns]. `x @ A @ B` needs it transposed if the matrix is [N, K].
        first, second = (pair[1].T, pair[0].T) if packed else pair
        rank = f"{one.how.tensor}.rank"
        for name, factor, shape in ((names[0], first, (len(first), rank)), (names[1], second, (rank, second.shape[1]))):
            values[name] = np.ascontiguousarray(factor, np.float32)
            optional_input(model, name, shape)
        for node in users:
            if packed:
                place = _place(model, node)
                _insert(model, place + 1, _product(node, *names))
            else:
                _beside_floats(model, node, one, *names)


def _narrow(difference: Array) -> tuple[Array, Array] | None:
    """Return a matrix with few rows or columns, such as a head's, as a product with the identity."""
    matrix = difference.reshape(len(difference), -1)
    rows, columns = matrix.shape
    if min(rows, columns) > NARROW:
        return None
    return (np.eye(rows), matrix) if rows < columns else (matrix, np.eye(columns))


def _users(model: onnx.ModelProto, one: Moved) -> list[onnx.NodeProto]:
    """Return the nodes that make floats of the integers, or multiply with them."""
    everywhere = [*with_inner(model.graph.node), *with_inner(n for f in model.functions for n in f.node)]
    users = [node for node in model.graph.node if one.how.tensor in node.input]
    kinds = {node.op_type for node in users}
    if not users or len(users) < sum(one.how.tensor in node.input for node in everywhere):
        raise OnnxgenError(f"{one.shown} is in a subgraph or a local function: an adapter has no place", help=WAY)
    if kinds == {"Cast"}:  # a dequantisation that is spelled out ends in a Mul
        ends = [_end(model, node) for node in users]
        if all(node.op_type == "Mul" for node in ends):
            return ends
    if len(kinds) > 1 or not kinds <= {"DequantizeLinear", *PRODUCTS}:
        what = f"{' and '.join(sorted(kinds))} computes with the integers {one.shown}: an adapter has no place"
        raise OnnxgenError(what, help=WAY)
    return users


def _end(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the first node behind a Cast, and perhaps a Sub, that is neither."""
    while node.op_type in ("Cast", "Sub"):
        following = [other for other in model.graph.node if node.output[0] in other.input]
        if len(following) != 1:
            break
        node = following[0]
    return node


def _place(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    return next(i for i, other in enumerate(model.graph.node) if other.output[:] == node.output[:])


def _insert(model: onnx.ModelProto, place: int, nodes: Iterable[onnx.NodeProto]) -> None:
    for number, node in enumerate(nodes):
        model.graph.node.insert(place + number, node)


def _product(node: onnx.NodeProto, a: str, b: str) -> list[onnx.NodeProto]:
    """Return nodes that add `x @ A @ B` to the result of a node, whose own result is renamed."""
    y = node.output[0]
    node.output[0] = base = f"{y}.base"
    return [
        helper.make_node("MatMul", [node.input[0], a], [f"{y}.lora_A"]),
        helper.make_node("MatMul", [f"{y}.lora_A", b], [f"{y}.lora"]),
        helper.make_node("Add", [base, f"{y}.lora"], [y]),
    ]


def _gemm(node: onnx.NodeProto, a: str, b: str) -> list[onnx.NodeProto]:
    """Like `_product`, for `alpha * x @ W + C`, in which x and W may be transposed."""
    y, attributes = node.output[0], {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    node.output[0] = base = f"{y}.base"
    flipped = attributes.get("transB", 0)
    first, second = (b, a) if flipped else (a, b)
    down = {"transA": attributes.get("transA", 0), "transB": flipped}
    return [
        helper.make_node("Gemm", [node.input[0], first], [f"{y}.lora_A"], **down),
        helper.make_node(
            "Gemm", [f"{y}.lora_A", second, base], [y], transB=flipped, alpha=attributes.get("alpha", 1.0)
        ),
    ]


def _beside_floats(model: onnx.ModelProto, node: onnx.NodeProto, one: Moved, a: str, b: str) -> None:
    """Add the change to the result of each product with the floats that a DequantizeLinear makes.

    Other users, such as a convolution, get the floats with the change in them.
    """
    w, others = node.output[0], 0
    if w in {value.name for value in model.graph.output}:
        raise OnnxgenError(f"the floats of {one.shown} are an output: an adapter has no place", help=WAY)
    products = {"MatMul": _product, "Gemm": _gemm} if len(one.how.shape) == 2 else {}
    for user in [user for user in with_inner(model.graph.node) if w in user.input]:
        own = any(user.output[:] == other.output[:] for other in model.graph.node)
        is_second = [name == w for name in user.input] in ([False, True], [False, True, False])
        if own and is_second and user.op_type in products:
            _insert(model, _place(model, user) + 1, products[user.op_type](user, a, b))
        else:
            user.input[:] = [f"{w}.adapted" if name == w else name for name in user.input]
            others += 1
    if others:
        _insert(model, _place(model, node) + 1, sum_of(model, w, (a, b), one.how.shape))


def sum_of(model: onnx.ModelProto, name: str, factors: Sequence[str], shape: Sequence[int]) -> list[onnx.NodeProto]:
    """Return the nodes that add the product of two factors to a tensor: `{name}.adapted`."""
    nodes = [helper.make_node("MatMul", factors, [f"{name}.lora"])]
    if len(shape) != 2:
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{name}.shape"))
        nodes.append(helper.make_node("Reshape", [f"{name}.lora", f"{name}.shape"], [f"{name}.lora.shaped"]))
    return [*nodes, helper.make_node("Add", [name, nodes[-1].output[0]], [f"{name}.adapted"])]


def with_floats(model: onnx.ModelProto, moved: Sequence[Moved]) -> None:
    """Replace integers by the trained floats: what the base computes with its adapter."""
    for one in moved:
        for node in _users(model, one):
            place, packed = _place(model, node), node.op_type in PRODUCTS
            name = f"{node.output[0]}.weight" if packed else node.output[0]
            floats = np.ascontiguousarray(one.after.T if packed else one.after)
            model.graph.initializer.append(numpy_helper.from_array(floats, name))
            replacement = [*_with_bias(node, name)] if packed else []
            del model.graph.node[place]
            _insert(model, place, replacement)


def _with_bias(node: onnx.NodeProto, weight: str) -> Iterator[onnx.NodeProto]:
    place = PRODUCTS[node.op_type]
    bias = node.input[place] if place is not None and len(node.input) > place else ""
    product = f"{node.output[0]}.product" if bias else node.output[0]
    yield helper.make_node("MatMul", [node.input[0], weight], [product])
    if bias:
        yield helper.make_node("Add", [product, bias], [node.output[0]])
