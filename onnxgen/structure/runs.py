"""Runs of numbered submodules: one `nn.Sequential` where each feeds the next, a `for` loop if they also share inputs.

x = self.layer1[0](x)                      x = self.layer1(x)
x = self.layer1[1](x)

x = self.layer[0](x, mask)                 for layer in self.layer:
x = self.layer[1](x, mask)                     x = layer(x, mask)
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Loop, Member, Path, Statement
from onnxgen.code.quote import MemberRef, Ref, quote, refs
from onnxgen.names import identifier
from onnxgen.structure.scopes import Scope, count_uses

# functions that have a module of the same meaning, for the gaps that a Sequential's functional layers leave
AS_MODULE = {
    "F.relu": "nn.ReLU",
    "F.relu6": "nn.ReLU6",
    "torch.sigmoid": "nn.Sigmoid",
    "torch.tanh": "nn.Tanh",
    "F.gelu": "nn.GELU",
    "F.silu": "nn.SiLU",
    "F.elu": "nn.ELU",
    "F.selu": "nn.SELU",
    "F.leaky_relu": "nn.LeakyReLU",
    "F.hardswish": "nn.Hardswish",
    "F.hardsigmoid": "nn.Hardsigmoid",
    "F.softplus": "nn.Softplus",
    "F.mish": "nn.Mish",
    "F.softmax": "nn.Softmax",
    "F.log_softmax": "nn.LogSoftmax",
    "F.max_pool1d": "nn.MaxPool1d",
    "F.max_pool2d": "nn.MaxPool2d",
    "F.max_pool3d": "nn.MaxPool3d",
    "F.avg_pool1d": "nn.AvgPool1d",
    "F.avg_pool2d": "nn.AvgPool2d",
    "F.avg_pool3d": "nn.AvgPool3d",
    "F.adaptive_avg_pool1d": "nn.AdaptiveAvgPool1d",
    "F.adaptive_avg_pool2d": "nn.AdaptiveAvgPool2d",
}


@dataclass
class _Call:
    """A statement that calls one item of a list: which, with what, and whether the item is still to be made."""

    statement: Assign
    member: Member
    arguments: list[ast.expr]


def collect_runs(scope: Scope, roles: dict[str, str]) -> None:
    """Replace every run of calls that covers all items of a container, in order; containers in containers first.

    `roles` gets the names of loop variables.
    """
    parts = _parts(scope)
    for path in sorted(parts, key=len, reverse=True):
        items = list(parts[path].values())
        if all(item is not None for item in items) and path[-1:]:
            container = _collect(scope, path, [item for item in items if item is not None], roles)
            if container is not None and path[:-1] in parts:
                parts[path[:-1]][path[-1]] = container


def _parts(scope: Scope) -> dict[Path, dict[str, Member | None]]:
    """What each container below a class holds, by number: a submodule, or None for a container in it."""
    level = len(scope.path)
    below: dict[Path, dict[str, Member | None]] = {}
    for member in scope.members:
        for n in range(level + 1, len(member.path)):
            whole = n + 1 == len(member.path) and member.kind == "module"
            below.setdefault(member.path[:n], {})[member.path[n]] = member if whole else None
    return {path: parts for path, parts in below.items() if all(name.isdigit() for name in parts)}


def _collect(scope: Scope, path: Path, items: list[Member], roles: dict[str, str]) -> Member | None:
    """Rewrite the run over these items, if there is one; returns the `nn.Sequential` that it became."""
    run = _run(scope, path, items)
    if run is None:
        return None
    start, calls = run
    carried = _carried(calls, count_uses(scope.body, scope.outputs))
    if carried is None:
        return None
    last = calls[-1].statement.targets[0]
    sequential = all(len(c.arguments) == 1 for c in calls)
    if not sequential and (len(calls) == 1 or any(c.member not in items for c in calls)):
        return None
    scope.members.extend(c.member for c in calls if all(c.member is not m for m in items))
    kind = "nn.Sequential" if sequential else "nn.ModuleList"
    container = scope.containers[path] = Member(path, quote(kind), "module")
    if sequential:
        value = ast.Call(MemberRef(container), calls[0].arguments, [])
        nodes = tuple(name for call in calls for name in call.statement.nodes)
        made: list[Statement] = [Assign((last,), value, calls[0].statement.scope, nodes)]
    else:
        made = _loop(container, calls, carried, last, roles)
    scope.body[start : start + len(calls)] = made
    return container if sequential else None


def _run(scope: Scope, path: Path, items: list[Member]) -> tuple[int, list[_Call]] | None:
    """The consecutive statements that call every item of a container once, in order, and where they start."""
    by_id = {id(m): m for m in items}
    names = {m.path[-1] for m in items}
    calls: list[_Call] = []
    start = 0
    for i, statement in enumerate(scope.body):
        call = _item_call(statement, by_id) or (_functional(statement, path, calls, names) if calls else None)
        if call is not None and int(call.member.path[-1]) == len(calls):
            if not calls:
                start = i
            calls.append(call)
        elif call is not None or (calls and len({id(c.member) for c in calls} & set(by_id)) < len(by_id)):
            return None
        elif calls:
            break
    called = [id(c.member) for c in calls if id(c.member) in by_id]
    return (start, calls) if len(called) == len(by_id) else None


def _item_call(statement: Statement, items: dict[int, Member]) -> _Call | None:
    if not isinstance(statement, Assign) or len(statement.targets) != 1 or not isinstance(statement.value, ast.Call):
        return None
    function = statement.value.func
    if not isinstance(function, MemberRef) or id(function.member) not in items or statement.value.keywords:
        return None
    return _Call(statement, function.member, statement.value.args)


def _functional(statement: Statement, path: Path, calls: list[_Call], names: set[str]) -> _Call | None:
    """A functional layer at this place of the container: `features.1` between `features.0` and `.2`.

    Its node says so (`/features/features.1/Relu`), or it says nothing and only a number in between is missing.
    """
    if not isinstance(statement, Assign) or len(statement.targets) != 1 or not isinstance(statement.value, ast.Call):
        return None
    index = str(len(calls))
    here = tuple(statement.scope[: len(path) + 1]) == (*path, index)
    if not here and (statement.scope or index in names or not any(int(n) > int(index) for n in names)):
        return None
    value = statement.value
    name = ast.unparse(value.func) if isinstance(value.func, ast.Attribute) and not _has_ref(value.func) else ""
    if name not in AS_MODULE or not value.args or _has_ref(ast.Tuple(value.args[1:], ast.Load())):
        return None
    build = ast.Call(ast.parse(AS_MODULE[name], mode="eval").body, value.args[1:], value.keywords)
    return _Call(statement, Member((*path, index), build, "module"), value.args[:1])


def _has_ref(tree: ast.AST) -> bool:
    return bool(refs(tree))


def _carried(calls: list[_Call], uses: Counter[str]) -> int | None:
    """Which argument each call takes from the one before; None if they do not chain, or differ in anything else."""
    for position, argument in enumerate(calls[0].arguments):
        if isinstance(argument, Ref) and all(
            _continues(before, after, position, uses) for before, after in zip(calls, calls[1:])
        ):
            return position
    return None


def _continues(before: _Call, after: _Call, position: int, uses: Counter[str]) -> bool:
    target = before.statement.targets[0]
    if len(before.arguments) != len(after.arguments) or uses[target] != 1:
        return False
    for i, (a, b) in enumerate(zip(before.arguments, after.arguments)):
        if i == position:
            if not (isinstance(b, Ref) and b.value == target):
                return False
        elif not (isinstance(a, Ref) and isinstance(b, Ref) and a.value == b.value):
            return False
    return True


def _loop(container: Member, calls: list[_Call], carried: int, last: str, roles: dict[str, str]) -> list[Statement]:
    scope = calls[0].statement.scope
    item = container.path[-1].rstrip("0123456789").rstrip("s") or "item"
    turn = f"{'.'.join(container.path)}%item"
    roles[turn] = identifier(item)
    arguments = [Ref(last) if i == carried else a for i, a in enumerate(calls[0].arguments)]
    body: list[Statement] = [Assign((last,), ast.Call(Ref(turn), list(arguments), []), scope)]
    first = Assign((last,), calls[0].arguments[carried], scope)
    return [first, Loop((turn,), MemberRef(container), None, body, (last,), scope)]
