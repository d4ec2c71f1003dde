"""`Builder`, the interface of an operator's function: one for each node.

    @op("Relu")
    def relu(b, X):
        return b("F.relu(x)", x=X)

A function returns the expression of its output; a list of expressions (None where unused) for several outputs; or
`b.unpack(expression)` where one expression yields a tuple of all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import Assign, Statement, User
from onnxgen.code.quote import MemberRef, Ref, call, quote
from onnxgen.common.names import FileText, local, printable, sentence
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.graph.nodes import told
from onnxgen.lowering.arg import Arg
from onnxgen.passes.rewrite import names_of
from onnxgen.shapes.info import Info, info
from onnxgen.weights.provenance import Source

if TYPE_CHECKING:
    from onnxgen.lowering.lower import Lowering
    from onnxgen.plugins.loading import Plugin


# What a plugin's text may name besides the values that it is given: what every generated file knows.
KNOWN = frozenset("""
    torch nn F Tensor np math re json Path self
    abs all any bool complex dict enumerate float int isinstance len list map max min range reversed round set slice
    sorted str sum tuple zip
    """.split())


def names_in(template: str) -> tuple[set[str], set[str]]:
    """The names that an expression's text reads, and those that it binds itself (lambdas, comprehensions)."""
    nodes = list(ast.walk(ast.parse(template, mode="eval")))
    names = [n for n in nodes if isinstance(n, ast.Name)]
    bound = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}, bound


class Unpack:
    """An expression that yields a tuple with one element for each of the node's outputs."""

    def __init__(self, value: ast.expr, count: int, form: str = "") -> None:
        self.value, self.count, self.form = value, count, form


class Builder:
    """Everything an operator's function may ask for or add.

    Attributes:
        node: the ONNX node.
        opset: the opset whose schema the node follows.
        lowering: the state of the whole network.
    """

    def __init__(self, lowering: Lowering, node: ir.Node, opset: int) -> None:
        self.lowering, self.node, self.opset = lowering, node, opset
        self.scope: tuple[str, ...] = node.meta.get("scope", ())
        self.plugin: Plugin | None = None  # that the function comes from

    @property
    def nodes(self) -> tuple[FileText, ...]:
        """The nodes of the file that this one stands for, by name."""
        return tuple(map(FileText, names_of(self.node)))

    def __call__(self, template: str, **values: Any) -> ast.expr:
        """The expression that `template` spells; names that are in `values` stand for those values."""
        if self.plugin is not None:
            self._check_text(self.plugin.name, template, values)
        return quote(template, **values)

    def _check_text(self, plugin: str, template: str, values: Mapping[str, Any]) -> None:
        """A plugin's text names what it is given, and what every generated file knows; nothing else, and all of it."""
        try:
            read, bound = names_in(template)
        except SyntaxError:
            raise self.error(f"plugin {plugin}: the text is not a Python expression: {template}") from None
        unknown = sorted(read - bound - values.keys() - KNOWN - helper_names())
        if unknown:
            what = f"plugin {plugin}: the text uses {', '.join(unknown)} without a value: {template}"
            raise self.error(what, f"pass it: b(text, {unknown[0]}=...)")
        unused = sorted(values.keys() - read)
        if unused:
            raise self.error(f"plugin {plugin}: the text does not use {', '.join(unused)}: {template}")

    def call(self, function: str | ast.expr, *args: Any, **kwargs: Any) -> ast.expr:
        """`function(...)`, without the arguments that are `unless(value, default) -> OMIT`."""
        return call(function, *args, **kwargs)

    def out(self, index: int = 0) -> Info:
        """The known facts of an output: dtype, shape, elements."""
        return info(self.node.outputs[index]) if index < len(self.node.outputs) else Info()

    def wants(self, index: int) -> bool:
        """Whether anything uses this output."""
        if index >= len(self.node.outputs):
            return False
        output = self.node.outputs[index]
        return bool(output.name) and self.lowering.is_wanted(output)

    def local(self, hint: str = "", known: Info | None = None) -> str:
        """A new local variable, which is called by `hint` where nothing else says what it is."""
        name = self.lowering.fresh(hint or "x")
        if hint:
            self.lowering.roles[name] = local(hint)
        self.lowering.infos[name] = known or Info()
        return name

    def let(self, value: ast.expr, hint: str = "", known: Info | None = None) -> Ref:
        """Assign an intermediate value to a local variable and return its name."""
        name = self.local(hint, known)
        self.emit(Assign((name,), value, self.scope, self.nodes))
        return Ref(name)

    def role(self, arg: Arg | None, name: str) -> None:
        """Call an input's local variable by the role it plays here ("mask"), unless it has one already."""
        if arg is not None and isinstance(arg.expr, Ref):
            self.lowering.roles.setdefault(arg.expr.value, name)

    def emit(self, statement: Statement) -> None:
        """Append a statement to the block that is being written."""
        self.lowering.block.append(statement)

    def unpack(self, value: ast.expr, count: int | None = None, form: str = "") -> Unpack:
        """One expression for all outputs; `count`: how many it yields (default: as many as the node has).

        `form`: how they are nested, `"{}, ({}, {})"`.
        """
        return Unpack(value, len(self.node.outputs) if count is None else count, form)

    def module(self, role: str, build: ast.expr, **keys: Source | Arg | None) -> MemberRef | None:
        """A submodule such as `nn.Conv2d(...)`, whose state-dict tensors `keys` are made of stored tensors.

        Returns None where the tensors can't be the module's own: one of them is computed, or is a parameter whose
        name in the file says that it belongs elsewhere. The caller then writes the functional form.
        """
        sources: dict[str, Source] = {}
        users: dict[str, User] = {}
        for key, value in keys.items():
            source = value.source if isinstance(value, Arg) else value
            if source is None and value is not None:
                return None
            if source is not None:
                sources[key] = source
                users[key] = self.node, self._inputs(value, source)
        return self.lowering.members.module(self.scope, role, build, sources, users)

    def _inputs(self, value: Source | Arg | None, source: Source) -> tuple[int, ...]:
        """The numbers of the node's inputs that a stored tensor comes from."""
        if isinstance(value, Arg) and value.index is not None:
            return (value.index,)
        known = [self.lowering.source(v) for v in self.node.inputs]
        return tuple(i for i, s in enumerate(known) if s is not None and not {*s.names}.isdisjoint(source.names))

    def parameter(
        self, arg: Arg, label: str = "", transposed: bool = False, shape: tuple[int, ...] | None = None
    ) -> ast.expr:
        """A stored tensor that is trained, as a parameter of its own that the original called `label`.

        `transposed`: the parameter is the matrix turned back. `shape`: what it had before an axis of 1 was folded in.
        """
        return self.lowering.members.parameter(arg, label, transposed, shape)

    def buffer(self, array: NDArray[Any], hint: str = "constant", dtype: ir.DataType | None = None) -> ast.expr:
        """A constant tensor: a non-persistent buffer, equal ones shared within one scope."""
        return self.lowering.buffer(self, array, hint, dtype)

    def texts(self, items: list[str], hint: str = "words") -> ast.expr:
        """A vector of strings: spelled out if they are few, else in the sidecar."""
        return self.lowering.buffer(self, np.array(items, dtype=object), hint, ir.DataType.STRING)

    def helper(self, name: str) -> ast.expr:
        """A function or class of the plugin, whose source is copied into the generated file.

        It is read as text from the top level of the plugin's file, or of one file of its package, with what it uses of
        that file and its imports; so the file may import torch without this one doing so.
        """
        return self.lowering.own.copy(self._own_plugin(), name)

    def imported(self, module: str, name: str) -> ast.expr:
        """Import `name` from a module in the generated file, which then needs that module."""
        return self.lowering.own.take_import(self._own_plugin(), module, name)

    def _own_plugin(self) -> Plugin:
        if self.plugin is None:
            raise TypeError("only a plugin's function has code of its own")
        return self.plugin

    def block(self, graph: ir.Graph, inputs: list[ast.expr]) -> tuple[list[Statement], list[ast.expr]]:
        """The statements of a subgraph whose inputs are the given expressions, and its outputs' expressions."""
        return self.lowering.subgraph(graph, inputs)

    def numbers(self, *args: Arg) -> list[Any]:
        """Operands of an elementwise operator: one-element constants as Python numbers where that changes nothing.

        At least one operand stays a tensor, and a number never lowers the rank of the result.
        """
        ranks = [a.rank for a in args]
        best = max((r for a, r in zip(args, ranks) if r is not None and a.number is None), default=-1)
        kept = None
        if best < 0 and None not in ranks:  # all are numbers: one of the highest rank stays a tensor
            best = max(r for r in ranks if r is not None)
            kept = ranks.index(best)
        operands: list[Any] = []
        for i, (arg, rank) in enumerate(zip(args, ranks)):
            number = arg.number if rank is not None and rank <= best and i != kept else None
            operands.append(arg if number is None else number)
        return operands

    def note(self, text: str) -> None:
        """Something a person should know about the result; shown in the summary."""
        if text not in self.lowering.notes:
            self.lowering.notes.append(text)

    def error(self, what: str, help: str = "") -> OnnxgenError:
        """A problem with this node, to be raised; all nodes' problems are reported together."""
        return OnnxgenError(self.problem(what, help))

    def problem(self, what: str, help: str = "") -> Problem:
        domain = f"{self.node.domain}." if self.node.domain else ""
        return Problem(
            sentence(what),
            told(self.node),
            printable(domain + self.node.op_type),
            self.opset,
            help,
        )


def one_element(value: float | int | bool, dtype: ir.DataType) -> NDArray[Any]:
    return np.asarray(value, dtype.numpy())
