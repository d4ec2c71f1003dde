"""Options: the parsers of `[tool.onnxgen]`, and what a dataclass's field declares of an option.

- `Kind.read` takes what TOML or a program gives and returns what `onnxgen.Options` holds, or raises `ValueError` with
  the words for what is wanted. Values may be anything: a reader looks at types before it looks at content.
- `About`: options are declared once. A dataclass's field says what the command, files, programs and pages need of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import PurePath
from typing import Any

from onnxgen.common.limits import NAMES as LIMIT_NAMES
from onnxgen.common.limits import Limits

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
MAX_VALUE_CHARACTERS = 60  # characters of a wrong value in an error


@dataclass(frozen=True)
class Kind:
    """The way a value is written.

    Attributes:
        read: see above.
        spoken: makes what `read` takes of a text of the command line: of a table, of what stands behind `NAME=`.
        table: values by name; the command line says them one by one, like `like`.
        choices: all that there are.
    """

    read: Callable[[object], Any]
    spoken: Callable[[str], object] = str
    table: bool = False
    like: str = ""
    choices: tuple[str, ...] = ()

    def said(self, text: str | Sequence[str]) -> Any:
        """What the command line's text is; several texts are a table. Raises `ValueError` with a sentence."""
        if isinstance(text, str):
            try:
                return self.read(self.spoken(text))
            except ValueError as error:
                raise ValueError(f"{text!r} is not {error}") from None
        entries: dict[str, object] = {}
        for one in text:
            name, _, value = one.rpartition("=")
            try:
                item = self.spoken(value.strip())
                self.read({name: item})
            except ValueError:
                raise ValueError(f"{one!r} is not like {self.like}") from None
            entries.pop(name, None)  # given again it counts from here
            entries[name] = item
        return self.read(entries)


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


def plain(value: object) -> object:
    """Convert a program's value to the types of TOML: paths to text, mappings and sequences to tables and lists."""
    if isinstance(value, PathLike):
        return PurePath(value).as_posix()
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(one) for one in value]
    return value


def text(value: object) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise ValueError("a text")


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(n, str) and n and n.isprintable() for n in value):
        return tuple(value)
    raise ValueError('a list like ["plugins/ops.py"]')


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def choice(*choices: str) -> Kind:
    """Make a parser that accepts one of a few words."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(" or ".join(f'"{word}"' for word in choices))

    return Kind(read, choices=choices)


def _dims(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(d == "?" or _whole(d) >= -1 and d < 2**63 for d in value):
        raise ValueError
    return tuple(-1 if d == "?" else d for d in value)


def _axis(value: object) -> int | None:
    return None if value in (None, "none") else _whole(value)


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _constant(value: object) -> float | tuple[float, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(map(_finite, value))
    return _finite(value)


def _finite(value: object) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError
    return value


def _number(text: str) -> float:
    """Return the number that a text is: as an int if it is whole."""
    words = {"true": True, "false": False}
    text = text.strip().lower()
    if text in words:
        return words[text]
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _limits(value: object) -> Limits:
    if isinstance(value, Limits):
        return value
    words = f"a table like {{nodes = 500000}}, of {', '.join(LIMIT_NAMES)}"
    counts = {name.replace("-", "_"): count for name, count in _table(value, _whole, words).items()}
    if not counts.keys() <= set(LIMIT_NAMES):
        raise ValueError(words)
    return Limits(**counts)


def _block(value: object) -> int:
    if isinstance(value, int) and value in (8, 16):
        return value
    raise ValueError("8 or 16")


def _size(value: object) -> int:
    match = re.fullmatch(r"([0-9]{1,18}) *([KMGT]?)B?", value.strip().upper()) if isinstance(value, str) else None
    size = int(match[1]) * _UNITS[match[2]] if match else value
    if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
        raise ValueError('a size like "500MB" or "5GB"')
    return size


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    return value


def _table(value: object, read: Callable[[object], Any], words: str) -> dict[str, Any]:
    try:
        if isinstance(value, dict) and all(isinstance(name, str) and name for name in value):
            return {name: read(entry) for name, entry in value.items()}
    except ValueError:
        pass
    raise ValueError(words)


def _tables(read: Callable[[object], Any], words: str) -> Callable[[object], dict[str, Any]]:
    return lambda value: _table(value, read, words)


TEXT = Kind(text)
PATH = Kind(text)
FLAG = Kind(_flag)
NAMES = Kind(_names)
SIZE = Kind(_size)
BLOCK = Kind(_block, int, choices=("8", "16"))
SHAPES = Kind(
    _tables(_dims, "a table like {image = [1, 3, 224, 224]}, where -1 leaves a dim as it is"),
    lambda text: ["?" if d.strip() == "?" else int(d) for d in text.split(",")] if text else [],
    table=True,
    like="NAME=1,3,224,224",
)
AXES = Kind(
    _tables(_axis, 'a table like {frames = 1, scale = "none"}'),
    lambda text: text if text == "none" else int(text),
    table=True,
    like="NAME=1 or NAME=none",
)
CONSTANTS = Kind(
    _tables(_constant, "a table like {sr = 16000, mask = [1, 0, 1]}"),
    lambda text: _number(text) if "," not in text else [_number(one) for one in text.split(",")],
    table=True,
    like="NAME=16000 or NAME=1,0,1",
)
RATES = Kind(_tables(_rate, 'a table like {"encoder.*" = 0.1}'), float, table=True, like="SCOPE=0.1")
LIMITS = Kind(_limits, int, table=True, like=f"nodes=500000; there are {', '.join(LIMIT_NAMES)}")


@dataclass(frozen=True)
class About:
    """The declared facts about an option.

    Attributes:
        like: what stands for its value in the command's help.
        help: what it does, in sentences.
        kind: how its value is written; None: as its type says.
        group: the title that it stands under in the command's help.
        key: its name in files: that of the field, with `-`, unless another is given.
        option: its name on the command line: its key, unless another is given.
    """

    like: str
    help: str
    kind: Kind | None
    group: str
    key: str = ""
    option: str = ""


def declared(default: Any, like: str, help: str, kind: Kind | None = None, *, group: str, **names: str) -> Any:
    """A field of a dataclass that is an option; see `About`. `default` may be `dict`."""
    metadata = {"about": About(like, help, kind, group, **names)}
    if default is dict:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(declaring: type) -> dict[str, About]:
    """The options of a dataclass by field, in order."""
    options = {}
    for one in fields(declaring):
        about: About = one.metadata["about"]
        key = about.key or one.name.replace("_", "-")
        options[one.name] = replace(about, key=key, option=f"--{about.option or key}")
    return options
