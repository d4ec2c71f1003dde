"""Operators without a function: all are reported at once or, with `--allow-unsupported`, become stub methods.

A stub has the operator's inputs as arguments and its attributes as keywords. It raises until a person fills it in or
overrides it in a subclass. Nodes that call it in the same way share it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Member, Stub, argument_annotation, listed, named
from onnxgen.code.printer import annotation as annotation_tree
from onnxgen.code.quote import literal, shortest
from onnxgen.common.names import MODULE_ATTRIBUTES, RESERVED, Namer, identifier, printable
from onnxgen.errors import Problem
from onnxgen.graph.nodes import plain, told
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.shapes.info import Info
from onnxgen.weights.dtypes import TORCH_DTYPES

UNSUPPORTED = "the operator is not supported"
WAYS_OUT = "write a plugin for it (docs/EXTENDING.md), leave it open with --allow-unsupported, or open an issue"
# attributes that the templates and other stages add to a class
TAKEN = {"tie_weights", "from_pretrained", "dropout"}
SCALARS = {ir.AttributeType.INT: "int", ir.AttributeType.FLOAT: "float", ir.AttributeType.STRING: "str"}
LISTS = {ir.AttributeType.INTS: "int", ir.AttributeType.FLOATS: "float", ir.AttributeType.STRINGS: "str"}
Keyword = tuple[str, str, str, ast.expr]  # of an attribute: its name in the file and in Python, annotation, value


@dataclass
class Open:
    """The operators of one network that have no function.

    Attributes:
        stubs: by the operator and the types of the call.
        problems: the names of nodes, by the problem that they share.
    """

    stubs: dict[tuple[object, ...], Stub] = field(default_factory=dict)
    problems: dict[Problem, list[str]] = field(default_factory=dict)

    def refuse(self, problem: Problem) -> None:
        """Record a node that cannot be converted."""
        self.problems.setdefault(replace(problem, node=""), []).append(problem.node)

    def merged_problems(self) -> Iterable[Problem]:
        """Yield one problem for each operator, with all its nodes."""
        for shared, nodes in self.problems.items():
            more = f" ({len(nodes)} nodes: {listed(nodes)})" if len(nodes) > 1 else ""
            yield replace(shared, what=shared.what + more, node=nodes[0])

    def call(self, b: Builder) -> Any:
        """Return a call of the stub for a node.

        Raises:
            OnnxgenError: an attribute is a graph, which cannot be an argument.
        """
        inputs, keywords = b.inputs(), _keywords(b)
        kinds = tuple("Tensor | None" if arg is None else argument_annotation(arg.info) for arg in inputs)
        outputs = tuple(argument_annotation(b.out(i)) for i in range(len(b.node.outputs)))
        key = (b.node.domain, b.node.op_type, b.opset, kinds, tuple(k[:2] for k in keywords), outputs)
        if key not in self.stubs:
            self.stubs[key] = _stub(b, inputs, kinds, keywords, outputs)
        stub = self.stubs[key]
        stub.nodes.append(told(b.node))
        method = ast.Attribute(ast.Name("self", ast.Load()), stub.name, ast.Load())
        stub.calls.append(method)
        arguments = [ast.Constant(None) if arg is None else arg.expr for arg in inputs]
        call = ast.Call(method, arguments, [ast.keyword(k[1], k[3]) for k in keywords])
        return call if len(outputs) == 1 else b.unpack(call)

    def finish(self, members: Iterable[Member], notes: list[str]) -> list[Stub]:
        """Give every stub a name that is unique in its class, and add a note."""
        namer = Namer({part for m in members for part in m.path} | MODULE_ATTRIBUTES | RESERVED | TAKEN)
        for stub in self.stubs.values():
            stub.name = namer.take(stub.name)
            for call in stub.calls:
                call.attr = stub.name
            notes.append(f"{stub.about} is left open: fill in the method {stub.name} ({named(stub.nodes)})")
        return list(self.stubs.values())


def _stub(
    b: Builder, inputs: list[Arg | None], kinds: Sequence[str], keywords: list[Keyword], outputs: Sequence[str]
) -> Stub:
    names = _argument_names(inputs, [k[1] for k in keywords])
    return Stub(
        identifier(b.node.op_type, "operator"),
        [ast.arg(name, annotation_tree(kind)) for name, kind in zip(names, kinds)],
        [ast.arg(k[1], annotation_tree(k[2])) for k in keywords],
        outputs[0] if len(outputs) == 1 else f"tuple[{', '.join(outputs)}]",
        printable(f"{b.node.domain or 'ai.onnx'}.{b.node.op_type}-{b.opset}"),
        _doc(b, names, inputs, keywords),
    )


def _keywords(b: Builder) -> list[Keyword]:
    """Return for each attribute its name in the file, its name in Python, its annotation and its value."""
    keywords, namer = [], Namer({"self"})
    for name, attribute in sorted(b.node.attributes.items()):
        value = plain(attribute.value)
        if attribute.type in SCALARS:
            kind, value_tree = SCALARS[attribute.type], literal(_short(value))
        elif attribute.type in LISTS:
            kind, value_tree = f"list[{LISTS[attribute.type]}]", literal([_short(v) for v in value])
        elif attribute.type == ir.AttributeType.TENSOR:
            kind, value_tree = "Tensor", b.buffer(value.numpy(), identifier(name), value.dtype)
        else:
            what = f"attribute {name} can't be an argument of a method"
            raise b.error(what, "write a plugin for the operator (docs/EXTENDING.md)")
        keywords.append((name, namer.take(identifier(name, "attribute")), kind, value_tree))
    return keywords


def _short(value: Any) -> Any:
    return shortest(value) if isinstance(value, float) else value


def _argument_names(inputs: list[Arg | None], taken: list[str]) -> list[str]:
    """Name a stored tensor by the last part of its name, any other `x`."""
    namer = Namer({"self", *taken})
    return [
        namer.take(identifier(arg.name.rpartition(".")[2], "x") if arg is not None and arg.source is not None else "x")
        for arg in inputs
    ]


def _doc(b: Builder, names: list[str], inputs: list[Arg | None], keywords: list[Keyword]) -> list[str]:
    """Describe the inputs and outputs of the first node that calls it, and attributes that are renamed."""
    lines = [f"{name}: {_facts(arg.info)}" for name, arg in zip(names, inputs) if arg is not None]
    lines += [f"{python}: the attribute {printable(name)}" for name, python, _, _ in keywords if python != name]
    outputs = [_facts(b.out(i)) for i in range(len(b.node.outputs))]
    return [*lines, f"returns: {', '.join(outputs)}"]


def _facts(facts: Info) -> str:
    dims = "?" if facts.shape is None else ", ".join(printable(str(d), 24) for d in facts.shape)
    dtype = "of an unknown type" if facts.dtype is None else TORCH_DTYPES.get(facts.dtype, "text")
    if facts == Info():
        return "unknown"
    return f"{'' if facts.kind == 'tensor' else f'{facts.kind} of '}{dtype} [{dims}]"
