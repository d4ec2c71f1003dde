"""Reads and writes the settings of a run as a TOML file, and applies `--recipe`.

Keys are `model`, `data` and the names of the settings, with `-` or `_`. Paths in the file are relative to the file's
folder. In memory they are relative to the current folder. The file alone is enough to repeat the run. A recipe
(`resolved`) sets other defaults for settings that the user does not give. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import re
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from onnxgen.common.atomic import replacing
from onnxgen.common.built import MOST, built
from onnxgen.common.names import visible
from onnxgen.errors import OnnxgenError, Problems, did_you_mean
from onnxgen.training.byname import FUNCTION
from onnxgen.training.data.layout import files_below, layout
from onnxgen.training.launch import launched
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.settings import SETTINGS, Settings
from onnxgen.training.tasks import AUTO, OUTPUTS, known

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOT_SETTINGS = ("model", "data")  # keys of the file that are not fields of `Settings`
TYPES: dict[str, Any] = {**dict.fromkeys(NOT_SETTINGS, str), **typing.get_type_hints(Settings)}
PATHS = ("model", "data", "weights", "out", "tokenizer", "teacher", "own_classes")
DIGITS = "digits"  # the built-in data set
SHARDS = re.compile(r".*[{*?].*\.(tar|parquet|bin|npy)", re.IGNORECASE)  # a pattern of several files
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "text", tuple: "a list"}


def is_there(data: str) -> bool:
    """Return True if there are files under the name of data; for a pattern of shards it is not looked."""
    return Path(data).exists() or SHARDS.fullmatch(data) is not None


def is_path(data: str) -> bool:
    """Return True if the name of data is that of a file or a folder, not `digits` or `module:function`."""
    return data != DIGITS and not FUNCTION.fullmatch(data)


def need_data(data: str) -> None:
    """Raise `OnnxgenError` if there is no such file or folder, or if the folder has no file at all."""
    if not is_path(data):
        return
    if not is_there(data):
        what = f"there is no data at {data}"
        raise OnnxgenError(what, help="--data names a file, a folder, module:function or digits")
    path = Path(data)
    if path.is_dir() and not any(file.is_file() for file in files_below(path)):
        layout(path)  # which says what it looks for


def parse_size(text: str) -> tuple[int, int]:
    """Parse a size "HEIGHTxWIDTH". Raises `OnnxgenError` if it is anything else."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise OnnxgenError(f"size {text!r} is not HEIGHTxWIDTH", help="such as --size 224x224")
    return int(height), int(width)


def read_config(path: Path) -> dict[str, Any]:
    """Return the values of a TOML file by name, converted to the types of their settings.

    Raises:
        OnnxgenError: the file can't be read or is not TOML. Or it has unknown keys or values of a wrong type; the error
            lists all of them.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OnnxgenError(f"{path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OnnxgenError(f"{path} is not a TOML file: {error}") from None
    values, problems = {}, Problems()
    for key, value in document.items():
        name = key.replace("-", "_")
        if name not in TYPES:
            problems.add(f"{path}: there is no setting {key!r}", help=did_you_mean(name, TYPES))
            continue
        try:
            values[name] = seen_here(name, typed(value, TYPES[name]), path.parent)
        except ValueError as error:
            problems.add(f"{path}: {key} must be {error}, not {value!r}")
    problems.raise_if_any()
    if (path.parent / RECORD).is_file():  # of a run, perhaps of an older version
        if values.get("task") == AUTO:  # which decided nothing
            values["task"] = OUTPUTS
        older = known(values.get("task")).older
        values |= {name: value for name, value in older.items() if values.get(name) == AUTO}
    return values


def typed(value: Any, wanted: Any) -> Any:
    """Return a value converted to `wanted`, the type of a field of `Settings`: a list to a tuple, an int to a float.

    Raises `ValueError` with a description of the wanted type.
    """
    try:
        if isinstance(value, (int, float)) and not abs(value) <= MOST:  # infinity, NaN, and what no library takes
            raise ValueError
        return built(wanted, value)
    except ValueError:
        kinds = typing.get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
        raise ValueError(" or ".join(_wording(kind) for kind in kinds if kind is not NoneType)) from None


def _wording(kind: Any) -> str:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Mapping:
        return "a table" if inner[1] is Any else "a table of text"
    return "a list of text" if origin is tuple else _WORDS[origin]


def seen_here(name: str, value: Any, folder: Path) -> Any:
    """Return the value of a setting in a file of `folder`. A relative path becomes one from the current folder."""
    if not _is_relative(name, value, folder):
        return value
    absolute, here = Path(os.path.normpath(os.path.realpath(folder) + os.sep + str(value))), Path.cwd()
    return type(value)(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def seen_from(name: str, value: Any, folder: Path) -> Any:
    """Return the value of a setting for a file in `folder`: the inverse of `seen_here`."""
    if not _is_relative(name, value, folder):
        return value
    place, file = os.path.split(os.path.abspath(value))
    try:
        relative = os.path.relpath(os.path.join(os.path.realpath(place), file), os.path.realpath(folder))
    except ValueError:  # Windows: the two are on different drives
        return type(value)(os.path.abspath(value))
    return type(value)(Path(relative).as_posix())


def _is_relative(name: str, value: Any, folder: Path) -> bool:
    """Return True for a setting that is a relative path. The data `digits` and `module:function` are none."""
    if name not in PATHS or value is None or os.path.isabs(text := str(value)):
        return False
    function = FUNCTION.fullmatch(text) and not Path(text).exists() and not (folder / text).exists()
    return name != "data" or not (text == DIGITS or function)


def write_config(path: Path, settings: Settings, besides: Mapping[str, str], comments: Sequence[str] = ()) -> None:
    """Write every setting that is not None, in the order of `Settings`; `besides` holds `model` and `data`.

    A value that TOML can't represent (such as an object as an optimizer's argument) becomes a comment.

    The file is replaced atomically. Raises `OSError` if it can't be written.
    """
    lines = [_comment(comment) for comment in comments]
    values = {**besides, **{f.name: getattr(settings, f.name) for f in fields(settings)}}
    values["resume"] = False  # the file repeats the run from its beginning
    for name, value in values.items():
        if value is None:
            continue
        try:
            lines.append(f"{name} = {_toml(seen_from(name, value, path.parent))}")
        except TypeError:
            lines.append(_comment(f"{name}: not written, since TOML has no such value: {value!r}"))
    with replacing([path.parent]) as files, files.file(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def _comment(text: str) -> str:
    return f"# {visible(' '.join(text.split()))}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, Path)):
        if any("\ud800" <= c <= "\udfff" for c in str(value)):  # a lone surrogate, as in a file name that is not UTF-8
            raise TypeError("text that UTF-8 can't hold")
        letters = json.dumps(str(value), ensure_ascii=False)
        return re.sub(r"[^ -~]", lambda c: c[0] if c[0].isprintable() else _escaped(ord(c[0])), letters)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(k))} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    raise TypeError(type(value).__name__)


def _escaped(letter: int) -> str:
    return f"\\u{letter:04x}" if letter < 1 << 16 else f"\\U{letter:08x}"


# Howard & Ruder 1801.06146: the head first, lower rates for earlier layers, a warm-up, and a rate that falls.
FINE_TUNE: Mapping[str, Any] = {
    "head_first": 1,
    "layer_decay": 0.8,
    "find_lr": True,
    "warmup": 0.1,
    "schedule": "cosineannealinglr",
    "early_stop": 5,
}


def resolved(settings: Settings | None, overrides: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """Return the settings of a run without a recipe, and a note on what the recipe chose.

    Given are `overrides`, and what differs from the defaults in `settings`.

    Raises:
        OnnxgenError: the recipe does not fit the settings.
    """
    merged = replace(settings or Settings(), **overrides)
    if merged.recipe is None:
        return merged, []
    if merged.from_scratch:
        what = "recipe fine-tune and from_scratch exclude each other"
        raise OnnxgenError(what, help="the recipe keeps what the weights have learned: leave one of them out")
    default = Settings()
    changed = {f.name for f in fields(Settings) if settings and getattr(settings, f.name) != getattr(default, f.name)}
    several = launched(merged).processes > 1
    unfit = {"find_lr": merged.lr is not None or several, "head_first": merged.lora or several}
    unfit["warmup"] = merged.schedule is not None  # it may begin low itself
    left_open = FINE_TUNE.keys() - changed - overrides.keys()
    chosen = {name: value for name, value in FINE_TUNE.items() if name in left_open and not unfit.get(name)}
    choices = ", ".join(SETTINGS[n].option + ("" if v is True else f" {v}") for n, v in chosen.items())
    note = f"recipe {merged.recipe} chose {choices or 'nothing: all is given'}"
    return replace(merged, recipe=None, **chosen), [note]
