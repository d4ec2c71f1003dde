"""A submodule that is called several times: its statements, call by call.

The calls are told apart by the layers in them, each of which is used as often as the submodule is called. What stands
between two calls and has no layer belongs to the earlier one (`relu(norm(x))`), or else to the later one. Only if the
calls are equal in everything but the values that they are given is it one module.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from onnxgen.code.module_def import Assign, Statement, expressions
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, refs, rewrite, walk
from onnxgen.shapes.info import Info


@dataclass
class Repeated:
    """The calls of one submodule.

    Attributes:
        calls: the statements of each.
        inputs: for each call the values that it is given, in one order.
        made: for each call the values that it makes, in one order.
        varies: they are given values of several shapes.
    """

    calls: list[list[Statement]]
    inputs: list[list[str]]
    made: list[list[str]]
    varies: bool


def repeated(statements: list[Statement], infos: dict[str, Info]) -> Repeated | None:
    """The calls that the statements of a submodule are; None if it is one, or if they are not alike."""
    assigns = [s for s in statements if isinstance(s, Assign) and s.targets]
    if len(assigns) < len(statements):
        return None
    layers = [[n.member.path for e in expressions(s) for n in walk(e) if isinstance(n, MemberRef)] for s in assigns]
    counts = Counter(path for paths in layers for path in paths)
    count = gcd(*counts.values()) if counts else 1
    if count < 2:
        return None
    seen: Counter[tuple[str, ...]] = Counter()
    anchors: list[int | None] = []
    for paths in layers:
        calls = set()
        for path in paths:
            calls.add(seen[path] * count // counts[path])
            seen[path] += 1
        if len(calls) > 1:
            return None
        anchors.append(calls.pop() if calls else None)
    for assign in (_forwards, _backwards):
        numbers = assign(assigns, anchors)
        found = _alike([[s for s, n in zip(assigns, numbers) if n == call] for call in range(count)], infos)
        if found is not None:
            return found
    return None


def _forwards(statements: list[Assign], anchors: list[int | None]) -> list[int]:
    """What has no layer belongs to the call that it takes its operands from, else to the one that uses it."""
    return _spread(statements, anchors, max)


def _backwards(statements: list[Assign], anchors: list[int | None]) -> list[int]:
    """What has no layer belongs to the call that uses it, else to the one that it takes its operands from."""
    users: dict[str, list[int]] = {}
    for i, statement in enumerate(statements):
        for name in refs(statement.value):
            users.setdefault(name, []).append(i)
    numbers = list(anchors)
    for i in reversed(range(len(statements))):
        if numbers[i] is None:
            known = [numbers[j] for t in statements[i].targets for j in users.get(t, ())]
            numbers[i] = min((n for n in known if n is not None), default=None)
    return _spread(statements, numbers, max)


def _spread(statements: list[Assign], anchors: list[int | None], choose: Callable[[list[int]], int]) -> list[int]:
    numbers = list(anchors)
    makers = {target: i for i, s in enumerate(statements) for target in s.targets}
    for i, statement in enumerate(statements):
        if numbers[i] is None:
            known = [numbers[makers[name]] for name in refs(statement.value) if name in makers]
            found = [n for n in known if n is not None]
            numbers[i] = choose(found) if found else None
    for i in reversed(range(len(statements))):  # what depends on nothing of the submodule's own
        for name in refs(statements[i].value):
            j = makers.get(name)
            if j is not None and anchors[j] is None and numbers[j] is None:
                numbers[j] = numbers[i]
    return [n if n is not None else 0 for n in numbers]


def _alike(calls: list[list[Assign]], infos: dict[str, Info]) -> Repeated | None:
    texts = [_text(call) for call in calls]
    if any(text != texts[0][0] for text, _, _ in texts[1:]):
        return None
    inputs, made = [t[1] for t in texts], [t[2] for t in texts]
    shapes = [[str(infos.get(name, Info()).shape) for name in names] for names in inputs]
    kinds = [[infos.get(name, Info()).kind for name in names] for names in inputs]
    varies = any(s != shapes[0] for s in shapes)
    asks = any(isinstance(n, (SizeOf, DeviceOf)) for s in calls[0] for n in walk(s.value))
    if (varies and asks) or any(k != kinds[0] for k in kinds):  # a size would be read off another value
        return None
    return Repeated([list(call) for call in calls], inputs, made, varies)


def _text(statements: list[Assign]) -> tuple[list[str], list[str], list[str]]:
    """What a call computes, whatever its values are called; the values it is given; those that it makes."""
    names: dict[str, str] = {}
    inputs: list[str] = []

    def change(node: ast.AST) -> ast.expr | None:
        if isinstance(node, Ref):
            if node.value not in names:
                names[node.value] = f"%in{len(inputs)}"
                inputs.append(node.value)
            return ast.Name(names[node.value], ast.Load())
        if isinstance(node, MemberRef):
            return ast.Name("%" + ".".join(node.member.path), ast.Load())
        return ast.Name(f"%{node.dim}", ast.Load()) if isinstance(node, SizeOf) else None

    lines, made = [], []
    for statement in statements:
        lines.append(f"{statement.form} {len(statement.targets)} {ast.dump(rewrite(statement.value, change))}")
        for target in statement.targets:
            names[target] = f"%{len(names)}"
            made.append(target)
    return lines, inputs, made
