"""`--dynamic-batch`: replace a fixed batch size by a symbolic one, where a proof shows that this is correct.

Many exports fix the batch: an input [1, 3, 224, 224], a Reshape to [1, -1], a Tile of 8. The proof visits every node in
order. A value is a *stack* (`stack.Stack`) if one of its axes holds the results of the single samples. A rule for each
operator says when its output is a stack. Sizes that are provably the batch size become the symbol, and values that all
samples share are expanded where an operator needs one per sample. A node is refused if it has no rule, mixes samples or
splits the batch axis. At the end shapes are inferred again with the symbolic batch and must match the proof.

A run of one file-sized batch is the specification: values that the exporter computed from the batch size stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problem, Problems
from onnxgen.graph.annotations import FREED
from onnxgen.graph.nodes import has_subgraphs, opset_of, subgraphs
from onnxgen.graph.operators import card, is_a
from onnxgen.graph.traits import ELEMENTWISE, RANDOM, REDUCTION, SAMPLES, SIZES, Trait
from onnxgen.options import Options
from onnxgen.passes.batch.arithmetic import elementwise, reduction, rows
from onnxgen.passes.batch.stack import Batch, Refusal, Rule, RuleNode, Stack
from onnxgen.passes.match import shape_of
from onnxgen.passes.rewrite import is_used
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Dim, symbol, symbols
from onnxgen.shapes.info import info

OF_KIND: dict[Trait, Rule] = {ELEMENTWISE: elementwise, SAMPLES: rows, REDUCTION: reduction}
DEFAULT_NAME = "batch"  # of the symbolic dim
WAY_OUT = "name the axes of the inputs with --batch-axis, export with a dynamic batch, or leave --dynamic-batch out"


@dataclass(frozen=True)
class Freed:
    """The result of `dynamic_batch`.

    Attributes:
        size: the batch size in the file.
        inputs: the batch axis of each input that has one, by name.
        outputs: the same for outputs. Samples follow each other along this axis.
        notes: notes for the user.
    """

    size: int
    inputs: dict[str, int]
    outputs: dict[str, int]
    notes: tuple[str, ...] = ()


def dynamic_batch(model: ir.Model, options: Options) -> None:
    """Make the batch size symbolic and record the change (`Freed`).

    Raises:
        OnnxgenError: the batch cannot be proven to be free. Names every node that prevents it.
    """
    if not options.dynamic_batch:
        return
    size, inputs = _inputs(model.graph, options)
    if not inputs:
        FREED.set(model, Freed(size, {}, {}, ("no input has a fixed batch: --dynamic-batch has nothing to do",)))
        return
    taken = {name for v in model.graph.inputs for dim in info(v).shape or () for name in symbols(dim)}
    name = next(n for n in (DEFAULT_NAME, *(f"{DEFAULT_NAME}_{i}" for i in range(len(taken) + 1))) if n not in taken)
    batch = Batch(size, symbol(name, (inputs[0][0].name or "", inputs[0][1])), {}, [], {})
    batch.stacks.update({value: Stack(axis) for value, axis in inputs})
    _walk(model, batch)
    outputs = _outputs(model.graph, batch)
    _infer_anew(model, options, batch, name)
    axes = {value.name or "": axis for value, axis in inputs}
    FREED.set(model, Freed(size, axes, outputs, tuple(dict.fromkeys(batch.notes))))


def _inputs(graph: ir.Graph, options: Options) -> tuple[int, list[tuple[ir.Value, int]]]:
    """Return the fixed batch size, and the inputs with a batch axis and that axis.

    By default the batch is the first axis. Its size is that of the input with the highest rank, and every input with
    this size there takes part. If any input has a dynamic first axis already, none does.
    """
    asked, problems = options.batch_axes, Problems()
    values = _named_inputs(graph, asked, problems)
    shapes = {name: shape_of(v) for name, v in values.items()}
    is_open = any(shape and not isinstance(shape[0], int) for shape in shapes.values())
    axes: dict[str, int] = {}
    size = 0
    for name in sorted(shapes, key=lambda name: (name not in asked, -len(shapes[name]))):
        shape, axis = shapes[name], asked.get(name, None if is_open else 0)
        if axis is None:
            continue
        dim = shape[axis] if -len(shape) <= axis < len(shape) else None
        size = size or (dim if isinstance(dim, int) else 0)
        if size and dim == size:
            axes[name] = axis % len(shape)
        elif name in asked:
            problems.add(f"--batch-axis: input {printable(name)} {_why_not(axis, dim, size)}")
    problems.raise_if_any()
    return size, [(value, axes[name]) for name, value in values.items() if name in axes]


def _why_not(axis: int, dim: Dim | None, size: int) -> str:
    if dim is None:
        return f"has no axis {axis}"
    return f"has size {dim} on axis {axis}, but the batch is {size or 'fixed'}"


def _named_inputs(graph: ir.Graph, asked: Iterable[str], problems: Problems) -> dict[str, ir.Value]:
    """Return the tensors among the inputs by name. A name that is asked for and is none of theirs is a problem."""
    values = {v.name or "": v for v in graph.inputs if v.name not in graph.initializers}
    for name in (name for name in asked if name not in values):
        known = ", ".join(map(printable, values))
        problems.add(f"--batch-axis: the model has no input {printable(name)}", help=f"its inputs are: {known}")
    return {name: value for name, value in values.items() if info(value).kind == "tensor"}


def _outputs(graph: ir.Graph, batch: Batch) -> dict[str, int]:
    """Return the batch axis of each output that has one. Raises `OnnxgenError`."""
    problems, axes = Problems(), {}
    for value in graph.outputs:
        stack = batch.stacks.get(value)
        name = printable(value.name or "")
        if stack is not None and stack.outer != 1:
            problems.add(f"output {name} does not have the samples along one axis", help=WAY_OUT)
        elif stack is not None:
            axes[value.name or ""] = stack.axis
    if not axes and not problems.found:
        problems.add("no output depends on the batch", help=WAY_OUT)
    problems.raise_if_any()
    return axes


def _walk(model: ir.Model, batch: Batch) -> None:
    """Find the stacks in order of computation. Raises `OnnxgenError` with every node that prevents the proof."""
    problems = Problems()
    refused: set[ir.Value] = set()
    for node in list(model.graph):
        used = set(_used(node))
        if used & refused:
            refused.update(node.outputs)
            continue
        outputs = list(node.outputs)
        try:
            _prove(RuleNode(node, batch, opset_of(node, model)), used)
        except Refusal as reason:
            problems.add(_problem(node, model, str(reason)))
            refused.update(outputs)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            problems.add(_problem(node, model, "the inputs or attributes contradict each other"))
            refused.update(outputs)
    problems.raise_if_any()


def _problem(node: ir.Node, model: ir.Model, reason: str) -> Problem:
    op = printable(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    name = node.name or next((f"of {o.name}" for o in node.outputs if o.name), "")
    reason = f"the batch can't be made free: {reason}"
    return Problem(reason, printable(name), op, opset_of(node, model), WAY_OUT)


def _prove(n: RuleNode, used: set[ir.Value]) -> None:
    """Find which outputs of one node are stacks. Raises `Refusal`."""
    node, batch = n.node, n.batch
    if is_a(node, RANDOM) and not is_a(node, ELEMENTWISE):
        raise Refusal("the operator draws the same random numbers for all samples")
    if not used.intersection(batch.stacks):
        return
    if is_a(node, SIZES):  # sizes that only the graph uses are numbers by now, as the exporter stored others
        raise Refusal("the operator returns the size of the batch")
    rule = _rule(node) if node.domain == "" else None
    if rule is None or has_subgraphs(node):
        raise Refusal("onnxgen does not know how the operator treats a batch")
    proven = rule(n)
    stacks = proven if isinstance(proven, list) else [proven] * len(n.node.outputs)
    for output, stack in zip(n.node.outputs, stacks):
        shape = info(output).shape
        if stack is None or not output.name:
            continue
        if shape is None or shape[stack.axis] != stack.size(batch.size):
            raise Refusal("the shape of the result is unknown")
        batch.stacks[output] = stack


def _rule(node: ir.Node) -> Rule | None:
    of_kind = (rule for trait, rule in OF_KIND.items() if is_a(node, trait))
    return card("", node.op_type).rules.batch or next(of_kind, None)


def _used(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node uses, and those that its subgraphs use from outside."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        for inner in graph:
            yield from _used(inner)
        yield from graph.outputs


def _infer_anew(model: ir.Model, options: Options, batch: Batch, name: str) -> None:
    """Infer every shape with the symbolic batch. Raises `OnnxgenError` where one differs from the proof."""
    expected = {}
    for value, stack in batch.stacks.items():
        shape = info(value).shape
        assert shape is not None
        expected[value] = batch.free(shape, stack)
    for value in model.graph.inputs:
        if value in expected and value.shape is not None:
            dims = list(value.shape)
            dims[batch.stacks[value].axis] = ir.SymbolicDim(name)
            value.shape = ir.Shape(dims)
    propagate(model.graph, options)
    for value, shape in expected.items():
        node = value.producer()
        if is_used(value) and node is not None and node.graph is not None and info(value).shape != shape:
            reason = "the shape of the result is not known for every batch size"
            raise OnnxgenError(_problem(node, model, reason))  # the first: others follow from it
