"""How this plugin registers an operator: with `@onnxgen.op`, in onnxruntime's domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onnxgen import op

MICROSOFT = "com.microsoft"
Written = TypeVar("Written", bound=Callable[..., Any])


def body(*names: str, domain: str = MICROSOFT, **card: Any) -> Callable[[Written], Written]:
    """Register a function that writes the standard nodes in the place of some operators. `card`: as in `@op(...)`."""
    return op(*names, domain=domain, body=True, **card)
