"""A loop over a list of one item, where the same list of another module has several.

y = self.m(b)                               x = b
z = self.cv2(torch.cat([a, b, y], dim=1))   features = []
                                            for m in self.m:
                                                x = m(x)
                                                features.append(x)
                                            z = self.cv2(torch.cat([a, b, *features], dim=1))

Goes in: the statement that calls the item, and the loop of the other module. Comes out: a loop of one turn, if the
statement does what a turn of the other loop does, so that both modules may be of one class.
"""

from __future__ import annotations

import ast
from collections import Counter
from itertools import chain

from onnxgen.code.module_def import Assign, ModuleDef, expressions
from onnxgen.code.quote import Ref, refs, walk
from onnxgen.structure.loops import Run
from onnxgen.structure.scopes import Scope
from onnxgen.structure.turns import Items


class OneTurn(Run):
    """The dataflow of a loop of one turn: that of `like`."""

    def __init__(
        self, scope: Scope, items: Items, statement: Assign, uses: Counter[str], module: ModuleDef, like: Run
    ) -> None:
        super().__init__(scope, items, [[statement]], uses, module)
        given = refs(statement.value)
        self.is_regular = (
            like.kept == [(0, 0)] == [*like.starts]
            and len(like.turns[0]) == 1
            and not like.own
            and like.items.text(like.turns[-1][0]) == items.text(statement)
            and len(given) == len(like.reads[0])
            and self._is_listed(statement.targets[0], like.beside)
        )
        if self.is_regular:
            self.reads, self.kept = like.reads, like.kept
            self.starts = {(0, 0): given[like.reads[0].index((0, 0))]}

    def _is_listed(self, value: str, beside: int) -> bool:
        """True if a value is an item of a list with so many others."""
        found = chain.from_iterable(map(expressions, self.scope.body))
        trees = (node for tree in (*found, *self.scope.outputs) for node in walk(tree))
        lists = [tree.elts for tree in trees if isinstance(tree, ast.List)]
        return any(len(e) - 1 == beside and any(isinstance(i, Ref) and i.value == value for i in e) for e in lists)
