"""Puts short chains of statements into one expression each, as far as a line holds them."""

from __future__ import annotations

import ast
from collections import ChainMap, Counter
from collections.abc import Mapping
from dataclasses import replace

from onnxgen.code.module_def import Assign, If, Member, ModuleDef, Statement, assigned, blocks
from onnxgen.code.quote import MemberRef, Ref, depth, refs, rewrite, walk
from onnxgen.structure.clues import input_name
from onnxgen.structure.scopes import ClassRef, Scope, count_uses

MAX_DEPTH = 3  # calls and operators nested in one expression
IN_RETURN = 2  # layers with a weight matrix nested behind `return`: elsewhere it is one
SIDE_BY_SIDE = 2  # such layers in one expression
NO_NAMES: Mapping[str, str] = {}
LINE = 88 - 8  # characters of a line of `forward`


def nest(scope: Scope, module: ModuleDef, names: Mapping[str, str] = NO_NAMES) -> None:
    """Put each value that is used once, in the very next statement, into that statement.

    `names`: what values were called when this was done before: lines that came out too long are now split.
    """
    given = {a.value: input_name(a, not scope.path, module.infos, module.roles, module.hints) for a in scope.inputs}
    _Nesting(scope, ChainMap(dict(names), {v: name for v, name in given.items() if name}, module.roles)).run()


def copied(block: list[Statement]) -> list[Statement]:
    """The statements of a block, which `nest` changes, once more; their expressions never change."""
    made: list[Statement] = []
    for statement in block:
        if isinstance(statement, If):
            made.append(replace(statement, then=copied(statement.then), orelse=copied(statement.orelse)))
        else:
            made.append(
                replace(statement) if isinstance(statement, Assign) else replace(statement, body=copied(statement.body))
            )
    return made


class _Nesting:
    """`roles`: what values will be called, as far as that is known; it tells how long a line becomes."""

    def __init__(self, scope: Scope, roles: Mapping[str, str]) -> None:
        self.scope, self.roles = scope, roles
        self.uses = count_uses(scope.body, scope.outputs)
        for name, count in Counter(name for s in scope.body for name in assigned(s)).items():
            if count > 1:  # carried around a loop, or made by both branches: it stays where it is assigned
                self.uses[name] += 2

    def run(self) -> None:
        scope = self.scope
        scope.body = self._block(_follow(scope.body, self.uses), 0)
        if len(scope.outputs) == 1:
            self._into_return()
        elif scope.path:
            self._into_tuple()

    def _into_return(self) -> None:
        scope = self.scope
        while scope.body and isinstance(scope.body[-1], Assign):
            last, output = scope.body[-1], scope.outputs[0]
            room = LINE - len("return ")
            if not self._is_movable(last) or not self._fits(last.value, output, last.targets[0], room, IN_RETURN):
                break
            scope.outputs = [_inline(output, last.targets[0], last.value)]
            scope.nodes = last.nodes + scope.nodes
            scope.body.pop()

    def _into_tuple(self) -> None:
        """What several results are made by goes behind `return` too, in the order in which it was computed."""
        scope = self.scope
        room = LINE - len("return ") - 3 * len(scope.outputs)
        before = len(scope.outputs)
        while scope.body and isinstance(scope.body[-1], Assign) and self._is_movable(scope.body[-1]):
            last = scope.body[-1]
            at = [i for i, o in enumerate(scope.outputs) if isinstance(o, Ref) and o.value == last.targets[0]]
            room -= self._width(last.value)
            if not at or at[0] >= before or room < 0 or depth(last.value) > MAX_DEPTH:
                break
            before = at[0]
            scope.outputs[before] = last.value
            scope.nodes = last.nodes + scope.nodes
            scope.body.pop()

    def _is_movable(self, statement: Assign) -> bool:
        return len(statement.targets) == 1 and self.uses[statement.targets[0]] == 1

    def _block(self, block: list[Statement], level: int) -> list[Statement]:
        made: list[Statement] = []
        for statement in block:
            for inner in blocks(statement):
                inner[:] = self._block(inner, level + 1)
            while made and isinstance(statement, (Assign, If)):
                before = made[-1]
                holder = statement.value if isinstance(statement, Assign) else statement.test
                if not isinstance(before, Assign) or not self._is_movable(before):
                    break
                if not self._fits(before.value, holder, before.targets[0], self._room(statement, level)):
                    break
                merged = _inline(holder, before.targets[0], before.value)
                if isinstance(statement, Assign):
                    statement.value = merged
                else:
                    statement.test = merged
                statement.nodes = before.nodes + statement.nodes
                made.pop()
            made.append(statement)
        return made

    def _room(self, statement: Statement, level: int) -> int:
        """What a line has left for an expression beside what it is assigned to."""
        names = sum(len(self.roles.get(t, "x")) + 2 for t in statement.targets)
        return LINE - 4 * level - names - 1

    def _fits(self, inner: ast.expr, outer: ast.expr, name: str, room: int, layers: int = 1) -> bool:
        """Whether `inner` may stand in `outer` where `name` does: evaluated at the same point, and still readable."""
        if name not in refs(outer) or isinstance(outer, ast.Tuple) or _under_comprehension(outer):
            return False
        if isinstance(outer, Ref):
            return True
        if not _called(inner).isdisjoint(_called_before(outer, name)):
            return False
        merged = _inline(outer, name, inner)
        deep, many = _layers(merged)
        return depth(merged) <= MAX_DEPTH and deep <= layers and many <= SIDE_BY_SIDE and self._width(merged) <= room

    def _width(self, tree: ast.expr) -> int:
        """About how long an expression is when it is written out."""
        text: ast.expr = rewrite(tree, self._shown)
        return len(ast.unparse(text))

    def _shown(self, node: ast.AST) -> ast.expr | None:
        if isinstance(node, Ref):
            return ast.Name(self.roles.get(node.value, "x"), ast.Load())
        return as_reached(node, len(self.scope.path))


def _called(tree: ast.AST) -> set[int]:
    """The layers that are called: the order of one's calls matters to what it measures or draws."""
    calls = (node.func for node in walk(tree) if isinstance(node, ast.Call))
    return {id(function.member) for function in calls if isinstance(function, MemberRef)}


def _called_before(tree: ast.AST, name: str) -> set[int]:
    """The layers that an expression calls before it reads a value."""
    found: set[int] = set()
    while not isinstance(tree, Ref):
        for part in ast.iter_child_nodes(tree):
            if any(isinstance(node, Ref) and node.value == name for node in walk(part)):
                tree = part
                break
            found |= _called(part)
        else:
            break
    return found


def as_reached(node: ast.AST, level: int) -> ast.expr | None:
    """A member about as long as what will reach it from a class at this depth; None for other nodes."""
    if isinstance(node, MemberRef):
        parts = (f'["{part}"]' if part.isdigit() else f".{part}" for part in node.member.path[level:])
        return ast.Name("self" + "".join(parts), ast.Load())
    return None


def _follow(block: list[Statement], uses: Counter[str]) -> list[Statement]:
    """A statement that only reshapes one value used nowhere else comes right after the one that makes it.

    Exporters write the projections of q, k and v first and then split all three into heads.
    """
    carried = {name for s in block if not isinstance(s, Assign) for name in s.targets}
    followers: dict[str, Assign] = {}
    for statement in block:
        if isinstance(statement, Assign) and len(statement.targets) == 1:
            needed = refs(statement.value)
            members = any(isinstance(n, MemberRef) for n in walk(statement.value))
            alone = len(set(needed)) == 1 and uses[needed[0]] == len(needed)
            if alone and not members and statement.targets[0] not in carried:
                followers[needed[0]] = statement
    made: list[Statement] = []
    moved: set[int] = set()
    for statement in block:
        if id(statement) in moved:
            continue
        made.append(statement)
        while len(statement.targets) == 1 and isinstance(statement, Assign) and statement.targets[0] in followers:
            statement = followers.pop(statement.targets[0])
            moved.add(id(statement))
            made.append(statement)
    return made


def _layers(tree: ast.AST) -> tuple[int, int]:
    """Layers with a weight matrix, and classes of our own, that an expression calls: how deep nested, and how many."""
    inner, count = 0, 0
    for child in ast.iter_child_nodes(tree):
        deep, many = _layers(child)
        inner, count = max(inner, deep), count + many
    is_layer = isinstance(tree, ast.Call) and isinstance(tree.func, MemberRef) and _is_layer(tree.func.member)
    return inner + is_layer, count + is_layer


def _is_layer(member: Member) -> bool:
    return any(len(s.shape) > 1 for s in member.keys.values()) or (not member.keys and _is_class(member.build))


def _is_class(build: ast.expr) -> bool:
    """A class of the file, or a container of layers that is called as one."""
    return isinstance(build, ast.Attribute) or (isinstance(build, ast.Call) and isinstance(build.func, ClassRef))


def _under_comprehension(tree: ast.expr) -> bool:
    return any(isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.Lambda)) for n in ast.walk(tree))


def _inline(outer: ast.expr, name: str, inner: ast.expr) -> ast.expr:
    changed: ast.expr = rewrite(outer, lambda n: inner if isinstance(n, Ref) and n.value == name else None)
    return changed
