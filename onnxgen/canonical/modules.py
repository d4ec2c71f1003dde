"""The modules of Python that an edited file may use, and what is found in them."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

MODULES = frozenset(
    """
    __future__ torch math typing collections collections.abc functools itertools einops dataclasses warnings
    pathlib safetensors
    """.split()
)


def is_of_another_module(whole: str) -> bool:
    """Whether a name is found through a module that another one imported, such as `torch.os`."""
    first, *parts = re.match(r"[\w.]*", whole)[0].split(".")  # type: ignore[index]
    value = sys.modules.get(first)
    for part in parts:
        value = getattr(value, part, None)
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] != first:
            return True
    return False


def is_module(whole: str) -> bool:
    """Whether a name is that of a module."""
    first, *parts = whole.split(".")
    value: Any = sys.modules.get(first) if first in MODULES else None
    for part in parts:
        value = getattr(value, part, None)
    return isinstance(value, ModuleType)
