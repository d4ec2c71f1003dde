"""Options that several commands have: those of a generation, and -q, -v and --json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from onnxgen.cli.group import AnyPath, Function, option
from onnxgen.common.values import FLAG, NAMES, PATH, About, Kind
from onnxgen.options import OPTIONS, Options


def generation_options(without: tuple[str, ...] = (), when: str = "") -> Callable[[Function], Function]:
    """Add an option for each field of `onnxgen.Options`. `take_options` makes the object.

    Args:
        without: fields to leave out.
        when: a suffix of the titles of the groups.
    """
    chosen = {name: about for name, about in OPTIONS.items() if name not in without}
    return add_all([_option(name, about, f"{about.group}{when}") for name, about in chosen.items()])


def plugin_option(group: str) -> Callable[[Function], Function]:
    """Add `--plugin` alone."""
    return _option("plugins", OPTIONS["plugins"], group)


def take_options(params: dict[str, Any]) -> Options:
    """Remove the fields of `Options` from a command's arguments, and return them as an object."""
    taken = {name: params.pop(name) for name in OPTIONS if name in params}
    return Options(**{name: value for name, value in taken.items() if value not in (None, (), False)})


def _option(name: str, about: About, group: str) -> Callable[[Function], Function]:
    kind, attrs = about.kind, dict[str, Any]()
    assert kind is not None
    if kind is FLAG:
        attrs["is_flag"] = True
    elif kind.choices:
        attrs["type"] = click.Choice(kind.choices)
    elif kind is PATH:
        is_folder = about.like == "DIR"
        attrs["type"] = AnyPath(file_okay=not is_folder, exists=is_folder)
    if kind is not PATH and kind is not FLAG:
        attrs |= {"multiple": kind.table or kind is NAMES, "callback": _parser(kind)}
    return option(about.option, name, group=group, metavar=about.like or None, help=about.help, **attrs)


def _parser(kind: Kind) -> Callable[..., Any]:
    def parse(_: object, __: object, value: Any) -> Any:
        try:
            return value if value in (None, ()) or kind is NAMES else kind.said(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return parse


def add_all(options: list[Callable[[Function], Function]]) -> Callable[[Function], Function]:
    """Return a decorator that adds options, the first one first."""

    def add(function: Function) -> Function:
        for one in reversed(options):
            function = one(function)
        return function

    return add


saying_options = add_all(
    [
        option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        option("-v", "--verbose", is_flag=True, help="Say more; with an error, show where it comes from."),
        option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout, errors too."),
    ]
)
