"""Attention's heads by the sizes of its input, where these are the sizes of q, k and v whatever they are."""

from __future__ import annotations

import ast
import textwrap
import warnings
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from onnxgen.code import printer
from onnxgen.code.style import with_sizes
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.validate import specify, validate
from tests.support.real import imported
from tests.validate.flat import flat

SETUP = """
self.num_heads = num_heads
self.norm = nn.LayerNorm(dim)
self.q = nn.Linear(dim, dim)
self.k = nn.Linear(dim, dim)
self.qkv = nn.Linear(dim, 3 * dim)
self.wide = nn.Linear(dim, 2 * dim)
self.conv = nn.Conv1d(dim, dim, 1)
"""
BODY = """
q = self.q(self.norm(x)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
k = {k}.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
attn = F.scaled_dot_product_attention(q, k, k)
return attn.transpose(1, 2).flatten(2)
"""


def rewritten(body: str) -> str:
    setup = ast.parse(SETUP).body
    return "\n".join(printer.lines(with_sizes(ast.parse(body).body, setup, ["x", "memory"])))


def test_q_and_k_of_one_argument() -> None:
    assert rewritten(BODY.format(k="self.k(x)")) == textwrap.dedent("""\
        B, N, C = x.shape
        q = self.q(self.norm(x)).view(B, N, self.num_heads, C // self.num_heads).transpose(1, 2)
        k = self.k(x).view(B, N, self.num_heads, C // self.num_heads).transpose(1, 2)
        attn = F.scaled_dot_product_attention(q, k, k)
        return attn.transpose(1, 2).reshape(B, N, C)""")


def test_three_in_one_layer() -> None:
    packed = "qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)"
    assert "self.qkv(x).view(B, N, 3, self.num_heads, C // self.num_heads).permute(" in rewritten(packed)
    parts = "q, k, v = self.qkv(x).chunk(3, dim=-1)\nq = q.unflatten(-1, (self.num_heads, -1))"
    assert "q = q.view(B, N, self.num_heads, C // self.num_heads)" in rewritten(parts)


@pytest.mark.parametrize(
    "k",
    ["self.k(memory)", "self.k(x[:, 1:])", "self.wide(x)", "self.conv(x)", "self.k(x).chunk(2)[0]"],
)
def test_other_sizes_stay(k: str) -> None:
    body = BODY.format(k=k)
    assert rewritten(body) == body.strip()


def test_an_argument_that_is_another_value_by_then_stays() -> None:
    body = "x = x[:, 1:]\nq = self.q(x).unflatten(-1, (self.num_heads, -1))\nreturn q"
    assert rewritten(body) == body
    inside = f"for i in range(2):\n    {BODY.format(k='self.k(x)').strip().splitlines()[0]}"
    assert rewritten(inside) == inside


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        attn = torch.softmax(q @ k.transpose(2, 3) * q.shape[-1] ** -0.5, -1)
        return self.out((attn @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.attention = nn.Linear(8, 32), nn.LayerNorm(32), Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return x + self.attention(self.norm(x))


def test_every_size_and_number_of_heads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, path = Block().eval(), tmp_path / "attention.onnx"
    axes = {"tokens": {0: "batch", 1: "length"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.randn(2, 5, 8),), str(path), dynamo=False, input_names=["tokens"], dynamic_axes=axes
        )
    source = generate(path, tmp_path / "made.py").source
    assert "B, N, C = x.shape" in source and ".reshape(B, N, C)" in source
    made = imported(tmp_path / "made.py").Model.from_pretrained().eval()
    session = onnxruntime.InferenceSession(str(path))
    for sizes in ((2, 5, 8), (1, 3, 8), (3, 1, 8)):
        x = torch.randn(sizes)
        torch.testing.assert_close(made(x), torch.from_numpy(session.run(None, {"tokens": x.numpy()})[0]))
    assert made(torch.randn(0, 5, 8)).shape == (0, 5, 32)
    net.attention.num_heads = 2
    two = imported(tmp_path / "made.py").Model.from_pretrained(num_heads=2).eval()
    torch.testing.assert_close(two(x), net(x))


def test_a_class_with_the_name_of_a_size_is_not_hidden(tmp_path: Path) -> None:
    net, path = nn.Sequential(Block()).eval(), tmp_path / "attention.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x := torch.randn(2, 5, 8),), str(path), dynamo=False)
    source = generate(path, tmp_path / "made.py", Options(class_name="C")).source
    assert "class C(nn" in source and "C = x.shape" not in source and "self.num_heads" in source
    made = imported(tmp_path / "made.py").Model.from_pretrained().eval()
    torch.testing.assert_close(made(x), net(x))


TEXT = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        B, N, C = x.shape
        y = self.q(x).view(VIEW).transpose(1, 2)
        return F.relu(y), y.transpose(1, 2)
"""


@pytest.mark.parametrize(
    ("view", "is_same"),
    [("B, N, 4, C // 4", True), ("B, N, 4, 2", True), ("B, N, 2, C // 2", False), ("N, B, 4, C // 4", False)],
)
def test_the_proof_knows_a_view_of_sizes(view: str, is_same: bool) -> None:
    body = 'z = M["q"](x)\ny = z.unflatten(-1, (4, -1)).transpose(1, 2)\nreturn F.relu(y), y.transpose(1, 2)'
    module = flat({"x": ["B", "N", 8]}, {"q": "nn.Linear(8, 8)"}, body)
    module.infos["z"] = module.infos["x"]
    found = validate(specify(module), ast.parse(TEXT.replace("VIEW", view)), "Net")
    assert (found is None) == is_same, found


def test_views_of_sizes_compute_what_the_proof_says() -> None:
    x = torch.randn(2, 3, 8)
    assert torch.equal(x.view(2, 3, 4, 2), x.unflatten(-1, (4, -1)))
    y = torch.randn(2, 4, 3, 2).transpose(1, 2)
    assert torch.equal(y.reshape(2, 3, 8), y.flatten(2))
