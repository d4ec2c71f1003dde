"""Finds the ONNX nodes that each line of a generated file comes from."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from onnxgen.code.annotations import ANNOTATION, marked
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.pipeline import build
from onnxgen.view.graph import MAX_NAME_CHARACTERS

_MARK = re.compile(rf"(?:; |\s*# ){ANNOTATION}@(\d+)$")


def traced(path: Path, options: Options, out: Path) -> tuple[Generated, list[str], dict[int, list[str]]]:
    """Generate a module in memory.

    Returns:
        The module, the lines of its source, and the names of the nodes of each line, by line number (from 1).

    Raises:
        OnnxgenError: as `onnxgen.pipeline.build`.
    """
    with marked() as marks:
        generated = build(path, replace(options, annotate=True), out)
    lines, found = _without_marks(generated.source)
    tree = ast.parse("\n".join(lines))
    last = _last_lines(tree)
    nodes: dict[int, list[str]] = {}
    for first, mark in found.items():
        names = [name.printable(MAX_NAME_CHARACTERS) for name in marks.nodes(mark)]
        for number in range(first, last.get(first, first) + 1):
            nodes[number] = names
    return generated, lines, {**nodes, **_registered(tree, nodes)}


def _without_marks(source: str) -> tuple[list[str], dict[int, int]]:
    """Return the lines of a source without its marks, and the mark of each statement by its first line."""
    lines: list[str] = []
    found: dict[int, int] = {}
    above: int | None = None
    for line in source.splitlines():
        mark = _MARK.search(line)
        text = line if mark is None else line[: mark.start()]
        if mark is not None and not text.strip():
            above = int(mark[1])
            continue
        lines.append(text)
        number = above if above is not None else int(mark[1]) if mark is not None else None
        if number is not None:
            found[len(lines)] = number
        above = None
    return lines, found


def _last_lines(tree: ast.Module) -> dict[int, int]:
    """Return the last line of each statement, without its nested blocks, by its first line."""
    last: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.For, ast.While, ast.With)):
            last[node.lineno] = node.body[0].lineno - 1
        elif isinstance(node, ast.stmt):
            last[node.lineno] = node.end_lineno or node.lineno
    return last


def _registered(tree: ast.Module, nodes: Mapping[int, list[str]]) -> dict[int, list[str]]:
    """Return the nodes of each line of `__init__`: those of the lines that use the member."""
    found: dict[int, list[str]] = {}
    for made in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        users: dict[str, list[str]] = defaultdict(list)
        methods = [node for node in made.body if isinstance(node, ast.FunctionDef)]
        for name, line in (each for m in methods if m.name != "__init__" for each in _attributes(m)):
            users[name] += nodes.get(line, [])
        for statement in (s for m in methods if m.name == "__init__" for s in m.body):
            names = [name for name, _ in _attributes(statement)]
            for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                found[line] = list(dict.fromkeys(n for name in names for n in users[name]))
    return {line: names for line, names in found.items() if names}


def _attributes(tree: ast.AST) -> Iterable[tuple[str, int]]:
    """Yield the attributes of `self` in a statement, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr, node.lineno
