"""The group that the commands belong to, and what each of them shows; apart, so that a quick command loads no other."""

from __future__ import annotations

from collections.abc import Sequence

import click

EXIT_CODES = """\b
Exit codes:
  0   fine; with --check: fresh; verify: equal
  1   with --check: stale; verify, export: different
  2   bad input: the file, an option, or a model that can't be converted exactly
  3   the module was edited by hand and its source changed too: MODULE.new is beside it
  70  a bug in onnxgen
  130 interrupted"""
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--json")
DEFAULT = "generate"


class DefaultGroup(click.Group):
    """A group whose first argument may be a model instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if (command := named(args)) in self.commands:
            others = list(args)
            others.remove(command)
            args = [command, *others]
        elif args and not (len(args) == 1 and args[0] in ("-h", "--help", "--version")):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("onnxgen", "MODEL.onnx [-o model.py] [OPTIONS]")
        formatter.write_usage("onnxgen", "COMMAND ... [OPTIONS]", prefix=" " * 7)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        inner = click.Context(self.commands[DEFAULT], parent=ctx, info_name=DEFAULT)
        self.commands[DEFAULT].format_options(inner, formatter)
        with formatter.section("Of the command itself"):
            formatter.write_dl([("--version", "Show the version and exit.")])
        self.format_commands(ctx, formatter)


def named(args: Sequence[str]) -> str:
    """The first argument that is no flag: a command, or a model; "" if there is none."""
    return next((arg for arg in args if arg not in _FLAGS), "")
