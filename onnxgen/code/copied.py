"""Finds the helper functions and classes that generated code calls, to copy their source into it.

`onnxgen/helpers/` holds real torch functions for what no single torch call does. They are read as text: generating
never imports torch.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from onnxgen.common.paths import helper_files

_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")  # a function or class, and no method of that name


@lru_cache(maxsize=1)
def _sources() -> dict[str, str]:
    """The source of every helper by its name, in the order in which they are written."""
    found: dict[str, str] = {}
    for path in helper_files():
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


@lru_cache(maxsize=1)
def _imports() -> dict[str, tuple[str, str]]:
    """What the helpers' files import, by the name that it has there: (module, name in it or "")."""
    found: dict[str, tuple[str, str]] = {}
    for path in helper_files():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                found.update({a.asname or a.name: (a.name, "") for a in node.names})
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                found.update({a.asname or a.name: (node.module or "", a.name) for a in node.names})
    return found


def imported(text: str) -> dict[str, tuple[str, str]]:
    """The imports of the helpers' files that `text` uses, by name: (module, name in it or "")."""
    used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
    own = _sources()
    return {name: source for name, source in _imports().items() if name in used and name not in own}


@lru_cache(maxsize=1)
def helper_trees() -> dict[str, ast.stmt]:
    """Every helper as Python reads it, by its name."""
    return {name: ast.parse(text).body[0] for name, text in _sources().items()}


def helper_source(name: str) -> str | None:
    """The source of a helper; None if it is none."""
    return _sources().get(name)


def helper_names() -> frozenset[str]:
    """The names of all helpers: no local variable may be called so."""
    return frozenset(_sources())


def copied(text: str) -> dict[str, str]:
    """The sources of the helpers that `text` calls, and of those that they call, by name, in their files' order."""
    sources = _sources()
    wanted: set[str] = set()
    pending = [text]
    while pending:
        for name in set(_CALL.findall(pending.pop())) & sources.keys() - wanted:
            wanted.add(name)
            pending.append(sources[name])
    return {name: source for name, source in sources.items() if name in wanted}
