"""The options of a generation, as its sidecar records them: with them a module, or a part of it, is generated again."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxgen.common.built import json_object
from onnxgen.common.limits import Limits
from onnxgen.common.values import FLAG, NAMES, plain
from onnxgen.errors import OnnxgenError
from onnxgen.options import OPTIONS, Options

KEY = "options"  # in the sidecar's metadata
PATHS = ("plugins", "templates")  # recorded as seen from the module's folder
_LEFT_OUT = ("weights", "paranoid")  # where files are, and how they are checked, is nothing of what they are
_DEFAULTS = Options()


def asked(options: Options, folder: Path) -> str:
    """Return the options that are not the default, as JSON. `folder`: of the module."""
    recorded = {name: _plain(value) for name, value in _given(options) if name not in _LEFT_OUT}
    for name in set(PATHS) & recorded.keys():
        value = recorded[name]
        several = isinstance(value, list)
        recorded[name] = [_seen_from(p, folder) for p in value] if several else _seen_from(value, folder)
    return json.dumps(recorded)


def recorded_options(metadata: Mapping[str, str], folder: Path) -> Options | None:
    """Return the options that `asked` recorded; None if there are none, or they are of another version of onnxgen."""
    try:
        recorded: dict[str, Any] = json_object(metadata[KEY])
        if not recorded.keys() <= OPTIONS.keys():
            return None
        values = {name: kind.read(value) for name, value in recorded.items() if (kind := OPTIONS[name].kind)}
        for name in set(PATHS) & values.keys():
            value = values[name]
            several = not isinstance(value, str)
            values[name] = tuple(str(_seen_here(p, folder)) for p in value) if several else folder / value
        return Options(**values)
    except (KeyError, TypeError, ValueError, OnnxgenError):
        return None


def command(onnx: Path, module: Path, options: Options) -> str:
    """Return the whole command that generates a module with these options."""
    return shlex.join(["onnxgen", str(onnx), "-o", str(module), *words(options)])


def words(options: Options) -> list[str]:
    """Return the options that are not the default, as the command line takes them."""
    arguments = list[str]()
    for name, value in _given(options):
        about = OPTIONS[name]
        assert about.kind is not None
        if about.kind is FLAG:
            arguments.append(about.option)
        elif about.kind.table:
            for key, one in _plain(value).items():
                arguments += [about.option, f"{key}={_said(one)}"]
        else:
            for one in value if about.kind is NAMES else [value]:
                arguments += [about.option, str(one)]
    return arguments


def _given(options: Options) -> Iterator[tuple[str, Any]]:
    for name in OPTIONS:
        if (value := getattr(options, name)) != getattr(_DEFAULTS, name):
            yield name, value


def _plain(value: Any) -> Any:
    if isinstance(value, Limits):
        return {name: limit for name, limit in vars(value).items() if limit != getattr(Limits(), name)}
    return plain(value)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def _seen_from(path: str, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix() if os.path.exists(path) else path
    except ValueError:  # Windows: the two are on different drives
        return path


def _seen_here(path: str, folder: Path) -> Path | str:
    return folder / path if (folder / path).exists() else path
