"""The options of `onnxgen train`: one for each field of `Settings`, and those of the command itself."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from onnxgen.cli.group import AnyPath, Function, option
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.record.labels import read_names
from onnxgen.training.config import typed
from onnxgen.training.settings import SETTINGS, Settings

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # not generic before click 8.4
    ParamType = click.ParamType

PAIR = "NAME=VALUE"  # metavar of an option that gives one item of a table
DATA = "A file, a folder, module:function, or digits (the default)."
CONFIG = "A file with options by name. The command line overrules it."


def train_options(function: Function) -> Function:
    """Add an option for each setting, and --config and --data."""
    group = SETTINGS["out"].group
    function = option("--config", metavar="FILE.toml", type=AnyPath(), group=group, help=CONFIG)(function)
    types, defaults = typing.get_type_hints(Settings), Settings()
    for name, about in reversed(SETTINGS.items()):
        wanted, default = types[name], getattr(defaults, name)
        attrs: dict[str, Any] = {"group": about.group, "help": about.help}
        if wanted is bool:
            option_names, attrs["default"] = f"{about.option}/{about.option.replace('--', '--no-', 1)}", None
        else:
            option_names = about.option
            repeated = wanted == tuple[str, ...] and about.like != "NAME,..."
            attrs["multiple"] = repeated or about.like == PAIR
            attrs["type"] = click.STRING if repeated else Value(wanted)
            attrs["metavar"] = about.like
            if not attrs["multiple"] and default not in (None, {}, (), ""):
                attrs["help"] += f" Default: {default}."
        function = option(option_names, name, **attrs)(function)
    return option("--data", metavar="DATA", group="Data", help=DATA)(function)


def given_settings(context: click.Context) -> dict[str, Any]:
    """Return the settings that the command line gives, by field: no defaults, and none of `wrong_options`."""
    settings: dict[str, Any] = {}
    for name, about in SETTINGS.items():
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if is_given and name not in _wrong(context):
            value = context.params[name]
            settings[name] = {k: v for one in value for k, v in one.items()} if about.like == PAIR else value
    return settings


def wrong_options(context: click.Context) -> list[Problem]:
    """Return what is wrong with the values of settings on the command line, in their order."""
    return [problem for problems in _wrong(context).values() for problem in problems]


def _wrong(context: click.Context) -> dict[str, list[Problem]]:
    """Return what is wrong by the name of a parameter, to be added to."""
    problems: dict[str, list[Problem]] = context.ensure_object(dict).setdefault("wrong", {})
    return problems


class Value(ParamType):
    """Converts text to the type of a field of `Settings`. `none` resets the value of a configuration file.

    A text of another type becomes one of `wrong_options`, so that all of them are told at once.
    """

    name = "value"

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        like = getattr(param, "metavar", "") or ""
        why = ""
        if "NAME,..." in like and isinstance(value, str) and re.fullmatch(r"@[^,]+", value):
            try:
                return tuple(read_names(Path(value[1:])))
            except OnnxgenError as error:
                self._wrong(str(error), param, ctx)
                return None
        for reading in _readings(value, like == PAIR):
            try:
                return typed(reading, self.wanted)
            except ValueError as error:
                why = str(error)
        if ",..." in like and "=" not in like and "" in (parts := _parts(value)) and value:
            why = f"{value!r} has an empty name at place {parts.index('') + 1} of {len(parts)}"
        else:
            why = f"{value!r} is not {why}" + (f" like {like}" if "=" in like or "," in like else "")
        self._wrong(why, param, ctx)
        return None

    def _wrong(self, why: str, param: click.Parameter | None, ctx: click.Context | None) -> None:
        if ctx is None or param is None or param.name is None:
            self.fail(why, param, ctx)
        message = click.BadParameter(why, ctx, param).format_message()
        _wrong(ctx).setdefault(param.name, []).append(Problem(f"{message} (try: {ctx.command_path} -h)"))


def _readings(text: str, is_pair: bool) -> Iterator[Any]:
    """Yield the values that a text may mean. The text itself comes last."""
    name, equals, value = text.partition("=")
    if is_pair:
        yield {name.strip(): _literal(value.strip())} if name.strip() and equals else text
        return
    if text.lower() == "none":
        yield from (None, ())
    if isinstance(number := _literal(text), (int, float)) and not isinstance(number, bool):
        yield number
    parts = _parts(text)
    if equals:
        pairs = [(name.strip(), value.strip()) for name, _, value in (part.partition("=") for part in parts)]
        yield dict(pairs) if all(name and value for name, value in pairs) else None
    yield parts if all(parts) else None
    yield text


def _parts(text: str) -> list[str]:
    """Return the names between commas. A name may be a space, or the comma itself: `a,,,b` has three names."""
    names: list[str] = []
    parts = iter(text.split(","))
    for part in parts:
        if part == "" and (after := next(parts, None)) is not None:
            names += [","] if after == "" else ["", after.strip() or after]
        else:
            names.append(part.strip() or part)
    return names


def _literal(text: str) -> Any:
    """Parse `0.5`, `true`, `(0.9, 0.99)`, `[10, 20]`. Anything else is returned as text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
