"""The phases of a method: where an empty line stands, and which results have their shape in a comment.

A phase ends where one value is all that the statements before hand on to those behind. Loops have lines around them.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import accumulate

from onnxgen.code import printer
from onnxgen.code.quote import walk
from onnxgen.code.steps import chain

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
    made = [_bare(statement, i in kept) for i, statement in enumerate(body)]
    return [printer.apart(one) if i in starts else one for i, one in enumerate(made)]


def _starts(body: Sequence[ast.stmt], least: int) -> list[int]:
    """Return the statements that begin a phase, but for the first."""
    handed_on, loops = _handed_on(body), _loops(body)
    found: list[int] = []
    begin = 0
    for i in range(1, len(body) - BESIDE + 1):
        size = i - begin
        changes = _first_call(body[i]) in AXES or (size >= LONG and bool(printer.dims_of(body[i - 1])))
        if (i in loops and size >= BESIDE) or (
            size >= least and len(body) - i >= ENDING and changes and handed_on[i] <= 1
        ):
            found.append(i)
            begin = i
    return found


def _loops(body: Sequence[ast.stmt]) -> set[int]:
    """Return where loops begin, with the lists that they fill, and what follows them."""
    found = set()
    for i, statement in enumerate(body):
        if isinstance(statement, ast.For):
            found.add(i + 1)
            while (
                i and isinstance(before := body[i - 1], ast.Assign) and isinstance(before.value, (ast.List, ast.Name))
            ):
                i -= 1
            found.add(i)
    return found


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


def _bare(statement: ast.stmt, keeps: bool) -> ast.stmt:
    """Return a statement whose blocks have no comments of dims, and which has none unless it `keeps` it."""
    blocks = {
        name: [_bare(inner, False) for inner in block]
        for name in ("body", "orelse")
        if (block := getattr(statement, name, None))
    }
    made = printer.changed(statement, **blocks) if blocks else statement
    return made if keeps or not printer.dims_of(made) else printer.like(made, printer.changed(made), "")
