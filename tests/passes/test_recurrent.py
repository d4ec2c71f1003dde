"""Recurrent modules of PyTorch, exported and back: one module again, its keys and weights those of the original."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import onnxgen
from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime, tensor_proto
from tests.support.exported import exported as exported_module
from tests.support.exported import held_graph
from tests.support.real import imported
from tests.zoo.export import quiet


class Net(nn.Module):
    """A recurrent module and a linear layer behind it; `result` says what of it is the output."""

    def __init__(self, kind: str, result: str, dropout: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.net = getattr(nn, kind)(3, 4, **options)
        self.fc = nn.Linear(8 if options.get("bidirectional") else 4, 2)
        self.result = result

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        given = () if not states else ((states,) if isinstance(self.net, nn.LSTM) else states)
        y, h = self.net(x, *given)
        if self.result == "all":
            return self.fc(y), h
        return self.fc(y) if self.result == "y" else self.fc(y[:, -1]) if self.result == "last" else self.fc(h[-1])


class Two(nn.Module):
    """Two modules, not two layers of one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(3, 4), nn.LSTM(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)[0])[0]


def exported(model: nn.Module, inputs: tuple[Tensor, ...], exporter: str) -> onnx.ModelProto:
    file, names = io.BytesIO(), [f"i{k}" for k in range(len(inputs))]
    with quiet():
        if exporter == "dynamo":
            torch.onnx.export(model, inputs, file, dynamo=True, verbose=False, input_names=names)
        else:
            axes = {name: {0: "a", 1: "b"} for name in names[:1]}
            torch.onnx.export(
                model, inputs, file, dynamo=False, opset_version=17, input_names=names, dynamic_axes=axes,
                do_constant_folding=exporter == "folded",
            )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def check(model: nn.Module, inputs: tuple[Tensor, ...], exporter: str) -> Ran:
    """Same outputs, same keys, same weights."""
    proto = exported(model.eval(), inputs, exporter)
    ran = run_model(proto, {f"i{k}": t.numpy() for k, t in enumerate(inputs)})
    with torch.no_grad():
        expected = model(*inputs)
    flat = [t for part in (expected if isinstance(expected, tuple) else (expected,)) for t in _tensors(part)]
    for actual, wanted in zip(ran.outputs, flat, strict=True):
        assert_same(actual, wanted.numpy())
    made, original = ran.model.state_dict(), model.state_dict()
    assert made.keys() == original.keys()
    assert all(torch.equal(made[key], original[key]) for key in made)
    return ran


def _tensors(part: Any) -> list[Tensor]:
    return list(part) if isinstance(part, tuple) else [part]


X = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("exporter", ["folded", "plain"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "layers,bidirectional,batch_first", [(1, False, True), (1, True, False), (3, True, True), (3, False, False)]
)
def test_modules(exporter: str, kind: str, layers: int, bidirectional: bool, batch_first: bool) -> None:
    options: dict[str, Any] = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": batch_first}
    ran = check(Net(kind, "all", **options), (X,), exporter)
    assert ran.source.count(f"nn.{kind}(") == 1
    assert ("batch_first=True" in ran.source) == batch_first
    assert "permute" not in ran.forward and "reshape" not in ran.forward and "transpose" not in ran.forward


@pytest.mark.parametrize("result", ["y", "h"])
def test_what_is_not_used_is_not_named(result: str) -> None:
    ran = check(Net("LSTM" if result == "y" else "GRU", result, num_layers=2), (X,), "folded")
    assert "_" in ran.forward.split("=")[0] and "(" not in ran.forward.split("=")[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("exporter", ["folded", "plain"])
def test_initial_states(kind: str, exporter: str) -> None:
    """The exporter cuts the states up by layer; the module takes them whole."""
    states = [torch.randn(2, 5, 4) for _ in range(2 if kind == "LSTM" else 1)]
    ran = check(Net(kind, "all", num_layers=2), (X, *states), exporter)
    assert "torch.cat" not in ran.forward and "[:" not in ran.forward and "[1:" not in ran.forward


def test_without_biases() -> None:
    check(Net("LSTM", "last", batch_first=True, num_layers=2, bias=False), (X,), "folded")


def test_a_layer_without_names_is_the_one_between_its_neighbours() -> None:
    model = Net("LSTM", "y", num_layers=3)
    proto = exported(model.eval(), (X,), "plain")
    for tensor in [t for t in proto.graph.initializer if t.name.endswith("_l1")]:
        old, tensor.name = tensor.name, f"onnx::LSTM_{tensor.name}".replace("net.", "").replace("_l1", "")
        for node in proto.graph.node:
            node.input[:] = [tensor.name if name == old else name for name in node.input]
    ran = run_model(proto, {"i0": X.numpy()})
    with torch.no_grad():
        assert_same(ran.outputs[0], model(X).numpy())
    assert ran.model.state_dict().keys() == model.state_dict().keys() and "num_layers=3" in ran.source


def test_two_modules_stay_two() -> None:
    for exporter in ("folded", "plain"):
        assert check(Two(), (X,), exporter).source.count("nn.LSTM(") == 2


def test_the_dynamo_exporter() -> None:
    ran = check(Net("LSTM", "all", num_layers=2, batch_first=True), (X,), "dynamo")
    assert ran.source.count("nn.LSTM(") == 1


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_dropout_between_layers(kind: str) -> None:
    """Training exports of the dynamo exporter keep it; it is the module's own again."""
    model = Net(kind, "y", dropout=0.0, num_layers=3, batch_first=True).train()
    model.net.dropout = 0.25
    ran = run_model(exported_module(model, [X], "dynamo-18-train"), {"i0": X.numpy()})
    assert ran.source.count(f"nn.{kind}(") == 1 and "num_layers=3" in ran.source and "dropout=0.25" in ran.source
    assert "nn.Dropout" not in ran.source
    assert ran.model.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        assert_same(ran.outputs[0], model.eval()(X).numpy())
    assert not torch.equal(ran.model.train()(X), ran.model(X))


def test_axes_that_are_moved_there_and_back() -> None:
    """TensorFlow's converters transpose Y to batch first; what comes next transposes it back."""
    text = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[5, 2, 3] x) => (float[5, 2, 4] y) <int64[1] one = {1}> {
            r, h = GRU<hidden_size = 4, linear_before_reset = 1>(x, W, R)  s = Squeeze(r, one)
            u = Transpose<perm = [1, 0, 2]>(s)  v = Transpose<perm = [1, 0, 2]>(u)  y = Tanh(v)
        }"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, columns in (("W", 3), ("R", 4)):
        model.graph.initializer.append(tensor_proto(random.normal(size=(1, 12, columns)).astype("float32"), name))
    ran = held_graph(model, {"x": random.normal(size=(5, 2, 3)).astype("float32")})
    assert "nn.GRU(" in ran.source and "permute" not in ran.forward and "transpose" not in ran.forward


class Decoder(nn.Module):
    """A cell behind an axis of unknown size, as in detectors of speech that are exported from a script."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3, stride=2)
        self.rnn = nn.LSTMCell(4, 5)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x).squeeze(-1)
        h, c = self.rnn(x, (state[0], state[1]))
        return h.unsqueeze(-1), torch.stack([h, c])


def decoder() -> tuple[nn.Module, onnx.ModelProto, dict[str, Any]]:
    torch.manual_seed(0)
    model, inputs = Decoder().eval(), (torch.randn(2, 3, 4), torch.randn(2, 2, 5))
    file, axes = io.BytesIO(), {"x": {0: "n", 2: "l"}, "state": {1: "n"}}
    with quiet():
        torch.onnx.export(
            torch.jit.script(model), inputs, file, dynamo=False, opset_version=16, do_constant_folding=False,
            input_names=["x", "state"], dynamic_axes=axes,
        )  # fmt: skip
    feeds = {"x": inputs[0].numpy(), "state": inputs[1].numpy()}
    return model, onnx.load_from_string(file.getvalue()), feeds


def test_a_cell_is_a_cell() -> None:
    """A script asks for its input's rank and sizes; what the LSTM takes answers that."""
    model, proto, feeds = decoder()
    assert any(node.op_type == "If" for node in proto.graph.node)
    ran = run_model(proto, feeds)
    with torch.no_grad():
        expected = model(*map(torch.from_numpy, feeds.values()))
    for actual, wanted, other in zip(ran.outputs, expected, run_onnxruntime(proto, feeds), strict=True):
        assert_same(actual, wanted.numpy())
        assert_same(actual, other)
    made, original = ran.model.state_dict(), model.state_dict()
    assert made.keys() == original.keys() and all(torch.equal(made[key], original[key]) for key in made)
    assert "nn.LSTMCell(4, 5)" in ran.source and "if " not in ran.forward and "cat(" not in ran.source


def test_a_cell_comes_back(tmp_path: Path) -> None:
    """Its trained values are written over the file's own tensors, whose gates have torch's order."""
    model, proto, feeds = decoder()
    onnx.save(proto, tmp_path / "net.onnx")
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "model.py")
    trained = imported(tmp_path / "model.py").Model.from_pretrained()
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter)
    onnxgen.export(tmp_path / "model.py", weights=trained, out=tmp_path / "tuned.onnx")
    tuned = onnx.load(tmp_path / "tuned.onnx")
    stored = {t.name: numpy_helper.to_array(t) for t in tuned.graph.initializer}
    assert all(np.array_equal(stored[key], tensor.numpy()) for key, tensor in trained.state_dict().items())
    with torch.no_grad():
        expected = trained(*map(torch.from_numpy, feeds.values()))
    for actual, wanted in zip(run_onnxruntime(tuned, feeds), expected, strict=True):
        assert_same(actual, wanted.numpy())


@pytest.mark.parametrize("states", ["h", "none"])
@pytest.mark.parametrize("kind,gates", [("GRU", 3), ("RNN", 1), ("LSTM", 4)])
def test_cells_of_one_step(kind: str, gates: int, states: str) -> None:
    """Tensors that are called as a cell's, in ONNX's order of gates; Y itself is used, too."""
    draw = np.random.default_rng(0).normal
    weights = {"weight_ih": (gates * 3, 4), "weight_hh": (gates * 3, 3), "bias": (1, gates * 6)}
    given = "h1" if states == "h" else ""
    more = ", linear_before_reset = 1" if kind == "GRU" else ""
    text = f"""g (float[n, 4] x, float[n, 3] h) => (float[n, 3] y, float[1, 1, n, 3] all) {{
      i = Constant <value = int64[1] {{0}}> ()
      x1 = Unsqueeze (x, i)
      h1 = Unsqueeze (h, i)
      w = Unsqueeze (weight_ih, i)
      r = Unsqueeze (weight_hh, i)
      all, last = {kind} <hidden_size = 3{more}> (x1, w, r, bias, , {given})
      y = Squeeze (last, i)
    }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    names = {"weight_ih": "cell.weight_ih", "weight_hh": "cell.weight_hh", "bias": "onnx::bias"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for name, shape in weights.items():
        model.graph.initializer.append(tensor_proto(draw(size=shape).astype(np.float32), names[name]))
    for n in (1, 2):
        feeds = {"x": draw(size=(n, 4)).astype(np.float32), "h": draw(size=(n, 3)).astype(np.float32)}
        ran = run_model(model, feeds)
        for actual, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
            assert_same(actual, expected)
    assert f"self.cell = nn.{kind}Cell(4, 3" in ran.source
