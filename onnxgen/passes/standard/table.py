"""The table of the bodies in this package, and the decorator that puts one into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxgen.passes.contrib.writer import Body, Written, body

STANDARD_BODIES: dict[tuple[str, str], Body] = {}


def standard(*names: str, domain: str = "", **said: Any) -> Callable[[Written], Written]:
    """Register a function as the body of some operators of the standard."""
    return body(*names, domain=domain, table=STANDARD_BODIES, **said)
