"""What the commands have in common: options of a generation, and how much is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from onnxgen.common.limits import NAMES, Limits
from onnxgen.options import DTYPES, QUANTIZED, Options

Function = TypeVar("Function", bound=Callable[..., Any])
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def input_shapes(_: object, __: object, given: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """`("image=1,3,224,224",)` to `{"image": (1, 3, 224, 224)}`; a dim of -1 or ? is left as it is."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, dims = text.rpartition("=")
        parts = [d.strip() for d in dims.split(",")] if dims.strip() else []
        if not equals or not name or not all(re.fullmatch(r"-1|\?|\d+", d) for d in parts):
            raise click.BadParameter(f"{text!r} is not like NAME=1,3,224,224")
        found[name] = tuple(-1 if d == "?" else int(d) for d in parts)
    return found


def dropout(_: object, __: object, given: tuple[str, ...]) -> dict[str, float]:
    """`("encoder.*=0.1",)` to `{"encoder.*": 0.1}`."""
    found: dict[str, float] = {}
    for text in given:
        scope, equals, p = text.rpartition("=")
        if not equals or not scope or not re.fullmatch(r"\d*\.?\d+(e-?\d+)?", p.strip()):
            raise click.BadParameter(f"{text!r} is not like SCOPE=0.1")
        found.pop(scope, None)  # given again it counts from here
        found[scope] = float(p)
    return found


def batch_axes(_: object, __: object, given: tuple[str, ...]) -> dict[str, int | None]:
    """`("frames=1", "scale=none")` to `{"frames": 1, "scale": None}`."""
    found: dict[str, int | None] = {}
    for text in given:
        name, equals, axis = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"-?\d+|none", axis.strip()):
            raise click.BadParameter(f"{text!r} is not like NAME=1 or NAME=none")
        found[name] = None if axis.strip() == "none" else int(axis)
    return found


def limits(_: object, __: object, given: tuple[str, ...]) -> Limits:
    """`("nodes=500000",)` to `Limits(nodes=500000)`."""
    found: dict[str, int] = {}
    for text in given:
        name, _, number = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in NAMES:
            raise click.BadParameter(f"{text!r} is not like nodes=500000; there are {', '.join(NAMES)}")
        try:
            found[name] = int(number)
        except ValueError:
            raise click.BadParameter(f"{text!r} has no whole number: it should be like {name}=500000") from None
    return Limits(**found)


def size(_: object, __: object, given: str) -> int:
    """`5GB` to 5_000_000_000."""
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)B?", given.strip().upper())
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{given!r} is not a size like 500MB or 5GB")
    return int(match[1]) * _UNITS[match[2]]


plugin_option = click.option(
    "--plugin",
    "plugins",
    metavar="MODULE",
    multiple=True,
    help="Operators of your own: a .py file, a package's folder or a module's name; may be repeated.",
)
_GENERATION = [
    click.option("--class-name", metavar="NAME", help="Name of the root class. Default: from the file."),
    click.option(
        "--weights",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="The file of weights to write. Default: beside the module.",
    ),
    click.option("--dtype", type=click.Choice(DTYPES), help="Give the whole network this floating point type."),
    click.option("--embed", is_flag=True, help="Put the weights into the module itself (small models)."),
    click.option(
        "--input-shape",
        "input_shapes",
        metavar="NAME=1,3,224,224",
        multiple=True,
        callback=input_shapes,
        help="Fix the dims of an input (-1 leaves one as it is); may be repeated.",
    ),
    click.option("--flat", is_flag=True, help="Write one class, without nested modules."),
    click.option("--annotate", is_flag=True, help="Say in comments which ONNX nodes each line comes from."),
    click.option("--trainable", metavar="REGEX", help="Train the tensors whose ONNX name matches."),
    click.option("--frozen", metavar="REGEX", help="Do not train the tensors whose ONNX name matches."),
    click.option(
        "--dynamic-batch", is_flag=True, help="Make a fixed batch size free, if onnxgen can prove that this is right."
    ),
    click.option(
        "--batch-axis",
        "batch_axes",
        metavar="NAME=1",
        multiple=True,
        callback=batch_axes,
        help="The batch axis of an input, if it is not the first; none: it has no batch; may be repeated.",
    ),
    click.option(
        "--restore-batchnorm", is_flag=True, help="Put back BatchNorm layers that the export folded into convolutions."
    ),
    click.option(
        "--quantized",
        type=click.Choice(QUANTIZED),
        default="keep",
        show_default=True,
        help="What quantised operators become: the same integers, floats, or floats with fake quantisation.",
    ),
    click.option(
        "--dropout",
        metavar="SCOPE=P",
        multiple=True,
        callback=dropout,
        help="Put a Dropout after a module (a path with * for one part, ** for any); may be repeated.",
    ),
    click.option(
        "--nchwc-block",
        type=click.Choice(["8", "16"]),
        callback=lambda context, parameter, value: value and int(value),
        help="Channels in a block, for a file that onnxruntime optimised for one kind of processor.",
    ),
    click.option(
        "--shard-size",
        metavar="SIZE",
        default="5GB",
        show_default=True,
        callback=size,
        help="Write weights larger than this as several files.",
    ),
    click.option(
        "--templates",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        help="A folder of Jinja templates to use instead of onnxgen's own.",
    ),
    plugin_option,
    click.option(
        "--allow-unsupported",
        is_flag=True,
        help="Write a method to fill in for each operator that onnxgen has no function for.",
    ),
    click.option(
        "--paranoid",
        is_flag=True,
        help="Check every rewriting of the graph on drawn inputs; takes several times as long.",
    ),
    click.option(
        "--limit",
        "limits",
        metavar="NAME=N",
        multiple=True,
        callback=limits,
        help="Raise a size past which a file is refused (SECURITY.md lists them); may be repeated.",
    ),
]
_CUT = [
    click.option(
        f"--{side}",
        metavar="VALUE",
        multiple=True,
        help=f"Generate only a part of the graph, with this value as an {side[:-1]}; may be repeated.",
    )
    for side in ("inputs", "outputs")
]
_SAYING = [
    click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
    click.option("-v", "--verbose", is_flag=True, help="Say more; with an error, show where it comes from."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout, errors too."),
]


def _all(options: Sequence[Callable[[Function], Function]], function: Function) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def generation_options(function: Function) -> Function:
    """Add what `onnxgen.Options` has; `take_options` makes the object."""
    return _all(_GENERATION, function)


def cut_options(function: Function) -> Function:
    """Add `--inputs` and `--outputs`, for commands that no module tells which part of a network is meant."""
    return _all(_CUT, function)


def saying_options(function: Function) -> Function:
    """Add `-q`, `-v` and `--json`."""
    return _all(_SAYING, function)


def take_options(given: dict[str, Any]) -> Options:
    """The `Options` among a command's arguments, which they are removed from."""
    return Options(**{f.name: given.pop(f.name) for f in fields(Options) if f.name in given})
