"""Parsers of `[tool.onnxgen]`: each option of `onnxgen.Options` by its name on the command line, as TOML has it.

A parser takes what TOML gives and returns what `Options` wants, or raises `ValueError` with the words for what is
wanted there. Values may be anything: a parser looks at types before it looks at content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from onnxgen.common.limits import NAMES, Limits

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
MAX_VALUE_CHARACTERS = 60  # characters of a wrong value in an error


def shown(value: object) -> str:
    """Return a value as errors show it: one short printable line."""
    if isinstance(value, (list, tuple, dict)):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = repr(value[: 2 * MAX_VALUE_CHARACTERS] if isinstance(value, str) else value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 3] + "..."


def key(name: object) -> str:
    """Return a key as TOML writes it."""
    plain = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name)
    return str(name) if plain else shown(name)


def text(value: object) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise ValueError("a text")


def names(value: object) -> tuple[str, ...]:
    """Parse names: `["plugins/ops.py", "acme.ops"]`."""
    if isinstance(value, (list, tuple)) and all(isinstance(n, str) and n and n.isprintable() for n in value):
        return tuple(value)
    raise ValueError('a list like ["plugins/ops.py"]')


def flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def choice(*choices: str) -> Callable[[object], str]:
    """Make a parser that accepts one of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(" or ".join(f'"{word}"' for word in choices))

    return parse


def shapes(value: object) -> dict[str, tuple[int, ...]]:
    """Parse shapes: `{image = [1, 3, 224, 224]}`. A dim of -1 or "?" is left as it is."""

    def dims(found: object) -> tuple[int, ...]:
        if not isinstance(found, (list, tuple)) or not all(d == "?" or _whole(d) and -1 <= d < 2**63 for d in found):
            raise ValueError
        return tuple(-1 if d == "?" else int(d) for d in found)

    return _table(value, dims, "a table like {image = [1, 3, 224, 224]}, where -1 leaves a dim as it is")


def axes(value: object) -> dict[str, int | None]:
    """Parse axes: `{frames = 1, scale = "none"}`."""

    def axis(found: object) -> int | None:
        if found in (None, "none"):
            return None
        if not _whole(found):
            raise ValueError
        return int(found)  # type: ignore[call-overload,no-any-return]

    return _table(value, axis, 'a table like {frames = 1, scale = "none"}')


def rates(value: object) -> dict[str, float]:
    """Parse probabilities: `{"encoder.*" = 0.1}`."""

    def rate(found: object) -> float:
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
            raise ValueError
        return float(found)

    return _table(value, rate, 'a table like {"encoder.*" = 0.1}')


def limits(value: object) -> Limits:
    """Parse limits: `{nodes = 500000}`."""

    def number(found: object) -> int:
        if not _whole(found):
            raise ValueError
        return int(found)  # type: ignore[call-overload,no-any-return]

    words = f"a table like {{nodes = 500000}}, of {', '.join(NAMES)}"
    found = {name.replace("-", "_"): count for name, count in _table(value, number, words).items()}
    if not found.keys() <= set(NAMES):
        raise ValueError(words)
    return Limits(**found)


def block(value: object) -> int:
    if isinstance(value, int) and value in (8, 16):
        return value
    raise ValueError("8 or 16")


def size(value: object) -> int:
    """Parse a size: `"5GB"`, or a number of bytes."""
    if _whole(value):
        found = int(value)  # type: ignore[call-overload]
    else:
        match = re.fullmatch(r"([0-9]{1,18}) *([KMGT]?)B?", value.strip().upper()) if isinstance(value, str) else None
        found = int(match[1]) * _UNITS[match[2]] if match else 0
    if found <= 0:
        raise ValueError('a size like "500MB" or "5GB"')
    return int(found)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _table(value: object, parse: Callable[[object], Any], words: str) -> dict[str, Any]:
    try:
        if isinstance(value, dict) and all(isinstance(name, str) and name for name in value):
            return {name: parse(found) for name, found in value.items()}
    except ValueError:
        pass
    raise ValueError(words)
