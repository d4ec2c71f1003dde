"""What local variables are called after what makes and uses them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from onnxgen.pipeline import generate
from tests.support.exported import held


def forward(net: nn.Module, example: tuple[Tensor, ...], folder: Path, names: Sequence[str] = "ab") -> str:
    """The `forward` that is generated for a network."""
    path = folder / "net.onnx"
    torch.onnx.export(
        net.eval(), example, str(path), input_names=list(names)[: len(example)], dynamo=False, opset_version=17
    )
    source = generate(path, folder / "net.py").source
    return source[source.index("def forward") : source.index("\n\nWEIGHTS = ")]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 6), nn.GRU(6, 5)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        x, (h, c) = self.lstm(frames)
        x, last = self.gru(x)
        return x + last, h * c


def test_states_of_recurrent_layers(tmp_path: Path) -> None:
    text = forward(Recurrent(), (torch.randn(3, 2, 4),), tmp_path)
    assert "output, (hidden1, cell) = self.lstm(a)" in text
    assert "output, hidden2 = self.gru(output)" in text


class Sigmoids(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x = torch.tanh(a)
        gate, probs = torch.sigmoid(a + b), torch.sigmoid(a - b)
        return torch.cat([gate * x, x, gate.cumsum(0), probs, probs.cumsum(0)])


def test_a_gate_is_multiplied_and_a_probability_is_not(tmp_path: Path) -> None:
    text = forward(Sigmoids(), (torch.randn(3, 2), torch.randn(3, 2)), tmp_path)
    assert "gate = torch.sigmoid(a + b)" in text and "probs = torch.sigmoid(a - b)" in text


class Many(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x + i for i in range(5))


def test_a_long_tuple_of_tensors(tmp_path: Path) -> None:
    assert "-> tuple[Tensor, ...]:" in forward(Many(), (torch.randn(3),), tmp_path)


class Clamped(nn.Module):
    def __init__(self, least: float) -> None:
        super().__init__()
        self.fc, self.least = nn.Linear(4, 4), least

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.rsqrt(self.fc(x).square().clamp(min=self.least))
        return y


def test_an_argument_with_the_name_of_a_builtin(tmp_path: Path) -> None:
    net = nn.Sequential(*map(Clamped, (0.1, 0.2, 0.1, 0.3)))
    torch.onnx.export(net, (torch.randn(3, 4),), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    assert "clamp(min=self.min_)" in generate(tmp_path / "net.onnx", tmp_path / "net.py").source


def test_a_result_is_not_named_after_its_operator() -> None:
    """The dynamo exporter names an output of a graph after the operator that makes it."""

    class Net(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.clamp(x, 0, 2)
            return y, torch.sqrt(y + 1)

    source = held(Net(), [torch.rand(2, 3)], "dynamo-18").source
    assert "clamp = " not in source and "sqrt = " not in source


class Steps(nn.Module):
    """Equal steps with other negative numbers in each."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for low in (-0.5, -0.25, -0.125, -1.5):
            x = torch.sin(self.fc(x)).clamp(min=low) * x
        return x


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
def test_negative_numbers_in_a_loop(case: str) -> None:
    assert "for " in held(Steps().eval(), [torch.randn(2, 4)], case).source


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h, made = self.fc(x), torch.cat([x] * 21).log_softmax(1)
        return h * made[:3], made + 1, h.exp() * x


def test_a_name_that_would_break_a_line_is_left_out(tmp_path: Path) -> None:
    text = forward(Joined(), (torch.randn(3, 4),), tmp_path, "x")
    assert "joined" not in text and "(\n" not in text, text


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(4, 4), nn.LSTM(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, _ = self.first(x)
        found, _ = self.second(y)[0].sort(-1)
        return y, found


def test_all_that_is_not_used_has_one_name(tmp_path: Path) -> None:
    text = forward(Unused(), (torch.randn(3, 2, 4),), tmp_path, "x")
    assert text.count(", _ = ") == 3 and not re.search(r"\b_\d", text), text


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores_of_the_small, self.boxes_of_the_small = nn.Linear(4, 1), nn.Linear(4, 2)
        self.scores_of_the_large, self.boxes_of_the_large = nn.Linear(4, 1), nn.Linear(4, 2)
        self.scores_of_the_rest, self.boxes_of_the_rest = nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, z = torch.sin(x), torch.cos(x)
        scores = self.scores_of_the_small(x), self.scores_of_the_large(y), self.scores_of_the_rest(z)
        return *scores, self.boxes_of_the_small(x), self.boxes_of_the_large(y), self.boxes_of_the_rest(z)


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.heads = nn.Linear(4, 4), Heads()

    def forward(self, x: Tensor) -> list[Tensor]:
        return [torch.exp(y) for y in self.heads(self.backbone(x))]


def test_results_that_take_a_line_each_are_computed_in_it(tmp_path: Path) -> None:
    source = forward(Detector(), (torch.randn(3, 4),), tmp_path)
    for name in ("scores", "boxes"):
        assert f"            self.{name}_of_the_small(x),\n            self.{name}_of_the_large(" in source


@pytest.mark.parametrize(
    ("inner", "output", "last"),
    [
        ("activated_77", "output", "return F.relu(x)"),
        ("activated_77", "final_result", "return F.relu(x)"),
        ("77", "boxes", "return boxes"),
    ],
)
def test_only_the_name_of_an_output_makes_a_line_and_not_what_an_identity_is_made_of(
    inner: str, output: str, last: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Relu", ["x"], [inner]), helper.make_node("Identity", [inner], [output])]
    io = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in ("x", output)]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    source = generate(tmp_path / "net.onnx", tmp_path / "net.py").source
    assert f"        {last}\n" in source


class Tagger(nn.Module):
    """What a recurrent layer returns is moved by the exporter, and has the author's name then."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 6, batch_first=True, bidirectional=True), nn.Linear(12, 2)
        self.gru, self.head = nn.GRU(4, 6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        encoded, _ = self.lstm(x)
        _, ended = self.gru(x)
        return self.fc(encoded).tanh(), self.head(ended[-1])


def test_the_result_of_a_recurrent_layer_has_the_variable_of_the_source(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    torch.onnx.export(Tagger().eval(), (torch.randn(2, 3, 4),), path, dynamo=True, verbose=False)
    text = generate(path, tmp_path / "net.py").source
    assert "encoded, _ = self.lstm(x)" in text and "_, ended = self.gru(x)" in text
