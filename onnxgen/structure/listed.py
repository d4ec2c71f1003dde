"""Comprehensions: loops that do nothing but fill a list.

features = []                                      x = torch.cat([layer(x) for layer in self.layers], dim=1)
for layer in self.layers:
    features.append(layer(x))
x = torch.cat(features, dim=1)

Goes in: the body of a class, whose values have their names. Comes out: the same body, in which such a loop is one
expression, if it fits one line; a list that only the next statement uses is written there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace

from onnxgen.code import printer
from onnxgen.code.module_def import Assign, Loop, Statement, blocks
from onnxgen.code.quote import Ref, put, refs, rewrite
from onnxgen.common.names import UNUSED, LocalName
from onnxgen.structure.nesting import LINE, called_before
from onnxgen.structure.scopes import Scope

LISTED = 100 - 8  # characters of a line with a comprehension, which would take three lines as a loop


class Lists:
    """Finds the loops of a body that fill a list. `text` prints an expression. `turns`: see `ModuleDef`."""

    def __init__(
        self,
        scope: Scope,
        names: Mapping[str, LocalName],
        turns: frozenset[str],
        text: Callable[[ast.expr], str],
    ) -> None:
        self.scope, self.names, self.turns, self.text, self.uses = scope, names, turns, text, scope.uses()

    def run(self) -> None:
        """Write them as comprehensions."""
        if any(isinstance(statement, Loop) for statement in self.scope.body):
            returned = Assign((), ast.Tuple(self.scope.outputs, ast.Load()), nodes=self.scope.nodes)
            self.scope.body = self._block([*self.scope.body, returned], 0)[:-1]
            assert isinstance(returned.value, ast.Tuple)
            self.scope.outputs, self.scope.nodes = returned.value.elts, returned.nodes

    def _block(self, block: list[Statement], level: int) -> list[Statement]:
        made: list[Statement] = []
        for statement in block:
            for inner in blocks(statement):
                inner[:] = self._block(inner, level + 1)
            whole = self._comprehension(made[-1], statement) if made else None
            if whole is not None and self._width(whole) <= LISTED - 4 * level:
                made[-1] = whole
                continue
            if made and isinstance(made[-1], Assign) and isinstance(made[-1].value, ast.ListComp):
                self._join(made, statement, LINE - 4 * level)
            made.append(statement)
        return made

    def _comprehension(self, begin: Statement, loop: Statement) -> Assign | None:
        """Return the assignment of a list for the loop that fills it; None for other statements."""
        is_begun = isinstance(begin, Assign) and isinstance(begin.value, ast.List) and not begin.value.elts
        if not is_begun or not isinstance(loop, Loop) or loop.iterable is None or loop.stop is not None:
            return None
        if not self.turns.isdisjoint(loop.turn):  # the checker can't compare a loop of unknown length with a list
            return None
        name, step = begin.targets[0], loop.body[-1]
        item = _appended(step, name) if loop.targets == begin.targets else None
        first = loop.body[0]
        if len(loop.body) == 2 and isinstance(item, Ref) and isinstance(first, Assign) and not first.form:
            item = first.value if first.targets == (item.value,) and self.uses[item.value] == 1 else None
        elif len(loop.body) > 1:
            item = None
        if item is None:
            return None
        turn = printer.target([self.names[n] for n in loop.turn] or [UNUSED], loop.form)
        made = ast.ListComp(item, [ast.comprehension(turn, loop.iterable, [], 0)])
        nodes = (name for statement in (begin, loop, *loop.body) for name in statement.nodes)
        return Assign((name,), made, begin.scope, tuple(nodes))

    def _join(self, made: list[Statement], statement: Statement, room: int) -> None:
        """Write a list in the statement behind it, if that is the only one that uses it and stays one line."""
        whole = made[-1]
        assert isinstance(whole, Assign)
        name = whole.targets[0]
        if not isinstance(statement, Assign) or self.uses[name] != 2 or name not in refs(statement.value):
            return  # one use fills it
        if called_before(statement.value, name):
            return
        value = rewrite(statement.value, put({name: whole.value}))
        if self._width(replace(statement, value=value)) <= room:
            statement.value = value
            statement.nodes = (*whole.nodes, *statement.nodes)
            made.pop()

    def _width(self, statement: Assign) -> int:
        """Return how many characters a statement has. One without a target is the `return`."""
        target = ", ".join(self.names[name] for name in statement.targets)
        return len(f"{target or 'return'} = {self.text(statement.value)}")


def _appended(statement: Statement, name: str) -> ast.expr | None:
    """Return what a statement appends to a list, if it does nothing else."""
    tree = statement.value if isinstance(statement, Assign) and not statement.targets else None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute) or tree.func.attr != "append":
        return None
    is_list = isinstance(tree.func.value, Ref) and tree.func.value.value == name
    return tree.args[0] if is_list and refs(tree).count(name) == 1 else None
