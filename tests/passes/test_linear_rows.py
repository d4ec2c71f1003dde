"""Products of rows: axes that are made one before the product and are axes again behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.ops.harness import generate as _generate
from tests.support.exported import exported, held_graph
from tests.whole.test_random_graphs import hold
from tests.whole.test_small_graphs import case

MATRIX = ", ".join(str(i / 8 - 1) for i in range(12))
HEAD = f"""(float[N, 3, 4] x) => (float[] y)
    <float[4, 3] "fc.weight" = {{{MATRIX}}}, float[3] "fc.bias" = {{1, -2, 0.5}}, int64[2] rows = {{-1, 4}},
     int64[3] axes = {{-1, 3, 3}}, int64[2] flat = {{-1, 9}}, int64[3] swapped = {{3, -1, 3}}> {{ %s }}"""
TENSORDOT = 'r = Reshape(x, rows) m = MatMul(r, "fc.weight") y = Reshape(m, axes)'
GEMM = 'r = Reshape(x, rows) m = Gemm(r, "fc.weight", "fc.bias") y = Reshape(m, axes)'


@pytest.mark.parametrize(
    "body",
    [
        TENSORDOT,  # as TensorFlow writes a product
        TENSORDOT.replace("y =", "n =") + ' y = Add(n, "fc.bias")',
        'r = Reshape(x, rows) m = MatMul(r, "fc.weight") b = Add(m, "fc.bias") y = Reshape(b, axes)',
        GEMM,  # as PyTorch's exporter writes the layers of GPT-2
        GEMM.replace(', "fc.bias"', ""),
    ],
)
def test_a_layer_takes_the_axes_as_they_are(body: str, tmp_path: Path) -> None:
    graph = case(HEAD % body)
    assert hold(graph, tmp_path)
    source = _generate(graph.model, pretty=True).source
    forward = source[source.index("def forward") : source.index("WEIGHTS =")]
    assert ".reshape(" not in forward and "flatten(" not in forward, forward


@pytest.mark.parametrize(
    "body",
    [
        TENSORDOT.replace("axes)", "flat)"),  # other axes behind it
        TENSORDOT.replace("axes)", "swapped)"),
        TENSORDOT + " z = Neg(m)",  # the rows are used, too
        GEMM.replace("Gemm", "Gemm<alpha = 2.0>"),
    ],
)
def test_rows_that_stay(body: str, tmp_path: Path) -> None:
    head = HEAD.replace("(float[] y)", "(float[] y, float[] z)") if "z =" in body else HEAD
    graph = case(head % body)
    assert hold(graph, tmp_path)
    source = _generate(graph.model, pretty=True).source
    assert "reshape(-1, 4)" in source or "flatten(0, 1)" in source, source


class Conv1D(nn.Module):
    """The layer of GPT-2: its matrix is [in, out], and it takes rows."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out)), nn.Parameter(torch.randn(out))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(*x.shape[:-1], self.weight.shape[1])


def test_heads_are_one_axis_before_the_product(tmp_path: Path) -> None:
    text = """(float[N, 2, L, 2] x) => (float[] y)
        <float[4, 3] "fc.weight" = {%s}, int64[2] rows = {-1, 4}, int64[1] three = {3}> {
        t = Transpose<perm = [0, 2, 1, 3]>(x) r = Reshape(t, rows) m = MatMul(r, "fc.weight")
        s = Shape<end = 2>(t) axes = Concat<axis = 0>(s, three) y = Reshape(m, axes) }"""
    graph = case(text % MATRIX)
    assert hold(graph, tmp_path)
    source = _generate(graph.model, pretty=True).source
    assert (
        "x.transpose(1, 2)" in source
        and "x.flatten(2) @ self.weight" in source
        and "reshape(" not in source[: source.index("WEIGHTS =")]
    )


def test_axes_that_the_input_does_not_have_stay_behind_the_layer(tmp_path: Path) -> None:
    text = """(float[N, 4, 1, 1] x) => (float[] y) <float[4, 3] "fc.weight" = {%s}, int64[1] one = {1}> {
        r = Flatten(x) m = MatMul(r, "fc.weight") y = Unsqueeze(m, one) }"""
    graph = case(text % MATRIX)
    assert hold(graph, tmp_path)
    assert ".flatten(1)" in _generate(graph.model, pretty=True).source


@pytest.mark.parametrize("is_open", [False, True])
def test_layers_of_gpt2(is_open: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Conv1D(4, 6), nn.GELU(), Conv1D(6, 5)).eval()
    x = torch.randn(2, 3, 4)
    model = exported(net, [x], axes={0: {0: "batch", 1: "length"}} if is_open else {})
    ran = held_graph(model, {"i0": x.numpy()})
    forward = ran.source[ran.source.index("def forward") : ran.source.index("WEIGHTS =")]
    assert "reshape(" not in forward and "flatten(" not in forward, forward
    assert ran.model.state_dict().keys() == net.state_dict().keys()
