"""Functions of torch's as both exporters write them at several opsets: the same text each time, the same gradients."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onnxgen
from tests.ops.harness import assert_same, run_model, to_torch
from tests.support.idioms import gradient
from tests.zoo.export import quiet

# (the function, how it reads, the first opset at which the legacy exporter has it; None: never)
FUNCTIONS: list[tuple[Callable[[Tensor], Tensor], str, int | None]] = [
    (lambda x: F.gelu(x), "F.gelu(x)", 9),
    (lambda x: F.gelu(x, approximate="tanh"), "F.gelu(x, approximate='tanh')", 9),
    (lambda x: x * torch.sigmoid(1.702 * x), "x * torch.sigmoid(1.702 * x)", 9),
    (lambda x: F.silu(x), "F.silu(x)", 9),
    (lambda x: F.mish(x), "F.mish(x)", 9),
    (lambda x: F.hardswish(x), "F.hardswish(x)", 9),
    (lambda x: F.hardsigmoid(x), "F.hardsigmoid(x)", 9),
    (lambda x: x * F.relu6(x + 3) / 6, "F.hardswish(x)", 9),
    (lambda x: F.relu6(x), "F.relu6(x)", 9),
    (lambda x: F.hardtanh(x, -2, 1), "x.clamp(-2, 1)", 9),
    (lambda x: F.leaky_relu(x, 0.1), "F.leaky_relu(x, 0.1)", 9),
    (lambda x: torch.maximum(x, 0.1 * x), "F.leaky_relu(x, 0.1)", 9),
    (lambda x: F.softplus(x), "F.softplus(x)", 9),
    (lambda x: F.softplus(x, beta=2), "F.softplus(x, beta=2)", 9),
    (lambda x: F.elu(x, 0.5), "F.elu(x, alpha=0.5)", 9),
    (lambda x: F.selu(x), "F.selu(x)", 9),
    (lambda x: F.softsign(x), "F.softsign(x)", 9),
    (lambda x: F.logsigmoid(x), "F.logsigmoid(x)", 9),
    (lambda x: F.glu(x, dim=1), "F.glu(x, dim=1)", 9),
    (lambda x: F.softmax(x, dim=1), "F.softmax(x, dim=1)", 9),
    (lambda x: F.log_softmax(x, dim=-1), "F.log_softmax(x, dim=-1)", 9),
    (lambda x: torch.logsumexp(x, 1), "x.logsumexp(dim=1)", 9),
    (lambda x: x - torch.logsumexp(x, 1, keepdim=True), "F.log_softmax(x, dim=1)", 9),
    (lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True), "F.softmax(x, dim=1)", 9),
    (lambda x: F.normalize(x, dim=-1), "F.normalize(x, dim=-1)", 9),
    (lambda x: F.normalize(x), "F.normalize(x)", 9),
    (lambda x: F.normalize(x, p=1, dim=2), "F.normalize(x, p=1, dim=2)", 9),
    (lambda x: F.cosine_similarity(x, x.flip(0)), "F.cosine_similarity(x, x.flip(0))", None),
    (lambda x: F.instance_norm(x), "F.instance_norm(x)", 9),
    (lambda x: F.group_norm(x, 2), "F.group_norm(x, 2)", 9),
    (lambda x: F.layer_norm(x, (4,)), "F.layer_norm(x, (4,))", 9),
    (lambda x: F.rms_norm(x, (4,), eps=1e-6), "F.rms_norm(x, (4,), eps=1e-6)", None),
    (lambda x: x.std(-1), "x.std(dim=-1)", 9),
    (lambda x: x.var((1, 2)), "x.var(dim=(1, 2))", 9),
    (lambda x: F.adaptive_avg_pool2d(x, 1), "F.adaptive_avg_pool2d(x, 1)", 9),
    (lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), "F.adaptive_avg_pool2d(x, 1).flatten(1)", 9),
    (lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1), "F.adaptive_avg_pool2d(x, 1).flatten(1)", 9),
    (lambda x: x.mean((2, 3)), "x.mean(dim=(2, 3))", 9),
    (lambda x: F.interpolate(x, scale_factor=2), "F.interpolate(x, scale_factor=2)", 9),
    (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "F.interpolate(x, scale_factor=2, mode='bilinear')",
        11,
    ),
    (lambda x: F.interpolate(x, (7, 5), mode="bilinear"), "F.interpolate(x, size=(7, 5), mode='bilinear')", 11),
    (lambda x: x.clamp(min=0), "x.clamp(min=0)", 9),
    (lambda x: x.clamp(0, 1), "x.clamp(0, 1)", 9),
    (lambda x: x.masked_fill(x > 0, -2.0), "x.masked_fill(x > 0, -2.0)", 9),
    (lambda x: torch.where(x > 0, x, -2.0), "torch.where(x > 0, x, -2.0)", 9),
    (lambda x: x**2, "x ** 2", 9),
    (lambda x: torch.rsqrt(x.abs() + 1), "torch.rsqrt(torch.abs(x) + 1)", 9),
    (lambda x: torch.log10(x.exp()), "torch.log10(torch.exp(x))", 9),
    (lambda x: torch.log2(x.exp()), "torch.log2(torch.exp(x))", 9),
]


class Functions(nn.Module):
    """Some of them, each with an input and an output of its own, and a layer: a file without one tells less."""

    def __init__(self, functions: list[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.functions = functions
        self.layer = nn.Linear(4, 4)

    def forward(self, *xs: Tensor) -> tuple[Tensor, ...]:
        return *(function(x) for function, x in zip(self.functions, xs)), self.layer(xs[0])


def rows_of(exporter: str, opset: int) -> list[tuple[Callable[[Tensor], Tensor], str]]:
    return [row[:2] for row in FUNCTIONS if exporter == "dynamo" or (row[2] or 99) <= opset]


def exported(exporter: str, opset: int) -> onnx.ModelProto:
    """All that an exporter has at an opset, in one file."""
    model = Functions([function for function, _ in rows_of(exporter, opset)]).eval()
    xs = tuple(torch.randn(2, 4, 4, 4) for _ in model.functions)
    options = {"verbose": False} if exporter == "dynamo" else {"input_names": [f"x{i}" for i in range(len(xs))]}
    with TemporaryDirectory() as folder, quiet():
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, xs, path, opset_version=opset, dynamo=exporter == "dynamo", **options)
        return onnx.load(path)


@pytest.mark.parametrize(
    "exporter, opset", [("legacy", 9), ("legacy", 11), ("legacy", 13), ("legacy", 17), ("dynamo", 18)]
)
def test_one_text_whoever_exported(exporter: str, opset: int) -> None:
    model, rows = exported(exporter, opset), rows_of(exporter, opset)
    numbers = np.random.default_rng(0)
    names = [i.name for i in model.graph.input][: len(rows)]
    feeds = {name: numbers.standard_normal((2, 4, 4, 4)).astype("float32") * 2 for name in names}
    ran = run_model(model, feeds)
    text = " ".join(ran.forward.split())
    wanted = [re.sub(r"\bx\b", argument, text) for argument, (_, text) in zip(_arguments(ran.model), rows)]
    missing = [w for w in wanted if w not in text]
    assert not missing, f"{missing} in {ran.forward}"
    for i, (name, (function, _)) in enumerate(zip(names, rows)):
        ours, theirs = gradient(partial(_one, ran.model, feeds, i), feeds[name]), gradient(function, feeds[name])
        assert_same(ours[0], theirs[0], 1e-4, 1e-5)
        assert_same(ours[1], theirs[1], 1e-3, 1e-4)


def _arguments(model: nn.Module) -> list[str]:
    return list(inspect.signature(model.forward).parameters)


def _one(model: nn.Module, feeds: dict[str, Any], index: int, x: Tensor) -> Tensor:
    """One output, of one input that is a tensor with a gradient."""
    arguments = [to_torch(v) for v in feeds.values()]
    arguments[index] = x
    made: Tensor = model(*arguments)[index]
    return made


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.shift = nn.Linear(16, 16, bias=False), nn.Parameter(torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.fc(x).tanh() + self.shift
        return made


def test_a_bias_that_torch_stored_once_for_two_layers_starts_as_zeros(tmp_path: Path) -> None:
    """The second layer's comes by an Identity: both layers are one class all the same."""
    layers = nn.Sequential(Shifted(), Shifted()).eval()
    model = nn.Sequential(layers, nn.Tanh())
    with quiet():
        torch.onnx.export(model, (torch.randn(2, 3, 16),), tmp_path / "e.onnx", dynamo=False)
    onnxgen.generate(tmp_path / "e.onnx", tmp_path / "e.py")
    text = (tmp_path / "e.py").read_text()
    assert text.count("nn.Parameter(torch.zeros(") == 1 and text.count("shift = ") == 1
