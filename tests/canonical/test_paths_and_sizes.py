"""`onnxgen prove` of modules that ask for values of tensors and for sizes: each answer is followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import onnxgen
from onnxgen.canonical.deciding import decided


def branching(path: Path) -> Path:
    """A file that multiplies by one of two matrices, as its second input says."""
    draw = np.random.default_rng(0)
    weights = [numpy_helper.from_array(draw.normal(size=(4, 4)).astype(np.float32), n) for n in ("one", "other")]

    def branch(name: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, ["batch", 4])
        return helper.make_graph([helper.make_node("MatMul", ["x", name], [f"{name}_y"])], name, [], [out])

    choice = helper.make_node("If", ["is_one"], ["y"], then_branch=branch("one"), else_branch=branch("other"))
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in ("x", "y")]
    flag = helper.make_tensor_value_info("is_one", TensorProto.BOOL, [])
    graph = helper.make_graph([choice], "net", [ports[0], flag], [ports[1]], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def verdict(path: Path, old: str, new: str) -> str:
    """The verdict of the module of a file after an edit."""
    module = path.with_suffix(".py")
    onnxgen.generate(path, module, force=True)
    text = module.read_text(encoding="utf-8")
    assert old in text
    module.write_text(text.replace(old, new, 1), encoding="utf-8")
    return onnxgen.prove(path, module, runs=2).verdict


def test_both_branches_are_followed(tmp_path: Path) -> None:
    path = branching(tmp_path / "net.onnx")
    assert verdict(path, "return ", "return 1 * ") == "proved"
    assert verdict(path, "return ", "return 2 * ") == "different"


class Deciding(nn.Module):
    """One layer, but for inputs of a negative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) if x.sum() > -1e6 else 2 * self.fc(x)


def test_a_module_of_which_one_path_is_the_file_is_not_filled(tmp_path: Path) -> None:
    torch.onnx.export(nn.Linear(4, 4), (torch.randn(2, 4),), tmp_path / "net.onnx", dynamo=False)
    with pytest.raises(onnxgen.OnnxgenError):
        onnxgen.transplant(tmp_path / "net.onnx", Deciding())


def test_a_forward_that_a_module_was_given_stays(tmp_path: Path) -> None:
    torch.onnx.export(nn.Linear(4, 4), (torch.randn(2, 4),), tmp_path / "net.onnx", dynamo=False)
    module = nn.Linear(4, 4)
    own = module.forward
    module.forward = given = lambda input: own(input)  # type: ignore[method-assign]
    with decided(module, ()):
        assert module.forward is not given
    assert module.forward is given


def test_files_that_share_one_branch_alone_are_not_the_same(tmp_path: Path) -> None:
    one = branching(tmp_path / "one.onnx")
    model = onnx.load(one)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones((4, 4), np.float32), "other"))
    onnx.save(model, tmp_path / "two.onnx")
    assert onnxgen.diff(one, tmp_path / "two.onnx").verdict != "same"


@pytest.fixture
def recurrent(tmp_path: Path) -> Path:
    """A GRU over a sequence of any length."""
    net = nn.GRU(3, 4, batch_first=True)
    axes = {"x": {0: "batch", 1: "length"}}
    torch.onnx.export(
        net, (torch.randn(2, 5, 3),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes=axes, dynamo=False
    )
    return tmp_path / "net.onnx"


def test_a_recurrent_layer_is_followed_for_every_length(recurrent: Path) -> None:
    onnxgen.generate(recurrent, module := recurrent.with_suffix(".py"))
    line = next(row for row in module.read_text(encoding="utf-8").splitlines() if "return" in row and "out" in row)
    name = line.split("return ")[1].split(",")[0]
    assert verdict(recurrent, line, line.replace(name, f"1 * {name}", 1)) == "proved"
    space = line[: len(line) - len(line.lstrip())]
    asks = f"{space}if {name}.shape[1] == 7:\n{space}    {name} = 2 * {name}\n{line}"
    assert verdict(recurrent, line, asks) != "proved"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    torch.onnx.export(
        net, (torch.randn(2, 4),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": {0: "n"}}, dynamo=False
    )
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    "zero",
    ["torch.lgamma(x)", "torch.fmod(x, x)", "torch.remainder(x, x)", "torch.sin(1 / x)", "torch.log(x).sum()", "1 / x"],
)
def test_nothing_times_what_may_be_undefined_is_kept(plain: Path, zero: str) -> None:
    assert verdict(plain, "return ", f"return 0 * {zero} + ") != "proved"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return ", "torch.tanh(x).detach_()\n        return "),
        ("WEIGHTS = ", "def scaled(cls, **k):\n    return cls()\nfrom_pretrained = scaled\nWEIGHTS = "),
        ("WEIGHTS = ", "class safe_open(nn.Module):\n    pass\nWEIGHTS = "),
        ("    def forward", "    def named(self, *a):\n        return self\n    to = named\n\n    def forward"),
        ("return ", "return (2 if torch.os.environ.get('DOUBLED') else 1) * "),
        ("return ", "t = torch\n        return (2 if t.is_inference_mode_enabled() else 1) * "),
        ("return ", "return (2 if torch.get_float32_matmul_precision() == 'none' else 1) * "),
        ("return ", "return (2 if x.dtype == torch.bfloat16 else 1) * "),
    ],
)
def test_what_a_capture_does_not_show_is_not_proved(plain: Path, old: str, new: str) -> None:
    assert verdict(plain, old, new) == "not proved"
