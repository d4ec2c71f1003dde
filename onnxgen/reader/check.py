"""Checks of the protobuf's structure, before onnx_ir sees it, and of nodes against their schemas.

onnx_ir is lenient: it adds undeclared inputs and only logs it, skips nameless initializers, and takes the last of two
initializers. Each of these would make the result silently wrong. So the structure is checked on the protobuf, by the
rules of https://onnx.ai/onnx/repo-docs/IR.html. Two things are allowed, as in onnxruntime: nodes in any order, unless
they form a cycle, and initializers of an inner graph that hide outer names.

`check_signatures` runs later: every standard node has the inputs, outputs and attributes that its operator requires.
All later code relies on this, and reads `node.inputs[1]` without a check. Local functions are inlined before, since a
call may omit what a node of the body needs. onnxruntime refuses the same nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema, SchemaError

from onnxgen.common.limits import Limits
from onnxgen.common.names import printable
from onnxgen.errors import Problem, Problems
from onnxgen.graph.nodes import all_nodes, opset_of, told
from onnxgen.reader.protos import inner_graphs, outer_uses
from onnxgen.reader.tensors import ExternalData, label, sparse_problem, tensor_problem, type_problem

_MAX_NODES_SHOWN = 6  # nodes of a cycle that a message names


def find_cycle(nodes: Sequence[onnx.NodeProto]) -> str | None:
    """Return the names of nodes that form a cycle ("a, b, a"), or None if the nodes can be sorted.

    A node depends on the outer values that its subgraphs use, too.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = {i: sorted({maker[n] for n in uses(node) if n in maker}) for i, node in enumerate(nodes)}
    sorter = TopologicalSorter(needs)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [label(nodes[i].name or next(iter(nodes[i].output), "")) for i in error.args[1]]
        return ", ".join(cycle if len(cycle) <= _MAX_NODES_SHOWN else [*cycle[:_MAX_NODES_SHOWN], "..."])
    return None


def uses(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node takes from its graph: its inputs, and outer values that its subgraphs use."""
    yield from node.input
    for graph in inner_graphs(node):
        yield from outer_uses(graph)


Attribute = onnx.AttributeProto
Report = Callable[[str], None]
# The field that holds the value of an attribute, by its type (onnx.proto, message AttributeProto).
ATTRIBUTE_FIELDS: dict[int, str] = {
    Attribute.FLOAT: "f",
    Attribute.INT: "i",
    Attribute.STRING: "s",
    Attribute.TENSOR: "t",
    Attribute.GRAPH: "g",
    Attribute.SPARSE_TENSOR: "sparse_tensor",
    Attribute.TYPE_PROTO: "tp",
    Attribute.FLOATS: "floats",
    Attribute.INTS: "ints",
    Attribute.STRINGS: "strings",
    Attribute.TENSORS: "tensors",
    Attribute.GRAPHS: "graphs",
    Attribute.SPARSE_TENSORS: "sparse_tensors",
    Attribute.TYPE_PROTOS: "type_protos",
}
_NUMBERS = frozenset({Attribute.FLOAT, Attribute.INT, Attribute.STRING, Attribute.FLOATS, Attribute.INTS})
_MESSAGES = frozenset({"t", "g", "sparse_tensor", "tp"})  # these have no default value


class GraphNames:
    """The value names that one graph of the protobuf defines, linked to the graphs around it."""

    def __init__(self, outer: GraphNames | None) -> None:
        self.outer = outer
        self.names: set[str] = set()  # every name that the graph defines, at any position
        self.before: set[str] = set()  # the names defined before the current node
        self.unsorted = False

    def use(self, name: str) -> bool:
        """Return True if this graph or an outer one defines `name`. Marks the graph `unsorted` if it does so later."""
        scope: GraphNames | None = self
        while scope is not None:
            if name in scope.names:
                scope.unsorted |= name not in scope.before
                return True
            scope = scope.outer
        return False

    def hides(self, name: str) -> bool:
        """Return True if a surrounding graph defines `name` before the node that holds this graph."""
        scope = self.outer
        while scope is not None:
            if name in scope.before:
                return True
            scope = scope.outer
        return False


def check(proto: onnx.ModelProto, folder: Path, limits: Limits) -> bool:
    """Check a whole model whose external data lies in `folder`.

    Returns:
        True if the nodes of every graph are already sorted topologically.

    Raises:
        OnnxgenError: something is wrong; the error lists everything.
    """
    checker = _Checker(proto, folder, limits)
    checker.model()
    checker.problems.raise_if_any()
    return checker.sorted


class _Checker:
    def __init__(self, proto: onnx.ModelProto, folder: Path, limits: Limits) -> None:
        self.proto = proto
        self.limits = limits
        self.external = ExternalData(folder)
        self.problems = Problems()
        self.sorted = True
        self.dense = 0  # number of elements of all sparse tensors when made dense
        self.opsets: dict[str, int] = {}
        self.parameters: frozenset[str] | None = None  # attributes of the local function being checked

    def model(self) -> None:
        self.opsets = self.imports(self.proto.opset_import)
        if self.proto.ir_version > onnx.IR_VERSION:
            newest = f"{onnx.IR_VERSION}, the newest that the installed onnx knows"
            what = f"IR version {self.proto.ir_version} is newer than {newest}"
            self.problems.add(what, help="upgrade onnx")
        if not self.proto.graph.output:
            self.problems.add("the graph has no outputs")
        self.graph(self.proto.graph, None, 0)
        seen = set()
        for function in self.proto.functions:
            key = (function.domain, function.name, function.overload)
            if key in seen:
                self.problems.add(f"the local function {printable(function.name)} is defined twice")
            seen.add(key)
            self.function(function)

    def imports(self, entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
        newest = onnx.defs.onnx_opset_version()
        opsets: dict[str, int] = {}
        for entry in entries:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            name = printable(domain) or "ai.onnx"
            if opsets.setdefault(domain, entry.version) != entry.version:
                self.problems.add(f"opset {name} is imported as version {opsets[domain]} and {entry.version}")
            if not domain and entry.version > newest:
                what = f"opset {entry.version} is newer than {newest}, the newest that the installed onnx knows"
                self.problems.add(what, help="upgrade onnx, or export the model again with an older opset")
            if not 1 <= entry.version < 2**31:
                self.problems.add(f"opset {name} is imported as version {entry.version}, which does not exist")
        return opsets

    def function(self, function: onnx.FunctionProto) -> None:
        outer_opsets = self.opsets
        self.opsets = {**outer_opsets, **self.imports(function.opset_import)}
        self.parameters = frozenset([*function.attribute, *(a.name for a in function.attribute_proto)])
        where = f"local function {printable(function.name)}"
        scope = GraphNames(None)
        for name in function.input:
            self.declare(scope, name, f"input of {where}", before=True)
        for attribute in function.attribute_proto:
            self.attribute(attribute, scope, lambda what: self.problems.add(f"{where}: {what}"), None, 0)
        self.body(function.node, scope, 0)
        for name in function.output:
            if not scope.use(name):
                self.problems.add(f"no node computes output {label(name)} of {where}")
        self.parameters = None
        self.opsets = outer_opsets

    def graph(self, graph: onnx.GraphProto, outer: GraphNames | None, depth: int) -> None:
        scope = GraphNames(outer)
        for info in graph.input:
            self.declare(scope, info.name, "graph input", before=True)
        tensors = [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
        if len(set(tensors)) < len(tensors):
            seen: set[str] = set()
            for name in tensors:
                if name in seen:
                    self.problems.add(f"two initializers are named {label(name)}")
                seen.add(name)
        for name in tensors:
            if not name:
                self.problems.add("an initializer has no name")
            elif name not in scope.names:  # an initializer may also be an input: it is the input's default
                self.declare(scope, name, "initializer", before=True)
        self.tensors(graph)
        self.body(graph.node, scope, depth)
        for info in graph.output:
            if not scope.use(info.name):
                self.problems.add(f"no node computes graph output {label(info.name)}")
        for info in (*graph.input, *graph.output, *graph.value_info):
            if problem := type_problem(info.type, self.limits):
                self.problems.add(f"value {label(info.name)}: {problem}")

    def tensors(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if problem := tensor_problem(tensor, self.limits, self.external):
                self.problems.add(f"initializer {label(tensor.name)}: {problem}")
        for sparse in graph.sparse_initializer:
            if problem := self.sparse_problem(sparse):
                self.problems.add(f"initializer {label(sparse.values.name)}: {problem}")

    def sparse_problem(self, sparse: onnx.SparseTensorProto) -> str | None:
        problem = sparse_problem(sparse, self.limits, self.external)
        if problem is None:
            self.dense += math.prod(sparse.dims)
            what = f"this and the sparse tensors before it have {self.dense:,} elements when dense"
            problem = self.limits.past("fold_elements", self.dense, what)
        return problem

    def body(self, nodes: Iterable[onnx.NodeProto], scope: GraphNames, depth: int) -> None:
        nodes = list(nodes)
        for node in nodes:
            for name in node.output:
                if name:
                    self.declare(scope, name, "output of a node", before=False)
        for node in nodes:
            self.node(node, scope, depth)
            scope.before.update(node.output)
        if scope.unsorted:
            self.sorted = False
            if cycle := find_cycle(nodes):
                self.problems.add(f"the graph has a cycle: {cycle}")

    def declare(self, scope: GraphNames, name: str | bytes, what: str, before: bool) -> None:
        """Add a name to its graph. `before` says that the value exists before any node runs."""
        if isinstance(name, bytes):  # protobuf returns text that is not UTF-8 as bytes
            self.problems.add(f"the name {label(name)} of a {what} is not valid UTF-8 text")
            return
        if not name:
            self.problems.add(f"a {what} has no name")
        elif name in scope.names:
            self.problems.add(f"duplicate name {label(name)}: {what}, but defined already")
        elif problem := self.limits.past(
            "name_length", len(name), f"the name {label(name)} has {len(name)} characters"
        ):
            self.problems.add(problem)
        scope.names.add(name)
        if before:
            scope.before.add(name)

    def node(self, node: onnx.NodeProto, scope: GraphNames, depth: int) -> None:
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = self.opsets.get(domain)

        def report(what: str) -> None:
            op = f"{printable(domain)}.{printable(node.op_type)}" if domain else printable(node.op_type)
            name = node.name or next((name for name in node.output if name), "")
            self.problems.add(Problem(what, label(name), op, opset))

        if not node.op_type:
            report("the node names no operator")
        texts = (node.name, node.op_type, domain)
        if any(isinstance(text, bytes) for text in texts):
            report("the name, operator or domain is not valid UTF-8 text")
            return
        longest = max(map(len, texts))
        what = f"the name, operator or domain has {longest} characters"
        if problem := self.limits.past("name_length", longest, what):
            report(problem)
        if not domain and opset is None and self.proto.ir_version >= 3:
            self.problems.add("the model imports no opset of ai.onnx, so its operators have no defined meaning")
        self.values(node, scope, report)
        self.hidden(node, report)
        expected = attribute_types(node.op_type, domain, opset or 1)
        seen = set()
        for attribute in node.attribute:
            if attribute.name in seen:
                report(f"attribute {label(attribute.name)} is given twice")
            seen.add(attribute.name)
            if isinstance(attribute.name, bytes):
                report(f"the name of attribute {label(attribute.name)} is not valid UTF-8 text")
            self.attribute(attribute, scope, report, expected.get(attribute.name), depth)

    def values(self, node: onnx.NodeProto, scope: GraphNames, report: Report) -> None:
        for name in filter(None, node.input):
            if not scope.use(name):
                report(f"input {label(name)} is not a graph input, an initializer or an output of another node")
        for name in filter(None, node.output):
            if scope.hides(name):
                report(f"duplicate name {label(name)}: the output hides a value of an outer graph")

    def hidden(self, node: onnx.NodeProto, report: Report) -> None:
        """Refuse what ONNX forbids and runtimes take for different things: a name with two values among branches.

        onnxruntime gives a branch the outer value in place of its own stored tensor if another branch takes that one.
        """
        graphs = list(inner_graphs(node))
        taken = [outer_uses(graph) for graph in graphs] if len(graphs) > 1 else []
        for i in range(len(taken)):
            own = {tensor.name for tensor in graphs[i].initializer}
            own |= {sparse.values.name for sparse in graphs[i].sparse_initializer}
            for name in sorted(own.intersection(set[str]().union(*taken[:i], *taken[i + 1 :]))):
                what = f"one branch stores a tensor {label(name)}, and another one takes the outer value of that name"
                report(f"{what}, which ONNX does not allow")

    def attribute(
        self, a: onnx.AttributeProto, scope: GraphNames, report: Report, expected: int | None, depth: int
    ) -> None:
        if a.ref_attr_name:
            if self.parameters is None or a.ref_attr_name not in self.parameters:
                report(f"attribute {label(a.name)} refers to a function attribute that does not exist")
            return
        problem = _attribute_problem(a, expected)
        if problem:
            report(f"attribute {label(a.name)} {problem}")
            return
        if a.type in _NUMBERS:
            longest = max((len(text) for text in (a.s, *a.strings)), default=0)
            if problem := self.limits.past("text_length", longest, f"attribute {label(a.name)} has {longest} bytes"):
                report(problem)
            return
        checks: tuple[tuple[Any, str, Callable[[Any], str | None]], ...] = (
            ("t", "tensors", lambda tensor: tensor_problem(tensor, self.limits, self.external)),
            ("sparse_tensor", "sparse_tensors", self.sparse_problem),
            ("tp", "type_protos", lambda kind: type_problem(kind, self.limits)),
        )
        for single, several, problem_of in checks:
            for message in ([getattr(a, single)] if a.HasField(single) else []) + [*getattr(a, several)]:
                if problem := problem_of(message):
                    report(f"attribute {label(a.name)}: {problem}")
        for graph in (a.g, *a.graphs) if a.HasField("g") else a.graphs:
            if problem := self.limits.past("depth", depth + 1, f"graphs are nested {depth + 1} deep"):
                report(problem)
            else:
                self.graph(graph, scope, depth + 1)


def attribute_type(a: onnx.AttributeProto) -> int:
    """Return the declared type of an attribute, else that of the only field that is set (0 if not exactly one is)."""
    if a.type:
        return a.type
    filled = _filled(a)
    return next((t for t, field in ATTRIBUTE_FIELDS.items() if field in filled), 0) if len(filled) == 1 else 0


def _filled(a: onnx.AttributeProto) -> set[str]:
    return {field.name for field, _ in a.ListFields()}.intersection(ATTRIBUTE_FIELDS.values())


def _attribute_problem(a: onnx.AttributeProto, expected: int | None) -> str | None:
    kind = attribute_type(a)
    if not kind:
        return "has no known type"
    field, filled = ATTRIBUTE_FIELDS[kind], _filled(a)
    if filled - {field} or (field in _MESSAGES and field not in filled):
        return f"is declared as {Attribute.AttributeType.Name(kind)} but holds a value of another type"
    if expected is not None and expected != kind:
        wanted, actual = Attribute.AttributeType.Name(expected), Attribute.AttributeType.Name(kind)
        return f"is of type {actual}, but the operator needs {wanted}"
    return None


@lru_cache(maxsize=4096)
def attribute_types(op_type: str, domain: str, version: int) -> dict[str, int]:
    """Return the attribute types of a standard operator by name, from its schema; empty if onnx has no schema."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except (SchemaError, TypeError):  # TypeError: the version does not fit int32
        return {}
    types = {name: str(attribute.type).rpartition(".")[2] for name, attribute in schema.attributes.items()}
    return {name: Attribute.AttributeType.Value(kind) for name, kind in types.items()}


DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
# Attributes that hold an element type, in any operator.
TYPES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "precision", "softmax_precision")

_SINGLE = OpSchema.FormalParameterOption.Single


@dataclass(frozen=True)
class Signature:
    """The requirements of an operator schema: positions of required inputs, allowed counts, required attributes."""

    inputs: tuple[int, ...]
    most_inputs: int
    least_outputs: int
    most_outputs: int
    attributes: tuple[str, ...]
    known: frozenset[str] | None


def check_signatures(model: ir.Model) -> None:
    """Check every node.

    Raises:
        OnnxgenError: a node lacks something, or has too much; the error lists all such nodes.
    """
    problems = Problems()
    for node in all_nodes(model.graph):
        version = opset_of(node, model)
        problem = None if node.outputs else "the node has no outputs"
        if node.domain in DOMAINS:
            signature = signature_of(node.op_type, "" if node.domain == "ai.onnx" else node.domain, version)
            if problem is None and signature is not None:
                problem = _problem(node, signature)
        if problem:
            problems.add(Problem(problem, label(told(node)), label(node.op_type), version))
    problems.raise_if_any()


@lru_cache(maxsize=4096)
def signature_of(op_type: str, domain: str, version: int) -> Signature | None:
    """Return the signature of an operator in `version`, or its newest if all are newer; None if onnx has no schema."""
    try:
        if not onnx.defs.has(op_type, domain):
            return None
        schema, newer = onnx.defs.get_schema(op_type, version, domain), False
    except SchemaError:
        schema, newer = onnx.defs.get_schema(op_type, domain), True
    # Converters already omit inputs that only a later version makes optional (roi and scales of Resize).
    latest = onnx.defs.get_schema(op_type, domain)
    needed = [{i for i, formal in enumerate(s.inputs) if formal.option == _SINGLE} for s in (schema, latest)]
    changed = len(latest.inputs) < len(schema.inputs)
    return Signature(
        tuple(sorted(needed[0] if changed else needed[0] & needed[1])),
        schema.max_input,
        schema.min_output,
        schema.max_output,
        tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        None if newer else frozenset(schema.attributes),
    )


def _problem(node: ir.Node, signature: Signature) -> str | None:
    inputs, count = node.inputs, len(node.inputs)
    while count and inputs[count - 1] is None:
        count -= 1  # an empty name means that the input is omitted
    for place in signature.inputs:
        if place >= count or inputs[place] is None:
            return f"required input {place} is missing"
    if count > signature.most_inputs:
        return f"the node has {count} inputs; the operator takes {signature.most_inputs} at most"
    if not signature.least_outputs <= len(node.outputs) <= signature.most_outputs:
        least, most = signature.least_outputs, signature.most_outputs
        allowed = least if least == most else f"{least} to {most}"
        return f"the node has {len(node.outputs)} outputs; the operator has {allowed}"
    return _problem_of_attributes(node, signature)


def _problem_of_attributes(node: ir.Node, signature: Signature) -> str | None:
    for name in signature.attributes:
        if name not in node.attributes:
            return f"required attribute {name} is missing"
    for name in node.attributes.keys() - signature.known if signature.known is not None else ():
        return f"attribute {label(name)} is not defined for the operator"
    for name in TYPES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.INT:
            if attribute.value not in ir.DataType.__members__.values():
                return f"attribute {name} is {attribute.value}, which is not an element type"
    return None
