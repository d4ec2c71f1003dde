"""Local variables: `x` is reused along a chain, others only where two values live at once; short chains are nested."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterable

from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import Assign, If, Loop, Statement, assigned, blocks, expressions, used
from onnxgen.code.quote import MemberRef, Ref, depth, refs, rewrite, walk
from onnxgen.names import RESERVED, identifier
from onnxgen.propagate.info import Info
from onnxgen.structure.scopes import ClassRef, Scope, count_uses

MAX_DEPTH = 3  # calls and operators nested in one expression
SPARE = ("x", "y", "z", "h", "u", "v", "w")
_ROLE = re.compile(r"^[a-z_][a-z0-9_]*$")


def nest(scope: Scope) -> None:
    """Put each value that is used once, in the very next statement, into that statement."""
    uses = count_uses(scope.body, scope.outputs)
    for name, count in Counter(name for s in scope.body for name in assigned(s)).items():
        if count > 1:  # carried around a loop, or made by both branches: it stays where it is assigned
            uses[name] += 2
    scope.body = _nest(_follow(scope.body, uses), uses)
    while scope.body and isinstance(scope.body[-1], Assign) and len(scope.outputs) == 1:
        last = scope.body[-1]
        output = scope.outputs[0]
        if len(last.targets) != 1 or uses[last.targets[0]] != 1 or not _fits(last.value, output, last.targets[0]):
            break
        scope.outputs = [_inline(output, last.targets[0], last.value)]
        scope.body.pop()


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


def _nest(block: list[Statement], uses: Counter[str]) -> list[Statement]:
    made: list[Statement] = []
    for statement in block:
        for inner in blocks(statement):
            inner[:] = _nest(inner, uses)
        while made and isinstance(statement, (Assign, If)):
            before = made[-1]
            holder = statement.value if isinstance(statement, Assign) else statement.test
            if not isinstance(before, Assign) or len(before.targets) != 1 or uses[before.targets[0]] != 1:
                break
            if not _fits(before.value, holder, before.targets[0]):
                break
            merged = _inline(holder, before.targets[0], before.value)
            if isinstance(statement, Assign):
                statement.value = merged
            else:
                statement.test = merged
            made.pop()
        made.append(statement)
    return made


def _fits(inner: ast.expr, outer: ast.expr, name: str) -> bool:
    """Whether `inner` may stand in `outer` where `name` does: evaluated at the same point, and still readable."""
    if name not in refs(outer) or isinstance(outer, ast.Tuple) or _under_comprehension(outer):
        return False
    if isinstance(outer, Ref):
        return True
    merged = _inline(outer, name, inner)
    return depth(merged) <= MAX_DEPTH and _heavy_calls(merged) <= 1 and len(ast.dump(merged)) < 1500


def _heavy_calls(tree: ast.expr) -> int:
    """How many layers with a weight matrix, or classes of our own, an expression calls: a line has one at most."""
    count = 0
    for node in walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, MemberRef):
            member = node.func.member
            count += any(len(s.shape) > 1 for s in member.keys.values()) or not member.keys and _is_class(member.build)
    return count


def _is_class(build: ast.expr) -> bool:
    """A class of the file, or a container of layers that is called as one."""
    return isinstance(build, ast.Attribute) or (isinstance(build, ast.Call) and isinstance(build.func, ClassRef))


def _under_comprehension(tree: ast.expr) -> bool:
    return any(isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.Lambda)) for n in ast.walk(tree))


def _inline(outer: ast.expr, name: str, inner: ast.expr) -> ast.expr:
    changed: ast.expr = rewrite(outer, lambda n: inner if isinstance(n, Ref) and n.value == name else None)
    return changed


class Names:
    """Gives every value of one class body a local name; two values share one only if they never live at once."""

    def __init__(self, scope: Scope, infos: dict[str, Info], hints: dict[str, str], roles: dict[str, str]) -> None:
        self.scope, self.infos, self.hints, self.roles = scope, infos, hints, roles
        self.names: dict[str, str] = {}
        self.busy: dict[str, str] = {}  # name -> the value that has it now
        self.reserved = RESERVED | helper_names()
        self.arguments = {a.value for a in scope.inputs}
        self.returned = {o.value for o in scope.outputs if isinstance(o, Ref)}

    def run(self) -> dict[str, str]:
        """The local name of every value."""
        for argument in self.scope.inputs:
            self._take(argument.value, self._wanted_argument(argument.value, argument.annotation))
        self._block(self.scope.body, [r for o in self.scope.outputs for r in refs(o)])
        return self.names

    def _wanted_argument(self, value: str, annotation: str) -> list[str]:
        """The root's arguments have the graph's names, and so have token ids and the like wherever they go."""
        if self.scope.path and value in self.roles:
            return [self.roles[value]]
        hint = identifier(self.hints.get(value, value).removeprefix("size."))
        dtype = self.infos.get(value, Info()).dtype
        is_data = dtype is None or dtype.is_floating_point()
        meaningful = not self.scope.path or annotation != "Tensor" or (not is_data and _ROLE.match(hint) is not None)
        return [hint] if meaningful else [*SPARE[:4], hint]

    def _block(self, block: list[Statement], after: Iterable[str], kept: Container[str] = ()) -> None:
        """`after`: values used after the block; `kept`: values from outside it, which live on whatever it does."""
        last: dict[str, int] = {}
        for i, statement in enumerate(block):
            for name in used(statement):
                last[name] = i
        for name in after:
            last[name] = len(block)
        for i, statement in enumerate(block):
            if not isinstance(statement, Assign):
                self._compound(statement)
            self._release(used(statement), last, i, kept)
            for target in statement.targets:
                if target not in self.names:
                    self._take(target, self._wanted(target, statement, target in last))
                    if target not in last:
                        self.busy.pop(self.names[target], None)

    def _compound(self, statement: If | Loop) -> None:
        """What a nested block assigns has its name until the block ends; what lives outside keeps its own."""
        for name in statement.targets:
            if name not in self.names:
                self._take(name, self._wanted(name, statement, True))
        outside = dict(self.busy)
        if isinstance(statement, Loop):
            inside = {r for e in expressions(statement) for r in refs(e)}
            for name in statement.turn:
                if name in inside:
                    self._take(name, self._wanted(name, statement, True))
                else:
                    self.names[name] = "_"
        for block in blocks(statement):
            before = dict(self.busy)
            self._block(block, statement.targets, set(before.values()))
            self.busy = before
        self.busy = outside

    def _release(self, names: list[str], last: dict[str, int], now: int, kept: Container[str]) -> None:
        for name in names:
            if name not in kept and last.get(name) == now and self.busy.get(self.names.get(name, "")) == name:
                if name not in self.arguments or self.scope.path:
                    del self.busy[self.names[name]]

    def _take(self, value: str, wanted: list[str]) -> None:
        for name in wanted:
            if name not in self.busy and name not in self.reserved:
                break
        else:
            base, n = wanted[-1], 2
            while f"{base}{n}" in self.busy or f"{base}{n}" in self.reserved:
                n += 1
            name = f"{base}{n}"
        self.names[value] = name
        self.busy[name] = value

    def _wanted(self, value: str, statement: Statement, is_used: bool) -> list[str]:
        if not is_used:
            return ["_"]
        role = self.roles.get(value, "")
        if role and role != "x":
            return [role]
        hint = self.hints.get(value, value)
        if not self.scope.path and value in self.returned and _ROLE.match(hint) and len(hint) <= 24:
            return [identifier(hint)]
        return list(SPARE)
