"""What a module made of an attack must be like."""

from __future__ import annotations

import ast
import re

from tests.injection.attacks import MARK
from tests.support.clean_source import assert_safe


def hold(source: str, name: str) -> None:
    """Nothing of the attack is in the file, but in literals, comments and pieces of names."""
    assert_safe(source)
    for node in ast.walk(ast.parse(source)):
        texts = [getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module", "asname")]
        for text in texts:
            assert text is None or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]{0,200}", text), (name, text)
        if isinstance(node, ast.JoinedStr):
            assert MARK not in ast.dump(node), name
