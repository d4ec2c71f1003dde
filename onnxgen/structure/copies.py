"""Copies between values that are never alive together: `y = f(x)` and `z = y` become `z = f(x)`.

Goes in: the body of a class; its loops and branches assign the values they carry by plain copies. Comes out: the same
body, without the copies that are not needed. An `if` of which one side only hands a value on has no such side then:
`if c: y = f(x)`, `else: y = x` becomes `if c: x = f(x)`.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxgen.code.module_def import (
    Assign,
    If,
    Loop,
    Statement,
    assigned,
    blocks,
    change_own,
    expressions,
    flattened,
    used,
)
from onnxgen.code.quote import Change, Ref, put, refs
from onnxgen.structure.scopes import Scope


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
    choices = [(i, s, side) for i, s in enumerate(block) if isinstance(s, If) for side in (s.orelse, s.then)]
    copies = [(i, s, side, copy) for i, s, side in choices for copy in side if _copied(copy) in s.targets]
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
