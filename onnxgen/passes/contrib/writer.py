"""How a body is written: one function an operator, whose parameters are those of the operator's schema.

    @body("BiasGelu")
    def bias_gelu(g: Writer, A: ir.Value, B: ir.Value) -> ir.Value:
        return g("Gelu", g("Add", A, B))

Inputs first (None where one is left out), then, keyword-only, the attributes with their defaults. What is returned
takes the places of the node's outputs: one value, or a list (None for one that nothing may use).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import BUG, INFER, WRITER
from onnxgen.graph.annotations import BLOCKED, STANDS_FOR, copy_all
from onnxgen.graph.schemas import NEWER_RUNTIME, plain
from onnxgen.passes.rewrite import names_of
from onnxgen.shapes.info import info, set_info

MICROSOFT = "com.microsoft"
VERSION = 22  # the opset that bodies are written in
NEWER = {"RMSNormalization": 23, "Attention": 23, "TensorScatter": 24}
INT64, FLOAT = ir.DataType.INT64, ir.DataType.FLOAT

Body = Callable[..., Any]
Written = TypeVar("Written", bound=Body)
BODIES: dict[tuple[str, str], Body] = {}

KINDS = {
    int: ir.AttributeType.INT,
    float: ir.AttributeType.FLOAT,
    str: ir.AttributeType.STRING,
    list[int]: ir.AttributeType.INTS,
    list[float]: ir.AttributeType.FLOATS,
}


class Refused(Exception):
    """A node that its body can't be written for: what it asks for, and the way out."""

    def __init__(self, what: str, help: str = "") -> None:
        super().__init__(what)
        self.what, self.help = what, help


def body(
    *names: str, domain: str = MICROSOFT, table: dict[tuple[str, str], Body] = BODIES
) -> Callable[[Written], Written]:
    """Register a function as what some operators stand for (in another `table`: what they are read as)."""

    def register(function: Written) -> Written:
        table.update({(domain, name): function for name in names})
        return function

    return register


class Writer:
    """Writes nodes in the place of one: `g("Add", a, b)` is the value that an Add makes.

    Attributes:
        node: the node that is being replaced.
        written: the nodes so far, in order; `count`: of how many values.
    """

    def __init__(self, node: ir.Node) -> None:
        self.node = node
        self.written: list[ir.Node] = []
        self.count = 0

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The one output of a standard operator; attributes that are None are left out."""
        return self.several(1, op_type, *inputs, **attributes)[0]

    def several(
        self, count: int, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """The first `count` outputs of a standard operator, or of one of another domain."""
        given = [_attribute(name, value) for name, value in attributes.items() if value is not None]
        version = 1 if domain else NEWER.get(op_type, VERSION)
        made = ir.Node(domain, op_type, inputs, given, num_outputs=count, version=version, name=self.node.name)
        for output in made.outputs:
            self.count += 1
            output.name = f"{self._base()}:{self.count}"  # with a dot it would look like a parameter's
        self.written.append(made)
        return made.outputs

    def _base(self) -> str:
        return next((o.name for o in self.node.outputs if o.name), "") or self.node.op_type

    def wants(self, index: int) -> bool:
        """Whether anything uses an output of the node."""
        outputs = self.node.outputs
        return index < len(outputs) and bool(outputs[index].uses() or outputs[index].is_graph_output())

    def ints(self, *numbers: int) -> ir.Value:
        """A constant vector of int64."""
        return self.constant(np.asarray(numbers, np.int64))

    def range(self, start: ir.Value | None, end: ir.Value) -> ir.Value:
        """The numbers from one size (None: from 0) to another, each a vector of one element."""
        first = self.constant(np.asarray(0, np.int64)) if start is None else self("Squeeze", start, self.ints(0))
        return self("Range", first, self("Squeeze", end, self.ints(0)), self.constant(np.asarray(1, np.int64)))

    def detached(self, value: ir.Value, index: int = 0) -> ir.Value:
        """The value written last, of which nobody trains an input that is stored: tables of sines, say."""
        BLOCKED.set(self.written[-1], {index})
        return value

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        return self("Constant", value=ir.tensor(array))

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """A constant scalar of the type of another value."""
        dtype = info(like).dtype
        if dtype is None:
            raise Refused("the type of the input is unknown", INFER)
        return self.constant(np.asarray(value, dtype.numpy()))

    def like(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """Let what is known of an input be known of a written value: its type, and its rank."""
        set_info(value, info(other))
        return value

    def rank(self, value: ir.Value) -> int:
        """The rank of an input. Raises `Refused` where it is unknown."""
        found = info(value).rank
        if found is None:
            raise Refused(
                f"the rank of input {printable(value.name or '')} is unknown",
                INFER,
            )
        return found


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, ir.Tensor):
        return ir.AttrTensor(name, value)
    return ir.convenience.convert_attribute(name, value)


def write(node: ir.Node, table: Mapping[tuple[str, str], Body] = BODIES) -> None:
    """Put the nodes of the body that `table` has in the place of a node, in its scope and under its name.

    Raises:
        Refused: the operator's body does not say what this node asks for; nothing was changed.
    """
    function = table[node.domain, node.op_type]
    writer = Writer(node)
    made = function(writer, *_inputs(node, function), **_attributes(node, function))
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    if any(writer.wants(i) and (i >= len(results) or results[i] is None) for i in range(len(node.outputs))):
        raise Refused("an optional output that is used is not handled", BUG)
    _put(writer, results)


def _put(writer: Writer, results: list[ir.Value | None]) -> None:
    node, graph = writer.node, writer.node.graph
    assert graph is not None
    own = {output for new in writer.written for output in new.outputs}
    taken: set[ir.Value] = set()
    for old, value in zip(node.outputs, results):
        if value is None:
            continue
        if value not in own or value in taken:  # an input handed through, or an output handed out twice
            value = writer("Identity", value)
        taken.add(value)
        value.name, value.type, value.shape = old.name, old.type, old.shape
        if info(old).shape is not None:  # a body may have guessed by an input
            set_info(value, info(old))
        old.replace_all_uses_with(value, replace_graph_outputs=True)
    for new in writer.written:
        copy_all(node, new)
        STANDS_FOR.set(new, names_of(node))
        new.metadata_props.update(node.metadata_props)
    graph.insert_before(node, writer.written)
    graph.remove(node, safe=True)


def _inputs(node: ir.Node, function: Body) -> list[ir.Value | None]:
    """The node's inputs, one for each positional parameter of the body (all that are left for `*parameter`)."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    positional = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    found = list(node.inputs) + [None] * (len(positional) - len(node.inputs))
    if not variadic and any(v is not None for v in found[len(positional) :]):
        raise Refused(f"the node has {len(node.inputs)} inputs, but the schema has {len(positional)}", NEWER_RUNTIME)
    hints = get_type_hints(function)
    for parameter, value in zip(positional, found):
        if value is None and hints[parameter.name] == ir.Value:
            raise Refused(f"input {parameter.name!r} is missing", WRITER)
    return found if variadic else found[: len(positional)]


def _attributes(node: ir.Node, function: Body) -> dict[str, Any]:
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    taken = {p.name: p for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    given: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if name not in taken:
            raise Refused(f"attribute {printable(name)!r} is not handled", NEWER_RUNTIME)
        wanted = KINDS[next(kind for kind in KINDS if kind == hints[name] or kind | None == hints[name])]
        if attribute.type != wanted:
            raise Refused(f"attribute {name!r} must be of type {wanted.name}, not {attribute.type.name}", WRITER)
        given[name] = plain(attribute.value)
    for parameter in taken.values():
        if parameter.default is inspect.Parameter.empty and parameter.name not in given:
            raise Refused(f"attribute {parameter.name!r} is missing", WRITER)
    return given
