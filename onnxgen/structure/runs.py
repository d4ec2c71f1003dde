"""Runs of numbered submodules: one `nn.Sequential` where each feeds the next, a `for` loop if they also share inputs.

x = self.layer1[0](x)                      x = self.layer1(x)
x = self.layer1[1](x)

x, k0 = self.layer[0](x, mask, past0)      for layer, past in zip(self.layer, (past0, past1)):
x, k1 = self.layer[1](x, mask, past1)          x, k = layer(x, mask, past)
                                               keys.append(k)

Of what may be a loop, `turns.py` finds the statements of each turn.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from onnxgen.code.module_def import Assign, Member, ModuleDef, Statement, blocks, expressions, used
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, quote, refs, walk
from onnxgen.code.torch_api import LAYER_OF, function_of
from onnxgen.common.names import ModulePath
from onnxgen.structure.literals import is_number
from onnxgen.structure.loops import make_loop
from onnxgen.structure.scopes import Scope, count_uses
from onnxgen.structure.tree import fillable
from onnxgen.structure.turns import Items, find_turns

RUNTIME = (Ref, SizeOf, MemberRef, DeviceOf)  # what is only there when `forward` runs


def collect_runs(scope: Scope, module: ModuleDef) -> None:
    """Replace every run of calls that covers all items of a container, in order; containers in containers first.

    What is no chain may be a loop: of lists in lists, one over what the outer list has.
    """
    parts = _parts(scope)
    flow = _Flow(scope)
    for path in sorted(parts, key=len, reverse=True):
        items = {int(name): item for name, item in parts[path].items() if item is not None}
        if len(items) < len(parts[path]):
            continue
        container = _sequence(flow, path, items)
        if container is not None and path and path[:-1] in parts:
            parts[path[:-1]][path[-1]] = container
    flow.settle()
    for path in sorted(parts, key=len):
        if path not in scope.containers:
            flow = _looped(flow, _items(parts, path), module)
    for member in _again(scope):
        flow = _looped(flow, Items(None, [{-1: member}]), module)


def _looped(flow: _Flow, items: Items | None, module: ModuleDef) -> _Flow:
    """The flow after what is done with these items is a loop, if it can be one."""
    anchors = _anchors(flow, items) if items is not None else []
    if items is None or len(anchors) < 2:
        return flow
    for turns in find_turns(flow.scope.body, items, anchors):
        if items.is_inner and len(turns[0]) > 1:
            return flow
        made = make_loop(flow.scope, items, turns, flow.uses, module)
        if made is not None:
            break
    else:
        return flow
    if any(isinstance(s, Assign) and isinstance(s.value, ast.List) for s in made):  # all that reads its items changed
        return _Flow(flow.scope)
    flow.exchange([statement for turn in turns for statement in turn], made)
    return flow


def _anchors(flow: _Flow, items: Items) -> list[list[Assign]]:
    """The statements in which the parts of each item occur; none if these are more than plain calls."""
    if items.path is None:
        found = [[statement] for statement in flow.mentions[id(items.parts[0][-1])]]
    else:
        found = [[s for part in item.values() for s in flow.mentions.get(id(part), ())] for item in items.parts]
    plain = {i: s for i, s in enumerate(flow.scope.body) if isinstance(s, Assign) and s.targets}
    at = {id(s): i for i, s in plain.items()}
    if not all(found) or any(id(s) not in at for statements in found for s in statements):
        return []
    return [[plain[n] for n in sorted({at[id(s)] for s in statements})] for statements in found]


def _again(scope: Scope) -> list[Member]:
    """The submodules that are called three times or more."""
    found: dict[int, list[Member]] = {}
    for statement in scope.body:
        value = statement.value if isinstance(statement, Assign) else None
        if isinstance(value, ast.Call) and isinstance(value.func, MemberRef) and value.func.member.kind == "module":
            found.setdefault(id(value.func.member), []).append(value.func.member)
    return [members[0] for members in found.values() if len(members) > 2]


def _parts(scope: Scope) -> dict[ModulePath, dict[str, Member | None]]:
    """What each container below a class holds, by number: a submodule, or None for a container in it."""
    level = len(scope.path)
    own = {member.path: member for member in scope.members}  # a layer that has layers below it is no container
    below: dict[ModulePath, dict[str, Member | None]] = {}
    for member in scope.members:
        for n in range(level, len(member.path)):
            part = own.get(member.path[: n + 1])
            whole = part is not None and part.kind == "module"
            below.setdefault(member.path[:n], {})[member.path[n]] = part if whole else None
    return {path: parts for path, parts in below.items() if path not in own and all(name.isdigit() for name in parts)}


def _items(parts: dict[ModulePath, dict[str, Member | None]], path: ModulePath) -> Items | None:
    """What there is to loop over in a list: submodules, or lists of the same number of them; None for anything else."""
    found: list[dict[int, Member]] = []
    for name in sorted(parts[path], key=int):
        item = parts[path][name]
        inner = {-1: item} if item is not None else {int(n): m for n, m in parts.get((*path, name), {}).items()}
        whole = {n: member for n, member in inner.items() if member is not None}
        if not whole or len(whole) < len(inner) or not fillable([max(n, 0) for n in whole]):
            return None
        found.append(whole)
    names = sorted(map(int, parts[path]))
    alike = all(set(item) == set(found[0]) for item in found) and (-1 in found[0] or len(found[0]) > 1)
    return Items(path, found) if alike and names == [*range(len(found))] else None


class _Flow:
    """What makes, uses and calls what in a body, kept right while chains of its statements become one.

    Attributes:
        makers, users: by value, the statement that alone makes it, and the last one that uses it.
        calls: the statements that call a submodule with one argument, by id of its member.
        mentions: the statements in which a member occurs, as often as it does, by its id.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.uses = count_uses([], scope.outputs)
        self.makers: dict[str, Assign] = {}
        self.users: dict[str, Statement] = {}
        self.calls: dict[int, list[Assign]] = {}
        self.mentions: dict[int, list[Statement]] = {}
        self._instead: dict[int, Statement | None] = {}  # by id of a statement of the body, or of one that replaced it
        for statement in scope.body:
            self._enter(statement)

    def _enter(self, statement: Statement) -> None:
        self._count(statement, 1)
        if blocks(statement):  # what is assigned again is no chain
            self.uses.update(dict.fromkeys(statement.targets, 2))
        self.users.update(dict.fromkeys(used(statement), statement))
        if isinstance(statement, Assign) and len(statement.targets) == 1:
            self.makers[statement.targets[0]] = statement
            member = _called(statement)
            if member is not None:
                self.calls.setdefault(id(member), []).append(statement)

    def _count(self, statement: Statement, sign: int) -> None:
        for expression in expressions(statement):
            for node in walk(expression):
                if isinstance(node, Ref):
                    self.uses[node.value] += sign
                elif isinstance(node, MemberRef) and sign > 0:
                    self.mentions.setdefault(id(node.member), []).append(statement)
                elif isinstance(node, MemberRef):
                    self.mentions[id(node.member)] = [s for s in self.mentions[id(node.member)] if s is not statement]

    def exchange(self, old: Sequence[Statement], new: Sequence[Statement]) -> None:
        """Follow what already happened to the body."""
        for statement in old:
            self._count(statement, -1)
        for statement in new:
            self._enter(statement)

    def replace(self, chain: list[Assign], whole: Assign) -> None:
        """Let one statement stand for a chain, where that began."""
        self._instead.update(dict.fromkeys(map(id, chain)))
        self._instead[id(chain[0])] = whole
        self.exchange(chain, [whole])

    def settle(self) -> None:
        """Give the scope its new body."""
        if self._instead:
            found = map(self._now, self.scope.body)
            self.scope.body = [statement for statement in found if statement is not None]
            self._instead = {}

    def _now(self, statement: Statement | None) -> Statement | None:
        while statement is not None and id(statement) in self._instead:
            statement = self._instead[id(statement)]
        return statement


class _Sequence:
    """Follows a chain of calls through a body, from one item of a container to the next."""

    def __init__(self, flow: _Flow, path: ModulePath, items: dict[int, Member]) -> None:
        self.path, self.items = path, items
        self.uses, self.makers, self.users, self.calls = flow.uses, flow.makers, flow.users, flow.calls

    def run(self) -> list[tuple[int, Member, Assign]] | None:
        """The elements by number, with their statements, in order; None if the items are no chain."""
        if any(len(self.calls.get(id(m), ())) != 1 for m in self.items.values()):
            return None
        waiting = sorted(self.items)
        first = waiting.pop(0)
        found = [(first, self.items[first], self.calls[id(self.items[first])][0])]
        self._lead(found)
        loose: list[tuple[int | None, Member, Assign]] = []  # functions since the last item
        statement = found[-1][2]
        while True:
            after = self._after(statement)
            if after is None:
                break
            member = _called(after)
            if waiting and member is self.items[waiting[0]]:
                if not self._place(found, loose, waiting[0]):
                    return None
                found.append((waiting.pop(0), member, after))
                loose = []
            else:
                function = self._function(after)
                if function is None:
                    break
                loose.append((*function, after))
            statement = after
        if waiting:
            return None
        told = [entry for entry in loose if entry[0] is not None or entry[2].scope[: len(self.path)] == self.path]
        self._place(found, told if told == loose[: len(told)] else [], None)
        return found

    def _lead(self, found: list[tuple[int, Member, Assign]]) -> None:
        """Functions before the first item that say that they belong here."""
        while found[0][0] > 0:
            value = found[0][2].value
            given = value.args[0] if isinstance(value, ast.Call) and value.args else None
            maker = self.makers.get(given.value) if isinstance(given, Ref) else None
            function = self._function(maker) if maker is not None and self._after(maker) is found[0][2] else None
            if maker is None or function is None or function[0] is None or function[0] >= found[0][0]:
                return
            found.insert(0, (function[0], function[1], maker))

    def _after(self, statement: Assign) -> Assign | None:
        """The only statement that uses what this one makes, if it takes it as its first argument."""
        target = statement.targets[0]
        after = self.users.get(target) if self.uses[target] == 1 else None
        if not isinstance(after, Assign) or len(after.targets) != 1 or not isinstance(after.value, ast.Call):
            return None
        operand = _operand(after.value)
        return after if isinstance(operand, Ref) and refs(after.value) == (target,) else None

    def _function(self, statement: Assign) -> tuple[int | None, Member] | None:
        """A functional layer as a module: the number that its node tells (`/features/features.1/Relu`), and what."""
        build = as_module(statement.value)
        if build is None:
            return None
        within = statement.scope[: len(self.path)] == self.path
        told = statement.scope[len(self.path)] if within and len(statement.scope) > len(self.path) else ""
        index = int(told) if told.isdigit() and int(told) not in self.items else None
        if index is None and statement.scope and statement.scope[: len(self.path)] != self.path:
            if statement.scope != self.path[: len(statement.scope)]:
                return None
        return index, Member((*self.path, str(index or 0)), build, "module")

    def _place(
        self,
        found: list[tuple[int, Member, Assign]],
        loose: list[tuple[int | None, Member, Assign]],
        end: int | None,
    ) -> bool:
        """Number functions, those that say nothing with the first free number; False if there is no room."""
        for index, member, statement in loose:
            before = found[-1][0]
            number = index if index is not None else before + 1
            if number <= before or (end is not None and number >= end):
                return False
            member.path = (*self.path, str(number))
            found.append((number, member, statement))
        return True


def _sequence(flow: _Flow, path: ModulePath, items: dict[int, Member]) -> Member | None:
    """Replace a chain over these items by one call of an `nn.Sequential`; returns that, or None."""
    found, scope = _Sequence(flow, path, items).run(), flow.scope
    if found is None or not fillable([index for index, _, _ in found]):
        return None
    first, last = found[0][2], found[-1][2]
    assert isinstance(first.value, ast.Call)
    scope.members.extend(m for index, m, _ in found if index not in items)
    container = scope.containers[path] = Member(path, quote("nn.Sequential"), "module")
    argument = _operand(first.value)
    assert argument is not None
    nodes = tuple(name for _, _, statement in found for name in statement.nodes)
    whole = Assign(last.targets, ast.Call(MemberRef(container), [argument], []), first.scope, nodes)
    flow.replace([statement for _, _, statement in found], whole)
    return container


def _called(statement: Assign) -> Member | None:
    """The submodule that a statement calls with one argument."""
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, MemberRef) and len(value.args) == 1:
        return value.func.member if not value.keywords else None
    return None


def as_module(value: ast.expr) -> ast.expr | None:
    """The layer that a function of one tensor is, `nn.ReLU()` for `F.relu(x)`; None if it is none.

    The layer is made in `__init__`, which knows no value, no size and no device: what needs one stays a function.
    """
    if not isinstance(value, ast.Call) or not isinstance(_operand(value), Ref):
        return None
    if isinstance(value.func, ast.Attribute) and isinstance(value.func.value, Ref):
        is_default = len(value.args) == 1 and is_number(value.args[0], 1) and not value.keywords
        return quote("nn.Flatten()") if value.func.attr == "flatten" and is_default else None
    name = function_of(value)
    options = [*value.args[1:], *(k.value for k in value.keywords)]
    if name not in LAYER_OF or any(isinstance(n, RUNTIME) for option in options for n in walk(option)):
        return None
    return ast.Call(quote(LAYER_OF[name]), value.args[1:], value.keywords)


def _operand(value: ast.expr) -> ast.expr | None:
    """What a layer, a function or a method is applied to."""
    if not isinstance(value, ast.Call):
        return None
    if isinstance(value.func, ast.Attribute) and refs(value.func):
        return value.func.value
    return value.args[0] if value.args else None
