"""What one class registers, as a tree: attributes, numbered items of lists, and what lies below them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnxgen.code.module_def import Member
from onnxgen.code.quote import quote
from onnxgen.common.names import ModulePath


@dataclass(eq=False)
class Place:
    """An attribute, or an item of a list.

    Attributes:
        member: what is registered here; None for what only holds others.
        container: what the code calls these items as a whole.
        below: what it holds, by name.
        value: what makes the member, if that is not the member's own `build`.
        flag: the constructor's parameter that says whether an instance has it.
        passes: without it an `nn.Identity` stands in its place.
        count: how many items a list has, where instances differ in that; all are made as the first one.
    """

    member: Member | None = None
    container: Member | None = None
    below: dict[str, Place] = field(default_factory=dict)
    value: ast.expr | None = None
    flag: str = ""
    passes: bool = False
    count: ast.expr | None = None

    @property
    def is_list(self) -> bool:
        """Numbered submodules, or what holds such, that a container can hold."""
        return (
            self.member is None
            and bool(self.below)
            and all(
                name.isdigit() and (p.member is None or p.member.kind == "module") for name, p in self.below.items()
            )
        )

    @property
    def is_gapless(self) -> bool:
        return list(self.below) == [str(i) for i in range(len(self.below))]

    def at(self, path: ModulePath) -> Place | None:
        """The place that a path leads to from here."""
        place: Place | None = self
        for part in path:
            place = place.below.get(part) if place is not None else None
        return place

    def walk(self, path: ModulePath = ()) -> Iterator[tuple[ModulePath, Place]]:
        """This place and all below it, with the paths that lead there."""
        yield path, self
        for name, place in self.below.items():
            yield from place.walk((*path, name))


def tree(path: ModulePath, members: list[Member], containers: Mapping[ModulePath, Member]) -> Place:
    """The members of the class at `path`; `containers` are the lists that the code uses as a whole."""
    root = Place()
    for member in members:
        place = root
        for part in member.path[len(path) :]:
            place = place.below.setdefault(part, Place())
        place.member = member
    for at, container in containers.items():
        found = root.at(at[len(path) :])
        assert found is not None
        found.container = container
    _sort(root, path)
    return root


def _sort(place: Place, path: ModulePath) -> None:
    """Numbered parts come in the order of their numbers, whatever the order in which they were used.

    Those that are missing are filled with `nn.Identity`: an exporter drops what does nothing.
    """
    for name, below in place.below.items():
        _sort(below, (*path, name))
    if not all(name.isdigit() for name in place.below):
        return
    numbers = sorted(map(int, place.below))
    if place.is_list and fillable(numbers):
        for number in set(range(numbers[-1])) - set(numbers):
            member = Member((*path, str(number)), quote("nn.Identity()"), "module")
            place.below[str(number)] = Place(member)
    place.below = dict(sorted(place.below.items(), key=lambda item: int(item[0])))


def fillable(numbers: list[int]) -> bool:
    """Whether a list with these items may have `nn.Identity` for those that are missing: about as many, at most."""
    return max(numbers) + 1 - len(numbers) <= len(numbers) + 1
