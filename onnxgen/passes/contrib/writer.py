"""The interface for bodies: functions whose parameters are those of the operator's schema.

    @onnxgen.op("BiasGelu", domain="com.acme", body=True)
    def bias_gelu(g: Writer, A: Value, B: Value) -> Value:
        return g("Gelu", g("Add", A, B))

Inputs come first (None if absent), then, keyword-only, the attributes with their defaults. The
function returns the node's outputs: one value or a list, with None for an output that must not be
used. `@body` and `@standard` register bodies of a pass's own (`passes.quantized`,
`passes.standard`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, get_type_hints

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import BUG, FIX_SHAPE, INFER, WRITER
from onnxgen.graph.annotations import BLOCKED, STANDS_FOR, copy_all
from onnxgen.graph.nodes import NEWER_RUNTIME, first_since, plain
from onnxgen.graph.operators import op
from onnxgen.options import Options
from onnxgen.passes.rewrite import names_of
from onnxgen.shapes.info import info, set_info, shape_option

VERSION = 22  # the opset of the written nodes
FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64

Value: TypeAlias = ir.Value
Maybe: TypeAlias = ir.Value | None
Results: TypeAlias = list[Maybe]

Body = Callable[..., Any]
Written = TypeVar("Written", bound=Body)
Bodies = dict[tuple[str, str], Body]  # by (domain, name)
STANDARD_BODIES: Bodies = {}
FLOAT_BODIES: Bodies = {}  # operators on integers as float operators that they approximate

KINDS = {
    int: ir.AttributeType.INT,
    float: ir.AttributeType.FLOAT,
    str: ir.AttributeType.STRING,
    list[int]: ir.AttributeType.INTS,
    list[float]: ir.AttributeType.FLOATS,
    ir.Graph: ir.AttributeType.GRAPH,
}


class Refused(Exception):
    """A body does not support a node. `what` it asks for, and the way out."""

    def __init__(self, what: str, help: str = "") -> None:
        super().__init__(what)
        self.what, self.help = what, help


def body(*names: str, table: Bodies, domain: str = "com.microsoft", **card: Any) -> Callable[[Written], Written]:
    """Register a function as the body of some operators in a table of a pass. `card`: as in `@op(...)`."""

    def register(function: Written) -> Written:
        table.update({(domain, name): function for name in names})
        return op(*names, domain=domain, body=True, **card)(function) if card else function

    return register


def standard(*names: str, domain: str = "", **card: Any) -> Callable[[Written], Written]:
    """Register a function as the body of some operators of the standard."""
    return body(*names, domain=domain, table=STANDARD_BODIES, **card)


class Writer:
    """Writes the nodes that replace one node: `g("Add", a, b)` adds an Add and returns its output.

    Attributes:
        node: the node that is replaced; `model`: its model; `options`: those of the generation.
        written: the new nodes, in order; `count`: the number of their outputs.
    """

    def __init__(self, node: ir.Node, model: ir.Model, options: Options) -> None:
        self.node, self.model, self.options = node, model, options
        self.written: list[ir.Node] = []
        self.count = 0

    def __call__(self, op_type: str, *inputs: Maybe, **attributes: Any) -> Value:
        """Write a standard operator with one output. Attributes that are None are left out."""
        return self.several(1, op_type, *inputs, **attributes)[0]

    def several(self, count: int, op_type: str, *inputs: Maybe, domain: str = "", **attributes: Any) -> Sequence[Value]:
        """Write an operator and return its first `count` outputs."""
        if attributes.get("auto_pad", "NOTSET") != "NOTSET":
            attributes["pads"] = None  # onnxruntime's fused operators may have both, and ignore pads
        attrs = [_attribute(name, value) for name, value in attributes.items() if value is not None]
        version = 1 if domain else first_since(op_type, VERSION)
        node = ir.Node(domain, op_type, inputs, attrs, num_outputs=count, version=version, name=self.node.name)
        for output in node.outputs:
            self.name(output)
        self.written.append(node)
        return node.outputs

    def name(self, output: Value) -> None:
        """Name a written value by the node's first output, with a number."""
        base = next((o.name for o in self.node.outputs if o.name), "") or self.node.op_type
        self.count += 1
        output.name = f"{base}:{self.count}"  # with a dot it would look like a parameter's

    def wants(self, index: int) -> bool:
        """Return True if an output of the node is used."""
        outputs = self.node.outputs
        return index < len(outputs) and bool(outputs[index].uses() or outputs[index].is_graph_output())

    def inlined(self, graph: ir.Graph, *values: Value) -> Value:
        """Move the nodes of a graph of the node here, with values for its inputs, and return its first output."""
        for inner, value in zip(graph.inputs, values):
            inner.replace_all_uses_with(value, replace_graph_outputs=True)
        for inner in list(graph.initializers.values()):
            assert inner.const_value is not None
            inner.replace_all_uses_with(self.constant(inner.const_value.numpy()), replace_graph_outputs=True)
        result = graph.outputs[0]
        nodes = list(graph)
        graph.outputs.clear()
        graph.remove(nodes)
        for node in nodes:
            for output in node.outputs:
                self.name(output)
        self.written += nodes
        return result

    def ints(self, *numbers: int) -> Value:
        """Return a constant vector of int64."""
        return self.constant(np.asarray(numbers, np.int64))

    def range(self, start: Maybe, end: Value) -> Value:
        """Return the range of int64 between two vectors of one element (no `start`: from 0)."""
        first = self.int64(0) if start is None else self("Squeeze", start, self.ints(0))
        return self("Range", first, self("Squeeze", end, self.ints(0)), self.int64(1))

    def detached(self, value: Value, index: int = 0) -> Value:
        """Exclude a stored input of the last written node from training, such as a table of sines. Returns `value`."""
        BLOCKED.set(self.written[-1], {index})
        return value

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        return self("Constant", value=ir.tensor(array))

    def float32(self, number: float) -> Value:
        return self.constant(np.asarray(number, np.float32))

    def int64(self, number: int) -> Value:
        return self.constant(np.asarray(number, np.int64))

    def number(self, value: float, like: Value) -> Value:
        """Return a constant scalar with the type of an input. Raises `Refused` if that is unknown."""
        return self.constant(np.asarray(value, dtype_of(like).numpy()))

    def like(self, value: Value, other: Value) -> Value:
        """Give a written value the facts of an input, for bodies that ask for its type or rank."""
        set_info(value, info(other))
        return value

    def rank(self, value: Value) -> int:
        """Return the rank of an input. Raises `Refused` if it is unknown."""
        rank = info(value).rank
        if rank is None:
            raise Refused(f"the rank of input {printable(value.name or '')} is unknown", shape_option(value) or INFER)
        return rank


def dtype_of(x: Value) -> ir.DataType:
    """Return the type of an input. Raises `Refused` if it is unknown."""
    dtype = info(x).dtype
    if dtype is None:
        raise Refused("the type of the input is unknown", INFER)
    return dtype


def size_of(x: Value, axis: int) -> int:
    """Return a dim of an input. Raises `Refused` if it is unknown."""
    shape = info(x).shape
    if shape is None or not -len(shape) <= axis < len(shape) or not isinstance(size := shape[axis], int):
        raise Refused("the sizes of the inputs are unknown", FIX_SHAPE)
    return size


def flag_of(x: Value, what: str) -> bool:
    """Return a truth value that decides which nodes are written. Raises `Refused` if it is not a constant."""
    known = info(x).constant
    if known is None or known.size != 1:
        raise Refused(f"{what} is known only at run time", "make the flag a constant of the file")
    return bool(known.item())


def widened(g: Writer, x: Value) -> Value:
    """Cast an input to float32."""
    return x if info(x).dtype == FLOAT else g("Cast", x, to=FLOAT)


def rounded(g: Writer, x: Value, like: Value) -> Value:
    """Cast a float32 value to the type of an input."""
    dtype = dtype_of(like)
    return x if dtype == FLOAT else g("Cast", x, to=dtype)


def quantized_to(g: Writer, x: Value, scale: Value, zero: Maybe, like: Value) -> Value:
    """Quantise to the type of the zero point, or to that of `like` if there is none."""
    return g("QuantizeLinear", x, scale, g.number(0, like) if zero is None else zero)


def plain_rms_norm(g: Writer, x: Value, size: int, epsilon: float) -> Value:
    """Apply RMSNormalization over the last axis in float32, with a scale of ones that is not trained."""
    return g.detached(g("RMSNormalization", x, g.constant(np.ones(size, np.float32)), axis=-1, epsilon=epsilon), 1)


def nchw(g: Writer, x: Value, rank: int) -> Value:
    """Move the channels of NHWC to axis 1."""
    return g("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def nhwc(g: Writer, x: Value, rank: int) -> Value:
    """Move the channels of NCHW to the end."""
    return g("Transpose", x, perm=[0, *range(2, rank), 1])


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, ir.Tensor):
        return ir.AttrTensor(name, value)
    return ir.convenience.convert_attribute(name, int(value) if isinstance(value, ir.DataType) else value)


def write(node: ir.Node, function: Body, model: ir.Model, options: Options) -> None:
    """Replace a node by what its body writes, in the same scope and under the same names.

    Raises:
        Refused: the body does not support this node. Nothing was changed.
    """
    writer = Writer(node, model, options)
    outputs = function(writer, *_inputs(node, function), **_attributes(node, function))
    results = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    if any(writer.wants(i) and (i >= len(results) or results[i] is None) for i in range(len(node.outputs))):
        raise Refused("an optional output that is used is not handled", BUG)
    _put(writer, results)


def _put(writer: Writer, results: Results) -> None:
    node, graph = writer.node, writer.node.graph
    assert graph is not None
    own = {output for new in writer.written for output in new.outputs}
    taken: set[Value] = set()
    for old, value in zip(node.outputs, results):
        if value is None:
            continue
        if value not in own or value in taken:  # an input of the node, or an output that is returned twice
            value = writer("Identity", value)
        taken.add(value)
        value.name, value.type, value.shape = old.name, old.type, old.shape
        if info(old).shape is not None:  # better than what `Writer.like` set
            set_info(value, info(old))
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    for new in writer.written:
        copy_all(node, new)
        STANDS_FOR.set(new, names_of(node))
        new.metadata_props.update(node.metadata_props)
    graph.insert_before(node, writer.written)
    graph.remove(node, safe=True)


def _inputs(node: ir.Node, function: Body) -> Results:
    """Return the node's inputs in the order of the body's parameters. `*parameter` takes all that are left."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    positional = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    operands = list(node.inputs) + [None] * (len(positional) - len(node.inputs))
    if not variadic and any(v is not None for v in operands[len(positional) :]):
        raise Refused(f"the node has {len(node.inputs)} inputs, but the schema has {len(positional)}", NEWER_RUNTIME)
    hints = get_type_hints(function)
    for parameter, value in zip(positional, operands):
        if value is None and parameter.default is parameter.empty and hints.get(parameter.name, Value) == Value:
            raise Refused(f"input {parameter.name!r} is missing", WRITER)
    return operands if variadic else operands[: len(positional)]


def _attributes(node: ir.Node, function: Body) -> dict[str, Any]:
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    taken = {p.name: p for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    keywords: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if name not in taken:
            raise Refused(f"attribute {printable(name)!r} is not handled", NEWER_RUNTIME)
        wanted = next((KINDS[kind] for kind in KINDS if hints.get(name) in (kind, kind | None)), attribute.type)
        if attribute.type != wanted:
            raise Refused(f"attribute {name!r} must be of type {wanted.name}, not {attribute.type.name}", WRITER)
        keywords[name] = plain(attribute.value)
    for parameter in taken.values():
        if parameter.default is inspect.Parameter.empty and parameter.name not in keywords:
            raise Refused(f"attribute {parameter.name!r} is missing", WRITER)
    return keywords
