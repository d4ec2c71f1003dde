"""The options of a generation: one dataclass for the command line, pyproject.toml and the library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onnxgen.common.limits import Limits
from onnxgen.common.names import is_class_name
from onnxgen.common.values import (
    AXES,
    BLOCK,
    CONSTANTS,
    FLAG,
    LIMITS,
    NAMES,
    PATH,
    RATES,
    SHAPES,
    SIZE,
    TEXT,
    Kind,
    choice,
    declared,
    options_of,
    text,
)
from onnxgen.errors import OnnxgenError

DTYPES = ("float16", "bfloat16", "float32", "float64")
QUANTIZED = ("keep", "float", "qat", "qat-learned")
TASKS = ("detection",)
STYLES = ("plain", "torchvision", "timm")

_source = partial(declared, group="Source")
_inputs = partial(declared, group="Inputs, shapes and types")
_training = partial(declared, group="Training")
_own = partial(declared, group="Operators of your own")
_unusual = partial(declared, group="Unusual files")
_files = partial(declared, group="Files")


@dataclass(frozen=True)
class Options:
    """Options of one generation; docs/COMMANDS.md lists them.

    The command's options, the keys of `[tool.onnxgen]`, the methods of `ModelGen` and that page are made from these
    fields.
    """

    class_name: str | None = _source(
        None, "NAME", "Name of the root class. Default: what the exporter recorded, else the file's stem.", TEXT
    )
    flat: bool = _source(False, "", "Write one class, without nested modules.", FLAG)
    annotate: bool = _source(
        False, "", "Say in comments which ONNX nodes each line comes from. The code is the same.", FLAG
    )
    style: str = _source("plain", "", "Whose habits the source has. Default: plain.", choice(*STYLES))
    templates: Path | None = _source(None, "DIR", "A folder of Jinja templates to use instead of onnxgen's own.", PATH)
    input_shapes: Mapping[str, tuple[int, ...]] = _inputs(
        dict,
        "NAME=1,3,224,224",
        "Fix the dims of an input (-1 leaves one as it is); may be repeated.",
        SHAPES,
        key="input-shape",
    )
    const: Mapping[str, float | Sequence[float]] = _inputs(
        dict,
        "NAME=16000",
        "Make an input a constant: one number fills it, 1,2,3 are its elements; may be repeated.",
        CONSTANTS,
    )
    inputs: Sequence[str] = _inputs(
        (), "VALUE", "Generate only the part of the graph that begins at this value; may be repeated.", NAMES
    )
    outputs: Sequence[str] = _inputs(
        (), "VALUE", "Generate only the part of the graph that ends at this value; may be repeated.", NAMES
    )
    dynamic_batch: bool = _inputs(
        False, "", "Make a fixed batch size free, if onnxgen can prove that this is right.", FLAG
    )
    batch_axes: Mapping[str, int | None] = _inputs(
        dict,
        "NAME=1",
        "The batch axis of an input, if it is not the first; none: it has no batch; may be repeated.",
        AXES,
        key="batch-axis",
    )
    dtype: str | None = _inputs(
        None,
        "",
        "Give the whole network this floating point type. Values that only sizes are computed from keep their type.",
        Kind(text, choices=DTYPES),
    )
    task: str | None = _training(
        None,
        "",
        "Generate only the part that this task trains; detection: up to the raw maps, before boxes are decoded.",
        Kind(text, choices=TASKS),
    )
    trainable: str | None = _training(
        None, "REGEX", "Train the tensors whose ONNX name matches, whatever the rules say.", TEXT
    )
    frozen: str | None = _training(None, "REGEX", "Do not train the tensors whose ONNX name matches.", TEXT)
    tied: str | None = _training(
        None,
        "REGEX",
        "Let a stored tensor whose ONNX name matches be one parameter in all layers that take it.",
        TEXT,
    )
    untied: str | None = _training(
        None, "REGEX", "Give each layer that takes a tensor whose ONNX name matches a parameter of its own.", TEXT
    )
    dropout: Mapping[str, float] = _training(
        dict,
        "SCOPE=P",
        "Put a Dropout after a module (a path with * for one part, ** for any); may be repeated.",
        RATES,
    )
    restore_batchnorm: bool = _training(
        False, "", "Put back BatchNorm layers that the export folded into convolutions.", FLAG
    )
    quantized: str = _training(
        "keep",
        "",
        "What quantised operators become: the same integers, floats, or floats with fake quantisation. Default: keep.",
        choice(*QUANTIZED),
    )
    plugins: Sequence[str] = _own(
        (),
        "MODULE",
        "Operators of your own: a .py file, a package's folder or a module's name; may be repeated.",
        NAMES,
        option="plugin",
    )
    allow_unsupported: bool = _own(
        False, "", "Write a method to fill in for each operator that onnxgen has no function for.", FLAG
    )
    limits: Limits = _unusual(
        Limits(),
        "NAME=N",
        "Raise a size past which a file is refused (SECURITY.md lists them); may be repeated.",
        LIMITS,
        key="limit",
    )
    nchwc_block: int | None = _unusual(
        None, "", "Channels in a block, for a file that onnxruntime optimised for one kind of processor.", BLOCK
    )
    paranoid: bool = _unusual(
        False, "", "Check every rewriting of the graph on drawn inputs; takes several times as long.", FLAG
    )
    weights: Path | None = _files(
        None, "FILE", "The file of weights to write. Default: beside the module, by its stem.", PATH
    )
    embed: bool = _files(False, "", "Put the weights into the module itself (models of up to 64 MiB).", FLAG)
    shard_size: int = _files(
        5_000_000_000, "SIZE", "Write weights larger than this (500MB) as several files. Default: 5GB.", SIZE
    )

    def __post_init__(self) -> None:
        _hold_values(self)
        if self.task and (self.inputs or self.outputs):
            raise OnnxgenError(f"--task {self.task} finds the outputs itself", help="leave out --inputs and --outputs")
        if self.batch_axes and not self.dynamic_batch:
            raise OnnxgenError("--batch-axis needs --dynamic-batch")
        for scope, p in self.dropout.items():
            if not scope or not 0 <= p < 1:
                what = f"--dropout {scope}={p:g}: give a module path and a probability of at least 0 and below 1"
                raise OnnxgenError(what)
        if self.weights is not None and self.embed:
            what = "--embed and --weights contradict each other: --embed puts the weights into the module"
            raise OnnxgenError(f"{what}; leave one out")
        if self.weights is not None and not Path(self.weights).name:
            raise OnnxgenError("--weights needs the name of a file")
        if self.class_name is not None:
            _hold_class_name(self.class_name)


def _hold_values(options: Options) -> None:
    """Check choices, regular expressions and lists. Raises `OnnxgenError`."""
    for name, known in (("dtype", DTYPES), ("quantized", QUANTIZED), ("task", TASKS), ("style", STYLES)):
        if (setting := getattr(options, name)) is not None and setting not in known:
            raise OnnxgenError(f"--{name} must be one of {', '.join(known)}, not {setting!r}")
    for name in ("trainable", "frozen", "tied", "untied"):
        pattern = getattr(options, name)
        try:
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise OnnxgenError(f"--{name} {pattern!r} is not a regular expression: {error}") from None
    for name in ("plugins", "inputs", "outputs"):
        if isinstance(setting := getattr(options, name), (str, os.PathLike)):
            raise OnnxgenError(f"{name} must be a list: [{os.fspath(setting)!r}]")
    if options.nchwc_block not in (None, 8, 16):
        raise OnnxgenError(f"--nchwc-block must be 8 or 16, not {options.nchwc_block}")


def _hold_class_name(name: str) -> None:
    if not is_class_name(name):
        why = "has another meaning in a generated file" if name.isidentifier() else "is not a Python identifier"
        raise OnnxgenError(f"class name {name!r} {why}")


OPTIONS = options_of(Options)
