"""The commands. A first argument that is no command is a model to generate from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from onnxgen._version import __version__
from onnxgen.cli.building import build
from onnxgen.cli.group import (
    DEFAULT,
    EVERY,
    EXIT_CODES,
    EXPORT,
    GENERATE,
    INSPECT,
    SETTINGS,
    VERIFY,
    VIEW,
    Command,
    DefaultGroup,
    Examples,
    Groups,
)
from onnxgen.cli.later import sympy_later
from onnxgen.cli.options import cut_options, generation_options, plugin_option, saying_options, take_options
from onnxgen.cli.train_options import GROUPS, HELP, given_settings, train_options


@click.group(cls=DefaultGroup, context_settings=SETTINGS, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="onnxgen")
def app() -> None:
    """Make readable, trainable PyTorch source from an ONNX file."""


app.add_command(build)


def _command(
    name: str, short: str, groups: Groups, examples: Examples
) -> Callable[[Callable[..., int]], click.Command]:
    given: dict[str, Any] = {"groups": groups, "examples": examples, "context_settings": SETTINGS}
    return app.command(name, cls=Command, short_help=short, epilog=EXIT_CODES, **given)


_model = click.argument("model", type=click.Path(path_type=Path))


@_command(
    DEFAULT,
    "Write a module from an ONNX file (the default command).",
    GENERATE,
    [
        ("onnxgen net.onnx -o model.py", "Write model.py and model.safetensors."),
        ("onnxgen net.onnx --verify", "Write net.py, and compare it with net.onnx."),
        ("onnxgen net.onnx --check", "Exit with 1 if net.py is not what would be written."),
        ("onnxgen ./verify", "Read a file that is called like a command."),
    ],
)
@_model
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The module to write. Default: beside MODEL.",
)
@click.option("--check", is_flag=True, help="Write nothing. Exit with 1 if the output is not fresh.")
@click.option("--force", is_flag=True, help="Overwrite an output even if it was edited by hand.")
@click.option("--verify", "verified", is_flag=True, help="Compare the module with MODEL afterwards.")
@cut_options
@generation_options
@saying_options
def generate(model: Path, output: Path | None, **given: Any) -> int:
    """Generate a module and its weights from MODEL, an ONNX file. This is the default command."""
    with sympy_later():
        from onnxgen.cli.generating import generate_command

    return generate_command(model, output, take_options(given), **given)


@_command(
    "verify",
    "Compare a module with its ONNX file.",
    VERIFY,
    [
        ("onnxgen verify net.onnx model.py", "Compare on drawn inputs."),
        ("onnxgen verify net.onnx model.py --locate", "Name the first node that differs."),
        ("onnxgen verify net.onnx --inputs real.npz", "Compare on your own inputs."),
    ],
)
@_model
@click.argument("module", type=click.Path(path_type=Path), required=False)
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Sets of inputs.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the inputs.")
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-3, show_default=True, help="Relative tolerance.")
@click.option("--atol", type=click.FloatRange(min=0), default=1e-5, show_default=True, help="Absolute tolerance.")
@click.option(
    "--inputs",
    "files",
    metavar="FILE.npz",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Your own inputs: arrays by input name, one file for each run.",
)
@click.option("--integrity", is_flag=True, help="Also compare every tensor of the weights, bit for bit.")
@click.option("--sizes", metavar="NAME=N", multiple=True, help="The size of a dynamic dim. Others are drawn.")
@click.option("--locate", is_flag=True, help="Name the first node and line where MODULE and MODEL differ.")
@generation_options
@saying_options
def verify(model: Path, module: Path | None, **given: Any) -> int:
    """Compare the generated MODULE with MODEL: outputs, dtypes and gradients."""
    from onnxgen.cli.verifying import verify_command

    return verify_command(model, module, take_options(given), **given)


@_command(
    "export",
    "Write a trained module back to ONNX.",
    EXPORT,
    [
        ("onnxgen export model.py -o tuned.onnx", "Write the weights beside it."),
        ("onnxgen export model.py --weights best.safetensors", "Write those of a training run."),
    ],
)
@click.argument("module", type=click.Path(path_type=Path))
@click.option(
    "--onnx",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The original ONNX file. Default: the recorded name.",
)
@click.option(
    "--weights",
    metavar="FILE.safetensors",
    type=click.Path(path_type=Path),
    help="The trained weights. Default: those beside the module.",
)
@click.option("-o", "--output", "out", metavar="FILE", type=click.Path(path_type=Path), help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite any file, not only an earlier export of this model.")
@click.option("--same-graph", is_flag=True, help="Keep the original graph, without what options changed in it.")
@click.option("--no-verify", "verify", flag_value=False, default=True, help="Do not compare the file with the module.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Sets of inputs to compare on.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the inputs.")
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-3, show_default=True, help="Relative tolerance.")
@click.option("--atol", type=click.FloatRange(min=0), default=1e-5, show_default=True, help="Absolute tolerance.")
@plugin_option
@saying_options
def export(module: Path, **given: Any) -> int:
    """Write the trained values of MODULE into its original graph, or export it anew if it was changed."""
    from onnxgen.cli.exporting import export_command

    return export_command(module, **given)


@_command(
    "inspect",
    "Show what is in an ONNX file.",
    INSPECT,
    [
        ("onnxgen inspect net.onnx", "Show operators, tensors and problems."),
        ("onnxgen inspect net.onnx --frozen '^encoder'", "Show the same with an option."),
    ],
)
@_model
@cut_options
@generation_options
@saying_options
def inspect(model: Path, **given: Any) -> int:
    """Show MODEL's inputs, outputs and operators, which tensors are trained and why, and what can't be converted.

    A model that can't be converted ends with exit code 2.
    """
    from onnxgen.cli.inspecting import inspect_command

    return inspect_command(model, take_options(given), **given)


@_command(
    "view",
    "Show the graph beside the source, on an HTML page.",
    VIEW,
    [
        ("onnxgen view net.onnx", "Write net.html."),
        ("onnxgen view net.onnx -o page.html --flat", "Write another page."),
    ],
)
@_model
@click.option(
    "-o",
    "--output",
    metavar="FILE.html",
    type=click.Path(path_type=Path),
    help="The page to write. Default: beside MODEL.",
)
@click.option("--force", is_flag=True, help="Overwrite a file that is no page of onnxgen's.")
@cut_options
@generation_options
@saying_options
def view(model: Path, output: Path | None, **given: Any) -> int:
    """Write one HTML page that shows MODEL's graph beside the source that it becomes.

    Hover over a line to see its nodes, and over a node to see its lines. The page needs no network.
    """
    from onnxgen.cli.viewing import view_command

    return view_command(model, output, take_options(given), **given)


@_command(
    "train",
    "Train a generated module.",
    GROUPS,
    [
        ("onnxgen train model.py --data photos/", "Train on images in folders."),
        ("onnxgen train model.py --data photos/ --replace-head 2", "Give it a new last layer for two classes."),
        ("onnxgen train --resume --out runs/last", "Go on with a stopped run."),
    ],
)
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--data", metavar="DATA", help="A file, a folder, module:function, or digits (the default).")
@click.option(
    "--config",
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="A file with options by name. The command line overrules it.",
)
@train_options
@saying_options
@click.pass_context
def train(context: click.Context, /, model: Path | None, **given: Any) -> int:
    """Train the generated MODEL (a .py file) on DATA, and leave weights, curves and a report in --out.

    Ctrl-C stops the run after the current step and keeps everything. --resume goes on from there.
    """
    from onnxgen.cli.training import train_command

    settings = given_settings(context)
    others = {name: value for name, value in given.items() if name not in HELP}
    return train_command(model, settings, **others)


@_command(
    "ops",
    "List the operators that onnxgen can convert.",
    (("Operators of your own", "--plugin"), *EVERY),
    [("onnxgen ops", "List them all."), ("onnxgen ops --plugin ops.py", "List those of a plugin, too.")],
)
@plugin_option
@saying_options
def ops(**given: Any) -> int:
    """List the operators that onnxgen has a function for."""
    from onnxgen.cli.inspecting import ops_command

    return ops_command(**given)


@_command(
    "devices",
    "List the devices to train on.",
    (("Devices", "--import --test"), *EVERY),
    [
        ("onnxgen devices", "List devices, and compare each with the CPU."),
        ("onnxgen devices --no-test", "Only list them."),
    ],
)
@click.option(
    "--import", "imports", metavar="MODULE", multiple=True, help="Import this module first: it registers a device."
)
@click.option("--test/--no-test", default=True, help="Compare each with the CPU on a small network. Default: --test.")
@saying_options
def devices(**given: Any) -> int:
    """List the devices to train on: name, memory, what works, and whether results agree with the CPU's."""
    from onnxgen.cli.devices import devices_command

    return devices_command(**given)


def commands() -> Sequence[str]:
    """The names that are not taken for a model."""
    return sorted(app.commands)
