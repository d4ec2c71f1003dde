"""`--annotate`: comments that name the ONNX nodes a line comes from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from onnxgen.common.names import FileText

MAX_NODES = 8  # named in one comment
LINE_LENGTH = 88 - 8  # of a line of `forward`, without its indentation
ANNOTATION = "onnx: "


@dataclass
class Marks:
    """The nodes of each line of one generation. The comment on a line has a number, the mark, in place of them.

    Attributes:
        lines: the nodes of each mark.
        merged: pairs of groups of nodes that share a statement, since their scopes share a class.
    """

    lines: list[tuple[FileText, ...]] = field(default_factory=list)
    merged: list[tuple[tuple[FileText, ...], tuple[FileText, ...]]] = field(default_factory=list)

    def nodes(self, mark: int) -> list[FileText]:
        """Return the nodes of a mark, and those of all scopes that share its line."""
        merged: dict[FileText, list[FileText]] = {}
        for own, other in self.merged:
            for name in own:
                merged.setdefault(name, []).extend(other)
        found = list(dict.fromkeys(self.lines[mark]))
        for name in found:  # `found` grows meanwhile
            found += [one for one in dict.fromkeys(merged.get(name, ())) if one not in found]
        return found


_MARKS: ContextVar[Marks | None] = ContextVar("marks", default=None)


@contextmanager
def marked() -> Iterator[Marks]:
    """Inside the `with`, `--annotate` writes marks instead of names and collects the names."""
    token = _MARKS.set(marks := Marks())
    try:
        yield marks
    finally:
        _MARKS.reset(token)


def note_merged(own: tuple[FileText, ...], other: tuple[FileText, ...]) -> None:
    """Record that one statement does the work of two groups of nodes."""
    if (marks := _MARKS.get()) is not None and own != other:
        marks.merged.append((own, other))


def annotated(line: str, nodes: tuple[FileText, ...]) -> list[str]:
    """Add the names of nodes to a line of `forward`: at its end or, if it would get too long, above it."""
    nodes = tuple(dict.fromkeys(nodes))
    if not nodes:
        return [line]
    if (marks := _MARKS.get()) is not None:
        marks.lines.append(nodes)
        names = [f"@{len(marks.lines) - 1}"]
    else:
        names = [_shown(name) for name in nodes[:MAX_NODES]]
        if len(nodes) > MAX_NODES:
            names[-1] += f" and {len(nodes) - MAX_NODES} more"
    whole = line + ("; " if "  # [" in line else "  # ") + ANNOTATION + ", ".join(names)
    if len(whole) <= LINE_LENGTH:
        return [whole]
    start = line[: len(line) - len(line.lstrip())] + "# " + ANNOTATION
    above = textwrap.wrap(", ".join(names), LINE_LENGTH - len(start), break_long_words=False, break_on_hyphens=False)
    return [*(start + text for text in above), line]


def _shown(name: FileText) -> str:
    """Return a name for a comment, without characters that could start a directive of a tool (`# fmt: skip`)."""
    return re.sub(r"[#;]", "?", name.printable(60)).strip() or "?"
