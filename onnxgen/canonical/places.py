"""Where two networks part: the first value of one that the other has not, with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onnxgen.canonical.capture import Captured
from onnxgen.canonical.matching import below

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s*(.*)')


@dataclass(frozen=True)
class Place:
    """A line that computes a value which the other network has not.

    Attributes:
        side: "edited" or "generated".
        line: its number in the file.
        code: its text.
        module: the path of the module that it belongs to.
        operator: what it calls there.
    """

    side: str
    line: int
    code: str
    module: str
    operator: str


def part_ways(reference: Captured, edited: Captured, file: str) -> list[Place]:
    """Return the first place of each network that has no equal in the other, that of the edited one first."""
    sides = (("edited", edited, reference), ("generated", reference, edited))
    return [place for side, one, other in sides for place in _first(side, one, other, file)]


def _first(side: str, one: Captured, other: Captured, file: str) -> Iterator[Place]:
    known = {*below([*other.outputs, *other.changed.values()]), *(term for term, _ in other.places)}
    needed = {*below([*one.outputs, *one.changed.values()])}
    for term, node in one.places:
        if term in known or term not in needed:
            continue
        frames = FRAME.findall(node.meta.get("stack_trace") or "")
        ours = [f for f in frames if side == "generated" or f[0] == file] or frames
        if ours:
            _, line, _, code = ours[-1]
            modules: dict[str, Any] = node.meta.get("nn_module_stack") or {}
            path = list(modules.values())[-1][0] if modules else ""
            yield Place(side, int(line), code.strip(), path, str(node.target))
        return
