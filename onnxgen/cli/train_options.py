"""The options of `onnxgen train`: one for each field of `Settings`, and those of the command itself."""

from __future__ import annotations

import ast
import typing
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import click
from click.core import ParameterSource

from onnxgen.cli.group import Function, option
from onnxgen.training.settings import SETTINGS, Settings

PAIR = "NAME=VALUE"  # what stands for the value of an option that is a table, an item at a time
DATA = "A file, a folder, module:function, or digits (the default)."
CONFIG = "A file with options by name. The command line overrules it."


def train_options(function: Function) -> Function:
    """An option for each setting, and what the command alone has."""
    function = option(
        "--config", metavar="FILE.toml", type=click.Path(path_type=Path), group=SETTINGS["out"].group, help=CONFIG
    )(function)
    types, defaults = typing.get_type_hints(Settings), Settings()
    for name, about in reversed(SETTINGS.items()):
        wanted, default = types[name], getattr(defaults, name)
        given: dict[str, Any] = {"group": about.group, "help": about.help}
        if wanted is bool:
            option_names, given["default"] = f"{about.option}/{about.option.replace('--', '--no-', 1)}", None
        else:
            option_names = about.option
            repeated = wanted == tuple[str, ...] and about.like != "NAME,..."
            given["multiple"] = repeated or about.like == PAIR
            given["type"] = click.STRING if repeated else Value(wanted)
            given["metavar"] = about.like
            if not given["multiple"] and default not in (None, {}, ()):
                given["help"] += f" Default: {default}."
        function = option(option_names, name, **given)(function)
    return option("--data", metavar="DATA", group="Data", help=DATA)(function)


def given_settings(context: click.Context) -> dict[str, Any]:
    """What the command line says itself, by field; defaults are not in it."""
    found: dict[str, Any] = {}
    for name, about in SETTINGS.items():
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            value = context.params[name]
            found[name] = {k: v for one in value for k, v in one.items()} if about.like == PAIR else value
    return found


class Value(click.ParamType[Any]):
    """Text as a type of `Settings` has it; `none` takes back what a configuration file says."""

    name = "value"

    def __init__(self, wanted: Any) -> None:
        kinds = typing.get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
        self.kinds = sorted(kinds, key=lambda kind: kind is str)  # text, which anything is, comes last

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for kind in self.kinds:
            try:
                return _of_kind(kind, value)
            except (ValueError, SyntaxError):
                continue
        words = " or ".join(_WORDS[typing.get_origin(kind) or kind] for kind in self.kinds if kind is not NoneType)
        return self.fail(f"{value!r} is not {words}", param, ctx)


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Mapping: "like NAME=VALUE",
    tuple: "like NAME,NAME",
}


def _of_kind(kind: Any, text: str) -> Any:
    """Raises `ValueError` for text that is none of that kind."""
    if kind is NoneType:
        if text.lower() != "none":
            raise ValueError
        return None
    if typing.get_origin(kind) is tuple:
        names = () if text.lower() == "none" else tuple(name.strip() for name in text.split(","))
        if not all(names):
            raise ValueError
        return names
    if typing.get_origin(kind) is not Mapping:
        return kind(text)
    if typing.get_args(kind)[1] is str:
        pairs = [one.partition("=") for one in text.split(",")]
        if not all(name.strip() and equals and value.strip() for name, equals, value in pairs):
            raise ValueError
        return {name.strip(): value.strip() for name, _, value in pairs}
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise ValueError
    return {name.strip(): _literal(value.strip())}


def _literal(text: str) -> Any:
    """`0.5`, `true`, `(0.9, 0.99)`, `[10, 20]`; anything else is text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
