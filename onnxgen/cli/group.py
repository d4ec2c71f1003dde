"""Base classes of the commands and their group: help, examples, exit codes. They do not import the commands, so that a
quick command can load alone.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from onnxgen.cli.process import may_be_file, named

_EDITED = "the module was edited by hand, its source changed too, and they can't be merged: MODULE.new is beside it"
_ALWAYS = {
    0: "fine",
    2: "bad input: the file, an option, or a model that can't be converted exactly",
    70: "a bug in onnxgen",
    130: "interrupted",
}
CODES = {
    **_ALWAYS,
    0: "fine; with --check: fresh; verify: equal; prove: proved; diff: the same function; identify: named",
    1: "with --check: stale; verify, prove, transplant, diff, export: different; "
    "predict, evaluate: something was left out; identify: none",
    3: _EDITED,
    4: "prove, diff: neither proved nor different",
    75: "train: another process of the run was lost",
}
WRITES = {0: "fine; with --check: fresh", 1: "with --check: stale", 3: _EDITED}  # of commands that write modules
MANNERS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
DEFAULT = "generate"  # the command of a line that names none
START = (
    ("onnxgen net.onnx -o model.py", "Write model.py and model.safetensors."),
    ("onnxgen verify net.onnx model.py", "Compare them with the ONNX file."),
    ("onnxgen train model.py --data photos/", "Train it on images in folders."),
)
SYNONYMS = {  # words of other programs for an option, besides those that its name and its help begin with
    "--batch-size": "batch bs minibatch",
    "--class-name": "name",
    "--clip": "gradient-clip grad-clip max-norm max-grad-norm",
    "--data": "dataset train-data",
    "--device": "gpu cuda accelerator",
    "--early-stop": "patience",
    "--freeze": "frozen",
    "--loss": "criterion",
    "--lr": "learningrate rate",
    "--max-steps": "iterations steps",
    "--monitor": "watch best-metric",
    "--optimizer-arg": "momentum betas eps",
    "--out": "output output-dir save-dir",
    "--output": "out save",
    "--precision": "amp fp16 bf16 half",
    "--replace-head": "num-classes head",
    "--resume": "continue restart",
    "--rtol": "tolerance tol",
    "--schedule": "lr-scheduler",
    "--val": "validation validation-split",
    "--weight-decay": "wd l2",
    "--weights": "checkpoint ckpt pretrained load",
}
EVERY = "Messages and help"  # the title of the options that every command has

Function = TypeVar("Function", bound=Callable[..., Any])
Examples = Sequence[tuple[str, str]]  # command lines and their meanings


class Option(click.Option):
    """An option with the title of its group in the help."""

    def __init__(self, *args: Any, group: str = EVERY, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.group = group


def option(*names: str, **attrs: Any) -> Callable[[Function], Function]:
    """Make a `click.option` with a `group`."""
    return click.option(*names, cls=Option, **attrs)


class AnyPath(click.Path):
    """The path of a file or a folder that need not exist. `Path("")` would be the folder where we are."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(path_type=Path, **attrs)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "\0" in str(value) or not str(value):
            self.fail("a path is neither empty nor has it a zero byte", param, ctx)
        return super().convert(value, param, ctx)


class Finite(click.FloatRange):
    """A number in a range. NaN, which passes every comparison of a range, is none; neither is infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is no number here.", param, ctx)
        return number


def exit_codes(codes: Mapping[int, str]) -> str:
    """Return the last lines of a help."""
    return "\b\nExit codes:\n" + "\n".join(f"  {code:<3} {meaning}" for code, meaning in sorted(codes.items()))


class DefaultGroup(click.Group):
    """A group whose first argument may be a model instead of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:2], "-h"]
        if (command := named(args)) in self.commands:
            others = list(args)
            others.remove(command)
            args = [command, *others]
        elif args and not (len(args) == 1 and args[0] in ("-h", "--help", "--version")):
            self._refuse_mistyped(ctx, command)
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def _refuse_mistyped(self, ctx: click.Context, name: str) -> None:
        """Refuse a word that resembles a command, unless it may be a file."""
        if os.path.exists(name) or name.startswith("-") or may_be_file(name):
            return
        import difflib  # for errors alone

        for near in difflib.get_close_matches(name, self.commands, 1):
            ctx.fail(f"there is no command and no file {name!r}; did you mean: onnxgen {near}")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples, then the commands, then the options of the default command."""
        formatter.write_text(self.help or "")
        write_examples(formatter, START, "What to type")
        self.format_commands(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_usage("onnxgen", "MODEL.onnx [-o model.py] [OPTIONS]")
        formatter.write_usage("onnxgen", "COMMAND ... [OPTIONS]", prefix=" " * 7)
        default = self.commands[DEFAULT]
        inner = click.Context(default, parent=ctx, info_name=DEFAULT)
        version = [p for p in self.get_params(ctx) if "--version" in p.opts]
        write_options(formatter, inner, [*default.get_params(inner), *version])
        self.format_epilog(ctx, formatter)


class Command(click.Command):
    """A command whose help has examples, options in groups, and exit codes (`codes`: those with its own meanings)."""

    def __init__(
        self,
        *args: Any,
        examples: Examples = (),
        codes: Mapping[int, str] | None = None,
        first: Sequence[str] = (),
        **attrs: Any,
    ) -> None:
        """`first`: the options of the first screen; each of them is in its group, too."""
        attrs |= {"context_settings": MANNERS, "epilog": exit_codes({**_ALWAYS, **(codes or {})})}
        super().__init__(*args, **attrs)
        self.examples, self.first = examples, first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """For an unknown option also suggest options whose help begins with its words, and those of `SYNONYMS`."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            word = error.option_name.strip("-").replace("_", "-").lower()
            options = [p for p in self.params if isinstance(p, click.Option)]
            meant = [p.opts[-1] for p in options if word in SYNONYMS.get(p.opts[-1], "").split()]
            words = word.replace("-", " ")
            meant += [p.opts[-1] for p in options if (p.help or "").lower().startswith(words)]
            if meant:
                ctx.fail(f"no such option {error.option_name}; did you mean {' or '.join(meant)}?")
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and the options. click calls this after the text."""
        write_examples(formatter, self.examples)
        params = self.get_params(ctx)
        if self.first:
            records = {p.opts[-1]: p.get_help_record(ctx) for p in params if isinstance(p, Option)}
            rows = [(record[0].split(" / ")[0], _short(record[1])) for name in self.first if (record := records[name])]
            with formatter.section("Used most (all options are below)"):
                formatter.write_dl(rows)
        write_options(formatter, ctx, params)


def _short(text: str) -> str:
    """Return the beginning of a help that fits into one line: its first sentence, or what is before a colon."""
    sentence = re.split(r"[.:;](?: |$)|, (?:and|or) ", text, maxsplit=1)[0]
    return f"{sentence}."


def write_examples(formatter: click.HelpFormatter, examples: Examples, title: str = "Examples") -> None:
    """Write command lines with their meanings. The meaning of a long one is on the next line."""
    if examples:
        with formatter.section(title):
            formatter.write_dl(examples, col_max=46)


def write_options(formatter: click.HelpFormatter, ctx: click.Context, params: Iterable[click.Parameter]) -> None:
    """Write the options under the titles of their groups. Groups are in the order of their first options."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in params:
        if isinstance(one, click.Option) and (row := one.get_help_record(ctx)) is not None:
            groups.setdefault(getattr(one, "group", EVERY), []).append(row)
    for title, rows in sorted(groups.items(), key=lambda group: group[0] == EVERY):
        with formatter.section(title):
            formatter.write_dl(rows)
