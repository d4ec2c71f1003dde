"""A digest of what a module does, by which an edited module is told from one that was only formatted anew."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Sequence

FINGERPRINT = re.compile(r'^FINGERPRINT = "[0-9a-f]*"', re.MULTILINE)
LENGTH = 16  # characters
# how the text was written, and what follows from the rest
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def code_digest(source: str) -> str:
    """Return a digest of what a module does: of its syntax tree without docstrings and `FINGERPRINT`.

    Comments, line ends, brackets that change nothing and other layout are not in it. Every Python version returns the
    same: `ast.dump` and `ast.unparse` do not write one tree alike in all of them.

    Raises:
        SyntaxError: the source is not Python.
    """
    return tree_digest(_parsed(source))


def tree_digest(tree: ast.Module) -> str:
    """Return the `code_digest` of a tree whose `FINGERPRINT` is empty. Removes the docstrings from the tree."""
    _remove_docstrings(tree)
    words: list[str] = []
    _write(tree, words)
    return _hash("".join(words))


def is_digest(recorded: str, source: str) -> bool:
    """Return True if `recorded` begins with the `code_digest` of a source, or with what older versions recorded.

    Raises:
        SyntaxError: the source is not Python.
    """
    return any(recorded.startswith(digest(source)) for digest in (code_digest, _older_digest))


def with_fingerprint(source: str, fingerprint: str) -> str:
    """Set the `FINGERPRINT` of a source.

    Raises:
        ValueError: there is no such line, so the file would not load its weights.
    """
    line = f'FINGERPRINT = "{fingerprint}"'
    made = FINGERPRINT.sub(line, source, count=1)
    if line not in made.split("\n"):
        raise ValueError("the file does not have its fingerprint")
    return made


def _older_digest(source: str) -> str:
    """Return the digest that was recorded before: of `ast.unparse`, so that it depends on the version of Python."""
    tree = _parsed(source)
    _remove_docstrings(tree)
    return _hash(ast.unparse(tree))


def _parsed(source: str) -> ast.Module:
    return ast.parse(FINGERPRINT.sub('FINGERPRINT = ""', source.replace("\r\n", "\n")))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _remove_docstrings(tree: ast.Module) -> None:
    blocks: list[ast.AST] = [tree]  # of statements: no expression holds a definition
    while blocks:
        node = blocks.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = without_docstring(node.body)
        blocks += [
            n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a body without its docstring, if any."""
    return list(body[1:] if body and is_docstring(body[0]) else body)


def _is_empty(node: object) -> bool:
    """True for text of no characters between the places of an f-string, which Python 3.12 has in its trees."""
    return isinstance(node, ast.Constant) and node.value == "" and isinstance(node.value, str)


def _write(value: object, words: list[str]) -> None:
    """Append the words of a tree: names of nodes, their fields that are not empty, and values."""
    if isinstance(value, ast.AST):
        words.append(f"{type(value).__name__}(")
        for name in value._fields:
            inner = getattr(value, name, None)
            if isinstance(value, ast.JoinedStr):
                inner = [node for node in value.values if not _is_empty(node)]
            if inner is not None and inner != [] and name not in _LEFT_OUT:  # empty: perhaps an older Python lacks it
                words.append(f"{name}=")
                _write(inner, words)
        words.append(")")
    elif isinstance(value, (list, tuple)):
        words.append("[")
        for inner in value:
            _write(inner, words)
        words.append("]")
    else:
        words.append(f"{ascii(value)},")
