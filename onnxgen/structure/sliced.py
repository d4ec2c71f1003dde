"""Calls of neighbours in a list: `self.model[:5](x)` for five items of which each feeds only the next one.

Goes in: a scope whose list is neither called as a whole nor looped over. Comes out: the scope with slices called.
The list is an `nn.Sequential` then, since only those have slices that can be called.
"""

from __future__ import annotations

import ast

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import MemberRef, literal, quote
from onnxgen.common.names import ModulePath
from onnxgen.structure.runs import Flow, called, parts_of
from onnxgen.structure.scopes import Scope
from onnxgen.structure.tree import fillable

LEAST = 2  # items of a slice


def slice_lists(scope: Scope) -> None:
    """Replace calls of neighbours in each list by the call of a slice."""
    for path, parts in parts_of(scope).items():
        items = {int(name): item for name, item in parts.items() if item is not None}
        if path != scope.path and path not in scope.containers and len(items) == len(parts) and fillable([*items]):
            flow = Flow(scope)
            for chain in _chains(flow, items):
                _replace(flow, path, chain, last=max(items))
            flow.settle()


def _chains(flow: Flow, items: dict[int, Member]) -> list[list[tuple[int, Assign]]]:
    """Return the calls of neighbours, each with the number of its item."""
    found: list[list[tuple[int, Assign]]] = []
    after: Assign | None = None  # what alone uses the result of the last call
    for n in sorted(items):
        calls = flow.calls.get(id(items[n]), [])
        once = len(calls) == 1 == len(flow.mentions[id(items[n])])
        if once and after is calls[0]:
            found[-1].append((n, calls[0]))
        elif once:
            found.append([(n, calls[0])])
        after = flow.after(calls[0]) if once else None
        after = after if after is not None and called(after) is not None else None
    return [chain for chain in found if len(chain) >= LEAST]


def _replace(flow: Flow, path: ModulePath, chain: list[tuple[int, Assign]], last: int) -> None:
    container = flow.scope.containers.setdefault(path, Member(path, quote("nn.Sequential"), "module"))
    (start, first), (end, final) = chain[0], chain[-1]
    assert isinstance(first.value, ast.Call)
    ends = (literal(start) if start else None, literal(end + 1) if end < last else None)
    part = ast.Subscript(MemberRef(container), ast.Slice(*ends), ast.Load())
    nodes = tuple(name for _, statement in chain for name in statement.nodes)
    whole = Assign(final.targets, ast.Call(part, first.value.args, []), first.scope, nodes)
    flow.replace([statement for _, statement in chain], whole)
