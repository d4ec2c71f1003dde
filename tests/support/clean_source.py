"""What a generated file may consist of: tokens of printable ASCII, and what `onnxgen.code.allowed` lets through.

A file is held against it without being run.
"""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache

from onnxgen.code.allowed import BUILTINS, HANDED_OVER, Refused, bound, check
from onnxgen.code.class_tree import is_alias
from onnxgen.code.copied import helpers
from onnxgen.common.paths import helper_files

CALLABLE = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.arg)


def check_module(tree: ast.Module) -> None:
    """Check a whole file against the allow-list, except copies of helpers and the alias. Raises `Refused`."""
    functions = {n for node in ast.walk(tree) if isinstance(node, CALLABLE) for n in bound(node)} | BUILTINS
    own = (node for node in tree.body if ast.dump(node) != helper_code(getattr(node, "name", "")))
    rest = ast.Module([node for node in own if not is_alias(node)], [])
    check(rest, functions | {"__file__"}, functions | HANDED_OVER)


@cache
def helper_code(name: str) -> str:
    return ast.dump(helpers()[name].tree) if name in helpers() else ""


def assert_safe(source: str) -> None:
    """Tokens are printable ASCII; the syntax is of the allow-list; every name is defined; nothing reaches dunders."""
    assert not set(source) - set(map(chr, range(32, 127))) - {"\n"}, set(source)
    assert source.startswith('"""') and "coding" not in "".join(source.splitlines()[:2]), source[:200]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string not in helper_text():
            assert not set(token.string) & set("'\"\\`") and len(token.string) <= 120, token.string
    try:
        check_module(ast.parse(source))
    except Refused as error:
        raise AssertionError(str(error)) from error


@cache
def helper_text() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in helper_files())
