"""Functions and classes that are copied into generated files, above all the helpers of `onnxgen/helpers/`.

Helpers are real torch functions for what no single torch call does. They are read as text: generating never imports
torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onnxgen.common.paths import helper_files

Import = tuple[str, str]  # module, and the name in it or ""

_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")  # a call of a function or class, not of a method


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top level of a file."""

    text: str
    tree: ast.stmt


@dataclass(frozen=True)
class SourceFile:
    """The definitions and imports of a file by name, in the file's order."""

    path: Path
    definitions: dict[str, Definition]
    imports: dict[str, Import]


def read_source(path: Path) -> SourceFile:
    """Read what a file defines and imports."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = SourceFile(path, {}, {})
    for node in _statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            found.imports.update((a.asname or a.name.split(".")[0], _whole(a)) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            module = "." * node.level + (node.module or "")
            found.imports.update((a.asname or a.name, (module, a.name)) for a in node.names)
        elif name := defined_name(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            found.definitions[name] = Definition("\n".join(lines[first - 1 : node.end_lineno]), node)
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and the imports inside an `if` or `try` (needed by type checkers only)."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from (inner for inner in _statements(node.body) if isinstance(inner, (ast.Import, ast.ImportFrom)))
        else:
            yield node


def _whole(found: ast.alias) -> Import:
    """Return the module of an import statement. `import torch.nn` binds `torch`, which has all its submodules."""
    return ("torch" if found.name.startswith("torch.") and found.asname is None else found.name), ""


def defined_name(node: ast.stmt) -> str:
    """Return the name that a statement defines, or "" if it is not exactly one."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


@cache
def helpers() -> dict[str, Definition]:
    """Return every helper by name, in the order in which they are written into a file."""
    return {name: found for source in _sources() for name, found in source.definitions.items()}


@cache
def _sources() -> list[SourceFile]:
    return [read_source(path) for path in helper_files()]


@cache
def helper_names() -> frozenset[str]:
    """Return the names of all helpers, which no local variable may have."""
    return frozenset(helpers())


@cache
def arguments(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return what the constructor of a layer takes: the names of what must be given, and numbers and texts that need
    not be, with their defaults. Nothing for a function.
    """
    tree = helpers()[name].tree
    made = [f for f in getattr(tree, "body", []) if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    if not isinstance(tree, ast.ClassDef) or not made:
        return (), {}
    given = made[0].args
    names, usual = [a.arg for a in given.args[1:]], given.defaults
    needed = names[: len(names) - len(usual)]
    pairs = [*zip(names[len(needed) :], usual), *((a.arg, d) for a, d in zip(given.kwonlyargs, given.kw_defaults) if d)]
    return tuple(needed), {n: d.value for n, d in pairs if isinstance(d, ast.Constant) and d.value is not None}


def imported(text: str) -> dict[str, Import]:
    """Return the imports of the helpers' files that `text` uses, by name."""
    used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text)) - helpers().keys()
    return {name: found for source in _sources() for name, found in source.imports.items() if name in used}


def copied(text: str) -> dict[str, Definition]:
    """Return the helpers that `text` calls, and those that they call, by name."""
    wanted: set[str] = set()
    pending = [text]
    while pending:
        for name in set(_CALL.findall(pending.pop())) & helpers().keys() - wanted:
            wanted.add(name)
            pending.append(helpers()[name].text)
    return {name: helper for name, helper in helpers().items() if name in wanted}
