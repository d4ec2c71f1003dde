"""Functions that were items of a list become items again: `self.model[10](x)`, an `nn.Upsample`.

Goes in: a scope whose list has a gap in its numbers, and one statement that the exporter noted in that gap. Comes out:
the scope with the layer of that function in the gap. Lists that are an `nn.Sequential` are filled by `runs.py`, which
knows their order.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import MemberRef
from onnxgen.structure.runs import as_module, operand, parts_of
from onnxgen.structure.scopes import Scope
from onnxgen.structure.tree import fillable


def fill_gaps(scope: Scope) -> None:
    """Register the layers of functions in the gaps of lists that are no `nn.Sequential`."""
    noted = defaultdict(list)
    for statement in scope.body:
        noted[statement.scope].append(statement)
    inside = Counter(path[:n] for path in noted for n in range(len(path)))
    for path, items in parts_of(scope).items():
        numbers = [int(name) for name in items]
        if path in scope.containers and scope.containers[path].layer == "nn.Sequential" or not fillable(numbers):
            continue
        for number in sorted({*range(max(numbers))} - {*numbers}):
            place = (*path, str(number))
            only = noted[place][0] if len(noted[place]) == 1 and not inside[place] else None
            build = as_module(only.value) if isinstance(only, Assign) and len(only.targets) == 1 else None
            if build is not None and isinstance(only, Assign) and (given := operand(only.value)) is not None:
                member = Member(place, build, "module")
                scope.members.append(member)
                only.value = ast.Call(MemberRef(member), [given], [])
