"""A submodule that is called several times: its statements, sorted by call.

Goes in: all statements of a submodule. Comes out: the statements of each call, or None if it is called once or if the
calls differ in more than the values they are given. Calls are told apart by the layers in them, since a layer is used
as often as its submodule is called; a statement without a layer between two calls belongs to the earlier one
(`relu(norm(x))`) or, if the calls are then not alike, to the later one.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from onnxgen.code.module_def import Assign, Statement, members_of, spelled
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, refs, walk
from onnxgen.shapes.info import Info
from onnxgen.structure.literals import differing, with_names

MAX_NUMBERS = 3  # arguments of a class that are numbers


class Wired(NamedTuple):
    """What statements compute, equal for those that do the same with other values.

    Attributes:
        lines: what each statement does, and where its operands come from.
        given: the values from outside, in order of first use.
        made: the values that the statements make, in order.
    """

    lines: list[str]
    given: list[str]
    made: list[str]


@dataclass
class Repeated:
    """The calls of one submodule.

    Attributes:
        calls: the statements of each call.
        inputs: for each call the values that it is given, in one order.
        made: for each call the values that it makes, in one order.
        varies: the calls are given values of different shapes.
        numbers: those that differ from call to call, by the names that stand for them in `inputs`.
    """

    calls: list[list[Statement]]
    inputs: list[list[str]]
    made: list[list[str]]
    varies: bool
    numbers: dict[str, ast.expr]


def repeated(statements: list[Statement], infos: dict[str, Info]) -> Repeated | None:
    """Sort the statements of a submodule by call; None if it is called once, or if the calls are not alike."""
    assigns = [s for s in statements if isinstance(s, Assign) and s.targets]
    if len(assigns) < len(statements):
        return None
    layers = [[member.path for member in members_of(s)] for s in assigns]
    counts = Counter(path for paths in layers for path in paths)
    count = gcd(*counts.values()) if counts else 1
    if count < 2:
        return None
    seen: Counter[tuple[str, ...]] = Counter()
    by_layer: list[int | None] = []  # the number of the call of each statement that has a layer
    for paths in layers:
        calls = set()
        for path in paths:
            calls.add(seen[path] * count // counts[path])
            seen[path] += 1
        if len(calls) > 1:
            return None
        by_layer.append(calls.pop() if calls else None)
    for known in (by_layer, _from_users(assigns, by_layer)):
        numbers = _from_operands(assigns, known)
        found = _alike([[s for s, n in zip(assigns, numbers) if n == call] for call in range(count)], infos)
        if found is not None:
            return found
    return None


def _from_users(statements: list[Assign], known: list[int | None]) -> list[int | None]:
    """Give a statement without a call the earliest call that uses what it makes."""
    users: dict[str, list[int]] = {}
    for i, statement in enumerate(statements):
        for name in refs(statement.value):
            users.setdefault(name, []).append(i)
    numbers = list(known)
    for i in reversed(range(len(statements))):
        if numbers[i] is None:
            found = [numbers[j] for t in statements[i].targets for j in users.get(t, ())]
            numbers[i] = min((n for n in found if n is not None), default=None)
    return numbers


def _from_operands(statements: list[Assign], known: list[int | None]) -> list[int]:
    """Give a statement without a call the latest call that makes its operands, or else the call that uses it."""
    numbers = list(known)
    makers = {target: i for i, s in enumerate(statements) for target in s.targets}
    for i, statement in enumerate(statements):
        if numbers[i] is None:
            found = [numbers[makers[name]] for name in refs(statement.value) if name in makers]
            numbers[i] = max((n for n in found if n is not None), default=None)
    for i in reversed(range(len(statements))):  # statements that depend on nothing in the submodule
        for name in refs(statements[i].value):
            j = makers.get(name)
            if j is not None and numbers[j] is None:
                numbers[j] = numbers[i]
    return [n if n is not None else 0 for n in numbers]


def _alike(calls: list[list[Assign]], infos: dict[str, Info]) -> Repeated | None:
    calls, numbers = _with_arguments(calls)
    alike = [wired(call) for call in calls]
    if any(call.lines != alike[0].lines for call in alike):
        return None
    inputs, made = [call.given for call in alike], [call.made for call in alike]
    shapes = [[str(infos.get(name, Info()).shape) for name in names] for names in inputs]
    kinds = [[infos.get(name, Info()).kind for name in names] for names in inputs]
    varies = any(s != shapes[0] for s in shapes)
    asks = any(isinstance(n, (SizeOf, DeviceOf)) for s in calls[0] for n in walk(s.value))
    if (varies and asks) or any(k != kinds[0] for k in kinds):  # a size would be read from another value
        return None
    return Repeated([list(call) for call in calls], inputs, made, varies, numbers)


def _with_arguments(calls: list[list[Assign]]) -> tuple[list[list[Assign]], dict[str, ast.expr]]:
    """Give names to the numbers that differ from call to call. Returns the calls with these names, and the numbers.

    Nothing is changed if there are too many of them, or if the calls differ in more.
    """
    kinds: dict[tuple[str, ...], int] = {}
    numbers: dict[str, ast.expr] = {}
    names: list[dict[int, str]] = [{} for _ in calls]
    for row in zip(*calls):
        for texts, column in differing(statement.value for statement in row):
            kind = kinds.setdefault(texts, len(kinds))
            for call, tree in enumerate(column):
                name = names[call][id(tree)] = f"{calls[0][0].targets[0]}%number{kind}.{call}"
                numbers[name] = tree
    if len(kinds) > MAX_NUMBERS:
        return calls, {}
    return [[with_names(s, own) for s in call] for call, own in zip(calls, names)], numbers


def wired(statements: Iterable[Assign]) -> Wired:
    """Return how the values of these statements are connected."""
    names: dict[str, str] = {}
    found = Wired([], [], [])

    def token(node: ast.AST) -> str | None:
        if isinstance(node, Ref):
            if node.value not in names:
                names[node.value] = f"%in{len(found.given)}"
                found.given.append(node.value)
            return names[node.value]
        if isinstance(node, MemberRef):
            return "%" + ".".join(node.member.path)
        return f"%{node.dim}" if isinstance(node, SizeOf) else None

    for statement in statements:
        found.lines.append(spelled(statement, token))
        for target in statement.targets:
            names[target] = f"%{len(names)}"
            found.made.append(target)
    return found
