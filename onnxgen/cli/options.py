"""What the commands have in common: options of a generation, and how much is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from onnxgen.cli.group import Function, option
from onnxgen.common.declared import About
from onnxgen.common.values import FLAG, NAMES, PATH, Kind
from onnxgen.options import OPTIONS, Options

_SAYING = [
    option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
    option("-v", "--verbose", is_flag=True, help="Say more; with an error, show where it comes from."),
    option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout, errors too."),
]


def generation_options(without: tuple[str, ...] = (), when: str = "") -> Callable[[Function], Function]:
    """Add what `onnxgen.Options` has; `take_options` makes the object.

    Args:
        without: fields that the command has another option for.
        when: stands behind the titles of their groups.
    """
    chosen = {name: about for name, about in OPTIONS.items() if name not in without}
    return _all([_option(name, about, f"{about.group}{when}") for name, about in chosen.items()])


def plugin_option(group: str) -> Callable[[Function], Function]:
    """Add `--plugin` alone."""
    return _option("plugins", OPTIONS["plugins"], group)


def saying_options(function: Function) -> Function:
    """Add `-q`, `-v` and `--json`."""
    return _all(_SAYING)(function)


def take_options(given: dict[str, Any]) -> Options:
    """The `Options` among a command's arguments, which they are removed from."""
    said = {name: given.pop(name) for name in OPTIONS if name in given}
    return Options(**{name: value for name, value in said.items() if value not in (None, (), False)})


def _option(name: str, about: About, group: str) -> Callable[[Function], Function]:
    kind, given = about.kind, dict[str, Any]()
    assert kind is not None
    if kind is FLAG:
        given["is_flag"] = True
    elif kind.choices:
        given["type"] = click.Choice(kind.choices)
    elif kind is PATH:
        is_folder = about.like == "DIR"
        given["type"] = click.Path(path_type=Path, file_okay=not is_folder, exists=is_folder)
    if kind is not PATH and kind is not FLAG:
        given |= {"multiple": kind.table or kind is NAMES, "callback": _said(kind)}
    return option(about.option, name, group=group, metavar=about.like or None, help=about.help, **given)


def _said(kind: Kind) -> Callable[..., Any]:
    def said(_: object, __: object, given: Any) -> Any:
        try:
            return given if given in (None, ()) or kind is NAMES else kind.said(given)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return said


def _all(options: list[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for one in reversed(options):
            function = one(function)
        return function

    return add
