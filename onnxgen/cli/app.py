"""The commands. A first argument that is not a command is a model to generate from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxgen._version import __version__
from onnxgen.cli.building import build
from onnxgen.cli.default import file_option, generate, model_argument, path_type
from onnxgen.cli.group import CODES, MANNERS, Command, DefaultGroup, Examples, Finite, exit_codes, option
from onnxgen.cli.options import add_all, generation_options, plugin_option, saying_options, take_options
from onnxgen.cli.train_options import given_settings, train_options, wrong_options
from onnxgen.identify import LIBRARIES
from onnxgen.ship.target import SHIPS
from onnxgen.training.runs.folder import RUNS
from onnxgen.training.settings import SETTINGS

EXIT_CODES = exit_codes(CODES)
NOT_OF_A_FUNCTION = ("flat", "annotate", "style", "class_name", "templates", "weights", "embed", "shard_size")


@click.group(cls=DefaultGroup, context_settings=MANNERS, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="onnxgen")
def app() -> None:
    """Make readable, trainable PyTorch source from an ONNX file."""


app.add_command(build)
app.add_command(generate)


def _command(
    name: str, short: str, examples: Examples, codes: Mapping[int, str] | None = None, first: Sequence[str] = ()
) -> Callable[[Callable[..., int]], click.Command]:
    attrs: dict[str, Any] = {"short_help": short, "examples": examples, "codes": codes, "first": first}
    return app.command(name, cls=Command, **attrs)


_same = partial(option, group="Comparison")
_whole, _number = click.IntRange(min=0), Finite(min=0)
_compared = add_all(
    [
        _same("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Sets of inputs to compare on."),
        _same("--seed", type=_whole, default=0, show_default=True, help="Seed of the inputs."),
        _same("--rtol", type=_number, default=1e-3, show_default=True, help="Relative tolerance."),
        _same("--atol", type=_number, default=1e-5, show_default=True, help="Absolute tolerance."),
    ]
)


@_command(
    "verify",
    "Compare a module with its ONNX file.",
    [
        ("onnxgen verify net.onnx model.py", "Compare on drawn inputs."),
        ("onnxgen verify net.onnx model.py --locate", "Name the first node that differs."),
        ("onnxgen verify net.onnx --inputs real.npz", "Compare on your own inputs."),
    ],
    {0: "equal", 1: "different"},
)
@model_argument
@click.argument("module", type=path_type, required=False)
@_compared
@_same(
    "--inputs",
    "files",
    metavar="FILE.npz",
    multiple=True,
    type=path_type,
    help="Your own inputs: arrays by input name, one file for each run.",
)
@_same("--sizes", metavar="NAME=N", multiple=True, help="The size of a dynamic dim. Others are drawn.")
@_same("--locate", is_flag=True, help="Name the first node and line where MODULE and MODEL differ.")
@_same("--partial", is_flag=True, help="Load what fits into an edited MODULE, and compare the tensors that both have.")
@_same("--integrity", is_flag=True, help="Also compare every tensor of the weights, bit for bit.")
@generation_options(("inputs", "outputs"), " (as when MODULE was generated)")
@saying_options
def verify(model: Path, module: Path | None, **params: Any) -> int:
    """Compare the generated MODULE with MODEL: outputs, dtypes and gradients.

    MODULE is by default the file that onnxgen writes for MODEL without -o.
    """
    from onnxgen.cli.generating import verify_command

    return verify_command(model, module, take_options(params), **params)


_proved = partial(option, group="Comparison")


@_command(
    "prove",
    "Tell whether an edited module is the same function.",
    [
        ("onnxgen prove net.onnx model.py", "Prove it, or show a difference."),
        ("onnxgen prove net.onnx model.py --rename", "Also write the weights under new names."),
    ],
    {0: "proved", 1: "different", 4: "neither is known"},
)
@model_argument
@click.argument("module", type=path_type, required=False)
@_proved("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Sets of inputs to compare on.")
@_proved("--seed", type=_whole, default=0, show_default=True, help="Seed of the inputs.")
@_proved("--rename", is_flag=True, help="If it is proved, write the weights under the names of MODULE.")
@saying_options
def prove(model: Path, module: Path | None, **params: Any) -> int:
    """Tell whether the edited MODULE computes what MODEL does, for all inputs, with the same trained parameters.

    MODULE is by default the file that onnxgen writes for MODEL without -o.
    """
    from onnxgen.cli.proving import prove_command

    return prove_command(model, module, **params)


@_command(
    "diff",
    "Say what changed between two models.",
    [
        ("onnxgen diff old.onnx new.onnx", "Compare function, architecture, weights and metadata."),
        ("onnxgen diff old.onnx new.onnx --html diff.html", "Also write a page, with both sources side by side."),
        ("onnxgen diff net.onnx model.py", "Compare a file with an edited module."),
    ],
    {0: "the same function", 1: "different", 4: "equal on the drawn inputs, and not proved"},
)
@click.argument("one", type=path_type)
@click.argument("other", type=path_type)
@_proved("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Sets of inputs to compare on.")
@_proved("--seed", type=_whole, default=0, show_default=True, help="Seed of the inputs.")
@file_option("--html", metavar="FILE.html", type=path_type, help="Also write a page.")
@file_option("--force", is_flag=True, help="Overwrite a file that onnxgen diff did not make.")
@generation_options(NOT_OF_A_FUNCTION)
@saying_options
def diff(one: Path, other: Path, **params: Any) -> int:
    """Say what changed from ONE to OTHER: function, architecture, weights, inputs, outputs and metadata.

    Each is an ONNX file, or a module that onnxgen generated, with its weights beside it. Other names, another order of
    nodes, another opset and other spellings of the same function are no changes.
    """
    from onnxgen.cli.differing import diff_command

    return diff_command(one, other, take_options(params), **params)


@_command(
    "export",
    "Write a trained module back to ONNX.",
    [
        ("onnxgen export model.py -o tuned.onnx", "Write the weights beside it."),
        ("onnxgen export runs/digits-1", "Write those of a training run."),
        ("onnxgen export runs/digits-1 --adapter", "Write what was trained apart from the graph."),
    ],
    {1: "the file and the module differ"},
)
@click.argument("module", type=path_type, required=False)
@file_option("--onnx", metavar="FILE", type=path_type, help="The original ONNX file. Default: the recorded name.")
@file_option(
    "--weights",
    metavar="FILE",
    type=path_type,
    help="The trained weights, as safetensors or a PyTorch checkpoint. Default: those beside the module.",
)
@file_option("-o", "--output", "out", metavar="FILE", type=path_type, help="The file to write.")
@file_option("--force", is_flag=True, help="Overwrite any file, not only an earlier export of this model.")
@option(
    "--same-graph", is_flag=True, group="Graph", help="Keep the original graph, without what options changed in it."
)
@option(
    "--adapter",
    is_flag=True,
    group="Graph",
    help="Write the original graph with optional inputs, and what was trained as an adapter for onnxruntime.",
)
@plugin_option("Graph")
@_same("--no-verify", "verify", flag_value=False, default=True, help="Do not compare the file with the module.")
@_compared
@saying_options
def export(module: Path | None, **params: Any) -> int:
    """Write the trained values of MODULE, or of a run, into its original graph; a changed one is exported anew.

    MODULE is by default the newest run in runs/.
    """
    from onnxgen.cli.exporting import export_command

    return export_command(module, **params)


@_command(
    "transplant",
    "Put the weights of an ONNX file into a class of yours.",
    [
        ("onnxgen transplant net.onnx --into nets:Net -o net.safetensors", "Fill nets.Net(), and write its weights."),
        (
            "onnxgen transplant net.onnx --into timm:create_model --arg model_name=resnet18 -o net.safetensors",
            "Fill a library's network.",
        ),
        (
            "onnxgen transplant net.onnx --into nets:Net --back tuned.safetensors -o tuned.onnx",
            "Write back what it learned.",
        ),
    ],
    {1: "another network: nothing is written"},
)
@model_argument
@option(
    "--into", metavar="MODULE:FACTORY", required=True, group="Module", help="A function or class that makes the module."
)
@option(
    "--arg", "arguments", metavar="NAME=VALUE", multiple=True, group="Module", help="Its argument; may be repeated."
)
@option(
    "--back",
    metavar="FILE",
    type=path_type,
    group="Module",
    help="The module's weights after a training: write an ONNX file.",
)
@file_option("-o", "--output", "out", metavar="FILE", type=path_type, required=True, help="The file to write.")
@file_option("--force", is_flag=True, help="Overwrite a file that is there.")
@_same("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Sets of inputs to compare on.")
@_same("--seed", type=_whole, default=0, show_default=True, help="Seed of the inputs.")
@saying_options
def transplant(model: Path, **params: Any) -> int:
    """Fill a module of the same architecture with the weights of MODEL, and compare both.

    Parameters are renamed, transposed, cut out of fused matrices and joined. Where MODEL has a BatchNorm folded into
    the layer before, that of the module becomes the identity.
    """
    from onnxgen.cli.transplanting import transplant_command
    from onnxgen.options import Options

    return transplant_command(model, Options(), **params)


@_command(
    "ship",
    "Write a trained run for another runtime.",
    [
        ("onnxgen ship runs/digits-1 --to onnx-int8", "Write 8-bit integers for onnxruntime."),
        ("onnxgen ship runs/digits-1 --to executorch -o digits.pte", "Write a file for phones."),
    ],
    {1: "the file and the module differ: nothing is written"},
)
@click.argument("run", type=path_type, required=False)
@file_option("--to", metavar="NAME", required=True, help=f"{', '.join(SHIPS)}.")
@file_option(
    "-o", "--output", "out", metavar="FILE", type=path_type, help="The file to write. Default: in the run's folder."
)
@file_option("--force", is_flag=True, help="Overwrite a file that is there.")
@file_option("--onnx", metavar="FILE", type=path_type, help="The original ONNX file. Default: the recorded name.")
@option(
    "--may-lose",
    metavar="POINTS",
    type=_number,
    default=1.0,
    show_default=True,
    group="Integers",
    help="By how many points of the run's metric 8-bit integers may be worse.",
)
@option("--data", metavar="DATA", group="Data", help="Where the run's data is now, if it was moved.")
@saying_options
def ship(run: Path | None, **params: Any) -> int:
    """Write the network of RUN as the file of a runtime, run it there, and compare it with the module.

    Beside it are a model card and a bill of materials. RUN is by default the newest run in runs/.
    """
    from onnxgen.cli.shipping import ship_command

    return ship_command(run, **params)


@_command(
    "inspect",
    "Show what is in an ONNX file.",
    [
        ("onnxgen inspect net.onnx", "Show whether it can be converted, and what it is for."),
        ("onnxgen inspect net.onnx -v", "Show every tensor, too."),
        ("onnxgen inspect net.onnx --frozen '^encoder'", "Show the same with an option."),
    ],
)
@model_argument
@generation_options()
@saying_options
def inspect(model: Path, **params: Any) -> int:
    """Show whether MODEL can be converted, what it is for, its inputs, outputs and operators, and what is trained.

    -v shows every tensor, and why it is trained or not.

    A model that can't be converted ends with exit code 2.
    """
    from onnxgen.cli.inspecting import inspect_command

    return inspect_command(model, take_options(params), **params)


@_command(
    "identify",
    "Tell which known architecture an ONNX file is.",
    [
        ("onnxgen identify net.onnx", "Name it, and print how to make it in PyTorch."),
        ("onnxgen identify net.onnx --libraries timm", "Only look for networks of timm."),
    ],
    {0: "named", 1: "no known network has the same steps"},
)
@model_argument
@option(
    "--libraries",
    metavar="NAMES",
    default=",".join(LIBRARIES),
    show_default=True,
    group="Networks",
    help="Where known networks are from. They need not be installed.",
)
@saying_options
def identify(model: Path, libraries: str, **params: Any) -> int:
    """Tell which known architecture MODEL is, whatever its names, numbers, input size and number of classes.

    All layers before the head, and all steps between them, must be those of a known network. Else the answer is "none".
    """
    from onnxgen.cli.identifying import identify_command

    return identify_command(model, [name.strip() for name in libraries.split(",")], **params)


@_command(
    "view",
    "Show the graph beside the source, on an HTML page.",
    [
        ("onnxgen view net.onnx", "Write net.html."),
        ("onnxgen view net.onnx -o page.html --flat", "Write another page."),
    ],
)
@model_argument
@file_option("-o", "--output", metavar="FILE.html", type=path_type, help="The page to write. Default: beside MODEL.")
@file_option("--force", is_flag=True, help="Overwrite a file that onnxgen view did not make.")
@generation_options()
@saying_options
def view(model: Path, output: Path | None, **params: Any) -> int:
    """Write one HTML page that shows MODEL's graph beside the source that it becomes.

    Hover over a line to see its nodes, and over a node to see its lines. The page needs no network.
    """
    from onnxgen.cli.inspecting import view_command

    return view_command(model, output, take_options(params), **params)


@_command(
    "train",
    "Train a generated module.",
    [
        ("onnxgen train model.py --data photos/", "Train on images in folders."),
        ("onnxgen train model.py --data photos/ --replace-head 2", "Give it a new last layer for two classes."),
        ("onnxgen train --resume --out runs/digits-1", "Go on with a stopped run."),
    ],
    {75: CODES[75].removeprefix("train: ")},
    ("--data", "--target", "--replace-head", "--task", "--epochs", "--lr", "--batch-size", "--val", "--device")
    + ("--out", "--resume"),
)
@click.argument("model", type=path_type, required=False)
@train_options
@saying_options
@click.pass_context
def train(context: click.Context, /, model: Path | None, **params: Any) -> int:
    """Train the generated MODEL (a .py file) on DATA, and leave weights, curves and a report in --out.

    Ctrl-C stops the run after the current step and keeps everything. --resume goes on from there.
    """
    from onnxgen.cli.training import train_command

    others = {name: value for name, value in params.items() if name not in SETTINGS}
    return train_command(model, given_settings(context), wrong_options(context), **others)


_run = click.argument("run", type=path_type, required=False)
_asked = add_all(
    [
        option("--device", metavar="DEVICE", default="auto", group="Devices", help=SETTINGS["device"].help),
        file_option("--weights", metavar="FILE", type=path_type, help="Other weights than the best ones of the run."),
    ]
)


@_command(
    "predict",
    "Predict with a trained run.",
    [
        ("onnxgen predict runs/digits-1 photo.png", "Print the class and its probability."),
        ("onnxgen predict runs/digits-1 photos/ --top 3", "Print the three best of each image."),
        ("onnxgen predict runs/digits-1 new.csv -o out.csv", "Write a table."),
        ("onnxgen predict runs/yolov8n-1 photos/ -o found", "Find boxes, and draw them into pictures in found/."),
        ("onnxgen predict runs/unet-1 photos/ --soft -o found", "Write a gray image for each class."),
        ("onnxgen predict runs/writer-1 texts.txt --max-new-tokens 20", "Continue each line."),
        ("onnxgen predict runs/digits-1 -", "Read the names of the files from stdin."),
        ("onnxgen predict photo.png", "Ask the newest run in runs/."),
    ],
    {1: "a file can't be read, and was left out"},
)
@click.argument("files", metavar="[RUN] FILES...", nargs=-1, required=True)
@option("--top", metavar="N", type=click.IntRange(min=1), default=1, group="Answers", help="Show the N best classes.")
@option(
    "--min-score",
    metavar="X",
    type=Finite(),
    group="Answers",
    help="Leave out boxes of a lower score. Default: 0.25.",
)
@option(
    "--max-overlap",
    metavar="X",
    type=Finite(0, 1),
    group="Answers",
    help="Leave out a box that a better one of its class overlaps by a greater IoU. Default: 0.7.",
)
@option("--across-classes", is_flag=True, group="Answers", help="A better box of another class counts, too.")
@option(
    "--max-new-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    group="Answers",
    help="Continue a text by at most N tokens. Default: 50.",
)
@option(
    "--temperature",
    metavar="X",
    type=Finite(min=0, min_open=True),
    group="Answers",
    help="Draw the tokens of a text. Default: take the most probable ones.",
)
@option("--soft", is_flag=True, group="Answers", help="Of a map of classes: the probability of each one at each place.")
@file_option(
    "-o",
    "--output",
    "out",
    metavar="FILE",
    type=path_type,
    help="Write a table (.csv), whole outputs (.npz), or images (a folder).",
)
@file_option("--force", is_flag=True, help="Overwrite files that are there.")
@_asked
@saying_options
def predict(files: tuple[str, ...], **params: Any) -> int:
    """Predict for FILES with the model of RUN, a folder that onnxgen train left. Default: the newest one in runs/.

    RUN may also be an ONNX file, or its module, that tells the characters that it reads, and how it is fed.

    FILES are images, folders of images, patterns, tables (.csv, .parquet), arrays (.npz), texts (.txt, .jsonl), or - to
    read names from stdin. They are prepared as in training.
    """
    from onnxgen.cli.asking import predict_command

    return predict_command(files, **params)


@_command(
    "evaluate",
    "Measure a trained run.",
    [
        ("onnxgen evaluate", "Evaluate the newest run on the part of its data that was held back."),
        ("onnxgen evaluate runs/digits-1", "Evaluate this run."),
        ("onnxgen evaluate runs/digits-1 --data new/", "Evaluate on other data."),
        ("onnxgen evaluate model.py --data new/", "Evaluate a network as its file left it."),
    ],
)
@_run
@option("--data", metavar="DATA", group="Data", help="Other data. Default: the part that the run held back.")
@option("--part", metavar="PART", group="Data", help="test, val or train. Default: test, else val.")
@option("--task", metavar="NAME", group="Data", help="The function that RUN was trained with: it is not run unasked.")
@option(
    "--teacher", metavar="FILE", type=path_type, group="Data", help="The module that taught RUN: it is not run unasked."
)
@_asked
@saying_options
def evaluate(run: Path | None, **params: Any) -> int:
    """Print the loss and the metrics of RUN, a folder that onnxgen train left. Default: the newest one in runs/.

    RUN may also be an ONNX file or its module, which needs --data.

    Samples that the run was trained on are evaluated only with --part train.
    """
    from onnxgen.cli.asking import evaluate_command

    return evaluate_command(run, **params)


@_command(
    "runs",
    "List and compare trained runs.",
    [
        ("onnxgen runs", "List the runs below runs/."),
        ("onnxgen runs --html runs.html", "Write a page with their curves over each other."),
    ],
)
@click.argument("folder", type=path_type, default=RUNS)
@file_option("--html", metavar="FILE.html", type=path_type, help="Write a page with settings, metrics and curves.")
@file_option("--force", is_flag=True, help="Overwrite a file that onnxgen runs did not make.")
@saying_options
def runs(folder: Path, **params: Any) -> int:
    """List the runs in FOLDER: the settings that differ, the best metrics and the time."""
    from onnxgen.cli.asking import runs_command

    return runs_command(folder, **params)


@_command(
    "ops",
    "List the operators that onnxgen can convert.",
    [("onnxgen ops", "List them all."), ("onnxgen ops --plugin ops.py", "List those of a plugin, too.")],
)
@plugin_option("Operators of your own")
@saying_options
def ops(**params: Any) -> int:
    """List the operators that onnxgen has a function for."""
    from onnxgen.cli.inspecting import ops_command

    return ops_command(**params)


@_command(
    "devices",
    "List the devices to train on.",
    [
        ("onnxgen devices", "List devices, and compare each with the CPU."),
        ("onnxgen devices --no-test", "Only list them."),
    ],
    {1: "a device does not agree with the CPU"},
)
@option("--import", "imports", metavar="MODULE", multiple=True, group="Devices", help=SETTINGS["imports"].help)
@option(
    "--test/--no-test",
    default=True,
    group="Devices",
    help="Compare each with the CPU on a small network. Default: --test.",
)
@saying_options
def devices(**params: Any) -> int:
    """List the devices to train on: name, memory, what works, and whether results agree with the CPU's."""
    from onnxgen.cli.inspecting import devices_command

    return devices_command(**params)
