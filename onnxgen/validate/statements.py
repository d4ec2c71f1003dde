"""Execute Python statements on symbols: the values that a `forward` returns, as nodes.

If the test of a branch is known, only that side is executed. Otherwise both sides are executed, and
a variable with different values after them becomes a choice. A loop over known items is executed
item by item. Any other loop is executed once. Each variable that it carries is a node (`carried`)
of the loop, the initial value, and a number among equal ones. `nexts` has its value after a turn.
Two loops are equal if equal carried values have equal nexts (coinduction).

A comprehension over known items is executed item by item, too. Any other is a node, whose variables
are numbered by how deep they are nested; so is a lambda.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from onnxgen.code.quote import Ref
from onnxgen.validate.expressions import UNDEFINED, Expressions, Lazy
from onnxgen.validate.values import CONCRETE, MAX_ITEMS, Graph, LocalVariables, Node, Once, Unreadable, Value, variable


class Comprehensions(Expressions):
    """Evaluates expressions with variables of their own."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.rules |= {
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.Lambda: self._lambda,
        }

    def _comprehension(self, tree: ast.ListComp | ast.GeneratorExp, scope: LocalVariables) -> Value:
        """Return a list, or, if the items are unknown, a node whose variables are numbered by nesting depth."""
        loop, *others = tree.generators
        if any(each.is_async for each in tree.generators):
            raise Unreadable("a comprehension that waits")
        source = self.evaluate(loop.iter, scope)
        items = self.iterate(source)
        if items is not None and not loop.ifs:
            values = []
            for item in items:
                inner = LocalVariables({}, scope)
                self.assign(loop.target, item, inner)
                values += self._inner_items(others, tree.elt, inner)
            return values if isinstance(tree, ast.ListComp) else Once(values)
        if others:
            raise Unreadable("several loops of unknown length in a comprehension")
        self.bound += 1
        inner = LocalVariables({}, scope)
        self.assign(loop.target, self.make("bound", self.bound), inner)
        tests = tuple(self.node(self.evaluate(test, inner)) for test in loop.ifs)
        body = self.node(self.evaluate(tree.elt, inner))
        self.bound -= 1
        return self.operation("comprehension", type(tree).__name__, self.node(source), tests, body)

    def _inner_items(self, loops: list[ast.comprehension], element: ast.expr, scope: LocalVariables) -> list[Value]:
        """Return the items that the inner loops of a comprehension make in one turn of the outer one."""
        if not loops:
            return [self.evaluate(element, scope)]
        items = self.iterate(self.evaluate(loops[0].iter, scope))
        if items is None or loops[0].ifs:
            raise Unreadable("several loops of unknown length in a comprehension")
        values: list[Value] = []
        for item in items:
            inner = LocalVariables({}, scope)
            self.assign(loops[0].target, item, inner)
            values += self._inner_items(loops[1:], element, inner)
            if len(values) > MAX_ITEMS:
                raise Unreadable("a comprehension of too many items")
        return values

    def _lambda(self, tree: ast.Lambda, scope: LocalVariables) -> Node:
        parameters = tree.args
        if (
            parameters.vararg
            or parameters.kwarg
            or parameters.kwonlyargs
            or parameters.defaults
            or parameters.posonlyargs
        ):
            raise Unreadable("a lambda with more than plain arguments")
        self.bound += 1
        names = {a.arg: self.make("bound", self.bound, i) for i, a in enumerate(parameters.args)}
        body = self.node(self.evaluate(tree.body, LocalVariables(names, scope)))
        self.bound -= 1
        return self.make("lambda", len(names), body)


GROWS = ("append", "extend")


class Statements(Comprehensions):
    """Executes statements.

    Attributes:
        nexts: the value after a turn, for each value that a loop carries.
        stops: the test before a turn, for each loop that has one.
        effects: the calls that are executed only for their effect, with the branches and the loop around them.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.nexts: dict[Node, Node] = {}
        self.stops: dict[Node, Node] = {}
        self.effects: list[Node] = []
        self.turns = 1  # product of iterations of the enclosing unrolled loops
        self.undefined = graph.make("undefined")
        self.lent: dict[int, Value] = {}
        self._like: Counter[Node] = Counter()
        self.trying = False
        self.early: list[_Carried] = []

    def run(self, block: list[ast.stmt], scope: LocalVariables) -> Value:
        """Execute a block. Returns its result, or `UNDEFINED`. Only the last statement of a `forward` returns."""
        for i, statement in enumerate(block):
            if isinstance(statement, ast.Return):
                if i + 1 < len(block) or self.under or self.loop.key != ("no loop",):
                    raise Unreadable("a return in the middle")
                return None if statement.value is None else self.evaluate(statement.value, scope)
            self._execute(statement, scope)
        return UNDEFINED

    def _execute(self, statement: ast.stmt, scope: LocalVariables) -> None:
        if isinstance(statement, ast.Assign):
            if len(statement.targets) > 1:
                raise Unreadable("an assignment to several targets")
            value = self._value(statement.targets[0], statement.value, scope)
            if isinstance(statement.value, ast.Name):
                self.lend([value])
            self.assign(statement.targets[0], value, scope)
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

    def _value(self, target: ast.expr, tree: ast.expr, scope: LocalVariables) -> Value:
        """Evaluate what a statement assigns. A variable that gets a second name is not read thereby."""
        if isinstance(target, ast.Tuple) and isinstance(tree, ast.Tuple) and len(target.elts) == len(tree.elts):
            if not any(isinstance(part, ast.Starred) for part in (*target.elts, *tree.elts)):
                return tuple(self._value(*pair, scope) for pair in zip(target.elts, tree.elts))
        name = tree.id if isinstance(tree, ast.Name) else variable(tree.value) if isinstance(tree, Ref) else None
        current = UNDEFINED if name is None else scope.find(name, UNDEFINED)
        return current if isinstance(current, Lazy) else self.evaluate(tree, scope)

    def _effect(self, value: ast.expr, scope: LocalVariables) -> None:
        """Execute a statement for its effect. A list that grows gets a new value; other effects are recorded."""
        if isinstance(value, ast.Constant):
            return
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in GROWS:
            name, (item,) = _grows(value), self._several(value.args, scope)
            if name is None:
                raise Unreadable("what grows is no variable")
            before = self.read(name, scope)
            if id(before) in self.lent or any(id(held) in self.lent for held in _held(scope.find(name, None))):
                raise Unreadable("a list grows that has several names")
            if isinstance(before, list):
                items = [item] if value.func.attr == "append" else self.iterate(item)
                after: Value = UNDEFINED if items is None else [*before, *items]
            else:
                after = self.operation(value.func.attr, self.node(before), self.node(item))
            if after is UNDEFINED or value.keywords:
                raise Unreadable("a list that grows by what is not known")
            self.bind(name, after, scope)
            return
        self.effects.append(self.make("effect", self.loop, self.under, self.node(self.evaluate(value, scope))))

    def test(self, tree: ast.expr, scope: LocalVariables) -> Value:
        """Evaluate the test of a branch."""
        return self.evaluate(tree, scope)

    def _if(self, statement: ast.If, scope: LocalVariables) -> None:
        test = self.test(statement.test, scope)
        if isinstance(test, CONCRETE):
            if self.run(statement.body if test else statement.orelse, scope) is not UNDEFINED:
                raise Unreadable("a return in a branch")
            return
        condition, around = self.node(test), self.under
        sides = []
        for word, block in (("then", statement.body), ("else", statement.orelse)):
            self.under = (*around, self.make(word, condition))
            sides.append(LocalVariables({}, scope))
            self.run(block, sides[-1])
        self.under = around
        for name in dict.fromkeys([*sides[0].values, *sides[1].values]):
            then, orelse = (side.find(name, self.undefined) for side in sides)
            self.bind(name, then if then is orelse else Choice(self, condition, then, orelse), scope)

    def _with(self, statement: ast.With, scope: LocalVariables) -> None:
        if len(statement.items) > 1 or statement.items[0].optional_vars is not None:
            raise Unreadable("a with of several contexts")
        around = self.contexts
        self.contexts = (*around, self.node(self.evaluate(statement.items[0].context_expr, scope)))
        if self.run(statement.body, scope) is not UNDEFINED:
            raise Unreadable("a return in a with")
        self.contexts = around

    def _for(self, statement: ast.For, scope: LocalVariables) -> None:
        if statement.orelse:
            raise Unreadable("a for with else")
        source = self.evaluate(statement.iter, scope)
        stop = _stop(statement.body)
        whole = stop is not None or (isinstance(source, range) and self.stays_whole(source))
        items = None if whole else self.iterate(source)
        if items is None:
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

    def stays_whole(self, source: range) -> bool:
        """Return True if a loop over this range is executed as one symbolic loop."""
        raise NotImplementedError

    def place(self, source: range) -> tuple[object, ...]:
        """Return the position of a loop over a range."""
        return self.loop, self.under, self.turns, source

    def _symbolic(
        self, source: Node, target: ast.expr | None, stop: ast.expr | None, body: list[ast.stmt], scope: LocalVariables
    ) -> None:
        """Execute a loop with an unknown number of iterations.

        Loops over the same items are distinguished by what a turn does, not by their order: a text may have
        independent loops in another order. So each loop is first executed on trial. During the trial, loops inside it
        are distinguished by their order, since otherwise each level would double the work.
        """
        like = self.make("loop", self.loop, self.under, source)
        does = frozenset() if self.trying else self._does(like, target, stop, body, scope)
        loop = self.number("loop", like, does)
        inner, carried = self._turn(loop, target, stop, body, scope)
        for name in inner.values:
            last = _After(self, carried[name]) if name in carried else self.make("last turn", loop, name)
            self.bind(name, last, scope)

    def _does(
        self, like: Node, target: ast.expr | None, stop: ast.expr | None, body: list[ast.stmt], scope: LocalVariables
    ) -> frozenset[tuple[Node, Node | None]]:
        """Return each carried value with its value after an iteration. This trial execution is discarded, but not what
        it is the first to read of the loops around it.
        """
        kept = (self.seen.copy(), self._like.copy(), self.nexts.copy(), self.stops.copy(), self.effects.copy())
        self.trying = True
        trial = self._turn(like, target, stop, body, scope)[1]
        self.trying = False
        began = (own for own in trial.values() if own.start is not self.undefined)  # not carried if undefined
        does = frozenset((own.own, self.nexts.get(own.own)) for own in began if own.own is not None)
        self.seen, self._like, self.nexts, self.stops, self.effects = kept
        early, self.early = self.early, []
        for own in early:
            own.begin()
        return does

    def _turn(
        self, loop: Node, target: ast.expr | None, stop: ast.expr | None, body: list[ast.stmt], scope: LocalVariables
    ) -> tuple[LocalVariables, dict[str, _Carried]]:
        """Execute one iteration. Returns the variables at its end, and those that may be carried."""
        inner, around = LocalVariables({}, scope), (self.loop, self.under)
        carried = {name: _Carried(self, loop, name, scope) for name in dict.fromkeys(_assigned(body))}
        inner.values.update(carried)
        self.loop, self.under = loop, ()
        if target is not None:
            self.assign(target, self.make("turn", loop), inner)
        if stop is not None:
            self.stops[loop] = self.node(self.evaluate(stop, inner))
        self.run(body, inner)
        self.loop, self.under = around
        for name, own in carried.items():
            own.end(inner.values[name])
        return inner, carried

    def number(self, *key: object) -> Node:
        """Return a separate node for each of several equal ones: the first, the second, ..."""
        like = self.make(*key)
        self._like[like] += 1
        return self.make("number", self._like[like], like)


class _Carried(Lazy):
    """A variable of a loop at the beginning of an iteration."""

    def __init__(self, program: Statements, loop: Node, name: str, scope: LocalVariables) -> None:
        self.program, self.loop = program, loop
        self.start = scope.find(name, program.undefined)
        self.own: Node | None = None
        self.next: Value = UNDEFINED
        self.is_tried = program.trying

    def read(self) -> Node:
        if self.own is None:
            self.begin()
        assert self.own is not None
        return self.own

    def begin(self) -> None:
        """Take its number among those of its loop that begin alike."""
        self.own = self.program.number("carried", self.loop, self.program.node(self.start))
        if self.program.trying and not self.is_tried:
            self.program.early.append(self)
        self._settle()

    def end(self, value: Value) -> None:
        """End the iteration, which left this value."""
        self.next = value
        if self.own is not None:
            self._settle()

    def _settle(self) -> None:
        if self.own is not None and self.next is not UNDEFINED and self.own not in self.program.nexts:
            self.program.nexts[self.own] = self.own  # set before, since a variable may be carried to itself
            self.program.nexts[self.own] = self.program.node(self.next)


class _After(Lazy):
    """A variable of a loop after its end: the last turn made it, if there was one. It is told by what makes it, not by
    whether a turn reads it, which a text may do for nothing.
    """

    def __init__(self, program: Statements, carried: _Carried) -> None:
        self.program, self.carried = program, carried
        self.made: Node | None = None

    def read(self) -> Node:
        """Return its node. Its initial value is read first, since that may be another loop's, and so on."""
        waiting = [self]
        while waiting[-1].made is None and isinstance(before := waiting[-1].carried.start, _After):
            waiting.append(before)
        while waiting:
            node = waiting.pop()._make()
        return node

    def _make(self) -> Node:
        if self.made is None:
            of, node = self.carried, self.program.node
            self.made = self.program.make("last", of.loop, node(of.start), node(of.next))
        return self.made


class Choice(Lazy):
    """A variable after an `if`. It is read where it is used: what is left of a loop in a branch may be of no use."""

    def __init__(self, program: Statements, condition: Node, then: Value, orelse: Value) -> None:
        self.program, self.condition, self.sides = program, condition, (then, orelse)

    def read(self) -> Node:
        return self.program.make("choice", self.condition, *map(self.program.node, self.sides))


def _held(value: Value) -> Iterator[Value]:
    """Yield what a variable holds, and what it held before the loops around."""
    yield value
    while isinstance(value, _Carried):
        value = value.start
        yield value


def _stop(body: list[ast.stmt]) -> ast.expr | None:
    """Return the condition of `if not stop: break` at the beginning of a loop's body, or None."""
    first = body[0] if body else None
    if not isinstance(first, ast.If) or len(first.body) != 1 or not isinstance(first.body[0], ast.Break):
        return None
    if first.orelse or not isinstance(first.test, ast.UnaryOp) or not isinstance(first.test.op, ast.Not):
        raise Unreadable("a break of another form")
    return first.test.operand


def _grows(call: ast.Call) -> str | None:
    """Return the variable whose list a statement appends to, or None."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in GROWS:
        return None
    of = call.func.value
    return of.id if isinstance(of, ast.Name) else variable(of.value) if isinstance(of, Ref) else None


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the variables that a block assigns or appends to, nested blocks included."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from (n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name))
        elif isinstance(statement, ast.For):
            yield from (n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            name = _grows(statement.value)
            if name is not None:
                yield name
        for block in (getattr(statement, field, []) for field in ("body", "orelse")):
            yield from _assigned(block)
