"""`--annotate`: comments that say which ONNX nodes a line comes from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from onnxgen.common.names import FileText

MOST = 8  # nodes named of one line
LINE = 88 - 8  # characters of a line of `forward`
ANNOTATION = "onnx: "


@dataclass
class Marks:
    """The nodes of the lines of one generation, by the mark that stands in a comment for them.

    Attributes:
        lines: the nodes of each mark.
        merged: nodes of which one statement stands for both: two scopes have one class.
    """

    lines: list[tuple[FileText, ...]] = field(default_factory=list)
    merged: list[tuple[tuple[FileText, ...], tuple[FileText, ...]]] = field(default_factory=list)

    def nodes(self, mark: int) -> list[FileText]:
        """The nodes of a mark, and of all the scopes that share its line."""
        merged: dict[FileText, list[FileText]] = {}
        for own, other in self.merged:
            for name in own:
                merged.setdefault(name, []).extend(other)
        found = list(dict.fromkeys(self.lines[mark]))
        for name in found:  # which grows
            found += [one for one in dict.fromkeys(merged.get(name, ())) if one not in found]
        return found


_MARKS: ContextVar[Marks | None] = ContextVar("marks", default=None)


@contextmanager
def marked() -> Iterator[Marks]:
    """Let `--annotate` write marks instead of names, and keep the names."""
    token = _MARKS.set(marks := Marks())
    try:
        yield marks
    finally:
        _MARKS.reset(token)


def note_merged(own: tuple[FileText, ...], other: tuple[FileText, ...]) -> None:
    """One statement does the work of two groups of nodes."""
    if (marks := _MARKS.get()) is not None and own != other:
        marks.merged.append((own, other))


def annotated(line: str, nodes: tuple[FileText, ...]) -> list[str]:
    """A line of `forward` with the names of nodes: behind it, or above it where black would break it for a comment."""
    nodes = tuple(dict.fromkeys(nodes))  # of one node there may be several statements
    if not nodes:
        return [line]
    if (marks := _MARKS.get()) is not None:
        marks.lines.append(nodes)
        names = [f"@{len(marks.lines) - 1}"]
    else:
        names = [_shown(name) for name in nodes[:MOST]]
        if len(nodes) > MOST:
            names[-1] += f" and {len(nodes) - MOST} more"
    whole = line + ("; " if "  # [" in line else "  # ") + ANNOTATION + ", ".join(names)
    if len(whole) <= LINE:
        return [whole]
    start = line[: len(line) - len(line.lstrip())] + "# " + ANNOTATION
    above = textwrap.wrap(", ".join(names), LINE - len(start), break_long_words=False, break_on_hyphens=False)
    return [*(start + text for text in above), line]


def _shown(name: FileText) -> str:
    """A name as it may stand in a comment: with nothing that a tool takes there for its own (`# fmt: skip`)."""
    return re.sub(r"[#;]", "?", name.printable(60)).strip() or "?"
