"""Refuse files with axes that a tensor does not have, or with layers whose sizes do not fit.

onnxruntime refuses them, too.

Later stages count axes modulo the rank, so an axis out of range would silently become another one. Nodes in branches of
If are not checked against inferred ranks: an exporter writes both branches, and a branch that is never taken may not
fit. The sizes of layers are asked of the file's own nodes, before any pass moves their tensors. torch's layers can't
hold wrong ones. What is wrong later is a bug of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import CHECK, WRITER, OnnxgenError, Problem, Problems
from onnxgen.graph.nodes import LOOPS, all_nodes, opset_of, subgraphs, told
from onnxgen.graph.operators import having, having_all, is_a, known, own
from onnxgen.graph.traits import CONVOLUTION, NORM, PRODUCT, RECURRENT, SAMPLES
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import input_at
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.infer import misfit
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

QUANTISERS = ("QuantizeLinear", "DequantizeLinear")


def axes(model: ir.Model, options: Options) -> None:
    """Check the axes of every standard node.

    Raises:
        OnnxgenError: nodes name axes that their inputs do not have; every such node is named.
    """
    problems = Problems()
    for node, in_branch in _nodes(model.graph):
        limit = None if in_branch else _limit(node)
        for axis in _axes(node):
            if limit is not None and not -limit <= axis < limit:
                problems.add(_problem(model, node, f"axis {axis} is out of range: the input has {limit} axes"))
            elif not -options.limits.rank <= axis < options.limits.rank:
                problems.add(_problem(model, node, f"axis {axis} is out of range for any tensor"))
    problems.raise_if_any()


def _nodes(graph: ir.Graph, in_branch: bool = False) -> Iterator[tuple[ir.Node, bool]]:
    """Yield every node, and True if it is in a branch of an If."""
    for node in graph:
        yield node, in_branch
        for inner in subgraphs(node):
            yield from _nodes(inner, in_branch or node.op_type not in LOOPS)


def _limit(node: ir.Node) -> int | None:
    """Return how many axes a node may name, or None if the rank is not known."""
    facts = info(input_at(node, 0))
    if facts.kind != "tensor" or facts.rank is None:
        return None
    if node.op_type in QUANTISERS and info(input_at(node, 1)).shape in (None, (), (1,)):
        return None  # one scale for the whole tensor: the axis has no meaning
    if node.op_type in ("Flatten", "OneHot"):
        return facts.rank + 1
    if node.op_type == "Unsqueeze":
        return facts.rank + len(_axes(node))
    return max(facts.rank, 1)


def _axes(node: ir.Node) -> list[int]:
    if node.domain not in ("", "ai.onnx"):
        return []
    axes: list[int] = []
    for attribute in map(node.attributes.get, ("axis", "axes")):
        if attribute is not None and attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
            axes += np.atleast_1d(np.asarray(attribute.value, np.int64)).tolist()
    place = known(node).axes
    data = None if place is None else info(input_at(node, place)).data
    return axes + [int(d) for d in data.flat if isinstance(d, (int, np.integer))] if data is not None else axes


def _problem(model: ir.Model, node: ir.Node, what: str) -> Problem:
    opset = opset_of(node, model)
    return Problem(what, told(node), node.op_type, opset, CHECK)


OTHER_SIZES = "give other sizes; the table of `onnxgen verify MODEL` shows some at which it runs"
Sizes = tuple[Dim | None, ...]  # None: any size


def layer_sizes(model: ir.Model, options: Options) -> None:
    """Check the tensors of layers. Raises `OnnxgenError` for one whose rank or size its operator does not allow."""
    for node in all_nodes(model.graph):
        if node.domain == "" and is_a(node, SAMPLES):
            stored_shapes = [None if stored(v) is None else _shape(v) for v in node.inputs]
            _hold(model, node, dict(_vectors(model, node)), stored_shapes)
    for node in standard_nodes(model, *having_all(PRODUCT, SAMPLES)):
        _hold_counts(model, node)
        shapes = [_shape(value) for value in node.inputs]
        _hold(model, node, dict(_kernel(node, shapes)), shapes)
    for node in standard_nodes(model, *having(RECURRENT)):
        shapes = [_shape(value) for value in node.inputs]
        _hold(model, node, dict(_recurrent(node, shapes)), shapes)
    if options.input_shapes:
        _runs_at(model, options)


def _runs_at(model: ir.Model, options: Options) -> None:
    """Refuse sizes of `--input-shape` at which a node of the graph can't run."""
    for node in model.graph:
        if why := misfit(node, opset_of(node, model)):
            asked = ", ".join(f"{name}={','.join(map(str, dims))}" for name, dims in options.input_shapes.items())
            shapes = ", ".join(
                "?" if (s := info(v).shape) is None else f"[{', '.join(map(str, s))}]" for v in node.inputs
            )
            what = f"the file does not run with --input-shape {printable(asked)}: {why}, of {printable(shapes)}"
            raise OnnxgenError(Problem(what, told(node), node.op_type, opset_of(node, model), OTHER_SIZES))


def _vectors(model: ir.Model, node: ir.Node) -> Iterator[tuple[int, tuple[str, Sizes]]]:
    """Yield the inputs of a layer that have one number for each channel: its weights, without the kernel."""
    operator = own(node.domain, node.op_type, opset_of(node, model))
    names = [] if operator is None else list(operator.parameters)
    weights = range(1, len(names[: len(node.inputs)])) if is_a(node, NORM) else operator.weights if operator else ()
    for index in weights:
        if operator is not None and index != operator.matrix:
            yield index, (names[index], (None,))


def _hold_counts(model: ir.Model, node: ir.Node) -> None:
    """Refuse attributes of a convolution that are no counts."""
    for name in ("group", "strides", "dilations", "kernel_shape"):
        counts = node.attributes[name].value if name in node.attributes else 1
        if min(counts if isinstance(counts, Sequence) else [counts], default=1) < 1:
            what = f"attribute '{name}' has to be 1 or more"
            raise OnnxgenError(Problem(what, told(node), node.op_type, opset_of(node, model), WRITER))


def _kernel(node: ir.Node, shapes: list[Sizes | None]) -> Iterator[tuple[int, tuple[str, Sizes]]]:
    """Yield the sizes of a convolution's kernel, as far as its input tells them."""
    x, kernel = shapes[0], shapes[1]
    axis = 1 if is_a(node, CONVOLUTION) else 0  # of the kernel, along which the input's channels lie
    if x is None or kernel is None or len(x) < 3:
        return
    channels, group = x[1], node.attributes.get_int("group", 1)
    sizes: list[Dim | None] = [None] * len(x)
    if isinstance(channels, int) and (axis == 0 or channels % group == 0):
        sizes[axis] = channels if axis == 0 else channels // group
    yield 1, ("W", tuple(sizes))


def _shape(value: ir.Value | None) -> Sizes | None:
    tensor = stored(value)
    return info(value).shape if tensor is None else tuple(tensor.shape.numpy())


def _recurrent(node: ir.Node, shapes: list[Sizes | None]) -> Iterator[tuple[int, tuple[str, Sizes]]]:
    """Yield the sizes of weights, recurrent weights, biases, states and peepholes, by the index of the input."""
    x, r = shapes[0], shapes[2] if len(shapes) > 2 else None
    directions = 2 if node.attributes.get_string("direction", "forward") == "bidirectional" else 1
    hidden = node.attributes.get_int("hidden_size", 0) or (r[-1] if r else None)
    if isinstance(hidden, int):
        rows = len(known(node).rules.gates) * hidden
        state: Sizes = (directions, None, hidden)
        state = (None, directions, hidden) if node.attributes.get_int("layout", 0) else state
        yield 1, ("W", (directions, rows, x[-1] if x else None))
        yield 2, ("R", (directions, rows, hidden))
        yield 3, ("B", (directions, 2 * rows))
        yield from ((i, (name, state)) for i, name in ((5, "initial_h"), (6, "initial_c")))
        yield 7, ("P", (directions, 3 * hidden))


def _hold(model: ir.Model, node: ir.Node, wanted: dict[int, tuple[str, Sizes]], shapes: list[Sizes | None]) -> None:
    for index, (name, sizes) in wanted.items():
        shape = shapes[index] if index < len(shapes) else None
        is_batch = index in (5, 6)  # which may have no sequence
        if shape is None or (_fits(shape, sizes) and (is_batch or 0 not in shape)):
            continue
        told_sizes = ", ".join("any size" if size is None else str(size) for size in sizes)
        what = f"{name} has the shape {list(shape)}, and the operator takes [{told_sizes}]"
        raise OnnxgenError(Problem(what, told(node), node.op_type, opset_of(node, model), WRITER))


def _fits(shape: Sizes, wanted: Sizes) -> bool:
    pairs = [(a, b) for a, b in zip(shape, wanted) if isinstance(a, int) and isinstance(b, int)]
    return len(shape) == len(wanted) and all(a == b for a, b in pairs)
