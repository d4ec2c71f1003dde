"""Shorter bodies: chains of statements become one expression, and needless copies are dropped.

`nest`: goes in the body of a class with one operator or call in each statement, come out the same computations in the
same order, in fewer statements: a value that is used once, in the next statement, moves into it if the line stays
short.

`drop_copies`: loops and branches assign the values they carry by plain copies. Between values that are never alive
together, `y = f(x)` and `z = y` become `z = f(x)`. An `if` of which one side only hands a value on has no such side
then: `if c: y = f(x)`, `else: y = x` becomes `if c: x = f(x)`.
"""

from __future__ import annotations

import ast
from collections import ChainMap, Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from onnxgen.code.module_def import (
    Assign,
    If,
    Loop,
    Member,
    ModuleDef,
    Statement,
    assigned,
    blocks,
    change_own,
    expressions,
    flattened,
    used,
)
from onnxgen.code.quote import Change, MemberRef, Ref, depth, members, put, refs, rewrite, walk
from onnxgen.code.steps import chain
from onnxgen.code.torch_api import ACTIVATIONS, NORMS, dotted
from onnxgen.common.names import FileText
from onnxgen.structure.clues import DISTANCE, STAGES, input_name, is_general, made_by, says_what
from onnxgen.structure.scopes import ClassRef, Scope, callee

MAX_DEPTH = 3  # calls and operators nested in one expression
MAX_LAYERS = 2  # layers with a weight matrix in one expression; only one is nested, but in a `return` and in a pair
PAIR = 2  # calls in an expression that is nothing but two such layers
STEP = 3  # calls in one another that `code/steps.py` leaves in one statement
FEW_LETTERS = 64  # of an expression that may have so many calls, two of them of layers
NO_NAMES: Mapping[str, str] = {}
METHOD = -1  # stands for the layers that a method calls
LINE = 88 - 8  # characters of a line of `forward`


def nest(scope: Scope, module: ModuleDef, kept: Container[str] = (), names: Mapping[str, str] = NO_NAMES) -> None:
    """Move each value that is used once, in the next statement, into that statement.

    Args:
        kept: the values that stay where they are, since the author's source has a variable for them.
        names: the names of values that an earlier try led to, so that lines that were then too long stay split.
    """
    argument_names = {
        a.value: input_name(a, scope.is_root, module.infos, module.roles, module.hints) for a in scope.inputs
    }
    roles = ChainMap(dict(names), {v: name for v, name in argument_names.items() if name}, module.roles)
    nesting = _Nesting(scope, roles, kept)
    if scope.is_root:
        hints = {o.value: module.results.get(o.value, FileText("")) for o in scope.outputs if isinstance(o, Ref)}
        is_one = len(scope.outputs) == 1  # a name such as `output` tells results apart, if there are several
        nesting.named = {v for v, name in hints.items() if says_what(name) and not (is_one and is_general(name))}
    nesting.run()


def copied(block: list[Statement]) -> list[Statement]:
    """Copy the statements of a block. Expressions are shared, since they are never modified."""
    copies = [replace(statement) for statement in block]
    for statement in copies:
        if isinstance(statement, If):
            statement.then, statement.orelse = copied(statement.then), copied(statement.orelse)
        elif not isinstance(statement, Assign):
            statement.body = copied(statement.body)
    return copies


class _Nesting:
    """`roles`: the names of values, as far as they are known, to estimate how long a line becomes. `named`: results
    that the file names."""

    def __init__(self, scope: Scope, roles: Mapping[str, str], kept: Container[str]) -> None:
        self.scope, self.roles, self.kept = scope, roles, kept
        self.uses = scope.uses()
        self.trees = scope.makers()
        self.returned: Assign | None = None
        self.named: set[str] = set()
        for name, count in Counter(name for s in scope.body for name in assigned(s)).items():
            if count > 1:  # carried through a loop, or made by both branches: it stays where it is assigned
                self.uses[name] += 2

    def run(self) -> None:
        scope = self.scope
        body = _follow(scope.body, self.uses)
        if len(scope.outputs) == 1 and not self.named:  # the `return` is one more statement
            self.returned = Assign((), scope.outputs[0], nodes=scope.nodes)
            body = self._block(self._block([*body, self.returned], 0), 0, PAIR)
            scope.body = self._into(body[:-1], self.returned, 0, MAX_DEPTH, MAX_LAYERS)
            scope.outputs, scope.nodes = [self.returned.value], self.returned.nodes
        else:
            scope.body = self._block(self._block(body, 0), 0, PAIR)
            self._into_tuple()

    def _into_tuple(self) -> None:
        """Move the last statements into a `return` of several results, in the order of the layers that they call.

        If the names of the results take more than a line, each result has a line of its own, which has room for more.
        """
        scope = self.scope
        level = len(scope.path)
        room = LINE - len("return ") - sum(width(o, self.roles, level) + len(", ") for o in scope.outputs)
        is_broken, before = room < 0, len(scope.outputs)
        while scope.body and isinstance(last := scope.body[-1], Assign) and self._is_movable(last):
            name = last.targets[0]
            at = _reader(scope.outputs, name)
            if name in self.kept or name in self.named or at is None:
                break
            merged: ast.expr = rewrite(scope.outputs[at], put({name: last.value}))
            more = width(merged, self.roles, level)
            room = (
                LINE - 4 - len(",") - more if is_broken else room - more + width(scope.outputs[at], self.roles, level)
            )
            is_whole = isinstance(scope.outputs[at], Ref)
            if (at >= before if is_whole else _called(last.value)) or room < 0 or depth(merged) > MAX_DEPTH:
                break
            before = at if is_whole else before
            scope.outputs[at] = merged
            scope.nodes = last.nodes + scope.nodes
            scope.body.pop()

    def _is_movable(self, statement: Assign) -> bool:
        return len(statement.targets) == 1 and self.uses[statement.targets[0]] == 1

    def _block(self, block: list[Statement], level: int, deepest: int = MAX_DEPTH) -> list[Statement]:
        """Return a block with what is moved into it. A pair of layers is one statement if neither has anything else."""
        statements: list[Statement] = []
        for statement in block:
            for inner in blocks(statement):
                inner[:] = self._block(_follow(inner, self.uses), level + 1, deepest)
            if isinstance(statement, (Assign, If)):
                statements = self._into(statements, statement, level, deepest, MAX_LAYERS if deepest == PAIR else 1)
            statements.append(statement)
        return statements

    def _into(
        self, statements: list[Statement], statement: Assign | If, level: int, deepest: int, layers: int
    ) -> list[Statement]:
        """Move the statements before one into it, from the last, and return the others."""
        while statements:
            before, holder = statements[-1], next(expressions(statement))
            if not isinstance(before, Assign) or not self._is_movable(before):
                break
            name = before.targets[0]
            if name in self.kept and not isinstance(holder, Ref):
                break
            if not self._fits(before.value, holder, name, self._room(statement, level), deepest, layers):
                break
            if statement is not self.returned and made_by(before.value, self.trees).result == DISTANCE:
                break
            if deepest > PAIR and layers == MAX_LAYERS and _are_row([*statements[-2:], statement]):
                break
            change_own(statement, put({name: before.value}))
            statement.nodes = before.nodes + statement.nodes
            statements.pop()
        return statements

    def _room(self, statement: Statement, level: int) -> int:
        if statement is self.returned:
            return LINE - len("return ")
        names = sum(len(self.roles.get(t, "x")) + 2 for t in statement.targets)
        if self.returned is not None and isinstance(self.returned.value, Ref):
            if statement.targets == (self.returned.value.value,):  # the `return` will have its value
                names = len("return ") - 1
        return LINE - 4 * level - names - 1

    def _fits(self, inner: ast.expr, outer: ast.expr, name: str, room: int, deepest: int, layers: int) -> bool:
        """True if `inner` may replace `name` in `outer`: calls keep their order, and the line stays readable."""
        if isinstance(outer, Ref):
            return outer.value == name
        merged = rewrite(outer, put({name: inner}))
        deep, many = _layers(merged)
        if not _keeps_order(inner, outer, name) or deep > layers or many > MAX_LAYERS:
            return False
        letters = width(merged, self.roles, len(self.scope.path))
        most = self._deepest_pair(inner, outer, name, letters) if deepest == PAIR else deepest
        if letters > room or self._depth(merged, inner, name) - _is_behind(merged) > most:
            return False
        if _norms(merged) > max(1, _norms(outer)):
            return False  # the norm is of the next layer
        is_split = deep > 1 and len(chain(merged)) > STEP  # it would be two statements again
        # one of a row of steps stays a statement, as the others do
        return not is_split and (deepest != PAIR or len({*map(_family, members(merged))}) != 1)

    def _deepest_pair(self, inner: ast.expr, outer: ast.expr, name: str, letters: int) -> int:
        """Return how deep an expression may be that has two layers; one that is short may have a step more."""
        is_short = refs(outer) == (name,) and letters <= FEW_LETTERS
        return STEP if is_short and not self._is_named(inner, name) else PAIR

    def _is_named(self, tree: ast.expr, name: str) -> bool:
        """True if a value has a name to keep, by its role or by the expression that makes it."""
        origin = made_by(tree, self.trees)
        return name in self.roles or bool(origin.result or origin.plain) or origin.layer in STAGES

    def _depth(self, merged: ast.expr, inner: ast.expr, name: str) -> int:
        """Return how deep an expression is; flat sums count as one level, unless the inner value has a name to keep."""
        origin = made_by(inner, self.trees)
        if name in self.roles or origin.result or origin.plain:
            return depth(merged)
        return depth(merged, is_flat=True) - _is_residual(merged)


def width(tree: ast.expr, names: Mapping[str, str], level: int) -> int:
    """Return about how many characters an expression has in a class at this depth, with these names of values."""

    def shown(node: ast.AST) -> ast.expr | None:
        if isinstance(node, Ref):
            return ast.Name(names.get(node.value, "x"), ast.Load())
        if isinstance(node, MemberRef):
            parts = (f'["{part}"]' if part.isdigit() else f".{part}" for part in node.member.path[level:])
            return ast.Name("self" + "".join(parts), ast.Load())
        return None

    return len(ast.unparse(rewrite(tree, shown)))


def _may_hold(outer: ast.expr, name: str) -> bool:
    """True for an expression that uses a value once each time it is evaluated, and is no tuple."""
    if name not in refs(outer) or isinstance(outer, ast.Tuple):
        return False
    return not any(isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.Lambda)) for n in ast.walk(outer))


def _keeps_order(inner: ast.expr, outer: ast.expr, name: str) -> bool:
    """True if `inner` may replace `name` in `outer`, and no layer is called in another order then."""
    if not _may_hold(outer, name):
        return False
    mine, before = _called(inner), called_before(outer, name)
    return mine.isdisjoint(before) and not (METHOD in mine and before) and not (METHOD in before and mine)


def _called(tree: ast.AST) -> set[int]:
    """Return the layers that are called. A layer may keep statistics or draw numbers, so its calls keep their order."""
    layers = {id(member) for node in walk(tree) if (member := callee(node)) is not None}
    return layers | {METHOD} if any(_calls_method(node) for node in walk(tree)) else layers


def _calls_method(tree: ast.AST) -> bool:
    """True for a call of a method of the class, which may call any layer."""
    of = tree.func.value if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) else None
    return isinstance(of, ast.Name) and of.id == "self"


def called_before(tree: ast.AST, name: str) -> set[int]:
    """Return the layers that an expression calls before it reads a value."""
    layers: set[int] = set()
    while not isinstance(tree, Ref):
        for part in ast.iter_child_nodes(tree):
            if any(isinstance(node, Ref) and node.value == name for node in walk(part)):
                tree = part
                break
            layers |= _called(part)
        else:
            break
    return layers


def _follow(block: list[Statement], uses: Counter[str]) -> list[Statement]:
    """Move a statement whose only operand is used nowhere else, and that calls no layer, behind the one that makes it.

    Exporters write the projections of q, k and v first and then split all three into heads.
    """
    followers: dict[str, Assign] = {}
    earlier: set[str] = set()  # values that the statements before have: one that is assigned anew stays behind them
    for statement in block:
        if isinstance(statement, Assign) and len(statement.targets) == 1:
            needed = refs(statement.value)
            alone = len(set(needed)) == 1 and uses[needed[0]] == len(needed)
            if alone and not members(statement.value) and statement.targets[0] not in earlier:
                followers[needed[0]] = statement
        earlier.update(assigned(statement), (name for tree in expressions(statement) for name in refs(tree)))
    ordered: list[Statement] = []
    moved: set[int] = set()
    for statement in block:
        if id(statement) in moved:
            continue
        ordered.append(statement)
        while len(statement.targets) == 1 and isinstance(statement, Assign) and statement.targets[0] in followers:
            statement = followers.pop(statement.targets[0])
            moved.add(id(statement))
            ordered.append(statement)
    return ordered


def _family(member: Member) -> str:
    """Return what layers that are numbered have in common: `layer` of `layer1`."""
    return ".".join(member.path).rstrip("0123456789")


def _are_row(statements: list[Statement]) -> bool:
    """True for three statements with a layer of one family each, as `fc1`, `fc2` and `fc3`."""
    called = [{_family(m) for tree in expressions(one) for m in members(tree)} for one in statements]
    return len(called) > PAIR and len(set.union(*called)) == 1 and all(called)


def _layers(tree: ast.AST) -> tuple[int, int]:
    """Return how deep calls of layers with a weight matrix or of the file's classes are nested, and how many."""
    inner, count = 0, 0
    for child in ast.iter_child_nodes(tree):
        deep, many = _layers(child)
        inner, count = max(inner, deep), count + many
    member = callee(tree)
    is_layer = member is not None and _is_layer(member)
    return inner + is_layer, count + is_layer


def _is_behind(tree: ast.AST) -> bool:
    """True for a norm or an activation right behind a layer or its norm: a line has the three as one."""
    operand = tree.args[0] if isinstance(tree, ast.Call) and len(tree.args) == 1 else None
    layer, of = callee(tree), None if operand is None else callee(operand)
    is_part = dotted(tree.func) in ACTIVATIONS if layer is None and isinstance(tree, ast.Call) else False
    is_part = is_part or (layer is not None and layer.layer in {*NORMS, *ACTIVATIONS.values()})
    return is_part and of is not None and (of.layer in NORMS or _is_layer(of))


def _is_residual(tree: ast.AST) -> bool:
    """True for a sum with a value as it is, `x + self.proj(attn)`, also with a norm behind it."""
    layer = callee(tree)
    if layer is not None and layer.layer in NORMS and isinstance(tree, ast.Call) and len(tree.args) == 1:
        tree = tree.args[0]
    if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.Add):
        return False
    return isinstance(tree.left, Ref) or isinstance(tree.right, Ref)


def _norms(tree: ast.AST) -> int:
    return sum(member.layer in NORMS for node in walk(tree) if (member := callee(node)) is not None)


def _is_layer(member: Member) -> bool:
    is_class_or_container = isinstance(member.build, (ClassRef, ast.Attribute))
    return any(len(s.shape) > 1 for s in member.keys.values()) or (not member.keys and is_class_or_container)


def _reader(trees: Sequence[ast.expr], name: str) -> int | None:
    """Return which expression is the first to use a value."""
    return next((i for i, tree in enumerate(trees) if name in refs(tree)), None)


def drop_copies(scope: Scope) -> set[str]:
    """Rename each copied value to its copy if that changes no result, and remove the copy.

    Runs after sizes are resolved, since what is known about the copied value is lost.

    Returns:
        The values that an `if` now assigns anew. Before and after it, they need not have the same shape.
    """
    kept = {r for output in scope.outputs for r in refs(output)}
    anew: set[str] = set()
    _block(scope.body, kept, {argument.value for argument in scope.inputs}, anew)
    return anew


def _block(block: list[Statement], after: set[str], outside: set[str], anew: set[str]) -> None:
    """Drop the copies in a block. `after`: values used after it; `outside`: values assigned outside it."""
    for statement in block:
        turn = statement.turn if isinstance(statement, Loop) else ()
        for inner in blocks(statement):
            around = {name for other in block for name in other.targets}
            _block(inner, set(statement.targets), {*outside, *around, *turn}, anew)
    kept = after | outside
    anew |= _assign_anew(block, kept)
    q = 0
    while q < len(block):
        copy = block[q]
        if isinstance(copy, Assign) and len(copy.targets) == 1 and isinstance(copy.value, Ref):
            new, old = copy.targets[0], copy.value.value
            first = 0 if new == old else _definition(block, q, new, old, kept, lambda i: _mentioned(block[i]))
            if first is not None:
                for i in range(first, q):
                    rename(block[i], old, new)
                del block[q]
                continue
        q += 1


def _assign_anew(block: list[Statement], kept: set[str]) -> set[str]:
    """Let each `if` assign a value anew that one of its sides only copies. Returns the values that one does."""
    anew: set[str] = set()
    copies = [*_copies_in_sides(block)]
    mentioned = [_mentioned(statement) for statement in block] if copies else []
    for at, choice, side, copy in copies:
        (new,), (old,) = copy.targets, used(copy)
        if (side is choice.then and len(side) == 1) or not _may_replace(choice, new, old):
            continue
        first = _definition(block, at, new, old, kept, mentioned.__getitem__)
        if first is not None:
            for i in range(first, at + 1):
                if old in mentioned[i]:
                    rename(block[i], old, new)
                    mentioned[i] = mentioned[i] - {old} | {new}
            side[:] = [each for each in side if each is not copy]
            anew.add(new)
    return anew


def _copies_in_sides(block: list[Statement]) -> Iterator[tuple[int, If, list[Statement], Statement]]:
    """Yield the copies that the sides of each `if` hand on, with its place, the `if` and the side."""
    choices = ((i, statement) for i, statement in enumerate(block) if isinstance(statement, If))
    for i, choice in choices:
        for side in (choice.orelse, choice.then):
            yield from ((i, choice, side, copy) for copy in side if _copied(copy) in choice.targets)


def _copied(statement: Statement) -> str:
    """Return the value that a statement only makes as a copy of another, else ""."""
    is_copy = isinstance(statement, Assign) and isinstance(statement.value, Ref) and len(statement.targets) == 1
    return statement.targets[0] if is_copy else ""


def _may_replace(choice: If, new: str, old: str) -> bool:
    """Return True if no side of an `if` needs `old` after it has assigned `new`, which takes its place."""
    for side in (choice.then, choice.orelse):
        is_assigned = False
        for statement in side:
            is_made = new in assigned(statement)
            is_late = is_assigned or (is_made and not isinstance(statement, Assign))
            if old in assigned(statement) or (is_late and old in _mentioned(statement)):
                return False
            is_assigned = is_assigned or is_made
    return True


def _definition(
    block: list[Statement], q: int, new: str, old: str, kept: set[str], mentioned: Callable[[int], set[str]]
) -> int | None:
    """Return the index of the statement that first assigns `old`, if it can be named `new` from there to `q`.

    Args:
        kept: the values that also exist outside the block.
        mentioned: returns the values in a statement.
    """
    first = -1 if old in kept else q - 1
    while first >= 0 and (old not in block[first].targets or old in used(block[first])):
        if new in mentioned(first):
            return None
        first -= 1
    if first < 0:
        return None
    start = block[first]
    clash = new in start.targets if isinstance(start, Assign) else new in mentioned(first)
    return None if clash or any(old in mentioned(i) for i in range(q + 1, len(block))) else first


def _mentioned(statement: Statement) -> set[str]:
    return {*assigned(statement), *(r for e in expressions(statement) for r in refs(e))}


def rename(statement: Statement, old: str, new: str) -> None:
    """Rename a value in a statement and its nested blocks."""
    for each in flattened([statement]):
        each.targets = tuple(new if t == old else t for t in each.targets)
    replace_in(statement, put({old: new}))


def replace_in(statement: Statement, change: Change) -> None:
    """Rewrite every expression of a statement, nested blocks included (see `quote.rewrite`)."""
    for each in flattened([statement]):
        change_own(each, change)
