"""torch.onnx.export of torch.export: with and without its optimiser, of fixed and free sizes, at several opsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.exporters.nets import NETS, net

REQUIREMENTS = ["torch==2.13.0", "onnx", "onnxscript"]


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Every network with a free batch; some at other opsets, unoptimised, of 16 bits, with control flow."""
    for name in NETS:
        yield name, partial(_export, name)
    for name, opset in (("encoder_pre", 23), ("causal", 23), ("causal", 24), ("diffuse", 21), ("mobile", 20)):
        yield f"{name}_opset{opset}", partial(_export, name, opset_version=opset)
    for name in ("cnn", "causal", "gru"):
        yield f"{name}_unoptimised", partial(_export, name, optimize=False)
    for name, dtype in (("cnn", torch.float16), ("encoder_pre", torch.float16), ("encoder_pre", torch.bfloat16)):
        yield f"{name}_{str(dtype).removeprefix('torch.')}", partial(_export, name, dtype=dtype)
    yield "external", partial(_export, "cnn", external_data=True)
    yield "cond", _cond


def _export(name: str, path: Path, dtype: torch.dtype = torch.float32, **more: object) -> None:
    made, inputs = net(name)
    if dtype != torch.float32:
        made, inputs = made.to(dtype), tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=128)
    tokens = inputs[0].dtype == torch.int64
    shapes = tuple({0: batch, 1: length} if tokens else {0: batch} for _ in inputs)
    options = {"external_data": False, "opset_version": 18, **more}
    torch.onnx.export(made, inputs, str(path), dynamo=True, dynamic_shapes=shapes, verbose=False, **options)


class Cond(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.first(y).relu(), lambda y: self.second(y).tanh(), (x,))


def _cond(path: Path) -> None:
    torch.manual_seed(0)
    torch.onnx.export(Cond().eval(), (torch.randn(3, 6),), str(path), dynamo=True, external_data=False, verbose=False)
