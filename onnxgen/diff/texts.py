"""Two sources side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from onnxgen.diff.answer import Change
from onnxgen.diff.answer import Side as Where

if TYPE_CHECKING:
    from onnxgen.diff.side import Side

Row = tuple[str, int, int]  # "same", "changed", "added" or "removed"; the lines of both, from 1; 0: none


def rows(one: Sequence[str], other: Sequence[str]) -> Iterator[Row]:
    """Yield the lines of two texts side by side."""
    for tag, a, a_, b, b_ in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        for n in range(max(a_ - a, b_ - b)):
            left, right = (a + n + 1 if a + n < a_ else 0), (b + n + 1 if b + n < b_ else 0)
            kind = "same" if tag == "equal" else "changed" if left and right else "removed" if left else "added"
            yield kind, left, right


def changed_lines(one: Side, other: Side) -> Iterator[Change]:
    """Yield the lines of code that differ, outside of docstrings and what loads the weights."""
    for kind, left, right in rows(one.lines, other.lines):
        if kind == "same":
            continue
        was, now = _where(one, left), _where(other, right)
        if was is None and now is None:
            continue
        if was and now:
            yield Change("changed", f"{was.code} -> {now.code}", was, now)
        else:
            yield Change("added" if now else "removed", (was or now or Where()).code, was, now)


def _where(side: Side, line: int) -> Where | None:
    """Return a line of the network, or None."""
    if not line or line not in side.code or side.lines[line - 1].startswith(("import ", "from ")):
        return None
    return Where("", line, side.lines[line - 1].strip(), tuple(side.nodes.get(line, ())))
