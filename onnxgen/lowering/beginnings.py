"""Tables that are the beginning of another one: `self.positions[:7]`, not a second table.

Goes in: the flat body, with a buffer for each constant. Comes out: the body in which the longest of several tables of a
module stands for those that begin it, since an exporter folded slices of one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from onnxgen.code.module_def import Member, Statement, change_own, flattened
from onnxgen.code.quote import MemberRef, quote


def share_beginnings(body: list[Statement], members: Iterable[Member], tables: Mapping[int, NDArray[Any]]) -> None:
    """Replace each such buffer in the statements. `tables`: the elements of buffers, by the `id` of the member."""
    alike: dict[object, list[Member]] = {}
    for member in members:
        array = tables.get(id(member))
        if array is not None and member.kind == "buffer" and array.ndim > 1:
            kind = member.path[:-1], array.dtype, array.shape[1:], array[:1].tobytes()
            alike.setdefault(kind, []).append(member)
    found: dict[int, tuple[Member, int]] = {}
    for group in alike.values():
        longest = max(group, key=lambda member: len(tables[id(member)]))
        whole = tables[id(longest)]
        for member in group:
            rows = len(array := tables[id(member)])
            if rows < len(whole) and array.tobytes() == whole[:rows].tobytes():
                found[id(member)] = longest, rows
    for statement in flattened(body) if found else ():
        change_own(statement, lambda n: _beginning(n, found))


def _beginning(tree: Any, found: Mapping[int, tuple[Member, int]]) -> Any:
    if not isinstance(tree, MemberRef) or id(tree.member) not in found:
        return None
    table, rows = found[id(tree.member)]
    return quote("t[:n]", t=MemberRef(table), n=rows)
