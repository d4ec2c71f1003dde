"""JSON of files that may be damaged or hostile, and dataclasses made of it.

Every value of a dataclass has the type and the range that its field declares.
"""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse JSON text that must be an object. Raises `ValueError` if it is anything else."""
    try:
        document = json.loads(text)
    except (RecursionError, TypeError) as error:
        raise ValueError("the JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    if not isinstance(document, dict):
        raise ValueError("the JSON is not an object")
    return document


_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", NoneType: "null"}
T = TypeVar("T")
MOST = 1 << 53  # a whole number of JSON that every reader has alike


@dataclass(frozen=True)
class Between:
    """The range of a number, or of the length of a text or a list."""

    least: float
    most: float

    def __contains__(self, value: Any) -> bool:
        return self.least <= (value if isinstance(value, (int, float)) else len(value)) <= self.most

    def __str__(self) -> str:
        return f"from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class OneOf:
    """The values that there are."""

    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.values))}"


Metric = Annotated[float, "any"]  # a number that may be infinite or NaN


def built(kind: Any, value: Any, name: str = "it", later: bool = False) -> Any:
    """Return a value of JSON as the type `kind`: a dataclass, tuple[X, ...], Mapping[str, X], X | Y, Annotated[X, ...],
    a Path.

    Args:
        name: of the value, for messages.
        later: entries that are unknown are of a later version, and left out.

    A dataclass may have a method `check`, which raises `ValueError` if its values do not go together.

    Raises:
        ValueError: the value, or one within, is missing, unknown, of another type or outside of its range.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind is Metric:
        return _number(value, name)
    if origin is Annotated:
        checked = built(inner[0], value, name, later)
        for limit in inner[1:]:
            if checked not in limit:
                raise ValueError(f"its {name} must be {limit}, not {_shown(value)}")
        return checked
    if origin in (typing.Union, UnionType):
        return _either(inner, value, name, later)
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind, value, name, later)
    if origin in (tuple, Mapping):
        return _container(origin, inner, value, name, later)
    return Path(value) if kind is Path and isinstance(value, str) else _plain(kind, value, name)


def as_json(instance: Any) -> str:
    """Return a dataclass as the text that `read_json` reads."""
    return json.dumps(asdict(instance))


def read_json(kind: type[T], text: str) -> T:
    """Return what `as_json` wrote. Raises `ValueError` for anything else. What later versions add is left out."""
    instance: T = built(kind, json_object(text), later=True)
    return instance


def _plain(kind: Any, value: Any, name: str) -> Any:
    if kind is float and type(value) is int:
        value = _number(value, name)
    if type(value) is not kind:
        raise _other(name, value, _WORDS.get(kind, "text"))
    if kind is float and not math.isfinite(value):
        raise ValueError(f"its {name} must be {_WORDS[kind]}, not {_shown(value)}")
    if kind is int and abs(value) > MOST:
        raise ValueError(f"its {name} is too large: {_shown(value)}")
    return value


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float):
        raise _other(name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"its {name} is too large: {_shown(value)}") from None


def _either(kinds: tuple[Any, ...], value: Any, name: str, later: bool) -> Any:
    why = ""
    for kind in kinds:
        if value is None and kind is NoneType:
            return None
        try:
            if kind is not NoneType:
                return built(kind, value, name, later)
        except ValueError as error:
            why = str(error)
    raise ValueError(why)


def _container(origin: Any, inner: tuple[Any, ...], value: Any, name: str, later: bool) -> Any:
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(built(inner[0], entry, f"{name}[{place}]", later) for place, entry in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {key: built(inner[1], entry, f"{name}.{key}", later) for key, entry in value.items()}
    raise _other(name, value, "a list" if origin is tuple else "an object")


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _dataclass(kind: Any, value: Any, name: str, later: bool) -> Any:
    if not isinstance(value, dict):
        raise _other(name, value, "an object")
    hints = _hints(kind)
    known = {field.name: field for field in fields(kind)}
    if not later and (unknown := [key for key in value if key not in known]):
        raise ValueError(f"an entry is unknown: {_shown(unknown[0])} of {name}")
    inside = "" if name == "it" else f"{name}."
    values = {key: built(hints[key], entry, f"{inside}{key}", later) for key, entry in value.items() if key in known}
    for key, field in known.items():
        if key not in value and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"an entry is missing: {key!r} of {name}")
    instance = kind(**values)
    if hasattr(instance, "check"):
        instance.check()
    return instance


def _other(name: str, value: Any, wanted: str) -> ValueError:
    """Return the error for a value of another type."""
    return ValueError(f"its {name} is of type {type(value).__name__}, not {wanted}: {_shown(value)}")


def _shown(value: Any) -> str:
    """Return a value for a message; of a long one its beginning."""
    if isinstance(value, int) and abs(value) > MOST:
        return "a number of many digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
