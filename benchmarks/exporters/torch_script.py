"""torch.onnx.export of TorchScript: at the newest opset that it knows and at older ones, and in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.exporters.nets import NETS, net

REQUIREMENTS = ["torch==2.13.0", "onnx", "onnxscript"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Every network with a free batch; some at other opsets, unfolded, in training mode, of fixed sizes."""
    for name in NETS:
        yield name, partial(_export, name, **({"opset_version": 20} if name == "warp" else {}))
    for name, opset in (("cnn", 9), ("cnn", 20), ("lstm", 11), ("encoder_post", 15), ("mobile", 12), ("causal", 14)):
        yield f"{name}_opset{opset}", partial(_export, name, opset_version=opset)
    for name in ("cnn", "mlp", "encoder_post"):
        train = torch.onnx.TrainingMode.TRAINING
        yield f"{name}_training", partial(_export, name, training=train, do_constant_folding=False)
        yield f"{name}_fixed", partial(_export, name, dynamic_axes=None)


def _export(name: str, path: Path, **more: object) -> None:
    made, inputs = net(name)
    names = [f"input_{i}" for i in range(len(inputs))]
    axes = {each: {0: "batch"} for each in names}
    if inputs[0].dtype == torch.int64:
        axes["input_0"][1] = "length"
    options = {"dynamic_axes": axes, "opset_version": 17, **more}
    torch.onnx.export(made, inputs, str(path), input_names=names, output_names=["output"], dynamo=False, **options)
