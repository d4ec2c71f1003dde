"""What a file stores is kept and trained: each wrong decision about a weight is a bug that stops the generator."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper, parser
from torch import Tensor, nn

from onnxgen import pipeline
from onnxgen.code import copied
from onnxgen.code.module_def import Member
from onnxgen.code.quote import held, hold_same
from onnxgen.errors import WrongTranslation
from onnxgen.lowering import lower, members
from onnxgen.options import Options
from onnxgen.output import compose as generated
from onnxgen.paranoid import quick
from onnxgen.weights.provenance import way_back
from tests.support.exported import exported

GRAPH = """
<ir_version: 10, opset_import: ["" : 17]>
net (float[N, 3, 8, 8] x) => (float[N, 4] y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, "features.weight", "features.bias")
  b = InstanceNormalization (a, "norm.weight", "norm.bias")
  c = GlobalAveragePool (b)
  d = Flatten (c)
  e = MatMul (d, matrix)
  y = Gemm <transB = 1> (e, "head.weight", "head.bias")
}
"""
trainable = sys.modules["onnxgen.passes.trainable"]  # in its package the name is the function's
SHAPES = {"features.weight": (6, 3, 3, 3), "features.bias": (6,), "norm.weight": (6,), "norm.bias": (6,)}
SHAPES |= {"matrix": (6, 5), "head.weight": (4, 5), "head.bias": (4,)}


@pytest.fixture(autouse=True)
def no_second_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the check behind it, of the finished module."""
    monkeypatch.setattr(quick, "wrong_decisions", lambda *_: iter(()))


@pytest.fixture
def network(tmp_path: Path) -> Path:
    model = parser.parse_model(GRAPH)
    draw = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = draw.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def build(network: Path, **options: Any) -> str:
    return pipeline.build(network, Options(**options), network.with_suffix(".py")).source


def test_what_is_right_is_let_pass(network: Path) -> None:
    build(network)
    build(network, frozen="features")
    build(network, frozen=".", trainable="head")
    build(network, dtype="float64")


def test_a_layer_is_frozen_as_a_whole(network: Path) -> None:
    text = build(network, frozen="features|norm.weight", paranoid=True)
    frozen = ["self.features.requires_grad_(False)", "self.norm.weight.requires_grad_(False)"]
    assert [line.strip() for line in text.splitlines() if "requires_grad_" in line] == frozen


def decides(change: Callable[[str, tuple[bool, str]], tuple[bool, str]]) -> Callable[..., tuple[bool, str]]:
    """`trainable._decide`, changed."""
    given = trainable._decide

    def decided(value: Any, *rest: Any) -> tuple[bool, str]:
        return change(value.name, given(value, *rest))

    return decided


@pytest.mark.parametrize("name", SHAPES)
def test_a_weight_that_is_not_trained(network: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = decides(lambda n, found: (False, "") if n == name else found)
    monkeypatch.setattr(trainable, "_decide", wrong)
    with pytest.raises(WrongTranslation, match=f"'{name}' is a weight, and is not trained"):
        build(network)
    build(network, frozen=name)


@pytest.mark.parametrize(("option", "pattern"), [("frozen", "head"), ("trainable", "head")])
def test_an_option_that_is_not_obeyed(
    network: Path, option: str, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainable, "_decide", decides(lambda n, _: (option == "frozen", "")))
    with pytest.raises(WrongTranslation):
        build(network, **{option: pattern})


@pytest.mark.parametrize("name", SHAPES)
def test_a_weight_without_a_way_back(network: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(*args: Any) -> dict[str, Any]:
        return {key: entry for key, entry in way_back(*args).items() if key != name}

    monkeypatch.setattr(generated, "way_back", forgets)
    with pytest.raises(WrongTranslation, match=f"'{name}' is a weight, and is not written back"):
        build(network)


def test_integers_are_not_trained(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.load(network)
    model.graph.initializer.append(
        numpy_helper.from_array(np.random.default_rng(0).integers(0, 8, 500), "table.places")
    )
    model.graph.node.add(op_type="Gather", input=["x", "table.places"], output=["z"]).attribute.append(
        onnx.helper.make_attribute("axis", 3)
    )
    model.graph.node[0].input[0] = "z"
    model.graph.node.insert(0, model.graph.node.pop())
    onnx.save(model, network)
    build(network)
    given = lower.lower

    def wrong(*args: Any) -> Any:
        module = given(*args)
        for member in module.members:
            member.kind = "parameter" if member.kind == "buffer" else member.kind
        assert any(source.dtype.name == "INT64" for m in module.members for source in m.keys.values())
        return module

    monkeypatch.setattr(pipeline, "lower", wrong)
    with pytest.raises(WrongTranslation, match="is INT64"):
        build(network)


def test_a_helper_that_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    net (uint64[N] x, uint64[N] y) => (uint64[N] z) { z = Div (x, y) }
    """
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    build(tmp_path / "net.onnx")
    first_only = {"uint64_div": copied.helpers()["uint64_div"]}
    assert "ordered(" in first_only["uint64_div"].text
    monkeypatch.setattr(copied, "helpers", lambda: first_only)
    with pytest.raises(WrongTranslation, match="the file does not define"):
        build(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    "number", [0, 1, -7, 0.0, -0.0, 1.5, -2.5e-9, math.inf, -math.inf, math.nan, 3.4028234663852886e38]
)
def test_numbers(number: float) -> None:
    from onnxgen.code.quote import literal

    held(literal(number), number)
    for other in (1, 1.0, 0.0, -0.0, math.inf, -math.inf, -3.4028234663852886e38):
        if repr(other) != repr(number):
            with pytest.raises(WrongTranslation):
                held(literal(other), number)
    with pytest.raises(WrongTranslation):
        held(ast.parse("f(1)", mode="eval").body, number)


def test_what_is_measured_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17]>
    net (float[N, 3, 8] x) => (float[N, 3, 8] y) {
      y = BatchNormalization (x, "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    }
    """
    model = parser.parse_model(text)
    for name in ("weight", "bias", "running_mean", "running_var"):
        model.graph.initializer.append(numpy_helper.from_array(np.float32([0.5, 1.5, 1]), f"bn.{name}"))
    onnx.save(model, tmp_path / "net.onnx")
    build(tmp_path / "net.onnx")
    given = lower.lower

    def wrong(*args: Any) -> Any:
        module = given(*args)
        for member in module.members:
            member.frozen.clear()
        return module

    monkeypatch.setattr(pipeline, "lower", wrong)
    with pytest.raises(WrongTranslation, match="is a constant or a statistic, and is trained"):
        build(tmp_path / "net.onnx")


@pytest.mark.parametrize("short", [0.1000001, -0.1, 0.0, None])
def test_a_number_that_is_shortened_to_another(short: Any) -> None:
    hold_same(0.1, float(np.float32(0.1)))
    with pytest.raises(WrongTranslation, match="is shortened to"):
        hold_same(short, 0.1)


def test_a_key_of_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tmp_path / "net.onnx"
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> net (float[N, 2] x) => (float[N, 2] y) '
        "<float[2, 2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }"
    )
    onnx.save(model, network)
    pipeline.build(network, Options(), tmp_path / "net.py")
    keys = Member.state_keys
    monkeypatch.setattr(Member, "state_keys", lambda self: [(f"{key}.", source) for key, source in keys(self)])
    with pytest.raises(WrongTranslation, match="the state dict's key '.*' is not that of a stored tensor"):
        pipeline.build(network, Options(), tmp_path / "net.py")


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_what_layers_start_with_is_no_mask(start: float, tmp_path: Path) -> None:
    """A GroupNorm over sequences that nobody trained: its weight is ones and its bias zeros, of rank 2 in the file."""

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(1, 16, 10, stride=5, bias=False), nn.GroupNorm(16, 16)
            nn.init.constant_(self.norm.bias, start)

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(self.norm(self.conv(x[:, None])))

    model = exported(Speech().eval(), [torch.randn(1, 200)], axes={0: {0: "batch", 1: "time"}})
    assert {tuple(i.dims) for i in model.graph.initializer} == {(16, 1, 10), (16, 1)}
    onnx.save(model, tmp_path / "speech.onnx")
    build(tmp_path / "speech.onnx", paranoid=True)


@pytest.mark.parametrize("taken", [0, 1])
def test_a_branch_that_is_never_taken_has_no_weights(taken: int, tmp_path: Path) -> None:
    """The condition is stored, so only one of the two weights is in the network, and is written back."""
    graph = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[2, 3] x) => (float[2, 3] y)
        <bool c = {{{taken}}}, float[3] "a.weight" = {{0.4, 1.1, 0.9}}, float[3] "b.weight" = {{0.5, 0.1, 2.9}}>
        {{ y = If (c) <then_branch = then () => (float[2, 3] p) {{ p = Mul(x, "a.weight") }},
                      else_branch = else () => (float[2, 3] q) {{ q = Mul(x, "b.weight") }}> }}""")
    onnx.save(graph, tmp_path / "net.onnx")
    made = pipeline.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert {name for name, (yes, _) in made.report.trainable.items() if yes} == {
        "b.weight" if not taken else "a.weight"
    }


def test_what_is_trained_is_what_was_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of a buffer has a frozen weight."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[n, 4] x) => (float[n, 4] y) '
        '{ y = Gemm (x, "fc_buffer", "fc.bias") }'
    )
    draw = np.random.default_rng(0)
    for name, shape in (("fc_buffer", (4, 4)), ("fc.bias", (4,))):
        model.graph.initializer.append(numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    made = pipeline.generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert {name for name, (yes, _) in made.report.trainable.items() if yes} == {"fc.bias"}
    monkeypatch.setattr(members, "stored_values", lambda _: iter(()))
    with pytest.raises(WrongTranslation, match="fc.weight is trained, which was decided otherwise"):
        build(tmp_path / "net.onnx")
