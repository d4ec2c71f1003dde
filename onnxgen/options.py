"""What a user can ask for: one frozen dataclass, read alike by the command line, pyproject.toml and the library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxgen.common.limits import Limits
from onnxgen.common.names import is_class_name
from onnxgen.errors import OnnxgenError

DTYPES = ("float16", "bfloat16", "float32", "float64")
QUANTIZED = ("keep", "float", "qat", "qat-learned")


@dataclass(frozen=True)
class Options:
    """Options of one generation.

    Attributes:
        class_name: name of the root class; default: what the exporter recorded, else the file's stem.
        weights: where to write the sidecar; default: beside the module, by its stem.
        dtype: the floating point type of the whole network ("float16", "bfloat16", "float32", "float64"); default: as
            in the file (see `passes.retype`).
        embed: put the weights into the module itself (small models).
        input_shapes: fixed dims for graph inputs, `{"image": (1, 3, 224, 224)}`; a dim of -1 is left as it is.
        inputs, outputs: names of values, as the file has them, between which the part of the network lies that is
            generated; default: the whole network. Inputs of the file that the part needs stay its inputs.
        flat: one class, no nested modules.
        annotate: comments say which ONNX nodes each line comes from; the code is the same.
        trainable: a regular expression; tensors whose ONNX name it finds are parameters whatever the rules say.
        frozen: a regular expression; tensors whose ONNX name it finds are not trained.
        dynamic_batch: make a batch that the file fixes free, where that is provable (see `onnxgen.passes.batch`).
        batch_axes: with `dynamic_batch`, the axis of inputs that is the batch, if not the first: `{"frames": 1}`; None
            for an input that has none.
        restore_batchnorm: put BatchNorm layers that an export for inference folded into convolutions back, as the
            identity (see `passes.folded`).
        quantized: what becomes of quantised operators (see `passes.quantized`): "keep", integers exactly as the file
            has them; "float", the network of floats that was quantised; "qat", the same with fake quantisation, for
            training that is aware of it; "qat-learned", whose scales are trained, too.
        dropout: probability by pattern of module paths: an `nn.Dropout` is put after what these modules compute (see
            `dropout.matches`; of several patterns that match one module the last counts).
        nchwc_block: how many channels (8 or 16) are a block in a file that onnxruntime optimised for one kind of
            processor (see `passes.contrib.nchwc`); default: what the file's shapes say.
        shard_size: bytes past which the sidecar is written as several files with an index.
        templates: a folder with Jinja templates that override onnxgen's own.
        plugins: modules with operators of your own (see `onnxgen.op`): paths of `.py` files or of packages
            (`plugins/ops/`), or dotted names.
        allow_unsupported: an operator that has no function becomes a method that raises until a person fills it in.
        paranoid: every rewriting of the graph is computed before and after on drawn inputs, and must be the same (see
            `onnxgen.paranoid`); what is written does not depend on it.
        limits: sizes past which a file is refused (see `limits.Limits`).
    """

    class_name: str | None = None
    weights: Path | None = None
    dtype: str | None = None
    embed: bool = False
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    flat: bool = False
    annotate: bool = False
    trainable: str | None = None
    frozen: str | None = None
    dynamic_batch: bool = False
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    restore_batchnorm: bool = False
    quantized: str = "keep"
    dropout: Mapping[str, float] = field(default_factory=dict)
    nchwc_block: int | None = None
    shard_size: int = 5_000_000_000
    templates: Path | None = None
    plugins: Sequence[str] = ()
    allow_unsupported: bool = False
    paranoid: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise OnnxgenError(f"--dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.quantized not in QUANTIZED:
            raise OnnxgenError(f"--quantized must be one of {', '.join(QUANTIZED)}, not {self.quantized!r}")
        for name in ("trainable", "frozen"):
            pattern = getattr(self, name)
            try:
                re.compile(pattern or "")
            except (re.error, OverflowError, RecursionError) as error:
                raise OnnxgenError(f"--{name} {pattern!r} is not a regular expression: {error}") from None
        for name in ("plugins", "inputs", "outputs"):
            if isinstance(given := getattr(self, name), (str, os.PathLike)):
                raise OnnxgenError(f"{name} must be a list: [{os.fspath(given)!r}]")
        if self.nchwc_block not in (None, 8, 16):
            raise OnnxgenError(f"--nchwc-block must be 8 or 16, not {self.nchwc_block}")
        if self.batch_axes and not self.dynamic_batch:
            raise OnnxgenError("--batch-axis needs --dynamic-batch")
        for scope, p in self.dropout.items():
            if not scope or not 0 <= p < 1:
                raise OnnxgenError(
                    f"--dropout {scope}={p:g}: give a module path and a probability of at least 0 and below 1"
                )
        if self.weights is not None and self.embed:
            raise OnnxgenError(
                "--embed and --weights contradict each other: --embed puts the weights into the module; leave one out"
            )
        if self.weights is not None and not Path(self.weights).name:
            raise OnnxgenError("--weights needs the name of a file")
        if self.class_name is not None and not is_class_name(self.class_name):
            why = (
                "is not a Python identifier"
                if not self.class_name.isidentifier()
                else "has another meaning in a generated file"
            )
            raise OnnxgenError(f"class name {self.class_name!r} {why}")
