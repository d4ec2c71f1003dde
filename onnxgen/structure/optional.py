"""The statements of a class, some of which only some instances execute."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from onnxgen.code.module_def import Assign, If, Statement, With, assigned
from onnxgen.code.quote import MemberRef, Ref, rewrite
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import identifier
from onnxgen.structure.forms import Def, Differ, Form, Node, Part, inner_members, parts
from onnxgen.structure.literals import APPLIED
from onnxgen.structure.order import components, topological
from onnxgen.structure.parameters import Flag

Only = frozenset[int]  # the instances that have something
Fill = Callable[[Node, int, ast.expr], ast.expr]


class Block:
    """Statements that are executed together: a single one, or all of an optional part."""

    def __init__(self, nodes: list[Node], only: Only | None) -> None:
        self.nodes, self.only = nodes, only
        self.passes: Part | None = None  # the submodule that stands alone in it

    @property
    def flag(self) -> Flag:
        """A part without members has a flag of its own: what it does has nothing to do with other parts."""
        has_members = any(inner_members(node) for node in self.nodes)
        return self.only or frozenset(), "" if has_members else role(self.last)

    @property
    def last(self) -> Node:
        return self.nodes[-1]


class Body:
    """Makes the body of a class from the nodes of its form."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.all = frozenset(form.instances)
        self.blocks = self._blocks()
        self.block_of = {node: block for block in self.blocks for node in block.nodes}
        self._check()
        for block in self.blocks:
            block.passes = self._identity(block)

    def flags(self) -> dict[Flag, Node]:
        """The flags that are asked for in the body, each with the last node of a part."""
        return {b.flag: b.last for b in self.blocks if b.only is not None and b.passes is None}

    def _blocks(self) -> list[Block]:
        """The nodes in an order of execution, those of an optional part together."""
        nodes = self.form.nodes
        group = {node: node for node in nodes}

        def root(node: Node) -> Node:
            while group[node] is not node:
                node = group[node]
            return node

        for node in nodes:
            for value in node.operands if node.only != self.all else ():
                if value.node is not None and value.node.only == node.only:
                    group[root(node)] = root(value.node)
        members: dict[Node, list[Node]] = {}
        for node in nodes:
            members.setdefault(root(node), []).append(node)
        blocks = [Block(m, None if m[0].only == self.all else frozenset(m[0].only)) for m in members.values()]
        index = {node: i for i, block in enumerate(blocks) for node in block.nodes}
        before = [
            sorted({index[d.node] for n in block.nodes for d in n.operands if d.node is not None} - {i})
            for i, block in enumerate(blocks)
        ]
        if any(len(c) > 1 for c in components(before)):
            raise Differ("an optional part that needs what needs it")
        return [blocks[i] for i in topological(before)]

    def _check(self) -> None:
        """An optional part has its own submodules; outside, only its last value is used, for which something stands.

        A part without any is a sum, a product or an activation: nobody chooses between two ways to reshape.
        """
        for part in self.blocks:
            if part.only is not None and not any(inner_members(node) for node in part.nodes):
                if not _is_choice(part.last.expressions[0]):
                    raise Differ("an optional change of shape")
        has = {
            id(m): p.only for p in parts(self.form.root) for m in (p.place.member, p.place.container) if m is not None
        }
        for node in (*self.form.nodes, self.form.returned):
            if any(has.get(id(m), node.only) != node.only for m in inner_members(node)):
                raise Differ("an optional part with a submodule that is not its own")
            for value in node.operands:
                block = self.block_of.get(value.node) if value.node is not None else None
                if block is None or block.only is None or (node in self.block_of and self.block_of[node] is block):
                    continue
                if value.node is not block.last or value.node.skip is None or not value.node.is_simple:
                    raise Differ("a part with several results")

    def _identity(self, block: Block) -> Part | None:
        """The submodule of a part that is nothing but its call: `nn.Identity` may stand for it."""
        node = block.last
        if block.only is None or len(block.nodes) > 1 or node.skip != 0 or not isinstance(node.statement, Assign):
            return None
        value = node.expressions[0]
        if (
            not isinstance(value, ast.Call)
            or len(value.args) != 1
            or value.keywords
            or not isinstance(value.args[0], Ref)
        ):
            return None
        if not isinstance(value.func, MemberRef):
            return None
        part: Part | None = self.form.root
        for name in value.func.member.path[len(self.form.scope.path) :]:
            part = part.below.get(name) if part is not None and not part.place.is_list else None
        part = part or self._moved(value.func.member)
        mentions = sum(
            isinstance(n, MemberRef) and n.member is value.func.member
            for other in (*self.form.nodes, self.form.returned)
            for e in other.expressions
            for n in ast.walk(e)
        )
        return part if part is not None and part.only == node.only and mentions == 1 else None

    def _moved(self, member: object) -> Part | None:
        """The attribute at which a member of another instance is."""
        for part in self.form.root.below.values():
            if part.place.member is member or part.place.container is member:
                return part
        return None

    def statements(self, fill: Fill, flag: Callable[[Flag], str]) -> tuple[list[Statement], list[ast.expr]]:
        """The body, and what it returns: with literals as `fill` says, and optional parts under their flags."""
        return _Writing(self, fill, flag).run()


class _Writing:
    def __init__(self, body: Body, fill: Fill, flag: Callable[[Flag], str]) -> None:
        self.body, self.fill, self.flag = body, fill, flag
        self.names: dict[Def, str] = {Def(None, i): argument.value for i, argument in enumerate(body.form.scope.inputs)}
        self.last_use: dict[Def, int] = {}
        for i, block in enumerate([*body.blocks, Block([body.form.returned], None)]):
            for node in block.nodes:
                for value in node.operands:
                    self.last_use[value] = i

    def run(self) -> tuple[list[Statement], list[ast.expr]]:
        made: list[Statement] = []
        for i, block in enumerate(self.body.blocks):
            if block.only is None or block.passes is not None:
                made.extend(self._statement(node) for node in block.nodes)
            else:
                made.extend(self._part(i, block))
        result = self._expression(self.body.form.returned, 0)
        assert isinstance(result, ast.Tuple)
        return made, result.elts

    def _part(self, now: int, block: Block) -> list[Statement]:
        """`if self.flag:` around an optional part; what stands for its value carries on in the same variable."""
        inner = [self._statement(node) for node in block.nodes[:-1]]
        last = block.last
        value = Def(last, 0)
        while value.node is not None and self.body.block_of[value.node] is block:
            if value.node.skip is None:
                raise Differ("nothing stands for an optional value")
            value = value.node.operands[value.node.skip]
        test = ast.Attribute(ast.Name("self", ast.Load()), self.flag(block.flag), ast.Load())
        before = self.names[value]
        if self.last_use[value] <= now:
            final = self._statement(last, before)
            return [If(test, [*inner, final], [], (before,), final.scope)]
        final = self._statement(last)
        start = Assign(final.targets, Ref(before), final.scope)
        return [start, If(test, [*inner, final], [], final.targets, final.scope)]

    def _statement(self, node: Node, name: str = "") -> Statement:
        statement = node.statement
        assert statement is not None
        values = iter([self._expression(node, i) for i in range(len(node.expressions))])
        made = _rebuilt(statement, values)
        if name:
            made.targets = (name,)
        if not isinstance(statement, Assign):
            self._check_carried(node)
        for i, target in enumerate(made.targets):
            self.names[Def(node, i)] = target
        return made

    def _check_carried(self, node: Node) -> None:
        """A loop assigns the very variables that it began with."""
        inside = set(node.targets)
        for value in node.operands:
            if value.node is not None and not isinstance(value.node.statement, Assign):
                continue
            original = value.node.targets[value.index] if value.node is not None else ""
            if original in inside and self.names[value] != original:
                raise Differ("carried by another variable")

    def _expression(self, node: Node, index: int) -> ast.expr:
        """An expression of a node, with what its values are called now."""
        inner = set() if isinstance(node.statement, Assign) or node.statement is None else _inside(node.statement)
        count = sum(n.value not in inner for e in node.expressions[:index] for n in ast.walk(e) if isinstance(n, Ref))
        operands = iter(node.operands[count:])

        def change(tree: ast.AST) -> ast.expr | None:
            if isinstance(tree, Ref) and tree.value not in inner:
                return Ref(self.names[next(operands)])
            return None

        changed: ast.expr = rewrite(self.fill(node, index, node.expressions[index]), change)
        return changed


def _inside(statement: Statement) -> set[str]:
    return set(assigned(statement))


def _rebuilt(statement: Statement, values: Iterator[ast.expr]) -> Statement:
    """A copy with other expressions, taken in order."""
    if isinstance(statement, Assign):
        return Assign(statement.targets, next(values), statement.scope, statement.nodes, statement.form)
    if isinstance(statement, If):
        test = next(values)
        then, orelse = ([_rebuilt(s, values) for s in block] for block in (statement.then, statement.orelse))
        return If(test, then, orelse, statement.targets, statement.scope, statement.nodes)
    if isinstance(statement, With):
        context = next(values)
        return replace(statement, context=context, body=[_rebuilt(s, values) for s in statement.body])
    iterable = next(values) if statement.iterable is not None else None
    stop = next(values) if statement.stop is not None else None
    body = [_rebuilt(s, values) for s in statement.body]
    return replace(statement, iterable=iterable, stop=stop, body=body)


def _is_choice(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, (ast.Add, ast.Mult))
    return function_of(value) in APPLIED | {"F.dropout"}


def role(node: Node) -> str:
    """What the flag of an optional part without members is called."""
    for member in inner_members(node):
        names = [name for name in member.path if not name.isdigit()]
        if names:
            return identifier(names[-1])
    value = node.expressions[0]
    if isinstance(value, ast.BinOp):
        return {ast.Add: "residual", ast.Mult: "scale"}.get(type(value.op), "extra")
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return identifier(value.func.attr)
    return "extra"
