"""The default command, `onnxgen MODEL.onnx`, which loads alone: the options of a training are not made for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxgen.cli.group import DEFAULT, MANNERS, WRITES, AnyPath, Command, DefaultGroup, option
from onnxgen.cli.options import generation_options, saying_options, take_options
from onnxgen.cli.process import sympy_later

path_type = AnyPath()
model_argument = click.argument("model", type=path_type)
file_option = partial(option, group="Files")


@click.command(
    DEFAULT,
    cls=Command,
    short_help="Write a module from an ONNX file (the default command).",
    examples=[
        ("onnxgen net.onnx -o model.py", "Write model.py and model.safetensors."),
        ("onnxgen net.onnx --verify", "Write net.py, and compare it with net.onnx."),
        ("onnxgen net.onnx --check", "Exit with 1 if net.py is not what would be written."),
        ("onnxgen ./verify", "Read a file that is called like a command."),
    ],
    codes={**WRITES, 1: "with --check: stale; with --verify: different"},
)
@model_argument
@file_option("-o", "--output", metavar="FILE", type=path_type, help="The module to write. Default: beside MODEL.")
@file_option("--check", is_flag=True, help="Write nothing. Exit with 1 if the output is not fresh.")
@file_option("--force", is_flag=True, help="Overwrite an output even if it was edited by hand.")
@file_option("--verify", "verified", is_flag=True, help="Compare the module with MODEL afterwards.")
@generation_options()
@saying_options
def generate(model: Path, output: Path | None, **params: Any) -> int:
    """Generate a module and its weights from MODEL, an ONNX file. This is the default command."""
    with sympy_later():
        from onnxgen.cli.generating import generate_command

    return generate_command(model, output, take_options(params), **params)


alone = DefaultGroup(commands={DEFAULT: generate}, context_settings=MANNERS)
