"""Columns are assigned to inputs and targets, or the open question is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data import feed, open_data
from onnxgen.training.data.samples import Feeding
from onnxgen.training.settings import Settings


class Anything(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0]


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes a model with named inputs and outputs."""

    def give(inputs: str, outputs: str) -> nn.Module:
        made = [tuple(Port(name, None, None) for name in side.split()) for side in (inputs, outputs)]
        monkeypatch.setattr("onnxgen.training.data.feeding.signature_of", lambda _: Signature(*made))
        return Anything()

    yield give


def fed(model: nn.Module, columns: str, targets: bool = True, **settings: Any) -> Feeding:
    given = Settings(val=0, **settings)
    data = open_data({name: torch.rand(4, 3) for name in columns.split()}, model, given, targets=targets)
    return feed(data, model, given, targets=targets)


@pytest.mark.parametrize(
    "inputs, outputs, columns, settings, expected",
    [
        ("image", "scores", "x y", {}, (("x",), {0: "y"})),
        ("image", "scores", "pixels label", {}, (("pixels",), {0: "label"})),
        ("image", "scores", "scores pixels", {}, (("pixels",), {0: "scores"})),
        ("ids mask", "scores", "mask ids other label", {}, (("ids", "mask"), {0: "label"})),
        ("ids mask", "scores", "mask tokens label", {}, (("tokens", "mask"), {0: "label"})),
        ("a b", "c", "b a c", {"inputs": {"a": "b", "b": "a"}}, (("b", "a"), {0: "c"})),
        ("x", "a b", "x u v", {"target": {"a": "v", "b": "u"}}, (("x",), {0: "v", 1: "u"})),
        ("x", "a b", "x u v", {"target": {"b": "u"}}, (("x",), {1: "u"})),
        ("x", "a b", "x b", {}, (("x",), {1: "b"})),
        ("x", "y", "p q r", {"target": "q", "inputs": {"x": "p"}}, (("p",), {0: "q"})),
        ("x", "y", "p q", {"target": "p", "inputs": {"x": "p"}}, (("p",), {0: "p"})),
        ("x", "", "p label", {}, (("p",), {0: "label"})),
    ],
)
def test_columns_are_assigned(
    ports: Any, inputs: str, outputs: str, columns: str, settings: Any, expected: Any
) -> None:
    found = fed(ports(inputs, outputs), columns, **settings)
    assert (found.inputs, found.targets) == expected


def test_without_targets_one_column_is_enough(ports: Any) -> None:
    assert fed(ports("image", "scores"), "x", targets=False) == Feeding(("x",), {})
    assert fed(ports("image", "scores"), "x label", targets=False) == Feeding(("x",), {})


@pytest.mark.parametrize(
    "inputs, outputs, columns, settings, message",
    [
        (
            "ids mask",
            "scores",
            "a b label",
            {},
            "which column feeds ids, mask? The model's inputs are ids, mask; the data's columns are a, b, label"
            " -> --inputs ids=COLUMN,mask=COLUMN",
        ),
        (
            "image",
            "scores",
            "image",
            {},
            "which column is the target? The model's outputs are scores; the data's columns are image"
            " -> --target COLUMN",
        ),
        (
            "image",
            "boxes scores",
            "image label",
            {},
            "which column is the target? The model's outputs are boxes, scores; the data's columns are image, label"
            " -> --target boxes=COLUMN,scores=COLUMN",
        ),
        (
            "image",
            "boxes scores",
            "image label",
            {"target": "label"},
            "the model has 2 outputs (boxes, scores) -> --target boxes=COLUMN,scores=COLUMN",
        ),
        (
            "image",
            "scores",
            "x y",
            {"inputs": {"picture": "x"}},
            "the model has no input 'picture' (it has image)",
        ),
        (
            "image",
            "scores",
            "x y",
            {"inputs": {"image": "z"}},
            "--inputs image=z: the data has no such column (it has x, y)",
        ),
        ("image", "scores", "x y", {"target": "z"}, "--target z: the data has no such column (it has x, y)"),
        (
            "image",
            "scores",
            "x y",
            {"target": {"score": "y"}},
            "the model has no output 'score' (it has scores)",
        ),
    ],
)
def test_open_assignments_are_refused(
    ports: Any, inputs: str, outputs: str, columns: str, settings: Any, message: str
) -> None:
    with pytest.raises(OnnxgenError) as caught:
        fed(ports(inputs, outputs), columns, **settings)
    assert str(caught.value) == message
