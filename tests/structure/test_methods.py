"""What a network computes of several values is a method, and classes have the names of their attributes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from onnxgen import pipeline
from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import ModuleDef
from onnxgen.common.names import RESERVED
from onnxgen.structure.methods import method_name
from onnxgen.structure.scopes import Method, Scope
from tests.structure.test_known import Cv, Res, Split
from tests.structure.test_names import forward
from tests.structure.test_structure import classes, made


def vectors(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 8, generator=torch.Generator().manual_seed(1)),)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 6), nn.Linear(6, 8), nn.Linear(8, 8)

    def tower(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc2(torch.relu(self.fc1(x)))) + 1
        return self.fc3(x).exp()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.tower(x) * self.tower(mask)


def test_layers_that_two_inputs_pass_are_called_in_a_method(tmp_path: Path) -> None:
    source = made(Towers, tmp_path, lambda batch=2: vectors(batch) * 2)
    assert [source.count(f"self.{layer}(") for layer in ("fc1", "fc2", "fc3")] == [1, 1, 1]
    assert "return self.encode(x) * self.encode(mask)" in source and "def encode(self, " in source


class Functions(nn.Module):
    def tower(self, x: Tensor) -> Tensor:
        x = torch.cumsum((torch.tanh(x) + 1).exp(), 1)
        x = torch.softmax(torch.sin(x) * x, 1) - 0.5
        return torch.sigmoid(torch.cos(x) + x).flip(1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.tower(a) * self.tower(b)


def test_a_method_without_layers_transforms(tmp_path: Path) -> None:
    assert "return self.transform(a) * self.transform(b)" in forward(Functions(), vectors() * 2, tmp_path)


class Between(Functions):
    """What is used twice is made of a value in the middle of one of the towers."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = torch.cumsum((torch.tanh(a) + 1).exp(), 1)
        between = torch.erf(x)
        x = torch.softmax(torch.sin(x) * x, 1) - 0.5
        return torch.sigmoid(torch.cos(x) + x).flip(1) * self.tower(b) * between + between


def test_a_method_ends_before_what_stands_between_its_statements(tmp_path: Path) -> None:
    text = forward(Between(), vectors() * 2, tmp_path)
    assert "out1 = torch.erf(x)" in text and "self." not in text


class Once(Towers):
    """The gate of both towers is computed once, in the middle of the first one, as exporters write equal values."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = torch.tanh(self.fc1(x))
        gate = torch.sigmoid(z)
        x = self.fc3(torch.relu(self.fc2(x)) * gate + gate)
        y = torch.tanh(self.fc1(y))
        return x - self.fc3(torch.relu(self.fc2(y)) * gate + gate)


def test_a_value_that_both_towers_need_parts_none_of_them(tmp_path: Path) -> None:
    text = forward(Once(), vectors() * 3, tmp_path)
    assert text.count("self.encode(") == 2 and "self.fc" not in text


class Part(nn.Module):
    def __init__(self, size: int = 9) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, size), nn.Linear(size, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class Longer(Part):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.exp(super().forward(x)))


class Named(nn.Module):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.names = first, second
        setattr(self, first, Part())
        setattr(self, second, Longer())

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = x + getattr(self, name)(x)
        return x


WORDS = {
    "attn": "Attention", "ffn": "FeedForward", "self_attn": "SelfAttention", "ff": "FeedForward",
    "cross_attn": "CrossAttention", "se": "SqueezeExcitation", "encoder_attn": "CrossAttention", "blk": "Block",
}  # fmt: skip


@pytest.mark.parametrize("pair", zip(list(WORDS)[::2], list(WORDS)[1::2]), ids="-".join)
def test_short_names_of_attributes_are_words_of_classes(pair: tuple[str, str], tmp_path: Path) -> None:
    assert [*classes(made(lambda: Named(*pair), tmp_path, vectors))] == [*map(WORDS.get, pair), "Net"]


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x)) * x


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class Placed(nn.Module):
    """Attributes that only say where a module stands."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = Convolved(), Scaled(), Narrow()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def test_a_class_that_is_named_by_its_place_is_called_after_its_layers(tmp_path: Path) -> None:
    assert list(classes(made(Placed, tmp_path))) == ["ConvBlock", "LinearBlock", "MLP", "Net"]


class Beside(nn.Module):
    """Blocks of a library, and another module with the name that it gives to one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(Cv(3, 8, 3, 2), Split(8, 1), Res(8))
        self.bottleneck = Part()

    def forward(self, x: Tensor) -> Tensor:
        return self.bottleneck(self.model(x).mean((2, 3)))


def test_a_block_of_a_library_is_not_called_like_another_class(tmp_path: Path) -> None:
    source = made(Beside, tmp_path)
    names = re.findall(r"^class (\w+)\(", source, re.MULTILINE)
    assert len({*names}) == len(names) and {"Bottleneck", "Bottleneck2", "C2f"} <= {*names}


@pytest.mark.parametrize("pair", [("learnable_affine", "path"), ("net", "any")], ids="-".join)
def test_no_class_has_a_name_that_the_file_uses_for_something_else(pair: tuple[str, str], tmp_path: Path) -> None:
    found = [*classes(made(lambda: Named(*pair), tmp_path, vectors))]
    assert len(found) == 3 and not {*found} & (RESERVED | helper_names()) and found[-1] == "Net"


class Optional(nn.Module):
    def __init__(self, has_more: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 12), nn.Linear(12, 8)
        self.extra = Part() if has_more else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc2(torch.relu(self.fc1(x)))
        return x + (y if self.extra is None else self.extra(y))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(map(Optional, (False, False, True, True)))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_class_stands_behind_those_that_its_later_instances_use(tmp_path: Path) -> None:
    source = made(Several, tmp_path, vectors)
    assert [*classes(source)] == ["Extra", "Block", "Net"] and "self.extra = Extra(dim, width)" in source


def test_what_is_written_plainly_has_no_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root, too, if its methods made something else of the network."""
    structure = pipeline.structure
    monkeypatch.setattr(pipeline, "structure", lambda module, options, _: structure(module, options, frozenset({()})))
    source = made(Towers, tmp_path, lambda batch=2: vectors(batch) * 2)
    assert [source.count(f"self.{layer}(") for layer in ("fc1", "fc2", "fc3")] == [2, 2, 2]


def test_a_second_method_is_called_after_what_it_makes() -> None:
    root, module = Scope((), methods=[Method("encode", Scope(()), [])]), ModuleDef("Net")
    steps = [ast.parse(text, mode="eval").body for text in ("torch.tanh(a)", "torch.argmax(b)", "c.flatten(1)")]
    assert method_name(root, module, "encode", steps) == "encode_index"
    assert method_name(root, module, "step", steps) == "step"
    assert method_name(root, module, "encode", steps[2:]) == "encode_2"
