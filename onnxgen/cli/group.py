"""The group that the commands belong to, and what each of them shows; apart, so that a quick command loads no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
START = (
    ("onnxgen net.onnx -o model.py", "Write model.py and model.safetensors."),
    ("onnxgen verify net.onnx model.py", "Compare them with the ONNX file."),
    ("onnxgen train model.py --data photos/", "Train it on images in folders."),
)

Examples = Sequence[tuple[str, str]]  # what to type, and what that does
Groups = Sequence[tuple[str, str]]  # a title, and the options below it by their long names

OTHERS = "Other options"  # what no group has: a test holds that there is none
EVERY: Groups = (("Messages and help", "--quiet --verbose --json --version --help"),)
SOURCE: Groups = (
    ("Source", "--class-name --flat --annotate --templates"),
    ("Inputs, shapes and types", "--input-shape --inputs --outputs --dynamic-batch --batch-axis --dtype"),
    ("Training", "--trainable --frozen --dropout --restore-batchnorm --quantized"),
    ("Operators of your own", "--plugin --allow-unsupported"),
    ("Unusual files", "--limit --nchwc-block --paranoid"),
)
GENERATE: Groups = (
    ("Files", "--output --check --force --verify --weights --embed --shard-size"),
    *SOURCE,
    *EVERY,
)
VIEW: Groups = (("Files", "--output --force --weights --embed --shard-size"), *SOURCE, *EVERY)
INSPECT: Groups = (*SOURCE, ("Files", "--weights --embed --shard-size"), *EVERY)
VERIFY: Groups = (
    ("Comparison", "--runs --seed --rtol --atol --inputs --sizes --locate --integrity"),
    *((f"{title} (as when MODULE was generated)", names) for title, names in INSPECT[:-1]),
    *EVERY,
)
EXPORT: Groups = (
    ("Files", "--onnx --weights --output --force"),
    ("Graph", "--same-graph --plugin"),
    ("Comparison", "--no-verify --runs --seed --rtol --atol"),
    *EVERY,
)


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

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What to type comes first, then the commands, then the options of the default command."""
        formatter.write_text(self.help or "")
        write_examples(formatter, START, "What to type")
        self.format_commands(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_usage("onnxgen", "MODEL.onnx [-o model.py] [OPTIONS]")
        formatter.write_usage("onnxgen", "COMMAND ... [OPTIONS]", prefix=" " * 7)
        default = self.commands[DEFAULT]
        inner = click.Context(default, parent=ctx, info_name=DEFAULT)
        version = [p for p in self.get_params(ctx) if "--version" in p.opts]
        write_options(formatter, inner, [*default.get_params(inner), *version], GENERATE)
        self.format_epilog(ctx, formatter)


def named(args: Sequence[str]) -> str:
    """The first argument that is no flag: a command, or a model; "" if there is none."""
    return next((arg for arg in args if arg not in _FLAGS), "")


class Command(click.Command):
    """A command that shows examples, and its options in groups."""

    def __init__(self, *args: Any, examples: Examples = (), groups: Groups = (), **given: Any) -> None:
        super().__init__(*args, **given)
        self.examples, self.groups = examples, groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What click calls after the text: the examples, then the options."""
        write_examples(formatter, self.examples)
        write_options(formatter, ctx, self.get_params(ctx), self.groups)


def write_examples(formatter: click.HelpFormatter, examples: Examples, title: str = "Examples") -> None:
    """Lines to type, each with what it does; what is long has its meaning in the next line."""
    if examples:
        with formatter.section(title):
            formatter.write_dl(examples, col_max=46)


def write_options(
    formatter: click.HelpFormatter, ctx: click.Context, params: Iterable[click.Parameter], groups: Groups
) -> None:
    """The options below the titles of their groups; one that two groups name is in the first."""
    options = [p for p in params if isinstance(p, click.Option)]
    rows = {p.opts[-1]: row for p in options if (row := p.get_help_record(ctx)) is not None}
    grouped = {name for _, names in groups for name in names.split()}
    others = " ".join(name for name in rows if name not in grouped)
    for title, names in (*groups[:-1], (OTHERS, others), *groups[-1:]):
        found = [rows.pop(name) for name in names.split() if name in rows]
        if found:
            with formatter.section(title):
                formatter.write_dl(found)
