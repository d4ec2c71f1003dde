"""`--annotate`: comments that say which ONNX nodes a line comes from."""

from __future__ import annotations

import re
import textwrap

from onnxgen.common.names import FileText

MOST = 8  # nodes named of one line
LINE = 88 - 8  # characters of a line of `forward`
ANNOTATION = "onnx: "


def annotated(line: str, nodes: tuple[FileText, ...]) -> list[str]:
    """A line of `forward` with the names of nodes: behind it, or above it where black would break it for a comment."""
    nodes = tuple(dict.fromkeys(nodes))  # of one node there may be several statements
    if not nodes:
        return [line]
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
