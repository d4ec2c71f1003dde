"""The tree of what one class registers.

Goes in: the members of a class with their module paths, and its containers. Comes out: a tree of `Entry` objects, one
for each attribute and list item. `layout.py` writes `__init__` from it; `forms.py` compares the trees of two classes.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxgen.code.module_def import Member
from onnxgen.code.quote import quote
from onnxgen.common.names import ModulePath


@dataclass(eq=False)
class Entry:
    """An attribute of a module, or an item of a list.

    Attributes:
        member: what is registered here; None if this only holds other entries.
        container: the member by which the code uses all items of this list at once.
        below: the entries that it holds, by name.
        value: the expression that makes the member, if it is not the member's own `build`.
        flag: the parameter or the condition that says whether an instance has it.
        passes: an instance that does not have it has an `nn.Identity` instead.
        count: the length of a list whose length is a parameter; all its items are made like the first one.
    """

    member: Member | None = None
    container: Member | None = None
    below: dict[str, Entry] = field(default_factory=dict)
    value: ast.expr | None = None
    flag: str = ""
    passes: bool = False
    count: ast.expr | None = None

    @property
    def is_list(self) -> bool:
        """True if all entries below are numbered modules, so that one container can hold them."""
        modules = (p.member is None or p.member.kind == "module" for p in self.below.values())
        return self.member is None and bool(self.below) and all(map(str.isdigit, self.below)) and all(modules)

    @property
    def is_gapless(self) -> bool:
        return list(self.below) == [str(i) for i in range(len(self.below))]


def tree(path: ModulePath, members: list[Member], containers: Mapping[ModulePath, Member]) -> Entry:
    """Return the tree of the class at `path`. `containers` are the lists that its code uses as a whole, by path."""
    root = Entry()

    def entry(at: ModulePath) -> Entry:
        found = root
        for part in at[len(path) :]:
            found = found.below.setdefault(part, Entry())
        return found

    for member in members:
        entry(member.path).member = member
    for at, container in containers.items():
        entry(at).container = container
    _sort(root, path)
    return root


def _sort(entry: Entry, path: ModulePath) -> None:
    """Sort numbered entries by number, and fill gaps in a list with `nn.Identity`: exporters drop what does nothing."""
    for name, below in entry.below.items():
        _sort(below, (*path, name))
    if not all(map(str.isdigit, entry.below)):
        return
    numbers = sorted(map(int, entry.below))
    if entry.is_list and fillable(numbers):
        for number in set(range(numbers[-1])) - set(numbers):
            member = Member((*path, str(number)), quote("nn.Identity()"), "module")
            entry.below[str(number)] = Entry(member)
    entry.below = dict(sorted(entry.below.items(), key=lambda item: int(item[0])))


def fillable(numbers: list[int]) -> bool:
    """True if a list with these items may have `nn.Identity` in its gaps: at most one more than it has items."""
    return max(numbers) + 1 - len(numbers) <= len(numbers) + 1
