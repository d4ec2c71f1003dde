"""Executes Python statements on symbols: what a `forward` returns, as nodes.

A branch whose test is known is taken. Of any other, both sides are executed, and a variable that they leave with
different values becomes a choice. A loop over known items is executed item by item. Any other loop is executed once:
each variable that it carries is a node (`carried`) of the loop, what it starts with and its number among its like;
`nexts` has what a turn makes of it. Two loops are equal where equal carried values have equal nexts (coinduction).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from onnxgen.code.quote import Ref
from onnxgen.validate.expressions import LONGEST, UNDEFINED, VALUE, Expressions, Lazy
from onnxgen.validate.values import CONCRETE, Graph, Node, Scope, Unreadable, Value

GROWS = ("append", "extend")


class Statements(Expressions):
    """Executes statements.

    Attributes:
        nexts: for each value that a loop carries, what a turn makes of it.
        stops: for each loop the test before a turn, if it has one.
        effects: what is executed for its effect alone, with the branches and the loop that it stands in.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.nexts: dict[Node, Node] = {}
        self.stops: dict[Node, Node] = {}
        self.effects: list[Node] = []
        self.loop = graph.make("no loop")
        self.under: tuple[Node, ...] = ()  # tests of the branches around
        self.turns = 1
        self.undefined = graph.make("undefined")
        self._like: Counter[Node] = Counter()

    def run(self, block: list[ast.stmt], scope: Scope) -> Value:
        """Execute a block; what it returns, or `UNDEFINED`. Only the last statement of a `forward` returns."""
        for i, statement in enumerate(block):
            if isinstance(statement, ast.Return):
                if i + 1 < len(block) or self.under or self.loop.key != ("no loop",):
                    raise Unreadable("a return in the middle")
                return None if statement.value is None else self.evaluate(statement.value, scope)
            self._execute(statement, scope)
        return UNDEFINED

    def _execute(self, statement: ast.stmt, scope: Scope) -> None:
        if isinstance(statement, ast.Assign):
            if len(statement.targets) > 1:
                raise Unreadable("an assignment to several targets")
            self.assign(statement.targets[0], self.evaluate(statement.value, scope), scope)
        elif isinstance(statement, ast.If):
            self._if(statement, scope)
        elif isinstance(statement, ast.For):
            self._for(statement, scope)
        elif isinstance(statement, ast.While) and not statement.orelse:
            self._symbolic(self.make("while"), None, statement.test, statement.body, scope)
        elif isinstance(statement, ast.With):
            self._with(statement, scope)
        elif isinstance(statement, ast.Expr):
            self._effect(statement.value, scope)
        elif not isinstance(statement, ast.Pass):
            raise Unreadable(f"a statement of type {type(statement).__name__}")

    def _effect(self, value: ast.expr, scope: Scope) -> None:
        """A list that grows has a new value; everything else is kept as what it is."""
        if isinstance(value, ast.Constant):
            return
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in GROWS:
            of, (item,) = value.func.value, self._several(value.args, scope)
            before = self.evaluate(of, scope)
            if type(of) is not ast.Name:
                of = ast.Name(VALUE + of.value)  # type: ignore[attr-defined]  # a `Ref`
            if isinstance(before, list):
                items = [item] if value.func.attr == "append" else self.iterate(item)
                after: Value = UNDEFINED if items is None else [*before, *items]
            else:
                after = self.make(value.func.attr, self.node(before), self.node(item))
            if after is UNDEFINED or value.keywords:
                raise Unreadable("a list that grows by what is not known")
            self.bind(of.id, after, scope)
            return
        self.effects.append(self.make("effect", self.loop, self.under, self.node(self.evaluate(value, scope))))

    def _if(self, statement: ast.If, scope: Scope) -> None:
        test = self.evaluate(statement.test, scope)
        if isinstance(test, CONCRETE):
            if self.run(statement.body if test else statement.orelse, scope) is not UNDEFINED:
                raise Unreadable("a return in a branch")
            return
        condition, around = self.node(test), self.under
        sides = []
        for word, block in (("then", statement.body), ("else", statement.orelse)):
            self.under = (*around, self.make(word, condition))
            sides.append(Scope({}, scope))
            self.run(block, sides[-1])
        self.under = around
        for name in dict.fromkeys([*sides[0].values, *sides[1].values]):
            then, orelse = (side.find(name, self.undefined) for side in sides)
            if then is not orelse:
                then = self.make("choice", condition, self.node(then), self.node(orelse))
            self.bind(name, then, scope)

    def _with(self, statement: ast.With, scope: Scope) -> None:
        if len(statement.items) > 1 or statement.items[0].optional_vars is not None:
            raise Unreadable("a with of several contexts")
        context, around = self.node(self.evaluate(statement.items[0].context_expr, scope)), self.under
        inner = Scope({}, scope)
        self.under = (*around, self.make("with", context))
        self.run(statement.body, inner)
        self.under = around
        for name, value in inner.values.items():
            self.bind(name, self.make("made with", context, self.node(value)), scope)

    def _for(self, statement: ast.For, scope: Scope) -> None:
        if statement.orelse:
            raise Unreadable("a for with else")
        source = self.evaluate(statement.iter, scope)
        items, stop = self.iterate(source), _stop(statement.body)
        if items is None or stop is not None or (isinstance(source, range) and len(items) * self.turns > LONGEST):
            if isinstance(source, range):
                source = self.make("call", self.make("name", "range"), tuple(map(self.node, _bounds(source))), ())
            body = statement.body if stop is None else statement.body[1:]
            self._symbolic(self.node(source), statement.target, stop, body, scope)
            return
        around = self.turns
        self.turns *= max(1, len(items)) if isinstance(source, range) else 1
        for item in items:
            self.assign(statement.target, item, scope)
            if self.run(statement.body, scope) is not UNDEFINED:
                raise Unreadable("a return in a loop")
        self.turns = around

    def _symbolic(
        self, source: Node, target: ast.expr | None, stop: ast.expr | None, body: list[ast.stmt], scope: Scope
    ) -> None:
        """A loop of which nobody knows how many turns it takes."""
        loop = self.number("loop", self.loop, self.under, source)
        inner, around = Scope({}, scope), (self.loop, self.under)
        carried = {name: _Carried(self, loop, name, scope) for name in dict.fromkeys(_assigned(body))}
        inner.values.update(carried)
        self.loop, self.under = loop, ()
        if target is not None:
            self.assign(target, self.make("turn", loop), inner)
        if stop is not None:
            self.stops[loop] = self.node(self.evaluate(stop, inner))
        self.run(body, inner)
        self.loop, self.under = around
        for name, variable in carried.items():
            variable.end(inner.values[name])
        for name in inner.values:
            last = _After(self, carried[name]) if name in carried else self.make("last turn", loop, name)
            self.bind(name, last, scope)

    def number(self, *key: object) -> Node:
        """A node of its own for each of several equal ones: the first, the second, ..."""
        like = self.make(*key)
        self._like[like] += 1
        return self.make("number", self._like[like], like)


class _Carried(Lazy):
    """A variable of a loop at the beginning of a turn."""

    def __init__(self, program: Statements, loop: Node, name: str, scope: Scope) -> None:
        self.program, self.loop = program, loop
        self.start = scope.find(name, program.undefined)
        self.own: Node | None = None
        self.next: Value = UNDEFINED

    def read(self) -> Node:
        if self.own is None:
            program = self.program
            self.own = program.number("carried", self.loop, program.node(self.start))
            self._settle()
        return self.own

    def end(self, value: Value) -> None:
        """The turn is over, and left this value."""
        self.next = value
        if self.own is not None:
            self._settle()

    def _settle(self) -> None:
        if self.own is not None and self.next is not UNDEFINED and self.own not in self.program.nexts:
            self.program.nexts[self.own] = self.own  # for a variable that is carried to itself
            self.program.nexts[self.own] = self.program.node(self.next)


class _After(Lazy):
    """A variable of a loop when that has ended."""

    def __init__(self, program: Statements, carried: _Carried) -> None:
        self.program, self.carried = program, carried

    def read(self) -> Node:
        return self.program.make("end", self.carried.read())


def _stop(body: list[ast.stmt]) -> ast.expr | None:
    """What `if not stop: break` at the beginning of a loop's body asks."""
    first = body[0] if body else None
    if not isinstance(first, ast.If) or len(first.body) != 1 or not isinstance(first.body[0], ast.Break):
        return None
    if first.orelse or not isinstance(first.test, ast.UnaryOp) or not isinstance(first.test.op, ast.Not):
        raise Unreadable("a break of another form")
    return first.test.operand


def _bounds(source: range) -> tuple[int, ...]:
    if source.step != 1:
        return source.start, source.stop, source.step
    return (source.start, source.stop) if source.start else (source.stop,)


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """The variables that a block assigns or lets grow, those of blocks in it included."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from (n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name))
        elif isinstance(statement, ast.For):
            yield from (n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            of = statement.value.func
            if isinstance(of, ast.Attribute) and of.attr in GROWS:
                if isinstance(of.value, (ast.Name, Ref)):
                    yield of.value.id if isinstance(of.value, ast.Name) else VALUE + of.value.value
        for block in (getattr(statement, field, []) for field in ("body", "orelse")):
            yield from _assigned(block)
