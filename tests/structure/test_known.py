"""Blocks that libraries have are named as the libraries name them."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.code.class_tree import ClassTree
from onnxgen.structure.known import LIBRARIES, Sketch, _by_members, of_table, rename, table


class Cv(nn.Module):
    def __init__(self, a: int, b: int, k: int = 1, s: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.bn(self.conv(x)))


class Res(nn.Module):
    def __init__(self, c: int, add: bool = True) -> None:
        super().__init__()
        self.cv1, self.cv2, self.add = Cv(c, c, 3), Cv(c, c, 3), add

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.cv2(self.cv1(x))
        return x + h if self.add else h


class Split(nn.Module):
    def __init__(self, c: int, n: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Cv(c, c), Cv((2 + n) * c // 2, c)
        self.m = nn.ModuleList(Res(c // 2) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        for m in self.m:
            parts.append(m(parts[-1]))
        made: Tensor = self.cv2(torch.cat(parts, 1))
        return made


class Pools(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Cv(c, c // 2), Cv(2 * c, c)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.cv1(x)]
        for _ in range(3):
            found.append(F.max_pool2d(found[-1], 5, 1, 2))
        made: Tensor = self.cv2(torch.cat(found, 1))
        return made


class Yolo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [Cv(3, 8, 3, 2), Split(8, 1), Cv(8, 16, 3, 2), Split(16, 2), Split(16, 2), Pools(16)]
        self.model = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.model(x)
        return made


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return made


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Gated()]) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for (block,) in self.layers:
            x = x + block(x)
        return x


@pytest.mark.parametrize(
    ("network", "shape", "names"),
    [
        (Yolo(), (1, 3, 32, 32), {"Conv", "Bottleneck", "C2f", "SPPF"}),
        (Llama(), (2, 5, 8), {"SwiGLU"}),
    ],
)
def test_names_of_libraries(network: nn.Module, shape: tuple[int, ...], names: set[str], tmp_path: Path) -> None:
    torch.onnx.export(network.eval(), (torch.randn(shape),), str(tmp_path / "net.onnx"), dynamo=False)
    source = generate(tmp_path / "net.onnx").source
    assert names <= set(re.findall(r"^class (\w+?)\d*\(", source, re.M)), source


def test_heads_are_told_by_the_names_of_their_members() -> None:
    """In a file with two other blocks of the library, and only by all of its members."""
    for members, name in (
        ("cv2 cv3 dfl", "Detect"), ("cv2 cv3 cv4 dfl", "Pose"), ("cv2 cv3 cv4 dfl proto", "Segment"),
        ("attn ffn", "PSABlock"), ("cv2 cv3", ""), ("attn ffn norm", ""),
    ):  # fmt: skip
        setup = ast.parse("\n".join(f"self.{member} = nn.Identity()" for member in members.split())).body
        for votes in (1, 2):
            found = _by_members(ClassTree("Block", setup=setup), {"ultralytics": votes})
            assert found == ({"ultralytics": name} if name and votes == 2 else {}), members


def test_every_block_of_the_table_differs_in_its_library() -> None:
    for blocks in table().values():
        assert blocks
    names = [(library, name) for blocks in table().values() for library, name in blocks.items()]
    assert len(names) == len(set(names))


def test_a_block_with_other_layers_in_its_list_is_another() -> None:
    """However many of the right ones there are, and however the list of them is written."""
    right = ("nn.Sequential(Bottleneck(), Bottleneck())", "nn.Sequential(*[Bottleneck() for _ in range(n)])")
    wrong = ("nn.Sequential(nn.Tanh())", "nn.Sequential(Bottleneck(), nn.Linear(a, b))", "nn.Sequential(Conv())")
    lists = 0
    for text in LIBRARIES.values():
        inside: dict[str, Sketch] = {}
        for block in ast.parse(text).body:
            assert isinstance(block, ast.FunctionDef)
            source = ast.unparse(block)
            found = inside[block.name] = _sketched(source, inside)
            if "nn.Sequential(Bottleneck())" in source:
                lists += 1
                ways = [_sketched(source.replace("nn.Sequential(Bottleneck())", way), inside) for way in right + wrong]
                assert [way is found for way in ways] == [True] * len(right) + [False] * len(wrong), block.name
    assert lists >= 3


def _sketched(source: str, inside: dict[str, Sketch]) -> Sketch:
    (block,) = ast.parse(source).body
    assert isinstance(block, ast.FunctionDef)
    return of_table(block, inside)


def test_a_recorded_name_stays(tmp_path: Path) -> None:
    """The dynamo exporter records the author's class: `Split` is not called `C2f`."""
    torch.onnx.export(Yolo().eval(), (torch.randn(1, 3, 32, 32),), str(tmp_path / "net.onnx"), dynamo=True)
    source = generate(tmp_path / "net.onnx").source
    assert "class Split(" in source
    assert "class C2f(" not in source


class Dense(nn.Module):
    """What a layer gives is joined to all that was before: written out, the last value has 2 ** 60 layers."""

    def __init__(self) -> None:
        super().__init__()
        draw = random.Random(0)  # so that it is no loop
        for i in range(60):
            setattr(self, f"conv{i}", nn.Conv2d(3 + i, 1, 1))
        self.acts = [draw.choice([F.relu, F.silu, torch.tanh, torch.sigmoid]) for _ in range(60)]

    def forward(self, x: Tensor) -> Tensor:
        for i, act in enumerate(self.acts):
            x = torch.cat([x, act(getattr(self, f"conv{i}")(x))], 1)
        return x


def test_a_dense_block_takes_no_time(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Sequential(Dense()), nn.Conv2d(63, 4, 3)).eval()
    torch.onnx.export(network, (torch.randn(1, 3, 8, 8),), str(tmp_path / "net.onnx"), dynamo=False)
    assert "torch.cat" in generate(tmp_path / "net.onnx").source


def test_a_new_name_may_be_the_old_one_of_another_class() -> None:
    """Trees share the expressions that make equal instances."""
    call = ast.parse("Block2(8)", mode="eval").body
    one, two = (ClassTree(name, setup=[ast.Expr(call)]) for name in ("Block", "Block2"))
    rename([one, two], {"Block": "ConvNormAct", "Block2": "Block"})
    assert [one.name, two.name, ast.unparse(call)] == ["ConvNormAct", "Block", "Block(8)"]
