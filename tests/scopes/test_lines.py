"""Variables of the author's source: the names that its lines assign, as PyTorch's dynamo exporter records the lines."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from onnxgen.pipeline import generate
from tests.support.real import imported
from tests.zoo.export import quiet

PREFIX = "pkg.torch.onnx."


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        candle = torch.tanh(self.first(x))
        return x + self.second(candle * candle.sum(1, keepdim=True))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(4, 6)

    def forward(self, image: Tensor) -> Tensor:
        wax = self.inner(image)  # a comment, with a comma
        smoke = [wax.sin(), wax * 2]
        wick, flame = self.head(smoke[0] + smoke[1]).chunk(2, dim=1)
        return wick * flame.exp() + wax.sum() + flame


def test_variables_of_an_exported_network(tmp_path: Path) -> None:
    with quiet():
        torch.onnx.export(Net().eval(), (torch.randn(2, 4),), tmp_path / "net.onnx", dynamo=True, opset_version=18)
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    text = (tmp_path / "net.py").read_text()
    for line in ("wax = self.inner(image)", "wick, flame = ", "candle = torch.tanh(self.first(x))"):
        assert line in text, text
    assert "smoke" not in text, text  # a list is none of its items


def model(lines: list[str], path: Path, misfit: bool = False) -> str:
    """The `forward` that is generated of a chain of nodes, each of which is the value of one line of a source."""
    kinds = ["Tanh", "Sigmoid", "Cos", "Sin", "Neg", "Abs"]
    nodes, names = [], ["image"]
    for i, line in enumerate(lines):
        names.append(f"val_{i}")
        nodes.append(helper.make_node(kinds[i], [names[-2]], [names[-1]], f"node_{i}"))
        nodes.append(helper.make_node("Add", [names[-1], names[0]], [f"sum_{i}"], f"sum_{i}"))
        nodes.append(helper.make_node("Mul", [f"sum_{i}", names[-1]], [f"mul_{i}"], f"mul_{i}"))
        trace = f'File "/home/me/net.py", line {i + 3}, in forward\n    {line}'
        for key, value in (("stack_trace", trace), ("name_scopes", str([""] * (3 if misfit else 1) + ["op"]))):
            nodes[-3].metadata_props.add(key=PREFIX + key, value=value)
        names[-1] = f"mul_{i}"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, path)
    generate(path, path.with_suffix(".py"))
    given = np.random.default_rng(0).standard_normal((2, 3), dtype=np.float32)
    expected = onnxruntime.InferenceSession(path).run(None, {"image": given})[0]
    found = imported(path.with_suffix(".py")).Model().eval()(torch.from_numpy(given)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    return path.with_suffix(".py").read_text()


def stored(text: str) -> set[str]:
    forward = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "forward")
    return {node.id for node in ast.walk(forward) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


@pytest.mark.parametrize("line", ["candle = f(x)", "candle: Tensor = f(x)", "candle += f(x)", "candle = (a, b)[0]"])
def test_what_a_line_assigns(line: str, tmp_path: Path) -> None:
    assert "candle" in stored(model([line] * 2, tmp_path / "net.onnx"))


@pytest.mark.parametrize(
    "line",
    [
        "candle = [f(x)]",  # a list
        "candle = f(x), g(x)",  # a tuple
        "candle=f(x), b)",  # an argument, in the rest of a statement
        "candle = f(x))",
        "candle, wick = f(x)",  # one value is not both
        "candle == f(x)",
        "self.candle = f(x)",
        "candle[0] = f(x)",
        "return candle",
    ],
)
def test_what_a_line_does_not_assign(line: str, tmp_path: Path) -> None:
    assert "candle" not in model([line] * 2, tmp_path / "net.onnx")


def test_lines_that_do_not_fit_the_modules(tmp_path: Path) -> None:
    assert "candle" not in model(["candle = f(x)"] * 2, tmp_path / "net.onnx", misfit=True)


HOSTILE = ["torch = f(x)", "print = f(x)", "F = f(x)", "self = f(x)", "image = f(x)", "lambda = f(x)"]


def test_a_variable_hides_nothing(tmp_path: Path) -> None:
    """Nothing that the module uses, no builtin, no input and no keyword; and the text computes the same."""
    text = model(HOSTILE, tmp_path / "net.onnx")
    assert not stored(text) & {"torch", "print", "F", "self", "image", "lambda"}, text


def test_only_names_are_taken(tmp_path: Path) -> None:
    lines = ["wick = __import__('os').system('candle')", "a" * 70_000 + " = f(x)", "wax = 1; import os"]
    text = model(lines, tmp_path / "net.onnx")
    assert "wick" in stored(text) and "candle" not in text and "aaaa" not in text and "/home/me" not in text
