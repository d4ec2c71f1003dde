"""Makes the page of `onnxgen diff`: what changed, and both sources side by side.

All text from the files is escaped, and nothing is loaded from a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from pygments.formatters import HtmlFormatter

from onnxgen.common.names import printable
from onnxgen.diff.answer import Change, Comparison, Weight
from onnxgen.diff.texts import rows
from onnxgen.view.page import coloured, script

HERE = Path(__file__).parent
GENERATOR = '<meta name="generator" content="onnxgen diff">'
NEAR = 3  # lines around a change that are shown; the others are folded
MARKS = {"added": "+", "removed": "-", "changed": "~"}


@dataclass
class Branch:
    """A module of the tree: its path, the changes in it, and how many of its tensors changed."""

    path: str
    changes: list[Change] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    tensors: int = 0

    @property
    def depth(self) -> int:
        return self.path.count(".") + 1 if self.path else 0

    @property
    def mark(self) -> str:
        return MARKS[self.changes[0].kind] if len({c.kind for c in self.changes}) == 1 else "~" if self.changes else ""

    @property
    def width(self) -> int:
        """The largest change of a tensor, as percent of its norm, for a bar."""
        return min(100, max(1, round(100 * max((w.relative for w in self.weights), default=0))))


def page(found: Comparison) -> str:
    """Return the page of a comparison."""
    templates = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    text, digest = script(HERE / "page.js")
    one, other = (coloured(list(lines)) for lines in found.sources)
    shown = [(kind, a, one[a - 1] if a else "", b, other[b - 1] if b else "") for kind, a, b in rows(*found.sources)]
    return templates.get_template("page.html.jinja").render(
        generator=Markup(GENERATOR),
        digest=digest,
        script=Markup(text),
        colours=Markup(HtmlFormatter().get_style_defs("#sources")),
        found=found,
        names=[printable(Path(path).name) for path in (found.one, found.other)],
        tree=tree(found),
        weights=sorted(found.changed_weights, key=lambda w: -w.relative),
        lines=list(folded(shown)),
    )


def tree(found: Comparison) -> list[Branch]:
    """Return the modules, in order, with what changed in each."""
    branches: dict[str, Branch] = {"": Branch("")}

    def branch(path: str) -> Branch:
        parts = path.split(".") if path else []
        for depth in range(1, len(parts) + 1):
            branches.setdefault(".".join(parts[:depth]), Branch(".".join(parts[:depth])))
        return branches[path]

    for weight in found.weights:
        at = branch(weight.name.rpartition(".")[0])
        at.tensors += 1
        if weight.how not in ("same", "rounding"):
            at.weights.append(weight)
    for change in found.changes:
        side = change.now or change.was
        branch("" if side is None else side.module).changes.append(change)
    order = {path: number for number, path in enumerate(branches)}
    return [branches[path] for path in sorted(branches, key=lambda p: _place(p, order))]


def _place(path: str, order: dict[str, int]) -> list[int]:
    parts = path.split(".") if path else []
    return [order[".".join(parts[: n + 1])] for n in range(len(parts))]


Line = tuple[str, int, Markup | str, int, Markup | str]


def folded(lines: Sequence[Line]) -> Iterable[tuple[bool, list[Line]]]:
    """Yield groups of lines: those near a change, which are shown, and the others."""
    near = [False] * len(lines)
    for number, line in enumerate(lines):
        if line[0] != "same":
            for at in range(max(0, number - NEAR), min(len(lines), number + NEAR + 1)):
                near[at] = True
    group: list[Line] = []
    for number, line in enumerate(lines):
        if group and near[number] != near[number - 1]:
            yield near[number - 1], group
            group = []
        group.append(line)
    if group:
        yield near[-1], group
