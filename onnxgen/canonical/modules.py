"""The modules of Python that an edited file may use, and what is found in them."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

NAME = re.compile(r"[\w.]*")
MODULES = frozenset(
    """
    __future__ torch math typing collections collections.abc functools itertools einops dataclasses warnings
    pathlib safetensors
    """.split()
)


def is_of_another_module(whole: str) -> bool:
    """Whether a name is found through a module that another one imported, such as `torch.os`."""
    first = whole.partition(".")[0]
    return any(isinstance(v, ModuleType) and v.__name__.partition(".")[0] != first for v in _found(whole))


def is_module(whole: str) -> bool:
    """Whether a name is that of a module that may be used."""
    is_name = NAME.fullmatch(whole) and whole.partition(".")[0] in MODULES
    return bool(is_name) and isinstance(_found(whole)[-1], ModuleType)


def _found(whole: str) -> list[Any]:
    """Return what the names in an expression are, one inside the other, up to a call or the like."""
    first, *parts = NAME.match(whole)[0].split(".")  # type: ignore[index]
    found: list[Any] = [sys.modules.get(first)]
    for part in parts:
        found.append(getattr(found[-1], part, None))
    return found
