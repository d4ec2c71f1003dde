"""The statements of a method: chains of calls, and the phases that empty lines divide.

`x = F.relu(self.fc(x.flatten(1)))` becomes `x = x.flatten(1)` and what is left. Goes in: the statements of a method,
each with as many calls in one another as a line has room for. Comes out: the same calls in the same order. A layer
stays together with the pooling, norm, activation and dropout behind it, and with methods of its result:
`self.query(x).view(s).transpose(1, 2)` is read from left to right.

A phase ends where one value is all that the statements before hand on to those behind
(`in_phases`). Loops have lines around them. Some results have their shape in a comment.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate

from onnxgen.code import printer
from onnxgen.code.quote import rewrite, walk
from onnxgen.code.torch_api import ACTIVATIONS, dotted

MODULES = ("self", "F", "torch", "nn", "math")
LAYER, NORM, PART, POOL, METHOD, ALONE, OTHER = "layer", "norm", "part", "pool", "method", "alone", "other"
PARTS = {*ACTIVATIONS, "F.dropout"}
POOLS = {f"F.{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)}
MANY_ARGUMENTS = {"F.scaled_dot_product_attention"}
MOST = 3  # calls of a layer and its parts, or of methods in a row
FEW = 2  # calls in one another in a long line, or behind a row of layers, each of which has a statement
ROOM = 68  # letters of a value without the methods at its end; with more, the line is long
USUAL = "x"


class Steps:
    """Writes the methods of one class in steps.

    Args:
        nested: how many calls may be in one another.
        named: with so many statements, a method returns a name; 0: never.
        norms, parts: the attributes that are norms, and those that are activations and dropouts.
    """

    def __init__(self, nested: int, named: int, norms: Collection[str], parts: Collection[str]) -> None:
        self.nested, self.named, self.norms, self.parts = nested, named, norms, parts
        self.local: set[str] = set()  # the variables of the method
        self.now = nested  # how many calls may be in one another in the statement at hand

    def of(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a method in steps."""
        self.local = {name for one in body for name in names(one, ast.Store)}
        steps: list[ast.stmt] = []
        for i, statement in enumerate(body):
            steps += self._block([statement], _read_after(body[i + 1 :], ()), steps[-1:])
        if self.named and len(steps) >= self.named and isinstance(end := steps[-1], ast.Return):
            steps[-1:] = _named(end, steps[-2])
        return steps

    def _most(self, before: Sequence[ast.stmt], statement: ast.Assign | ast.Return) -> int:
        """Return how many calls may be in one another in a statement."""
        calls = chain(statement.value)
        if len(calls) <= FEW:
            return self.nested
        row = chain(getattr(before[-1], "value", None)) if before else []
        goes_on = len(row) == 1 and self._kind(row[0]) == self._kind(calls[-1]) == LAYER
        goes_on = goes_on and list(map(ast.dump, row[0].args)) == list(map(ast.dump, calls[-1].args))
        inner = next((call for call in calls if self._kind(call) != METHOD), calls[-1])
        return min(self.nested, FEW) if goes_on or len(ast.unparse(inner)) > ROOM else self.nested

    def _block(
        self, block: Sequence[ast.stmt], later: Collection[str], before: Sequence[ast.stmt] = ()
    ) -> list[ast.stmt]:
        """Return statements in steps. `later`: the names that are read after them; `before`: what stands before."""
        steps: list[ast.stmt] = []
        for i, statement in enumerate(block):
            if isinstance(statement, (ast.Assign, ast.Return)):
                self.now = self._most([*before, *steps], statement)
                steps += self._split(statement, _read_after(block[i + 1 :], later))
            else:
                read = {*later, *names(statement, ast.Load)}
                steps.append(_with_blocks(statement, partial(self._block, later=read)))
        return steps

    def _split(self, statement: ast.Assign | ast.Return, later: Collection[str]) -> Iterator[ast.stmt]:
        value = statement.value
        usual = _name_of(statement, USUAL in later) if value is not None else ""
        while usual and value is not None and (ends := self._ends(calls := chain(value))):
            wanted = [self._viewed(ends[0], later), *self._as_target(statement, calls[: calls.index(ends[0])]), usual]
            candidates = ((name, with_name(value, ends[0], name)) for name in wanted if name)
            name, outer = next(((name, outer) for name, outer in candidates if outer is not None), ("", None))
            if outer is None:
                break
            yield printer.like(statement, ast.Assign([ast.Name(name, ast.Store())], ends[0]), dims="")
            value = outer
        yield printer.changed(statement, value=value) if value is not statement.value else statement

    def _viewed(self, tree: ast.expr, later: Collection[str]) -> str:
        """Return the name of what an expression is a view of, if that is needed for nothing else; "" if it is none."""
        calls = chain(tree)
        base = calls[-1].func.value if isinstance(calls[-1].func, ast.Attribute) else None
        is_view = all(self._kind(call) == METHOD for call in calls) and isinstance(base, ast.Name)
        return base.id if is_view and isinstance(base, ast.Name) and base.id in self.local - {*later} else ""

    def _as_target(self, statement: ast.Assign | ast.Return, outer: Sequence[ast.Call]) -> list[str]:
        """Return the name that a statement assigns, if it does so to a view of its part."""
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        is_view = all(self._kind(call) == METHOD for call in outer)
        return [target.id] if is_view and isinstance(target, ast.Name) else []

    def _ends(self, calls: list[ast.Call]) -> list[ast.Call]:
        """Return the calls, from the inmost, whose results get a statement of their own."""
        if len(calls) <= self.now:
            return []
        groups: list[list[ast.Call]] = [[]]
        kinds: list[str] = []
        for call in reversed(calls):
            kind = self._kind(call)
            if kinds and not self._fits(kind, kinds, call is calls[0]):
                groups.append([])
                kinds = []
            groups[-1].append(call)
            kinds.append(kind)
        joined: list[list[ast.Call]] = []
        for group in groups:
            if joined and len(joined[-1]) + len(group) <= self.now:
                joined[-1] = [*joined[-1], *group]
            else:
                joined.append(group)
        return [group[-1] for group in joined[:-1]]

    def _fits(self, kind: str, kinds: list[str], is_last: bool) -> bool:
        """Return True if a call stays in the statement that has calls of these kinds. `is_last`: it is the outmost."""
        if kind == LAYER and is_last and kinds == [NORM, PART]:  # both before their layer
            return True
        kind = PART if kind == NORM else kind
        if kinds[0] == LAYER or {*kinds, kind} == {METHOD}:
            return (kind in (PART, METHOD) or (kind == POOL and len(kinds) == 1)) and len(kinds) < MOST
        return kind not in (LAYER, ALONE) and kinds[0] != ALONE and len(kinds) < self.now

    def _kind(self, call: ast.Call) -> str:
        name = dotted(call.func)
        if name in MANY_ARGUMENTS:
            return ALONE
        if _under(call.func, "self"):
            attribute = name.removeprefix("self.")
            return NORM if attribute in self.norms else PART if attribute in self.parts else LAYER
        if name in PARTS:
            return PART
        return METHOD if is_method(call) else POOL if name in POOLS else OTHER


def chain(tree: ast.expr | None) -> list[ast.Call]:
    """Return a call, the call that it is applied to, and so on, from the outmost."""
    calls: list[ast.Call] = []
    while isinstance(tree, ast.Call):
        calls.append(tree)
        if isinstance(tree.func, ast.Attribute) and is_method(tree):
            tree = tree.func.value
        elif tree.args:
            tree = tree.args[0]
        else:
            break
    return calls


def is_method(call: ast.Call) -> bool:
    """True for a method of a tensor."""
    root = dotted(call.func).partition(".")[0]
    return isinstance(call.func, ast.Attribute) and root not in MODULES and not _under(call.func, "self")


def _under(tree: ast.expr, name: str) -> bool:
    """True for `self.layers[0]`."""
    while isinstance(tree, (ast.Attribute, ast.Subscript)):
        tree = tree.value
    return isinstance(tree, ast.Name) and tree.id == name


def names(statement: ast.stmt, how: type[ast.expr_context]) -> Iterator[str]:
    """Yield the names that a statement reads (`ast.Load`) or assigns (`ast.Store`)."""
    return (node.id for node in walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, how))


def _read_after(block: Sequence[ast.stmt], later: Collection[str]) -> set[str]:
    """Return the names whose present values are read in a block or later."""
    read = {*later}
    for statement in reversed(block):
        if isinstance(statement, ast.Assign):
            read.difference_update(names(statement, ast.Store))
        else:
            read.update(later)  # a `break` may lead there
        read.update(names(statement, ast.Load))
    return read


def _name_of(statement: ast.Assign | ast.Return, needed: bool) -> str:
    """Return the name of what a statement computes on the way: its target, if that does not say what the result is."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else ast.Name(USUAL)
    if not isinstance(target, ast.Name):
        return ""
    return target.id if needed or target.id in names(statement, ast.Load) else USUAL


def with_name(tree: ast.expr, inner: ast.expr, name: str) -> ast.expr | None:
    """Return an expression with a name in the place of a part of it; None if it reads the name somewhere else."""
    place = ast.Name(name, ast.Load())
    outer: ast.expr = rewrite(tree, lambda node: place if node is inner else None)
    others = (node for node in walk(outer) if isinstance(node, ast.Name) and node is not place)
    return None if any(node.id == name for node in others) else outer


def _named(last: ast.Return, before: ast.stmt) -> list[ast.stmt]:
    """Return the last statement as an assignment and a `return`, if the result may have the name of what is before."""
    target = before.targets[0] if isinstance(before, ast.Assign) else None
    if not isinstance(target, ast.Name) or not isinstance(last.value, (ast.Call, ast.BinOp)):
        return [last]
    if isinstance(last.value, ast.Call) and dotted(last.value.func).startswith("self."):
        return [last]
    if not any(isinstance(node, ast.Name) and node.id == target.id for node in walk(last.value)):
        return [last]
    assignment = printer.like(last, ast.Assign([target], last.value))
    return [assignment, ast.Return(ast.Name(target.id, ast.Load()))]


ENDING = 3  # the least number of statements of the last phase, with its `return`
BESIDE = 2  # the least number of statements before or after a loop
LONG = 6  # a phase of so many statements may end where any shape changes, a shorter one where axes do
AXES = frozenset("flatten reshape view unflatten permute transpose squeeze unsqueeze mean cat stack".split())


def in_phases(body: Sequence[ast.stmt], least: int, every: int) -> list[ast.stmt]:
    """Return the statements of a method with empty lines and comments.

    Args:
        body: the statements.
        least: how many statements a phase has at least.
        every: at most one statement in so many keeps its comment of dims.
    """
    starts = _starts(body, least)
    kept = _kept(body, starts, len(body) // every)
    statements = [_bare(statement, i in kept) for i, statement in enumerate(body)]
    return [printer.apart(one) if i in starts else one for i, one in enumerate(statements)]


def _starts(body: Sequence[ast.stmt], least: int) -> list[int]:
    handed_on, loops = _handed_on(body), _loops(body)
    starts: list[int] = []
    begin = 0
    for i in range(1, len(body) - BESIDE + 1):
        size = i - begin
        changes = _first_call(body[i]) in AXES or (size >= LONG and bool(printer.dims_of(body[i - 1])))
        if (i in loops and size >= BESIDE) or (
            size >= least and len(body) - i >= ENDING and changes and handed_on[i] <= 1
        ):
            starts.append(i)
            begin = i
    return starts


def _loops(body: Sequence[ast.stmt]) -> set[int]:
    """Return where loops begin, with the lists that they fill, and what follows them."""
    places = set()
    for i, statement in enumerate(body):
        if isinstance(statement, ast.For):
            places.add(i + 1)
            while (
                i and isinstance(before := body[i - 1], ast.Assign) and isinstance(before.value, (ast.List, ast.Name))
            ):
                i -= 1
            places.add(i)
    return places


def _first_call(statement: ast.stmt) -> str:
    """Return the last name of the function that a statement calls first."""
    calls = chain(statement.value) if isinstance(statement, (ast.Assign, ast.Return)) and statement.value else []
    function = calls[-1].func if calls else None
    return function.attr if isinstance(function, ast.Attribute) else ""


def _handed_on(body: Sequence[ast.stmt]) -> list[int]:
    """Return for each statement how many values that those before it assign are read by it or later."""
    changes = [0] * (len(body) + 2)
    last: dict[str, int] = {}  # by name, the last statement that reads the value that it has here
    for i in reversed(range(len(body))):
        reads, writes = _names(body[i])
        for name in writes & last.keys() if isinstance(body[i], ast.Assign) else ():
            changes[i + 1] += 1
            changes[last.pop(name) + 1] -= 1
        for name in reads:
            last.setdefault(name, i)
    return list(accumulate(changes))


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    names = [node for node in walk(statement) if isinstance(node, ast.Name)]
    writes = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names if not isinstance(node.ctx, ast.Store)}, writes


def _kept(body: Sequence[ast.stmt], starts: Sequence[int], most: int) -> set[int]:
    """Return the statements that keep their comment: the last with one of each phase, or some of these."""
    bounds = [0, *starts, len(body)]
    ends = []
    for first, end in zip(bounds, bounds[1:]):
        if at := [i for i in range(first, end) if printer.dims_of(body[i])]:
            ends.append(at[-1])
    if len(ends) > most:
        ends = [ends[(2 * k + 1) * len(ends) // (2 * most)] for k in range(most)]
    return {*ends}


def _with_blocks(statement: ast.stmt, change: Callable[[list[ast.stmt]], list[ast.stmt]]) -> ast.stmt:
    """Return a statement whose blocks are changed."""
    blocks = {name: change(block) for name in ("body", "orelse") if (block := getattr(statement, name, None))}
    return printer.changed(statement, **blocks) if blocks else statement


def _bare(statement: ast.stmt, keeps: bool) -> ast.stmt:
    """Return a statement whose blocks have no comments of dims, and which has none unless it `keeps` it."""
    bare = _with_blocks(statement, lambda block: [_bare(inner, False) for inner in block])
    return bare if keeps or not printer.dims_of(bare) else printer.like(bare, printer.changed(bare), "")
