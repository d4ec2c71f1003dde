"""Copies between values that are never alive together: `y = f(x)` and `z = y` become `z = f(x)`.

Goes in: the body of a class; its loops and branches assign the values they carry by plain copies. Comes out: the same
body, without the copies that are not needed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from onnxgen.code.module_def import Assign, Loop, Statement, assigned, blocks, change_own, expressions, flattened, used
from onnxgen.code.quote import Ref, refs
from onnxgen.structure.scopes import Scope


def drop_copies(scope: Scope) -> None:
    """Rename each copied value to its copy if that changes no result, and remove the copy.

    Runs after sizes are resolved, since what is known about the copied value is lost.
    """
    kept = {r for output in scope.outputs for r in refs(output)}
    _block(scope.body, kept, {argument.value for argument in scope.inputs})


def _block(block: list[Statement], after: set[str], outside: set[str]) -> None:
    """Drop the copies in a block. `after`: values used after it; `outside`: values assigned outside it."""
    for statement in block:
        turn = statement.turn if isinstance(statement, Loop) else ()
        for inner in blocks(statement):
            around = {name for other in block for name in other.targets}
            _block(inner, set(statement.targets), {*outside, *around, *turn})
    q = 0
    while q < len(block):
        copy = block[q]
        if isinstance(copy, Assign) and len(copy.targets) == 1 and isinstance(copy.value, Ref):
            new, old = copy.targets[0], copy.value.value
            first = 0 if new == old else _definition(block, q, new, old, after, outside)
            if first is not None:
                for i in range(first, q):
                    rename(block[i], old, new)
                del block[q]
                continue
        q += 1


def _definition(block: list[Statement], q: int, new: str, old: str, after: set[str], outside: set[str]) -> int | None:
    """Return the index of the statement that first assigns `old`, if it can be named `new` from there to `q`."""
    if old in outside or old in after:
        return None
    first = q - 1
    while first >= 0 and (old not in block[first].targets or old in used(block[first])):
        if new in _mentioned(block[first]):
            return None
        first -= 1
    if first < 0 or any(old in _mentioned(s) for s in block[q + 1 :]):
        return None
    start = block[first]
    clash = new in start.targets if isinstance(start, Assign) else new in _mentioned(start)
    return None if clash else first


def _mentioned(statement: Statement) -> set[str]:
    return {*assigned(statement), *(r for e in expressions(statement) for r in refs(e))}


def rename(statement: Statement, old: str, new: str) -> None:
    """Rename a value in a statement and its nested blocks."""

    def change(tree: ast.AST) -> Ref | None:
        return Ref(new) if isinstance(tree, Ref) and tree.value == old else None

    for each in flattened([statement]):
        each.targets = tuple(new if t == old else t for t in each.targets)
    replace_in(statement, change)


def replace_in(statement: Statement, change: Callable[[ast.AST], ast.expr | None]) -> None:
    """Rewrite every expression of a statement, nested blocks included (see `quote.rewrite`)."""
    for each in flattened([statement]):
        change_own(each, change)
