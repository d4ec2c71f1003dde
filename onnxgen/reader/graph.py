"""Rewrite onnx_ir's graph to a normal form: local functions, states of loops, tables.

*Functions.* Each call is replaced by the function's nodes (https://onnx.ai/onnx/repo-docs/IR.html#functions). The
number of resulting nodes is computed first, so that nested functions that would make billions are refused. Nodes record
the name of their call (`CALLS`), which `origin` reads. onnx_ir's own inlining pass is not used. It renames a graph
input that a function returns unchanged, refuses functions with another opset than the model's, and takes quadratic time
in the number of calls.

*States.* What a loop carries and never changes is a value from outside, and what nobody reads is not carried. Exporters
of other frameworks carry everything that a loop's body uses: each weight is a state that the body returns as it came.
After the rewrite a weight in the body is the stored tensor itself.

*Tables.* Numbers in attributes of classical models (ai.onnx.ml) become stored tensors. The coefficients of a linear
model are then trained, named and written back like any weight. The attribute becomes an additional input of its node,
after the schema's own; `TABLE_INPUTS` has the names of these inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.limits import Limits
from onnxgen.common.names import Namer, printable
from onnxgen.errors import OnnxgenError, Problem, counted
from onnxgen.graph.annotations import BODY_NAME, CALLS, SCOPE, TABLE_INPUTS, note_body
from onnxgen.graph.nodes import LOOPS, all_nodes, origin, passed_on, subgraphs
from onnxgen.graph.operators import find
from onnxgen.reader.protos import inner_graphs

Key = tuple[str, str, str]  # domain, name, overload
Values = dict[ir.Value, ir.Value | None]  # maps each value of a function to the value at the call


def check_functions(proto: onnx.ModelProto, limits: Limits) -> None:
    """Refuse functions that call themselves, or whose calls make too many nodes or too deep graphs.

    Raises:
        OnnxgenError: there are such functions; the error names them or the limit.
    """
    if not proto.functions:
        return
    bodies = {(_domain(f.domain), f.name, f.overload): list(_calls(f.node)) for f in proto.functions}
    sorter = TopologicalSorter({key: {c for c, _ in body if c in bodies} for key, body in bodies.items()})
    try:
        order = list(sorter.static_order())
    except CycleError as error:
        names = ", ".join(printable(name) for _, name, _ in error.args[1][:6])
        raise OnnxgenError(f"local functions call themselves: {names}") from None
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(call, 1) for call, _ in bodies[key])
        depths[key] = max((level + depths.get(call, 0) for call, level in bodies[key]), default=0)
    main = list(_calls(proto.graph.node))
    total = sum(sizes.get(call, 1) for call, _ in main)
    shown = f"{total:,}" if total < 10**15 else "more than 10**15"
    deepest = max((level + depths.get(call, 0) for call, level in main), default=0)
    problems = (
        limits.past("nodes", total, f"inlining the local functions makes {shown} nodes"),
        limits.past("depth", deepest, f"inlining the local functions nests graphs {deepest} deep"),
    )
    if any(problems):
        raise OnnxgenError(*filter(None, problems))


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _calls(nodes: Iterable[onnx.NodeProto], level: int = 0) -> Iterator[tuple[Key, int]]:
    """Yield the function that each node calls, with the depth of the subgraph that the node is in."""
    for node in nodes:
        yield (_domain(node.domain), node.op_type, node.overload), level
        for graph in inner_graphs(node):
            yield from _calls(graph.node, level + 1)


def inline(model: ir.Model) -> None:
    """Replace every call of a local function by its body, in place. Functions' nodes must be sorted.

    A node of a function that imports another opset than the model carries its own `version`.

    Raises:
        OnnxgenError: a call does not fit its function.
    """
    if not model.functions:
        return
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if model.opset_imports.setdefault(domain, version) != version:
                for node in all_nodes(function):
                    if node.domain == domain:
                        node.version = version
    inliner = _Inliner(model)
    pending = [model.graph]
    while pending:
        pending += inliner.graph(pending.pop())
    model.functions.clear()


class _Inliner:
    def __init__(self, model: ir.Model) -> None:
        self.functions = model.functions
        nodes = all_nodes(model.graph)
        values = {v.name for n in nodes for v in (*n.inputs, *n.outputs) if v is not None and v.name}
        self.values = Namer(values | {v.name for v in model.graph.inputs if v.name} | set(model.graph.initializers))
        self.nodes = Namer(n.name for n in nodes if n.name)

    def graph(self, graph: ir.Graph) -> Iterator[ir.Graph]:
        """Expand the calls in one graph. Yields its subgraphs, which are still to be expanded."""
        for node in graph:  # this also visits nodes that are inserted after the current one
            function = self.functions.get(node.op_identifier())
            if function is not None:
                self.expand(graph, node, function)
            else:
                yield from subgraphs(node)

    def expand(self, graph: ir.Graph, call: ir.Node, function: ir.Function) -> None:
        """Replace a call by the nodes of `function`."""
        attributes = {a.name: a for a in function.attributes.values() if a.value is not None} | dict(call.attributes)
        _check_call(call, function, attributes)
        values: Values = {v: call.inputs[i] if i < len(call.inputs) else None for i, v in enumerate(function.inputs)}
        body = [self.node(node, values, attributes, call) for node in function]
        note_body(call, function, values)
        body += _results(call, [values[output] for output in function.outputs], body)
        name = BODY_NAME.get(call) if BODY_NAME.has(call) else call.name
        chain = (*CALLS.get(call), *([name] if name else []))
        for node in body:
            for inside in (node, *(inner for graph in subgraphs(node) for inner in all_nodes(graph))):
                CALLS.set(inside, chain)
                SCOPE.copy(call, inside)  # the call already has a scope
        graph.insert_after(call, body)
        graph.remove(call, safe=True)

    def node(self, node: ir.Node, values: Values, attributes: dict[str, ir.Attr], call: ir.Node) -> ir.Node:
        """Return a copy of a node of the function, and add its outputs to `values`."""
        copies = [self.attribute(a, values, attributes, call) for a in node.attributes.values()]
        new = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else values[value] for value in node.inputs],
            [a for a in copies if a is not None],
            overload=node.overload,
            num_outputs=len(node.outputs),
            version=node.version,
            name=self.nodes.take(node.name) if node.name else None,
            metadata_props={**call.metadata_props, **node.metadata_props},
        )
        BODY_NAME.set(new, node.name)
        for old, output in zip(node.outputs, new.outputs, strict=True):
            output.name = self.values.take(old.name) if old.name else old.name
            output.type, output.shape = old.type, old.shape
            values[old] = output
        return new

    def attribute(self, a: ir.Attr, values: Values, attributes: dict[str, ir.Attr], call: ir.Node) -> ir.Attr | None:
        """Return an attribute with its value at the call, or None if it refers to one that the call omits."""
        if a.is_ref():
            actual = attributes.get(a.ref_attr_name or "")
            return None if actual is None else ir.Attr(a.name, actual.type, actual.value)
        if a.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(a.name, self.copy(a.as_graph(), values, attributes, call))
        if a.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(a.name, [self.copy(graph, values, attributes, call) for graph in a.as_graphs()])
        return a

    def copy(self, graph: ir.Graph, values: Values, attributes: dict[str, ir.Attr], call: ir.Node) -> ir.Graph:
        """Return a copy of a subgraph of the function."""
        for value in (*graph.inputs, *graph.initializers.values()):
            if value not in values:  # an input may have an initializer
                name = self.values.take(value.name or "value")
                const = value.const_value
                values[value] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=const)
        nodes = [self.node(node, values, attributes, call) for node in graph]
        return ir.Graph(
            [_there(values, v) for v in graph.inputs],
            [_there(values, v) for v in graph.outputs],
            nodes=nodes,
            initializers=[_there(values, v) for v in graph.initializers.values()],
            name=graph.name,
        )


def _check_call(call: ir.Node, function: ir.Function, attributes: dict[str, ir.Attr]) -> None:
    """Raise `OnnxgenError` if a call does not fit its function, or gives it a graph."""
    pairs = {"input": (call.inputs, function.inputs), "output": (call.outputs, function.outputs)}
    for kind, (actuals, formals) in pairs.items():
        if len(actuals) > len(formals):
            what = f"the node has {counted(len(actuals), kind)}, but the local function has {len(formals)}"
            raise _error(call, what)
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in attributes.values()):
        raise _error(call, "a graph as an attribute of a local function is not supported")


def _results(call: ir.Node, results: list[ir.Value | None], body: list[ir.Node]) -> Iterator[ir.Node]:
    """Let the results of a function's body take the places of a call's. Yields nodes that give values second names."""
    computed = {value for node in body for value in node.outputs}
    for value, new in zip(call.outputs, results, strict=False):
        if new is None:
            raise _error(call, f"output {printable(value.name or '')} is an input that the call leaves out")
        if new not in computed:  # not made here: an input passed through, or an output used twice
            yield (second := passed_on(new))
            new = second.outputs[0]
        computed.discard(new)
        new.name, new.type, new.shape = value.name, value.type or new.type, value.shape or new.shape
        value.replace_all_uses_with(new, replace_graph_outputs=True)


def _there(values: Values, value: ir.Value) -> ir.Value:
    actual = values[value]
    assert actual is not None, "an inner graph's own values are never left out"
    return actual


def _error(call: ir.Node, what: str) -> OnnxgenError:
    name = call.name or next((output.name for output in call.outputs if output.name), "")
    return OnnxgenError(Problem(what, printable(name or ""), printable(call.op_type)))


FIRST_SCAN = 9  # the opset whose Scan has no batch axis


def settle_states(model: ir.Model) -> None:
    """Take such states out of every loop, inner loops first."""
    opset = model.opset_imports.get("", 0)
    for node in reversed(all_nodes(model.graph)):
        if node.domain == "" and node.graph is not None and node.op_type in LOOPS:
            if not _scans(node) or opset >= FIRST_SCAN:
                _Loop(node).run()


def _scans(node: ir.Node) -> int:
    """Return how many sequences a node takes apart: none if it is a Loop."""
    count = node.attributes.get("num_scan_inputs")
    return 0 if count is None else count.as_int()


class _Loop:
    """A loop and its states.

    Attributes:
        first_input: the place of the first state among the inputs of the node, and of its body.
        first_output: its place among the outputs of the body.
        count: how many states there are.
    """

    def __init__(self, node: ir.Node) -> None:
        self.node, self.body = node, node.attributes["body"].as_graph()
        scanned = _scans(node)
        self.first_input, self.first_output = (0, 0) if scanned else (2, 1)
        self.count = len(self.body.inputs) - self.first_input - scanned

    def run(self) -> None:
        gone = [i for i in range(self.count) if self._is_settled(i)]
        for i in reversed(gone):
            self._take_out(i)
        if not gone:
            return
        node, graph = self.node, self.node.graph
        assert graph is not None
        inputs = [v for i, v in enumerate(node.inputs) if i - self.first_input not in gone]
        outputs = [v for i, v in enumerate(node.outputs) if i not in gone]
        if not outputs:
            self._remove()
            return
        attributes = list(node.attributes.values())
        new = ir.Node("", node.op_type, inputs, attributes, num_outputs=len(outputs), name=node.name)
        for old, fresh in zip(outputs, new.outputs):
            fresh.name, fresh.shape, fresh.type = old.name, old.shape, old.type
            ir.convenience.replace_all_uses_with(old, fresh, replace_graph_outputs=True)
        graph.insert_before(node, new)
        graph.remove(node, safe=True)

    def _remove(self) -> None:
        """Remove a loop that makes nothing any more. No node of its body counts as a user of what it had used."""
        assert self.node.graph is not None
        for inner in all_nodes(self.body):
            for i in range(len(inner.inputs)):
                inner.replace_input_with(i, None)
        self.node.graph.remove(self.node, safe=True)

    def _is_settled(self, i: int) -> bool:
        """True if nothing has to carry a state."""
        inner, result = self.body.inputs[self.first_input + i], self.body.outputs[self.first_output + i]
        after = self.node.outputs[i]
        if self.node.inputs[self.first_input + i] is None:
            return False
        if origin(result) is inner:
            return True
        is_read = after.uses() or after.is_graph_output()
        return not inner.uses() and not is_read and not any(v is inner for v in self.body.outputs)

    def _take_out(self, i: int) -> None:
        inner, result = self.body.inputs[self.first_input + i], self.body.outputs[self.first_output + i]
        outer = self.node.inputs[self.first_input + i]
        assert outer is not None
        self.body.outputs.pop(self.first_output + i)
        if origin(result) is inner:
            for j, other in enumerate(self.body.outputs):
                if other is inner:
                    self.body.outputs[j] = self._in_body(outer, inner)
            ir.convenience.replace_all_uses_with(inner, outer)
            self._hand_on(outer, self.node.outputs[i])
        self.body.inputs.pop(self.first_input + i)

    def _in_body(self, outer: ir.Value, inner: ir.Value) -> ir.Value:
        """Return a value of the body that is one from outside: only the body's own values can be its outputs."""
        same = passed_on(outer)
        self.body.append(same)
        (new,) = same.outputs
        new.shape, new.type = inner.shape, inner.type
        return new

    def _hand_on(self, outer: ir.Value, after: ir.Value) -> None:
        """Let a value take the place of a result of the loop. An output of a graph keeps its name."""
        if after.is_graph_output():
            assert self.node.graph is not None
            same = passed_on(outer)
            (new,) = same.outputs
            new.name, new.shape, new.type = after.name, after.shape, after.type
            self.node.graph.insert_after(self.node, same)
            outer = new
        ir.convenience.replace_all_uses_with(after, outer, replace_graph_outputs=True)


NEWEST = 1 << 31


def tables_of(domain: str, op_type: str) -> tuple[str, ...]:
    """Return the attributes of an operator with respect to which its output is differentiable."""
    if domain in ("", "ai.onnx"):
        return ()
    operator = find(domain, op_type, NEWEST)
    return operator.tables if operator is not None else ()


def table_name(attribute: str, outputs: Sequence[str]) -> str:
    """Return the name of the tensor made from an attribute: the node's first named output, and the attribute's name."""
    return f"{next((name for name in outputs if name), '')}:{attribute}"


def store_tables(model: ir.Model) -> None:
    """Turn these attributes into initializers, for every node of the model."""
    for node in all_nodes(model.graph):
        if not isinstance(node.graph, ir.Graph) or not (names := tables_of(node.domain, node.op_type)):
            continue
        if "one_class" in node.attributes and node.attributes["one_class"].value:
            continue  # its output is a sign, so no gradient flows
        _store(node, names, node.graph)


def _store(node: ir.Node, names: tuple[str, ...], graph: ir.Graph) -> None:
    inputs, stored = list(node.inputs), []
    for name in names:
        tensor = _tensor(node.attributes.get(name))
        if tensor is None or not tensor.size:
            continue
        label = table_name(name, [o.name or "" for o in node.outputs])
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=label, shape=shape, type=kind, const_value=tensor)
        graph.register_initializer(value)
        inputs.append(value)
        stored.append(name)
        del node.attributes[name]
    node.resize_inputs(len(inputs))
    for index, new in enumerate(inputs):
        node.replace_input_with(index, new)
    TABLE_INPUTS.set(node, tuple(stored))


def _tensor(attribute: ir.Attr | None) -> ir.TensorProtocol | None:
    if attribute is None:
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor: ir.TensorProtocol = attribute.value
        return tensor
    return ir.tensor(np.asarray(attribute.value, np.float32))
