"""Where two networks part: the first value of one that the other has not, of those that reach an output."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from torch.fx import Node

from onnxgen.canonical.capture import Captured
from onnxgen.canonical.terms import Term

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
        nodes: the nodes of the ONNX file that the line was made of.
    """

    side: str
    line: int
    code: str
    module: str
    operator: str
    nodes: tuple[str, ...] = ()


class Texts:
    """The text of an edited file, and the text that was generated."""

    def __init__(self, edited: str, generated: str) -> None:
        self.edited, self.generated = edited.splitlines(), generated.splitlines()
        matcher = SequenceMatcher(None, self.generated, self.edited, autojunk=False)
        self.blocks = matcher.get_opcodes()

    def is_edited(self, line: int) -> bool:
        return any(tag != "equal" and start < line <= stop for tag, _, _, start, stop in self.blocks)

    def first(self) -> Place | None:
        """The first line that was edited."""
        for tag, _, _, start, stop in self.blocks:
            lines = [n for n in range(start, max(stop, start + 1)) if n < len(self.edited) and self.edited[n].strip()]
            if tag != "equal" and lines:
                return Place("edited", lines[0] + 1, self.edited[lines[0]].strip(), "", "")
        return None

    def moved(self, line: int) -> int | None:
        """Return the line of the edited file that stands where this line of the generated one stood."""
        for tag, first, last, start, stop in self.blocks:
            if first < line <= last:
                return start + line - first if tag == "equal" else min(start + line - first, max(stop, start + 1))
        return None

    def back(self, line: int) -> int | None:
        """Return the line of the generated file that stood where this line of the edited one stands."""
        for tag, first, last, start, stop in self.blocks:
            if start < line <= stop:
                return first + line - start if tag == "equal" else min(first + line - start, max(last, first + 1))
        return None

    def was_edited(self, line: int) -> bool:
        return any(tag != "equal" and first < line <= last for tag, first, last, _, _ in self.blocks)


def part_ways(reference: Captured, edited: Captured, file: str, texts: Texts) -> list[Place]:
    """Return where networks part, the edited one first. The first place is a line that was edited, if one of them is.

    An edit of `__init__` shows at the call of what it sets, and then the line that sets it is named, too.
    """
    here = first(edited, reference, "edited", file, texts.edited)
    there = first(reference, edited, "generated", "", texts.generated)
    places = [place for place in (here, there) if place is not None]
    moved = texts.moved(there.line) if there is not None else None
    set_here = [place for p in places for place in _set_by(p, texts.edited) if texts.is_edited(place.line)]
    if here is not None and texts.is_edited(here.line):
        return places
    if set_here:
        return [*places, set_here[0]]
    if there is not None and moved is not None and texts.was_edited(there.line):
        code = texts.edited[moved - 1].strip() if moved <= len(texts.edited) else ""
        return [replace(there, side="edited", line=moved, code=code), *places]
    return places


def first(one: Captured, other: Captured, side: str, file: str, rows: Sequence[str]) -> Place | None:
    """Return the first value of a network that the other has not, of those that reach an output so."""
    known = {term for term, _ in other.places}
    terms = dict[Node, list[Term]]()
    for term, node in one.places:
        terms.setdefault(node, []).append(term)
    wrong = {node for node, made in terms.items() if any(term not in known for term in made)}
    reached: set[Node] = set()
    todo = [n for node in terms for n in [node] if any(user.op == "output" for user in node.users)]
    while todo:
        node = todo.pop()
        if node in wrong and node not in reached:
            reached.add(node)
            todo += [n for n in node.all_input_nodes if n in terms]
        elif node in terms and not terms[node] and node not in reached:
            reached.add(node)
            todo += node.all_input_nodes
    for _, node in one.places:
        if node in reached and node in wrong:
            return place_of(node, side, file, rows)
    return None


def place_of(node: Node, side: str, file: str, rows: Sequence[str] = ()) -> Place | None:
    """Return the line that called an operator: in the file, or else the innermost that is not torch's own."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    trace = node.meta.get("stack_trace") or ""
    for part in node.all_input_nodes if not trace else ():  # the block of torch.no_grad: the last line in it
        if part.op == "get_attr":
            inner = getattr(node.graph.owning_module, str(part.target)).graph.nodes
            trace = next((n.meta["stack_trace"] for n in reversed(inner) if n.meta.get("stack_trace")), "")
    frames = FRAME.findall(trace)
    ours = [f for f in frames if (f[0].startswith("<onnxgen ") if side == "generated" else f[0] == file)]
    ours = ours or [f for f in frames if "/torch/" not in f[0]] or frames
    if not ours:
        return None
    _, line, _, code = ours[-1]
    if 0 < int(line) <= len(rows) and ours is not frames:
        code = rows[int(line) - 1]
    modules: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    path = list(modules.values())[-1][0] if modules else ""
    return Place(side, int(line), code.strip(), path, str(node.target))


def _set_by(place: Place, rows: Sequence[str]) -> Iterator[Place]:
    """Yield the lines that set what a line names as `self.x`."""
    names = {*re.findall(r"self\.(\w+)", place.code), *place.module.split(".")}
    for node in ast.walk(ast.parse("\n".join(rows))):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for statement in node.body:
                if names & {*re.findall(r"self\.(\w+)", "\n".join(rows[statement.lineno - 1 : statement.end_lineno]))}:
                    yield from _rows(place, statement, rows)


def _rows(place: Place, statement: ast.stmt, rows: Sequence[str]) -> Iterable[Place]:
    for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
        yield Place("edited", line, rows[line - 1].strip(), place.module, "")
