"""What a generated file may consist of: tokens of printable ASCII, and what `onnxgen.code.allowed` lets through.

A file is held against it without being run.
"""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache

from onnxgen.code.allowed import Refused, check_module
from onnxgen.common.paths import helper_files


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
