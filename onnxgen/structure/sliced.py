"""Lists that are neither called as a whole nor looped over: their gaps are filled, and neighbours are called together.

Goes in: a scope with such a list. Comes out: the scope, in which a function that the exporter noted in a gap is a layer
there (`self.model[10](x)`, an `nn.Upsample`), and items of which each feeds only the next one are called as a slice,
`self.model[:5](x)`. The list is an `nn.Sequential` then, since only those have slices that can be called.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import MemberRef, literal, quote
from onnxgen.common.names import ModulePath
from onnxgen.structure.runs import Flow, as_module, called, operand, parts_of
from onnxgen.structure.scopes import Scope
from onnxgen.structure.tree import fillable

Chain = list[tuple[int, Assign]]  # calls of neighbours, each with the number of its item


def fill_gaps(scope: Scope) -> None:
    """Register the layers of functions in the gaps of lists that are no `nn.Sequential`, which `runs.py` fills."""
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


def slice_lists(scope: Scope) -> None:
    """Replace calls of neighbours in each list by the call of a slice."""
    for path, parts in parts_of(scope).items():
        items = {int(name): item for name, item in sorted(parts.items(), key=lambda p: int(p[0])) if item is not None}
        if path != scope.path and path not in scope.containers and len(items) == len(parts) and fillable([*items]):
            flow = Flow(scope)
            for chain in _chains(flow, items):
                if len(chain) > 1:
                    _replace(flow, path, chain, last=max(items))
            flow.settle()


def _chains(flow: Flow, items: dict[int, Member]) -> list[Chain]:
    found: list[Chain] = []
    after: Assign | None = None  # what alone uses the result of the last call
    for n, item in items.items():
        calls = flow.calls.get(id(item), [])
        if len(calls) != 1 or len(flow.mentions[id(item)]) != 1:
            after = None
            continue
        if after is not calls[0] or called(after) is None:
            found.append([])
        found[-1].append((n, calls[0]))
        after = flow.after(calls[0])
    return found


def _replace(flow: Flow, path: ModulePath, chain: Chain, last: int) -> None:
    container = flow.scope.containers.setdefault(path, Member(path, quote("nn.Sequential"), "module"))
    (start, first), (end, final) = chain[0], chain[-1]
    assert isinstance(first.value, ast.Call)
    ends = (literal(start) if start else None, literal(end + 1) if end < last else None)
    part = ast.Subscript(MemberRef(container), ast.Slice(*ends), ast.Load())
    nodes = tuple(name for _, statement in chain for name in statement.nodes)
    whole = Assign(final.targets, ast.Call(part, first.value.args, []), first.scope, nodes)
    flow.replace([statement for _, statement in chain], whole)
