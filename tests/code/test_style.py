"""Styles of writing: the network as authors of other libraries write it, with the same layers in the same order."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.code import printer
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.steps import Steps, in_phases
from onnxgen.code.style import STYLES as RECORDS
from onnxgen.code.style import styled
from onnxgen.errors import OnnxgenError
from onnxgen.options import STYLES, Options
from onnxgen.pipeline import generate
from onnxgen.structure.parameters import Parameter
from tests.support.real import imported


def statements(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def stepped(text: str, nested: int = 2, named: int = 99) -> str:
    """Statements in steps; `self.norm` is a norm."""
    made = Steps(nested, named, {"norm"}, set()).of(ast.parse(f"def f(self):\n    {text}").body[0].body)  # type: ignore[attr-defined]
    return "; ".join(printer.lines(made))


STEPS = {
    "x = F.relu(self.fc(x.flatten(1)))": "x = x.flatten(1); x = F.relu(self.fc(x))",
    "x = F.relu(self.norm(self.conv(x)))": "x = F.relu(self.norm(self.conv(x)))",
    "x = self.b(F.relu(self.a(x)))": "x = F.relu(self.a(x)); x = self.b(x)",
    "x = self.conv(F.silu(self.norm(x)))": "x = self.conv(F.silu(self.norm(x)))",
    "x = self.conv(self.drop(F.silu(x)))": "x = self.drop(F.silu(x)); x = self.conv(x)",
    "x = self.norm(self.conv(F.relu(x)))": "x = F.relu(x); x = self.norm(self.conv(x))",
    "y = self.b(F.relu(self.a(x)))": "x = F.relu(self.a(x)); y = self.b(x)",
    "y = self.b(F.relu(self.a(x))); z = x": "y = F.relu(self.a(x)); y = self.b(y); z = x",
    "y = self.b(F.relu(self.a(y)))": "y = F.relu(self.a(y)); y = self.b(y)",
    "y = self.b(F.relu(self.a(x)), y)": "y = self.b(F.relu(self.a(x)), y)",
    "x = self.qkv(x).unflatten(-1, (3, -1)).permute(1, 0)": "x = self.qkv(x).unflatten(-1, (3, -1)).permute(1, 0)",
    "x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)": (
        "x = F.scaled_dot_product_attention(q, k, v); x = x.transpose(1, 2).flatten(2)"
    ),
    "x = self.d(self.c(self.b(self.a(x))))": "x = self.b(self.a(x)); x = self.d(self.c(x))",
    "return self.c(self.b(self.a(y)))": "x = self.b(self.a(y)); return self.c(x)",
    "return self.c(self.b(self.a(y)), x)": "return self.c(self.b(self.a(y)), x)",
    "x = F.gelu(x.mean(1)) + self.b(x)": "x = F.gelu(x.mean(1)) + self.b(x)",
    "a, b = self.c(x.flatten(1)).chunk(2)": "a, b = self.c(x.flatten(1)).chunk(2)",
    "x = self.layers[0](x.flatten(1)).sum()": "x = x.flatten(1); x = self.layers[0](x).sum()",
}


@pytest.mark.parametrize("text", STEPS)
def test_calls_are_split_in_their_order(text: str) -> None:
    """A name takes a part only where nothing else in the statement reads what the name was before."""
    assert stepped(text) == STEPS[text]


THREE = {
    "x = F.relu(self.fc1(x.flatten(1)))": "x = F.relu(self.fc1(x.flatten(1)))",
    "x = F.max_pool2d(F.relu(self.conv(x)), 2)": "x = F.max_pool2d(F.relu(self.conv(x)), 2)",
    "x = F.interpolate(self.convolution(F.max_pool2d(x, kernel_size=2)), scale_factor=2)": (
        "x = self.convolution(F.max_pool2d(x, kernel_size=2)); x = F.interpolate(x, scale_factor=2)"
    ),
    "x = F.mish(self.b(F.elu(self.a(x))))": "x = F.elu(self.a(x)); x = F.mish(self.b(x))",
    "x = self.a(x); x = F.pad(self.b(x), p).flatten(1)": "x = self.a(x); x = self.b(x); x = F.pad(x, p).flatten(1)",
    "x = self.a(y); x = F.pad(self.b(x), p).flatten(1)": "x = self.a(y); x = F.pad(self.b(x), p).flatten(1)",
}


@pytest.mark.parametrize("text", THREE)
def test_three_calls_are_one_statement_but_a_row_of_layers_stays(text: str) -> None:
    assert stepped(text, nested=3) == THREE[text]


def test_a_block_inside_is_split_and_a_long_method_returns_a_name() -> None:
    loop = statements("for layer in self.layers:\n    x = F.relu(self.fc(x.flatten(1)))")
    (made,) = Steps(2, 99, set(), set()).of(loop)
    assert isinstance(made, ast.For) and len(made.body) == 2
    assert stepped("x = x + 1\n    return x * 2", named=2) == "x = x + 1; x = x * 2; return x"
    assert stepped("x = x + 1\n    return x * 2", named=0) == "x = x + 1; return x * 2"
    assert stepped("x = x + 1\n    return self.fc(x)", named=2) == "x = x + 1; return self.fc(x)"
    assert stepped("y = x + 1\n    return x * 2", named=2) == "y = x + 1; return x * 2"


def phases(text: str, every: int = 1) -> list[int]:
    """The sizes of the phases of a method."""
    lines = printer.lines(in_phases(statements(text), 3, every))
    return [block.count("\n") + 1 for block in "\n".join(lines).split("\n\n")]


def test_a_phase_ends_where_one_value_is_handed_on() -> None:
    layers = "\n".join(f"x = self.conv{i}(x)" for i in range(4))
    assert phases(f"{layers}\nx = x.flatten(1)\nx = self.fc(x)\nx = self.out(x)") == [4, 3]
    assert phases(f"y = self.a(x)\n{layers}\nx = x.flatten(1)\nx = x + y") == [7], "two values live on"
    assert phases("x = self.a(x)\nx = x.flatten(1)\nx = self.b(x)\nx = self.c(x)") == [4], "one statement is no phase"
    loop = "features = []\nfor layer in self.layers:\n    x = layer(x)\n    features.append(x)"
    assert phases(f"x = self.a(x)\nx = self.b(x)\n{loop}\nx = self.c(x)\nx = self.d(x)") == [2, 4, 2]


def test_one_line_in_so_many_has_its_shape() -> None:
    body = [printer.remarked(s, f"[{i}]") for i, s in enumerate(statements("x = self.a(x)\n" * 17))]
    for every, wanted in ((8, 2), (4, 3), (17, 1), (18, 0)):  # a phase has one at most
        assert sum("#" in line for line in printer.lines(in_phases(body, 3, every))) == wanted, every


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.fc1, self.fc2 = nn.Linear(8 * 9, 16), nn.Linear(16, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(image)))
        x = F.max_pool2d(x, 2)
        for block in self.blocks:
            x = block(x, x.mean())
        return self.fc2(F.relu(self.fc1(x.flatten(1)))).log_softmax(-1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + self.conv2(torch.tanh(self.conv1(x) * scale))


def test_every_style_computes_the_same_with_the_same_keys(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image, path = torch.randn(2, 3, 15, 15), tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Net().eval(), (image,), str(path), dynamo=False, input_names=["image"], output_names=["scores"]
        )
    (wanted,) = onnxruntime.InferenceSession(str(path)).run(None, {"image": image.numpy()})
    sources, keys = {}, set()
    for style in STYLES:
        out = tmp_path / f"{style}.py"
        sources[style] = generate(path, out, Options(style=style)).source
        model = imported(out).Model.from_pretrained().eval()
        torch.testing.assert_close(model(image), torch.from_numpy(wanted))
        torch.jit.script(model)  # type: ignore[no-untyped-call]
        keys.add(tuple(model.state_dict()))
    assert len(keys) == 1
    plain, torchvision, timm = (sources[style] for style in STYLES)
    assert ": int" not in plain and "-> None" not in plain and "-> None" in torchvision and "-> None" not in timm
    assert plain.count(": Tensor") == 1 and torchvision.count(": Tensor") > 2, "only the network says its types"
    assert "return scores" in plain, "the result has its name"
    for source in sources.values():
        assert not re.search(r"Conv2d\(\w+, \w+, \d", source), "a kernel is given by name"


def test_an_argument_that_is_no_tensor_says_its_type() -> None:
    """TorchScript takes what has no type for a tensor."""

    inputs = [ast.arg("x", printer.annotation("Tensor")), ast.arg("size", printer.annotation("int"))]
    tree = ClassTree("Inner", ["inner"], body=statements("y = x[:size]\ny"), inputs=inputs)
    (made,) = styled([tree], RECORDS["plain"])
    assert list(map(printer.argument, made.inputs)) == ["x", "size: int"] and made.result is None


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(OnnxgenError, match="--style must be one of plain, torchvision, timm"):
        Options(style="fancy")
    from onnxgen.code.style import STYLES as RECORDS

    assert tuple(RECORDS) == STYLES


def test_a_name_says_what_an_argument_is() -> None:
    """`stride=stride` needs no name where its place says it; numbers get the name of the kernel."""
    from onnxgen.code.style import by_name

    written = {
        "nn.Conv2d(3, 8, 3, stride=2)": "nn.Conv2d(3, 8, kernel_size=3, stride=2)",
        "nn.Conv2d(a, b, kernel_size, stride=stride, padding=1)": "nn.Conv2d(a, b, kernel_size, stride, padding=1)",
        "nn.Conv2d(a, b, kernel_size, stride=2)": "nn.Conv2d(a, b, kernel_size, stride=2)",
        "nn.Conv2d(a, b, kernel_size, padding=padding)": "nn.Conv2d(a, b, kernel_size, padding=padding)",
        "nn.Sequential(nn.MaxPool2d(2), nn.ReLU())": "nn.Sequential(nn.MaxPool2d(kernel_size=2), nn.ReLU())",
        "nn.Linear(4, 4, bias=bias)": "nn.Linear(4, 4, bias=bias)",
        "nn.Conv2d(*sizes, 3)": "nn.Conv2d(*sizes, 3)",
    }
    for text, wanted in written.items():
        (made,) = by_name([ClassTree("A", setup=statements(text))], RECORDS["plain"])
        assert printer.lines(made.setup) == [wanted]


@pytest.mark.parametrize("name", ["load", "model", "warn", "print", "class", "partial", "net_2"])
def test_the_function_that_builds_hides_nothing(name: str, tmp_path: Path) -> None:
    """Whatever the file is called, and where the weights are in the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(nn.Linear(2, 2), (torch.ones(1, 2),), str(tmp_path / f"{name}.onnx"), dynamo=False)
    generate(tmp_path / f"{name}.onnx", out := tmp_path / "made.py", Options(embed=True))
    (builds,) = re.findall(r"^def (\w+)\(pretrained", out.read_text(), re.MULTILINE)
    made = getattr(imported(out), builds)()
    assert made(torch.ones(1, 2)).shape == (1, 2)


def test_many_numbers_are_given_by_name() -> None:
    """Three or more numbers, of which one at least is no width, say what they are."""
    parameters = [Parameter(name, "int") for name in ("in_channels", "hidden_channels", "pad", "stride")]

    def written(arguments: str) -> str:
        root = ClassTree("Net", [""], setup=statements(f"self.a = Block({arguments})"))
        (_, made) = styled([ClassTree("Block", ["a"], parameters=parameters), root], RECORDS["plain"])
        return printer.lines(made.setup)[0]

    assert written("8, 16, 1, 2") == "self.a = Block(8, 16, pad=1, stride=2)"
    assert written("c, 16, 1, 2") == "self.a = Block(c, 16, pad=1, stride=2)"
    assert written("8, 16, 1, stride=2") == "self.a = Block(8, 16, pad=1, stride=2)"
    assert written("c, 16, pad, 2") == "self.a = Block(c, 16, pad, 2)", "two numbers"
    assert written("*widths, 1, 2, 3") == "self.a = Block(*widths, 1, 2, 3)"
