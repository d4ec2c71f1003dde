"""What a `Builder` does to the state of the network that its node is of."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import Statement, User
from onnxgen.code.quote import MemberRef, Ref, quote
from onnxgen.common.names import local
from onnxgen.graph.annotations import SCOPE
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.shapes.info import Info
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


class NodeBuilder(Builder):
    """The builder of one node.

    Attributes:
        plugin: that the operator's function comes from.
    """

    def __init__(self, lowering: Lowering, node: ir.Node, opset: int) -> None:
        self._lowering, self.node, self.opset = lowering, node, opset
        self.scope = SCOPE.get(node)
        self.plugin: Plugin | None = None

    def __call__(self, template: str, **values: Any) -> ast.expr:
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

    def wants(self, index: int) -> bool:
        if index >= len(self.node.outputs):
            return False
        output = self.node.outputs[index]
        return bool(output.name) and self._lowering.is_wanted(output)

    def at(self, scope: tuple[str, ...] | None) -> Builder:
        made = copy(self)
        made.scope = self.scope if scope is None else scope
        return made

    @property
    def producer(self) -> str | None:
        return self._lowering.model.producer_name

    def fresh(self, hint: str, known: Info | None = None) -> str:
        name = self._lowering.fresh(hint)
        self._lowering.infos[name] = known or Info()
        return name

    def define(self, output: ir.Value) -> str:
        return self._lowering.define(output)

    def known(self, name: str) -> Info:
        return self._lowering.infos[name]

    def constant(self, value: ir.Value | None) -> NDArray[Any] | None:
        return self._lowering.constant(value)

    def source(self, value: ir.Value | None) -> Source | None:
        return self._lowering.source(value)

    def tensor(self, arg: Arg) -> ast.expr:
        return self._lowering.tensor(arg)

    def local(self, hint: str = "", known: Info | None = None) -> str:
        name = self.fresh(hint or "x", known)
        if hint:
            self._lowering.roles[name] = local(hint)
        return name

    def role(self, arg: Arg | None, name: str) -> None:
        if arg is not None and isinstance(arg.expr, Ref):
            self._lowering.roles.setdefault(arg.expr.value, name)

    def emit(self, statement: Statement) -> None:
        self._lowering.block.append(statement)

    @contextmanager
    def writing(self, block: list[Statement]) -> Iterator[None]:
        outer, self._lowering.block = self._lowering.block, block
        try:
            yield
        finally:
            self._lowering.block = outer

    def module(self, role: str, build: ast.expr, **keys: Source | Arg | None) -> MemberRef | None:
        sources: dict[str, Source] = {}
        users: dict[str, User] = {}
        for key, value in keys.items():
            source = value.source if isinstance(value, Arg) else value
            if source is None and value is not None:
                return None
            if source is not None:
                sources[key] = source
                users[key] = self.node, self._inputs(value, source)
        return self._lowering.members.module(self.scope, role, build, sources, users)

    def _inputs(self, value: Source | Arg | None, source: Source) -> tuple[int, ...]:
        """The numbers of the node's inputs that a stored tensor comes from."""
        if isinstance(value, Arg) and value.index is not None:
            return (value.index,)
        known = [self.source(v) for v in self.node.inputs]
        return tuple(i for i, s in enumerate(known) if s is not None and not {*s.names}.isdisjoint(source.names))

    def parameter(
        self, arg: Arg, label: str = "", transposed: bool = False, shape: tuple[int, ...] | None = None
    ) -> ast.expr:
        return self._lowering.members.parameter(arg, label, transposed, shape)

    def buffer(self, array: NDArray[Any], hint: str = "constant", dtype: ir.DataType | None = None) -> ast.expr:
        return self._lowering.buffer(self, array, hint, dtype)

    def helper(self, name: str) -> ast.expr:
        return self._lowering.own.copy(self._own_plugin(), name)

    def imported(self, module: str, name: str) -> ast.expr:
        return self._lowering.own.take_import(self._own_plugin(), module, name)

    def _own_plugin(self) -> Plugin:
        if self.plugin is None:
            raise TypeError("only a plugin's function has code of its own")
        return self.plugin

    def block(self, graph: ir.Graph, inputs: list[ast.expr]) -> tuple[list[Statement], list[ast.expr]]:
        return self._lowering.subgraph(graph, inputs)

    def note(self, text: str) -> None:
        if text not in self._lowering.notes:
            self._lowering.notes.append(text)
