"""Recurrent layers that an exporter unrolled, and cells: torch's modules again, with the keys of the original."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen.options import Options
from onnxgen.pipeline import generate, read_and_simplify
from onnxgen.shapes.info import info
from tests.ops.harness import tensor_proto
from tests.support.exported import exported, held, held_graph
from tests.support.real import imported

X = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    """A recurrent layer, with or without initial states, and a linear layer on its outputs."""

    def __init__(self, result: str = "all", **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.RNN(4, 5, **options)
        self.fc = nn.Linear(10 if options.get("bidirectional") else 5, 2)
        self.result = result

    def forward(self, x: Tensor, state: Tensor | None = None) -> Any:
        y, h = self.net(x, state)
        return (self.fc(y), h) if self.result == "all" else self.fc(torch.cat([h[0], h[1]], -1))


class Cell(nn.Module):
    """A cell whose input depends on its last output."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = getattr(nn, f"{kind}Cell")(4, 5, **options)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Any:
        h = c = torch.zeros(x.size(0), 5)
        found = []
        for _ in range(3):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x, (h, c))
            else:
                h = self.cell(x, h)
            x = self.fc(h)
            found.append(x)
        return torch.stack(found, 1)


LAYERS: list[tuple[dict[str, Any], int, str]] = [
    ({"num_layers": 2, "bidirectional": True}, 4, ""),
    ({"num_layers": 2, "batch_first": True, "nonlinearity": "relu"}, 0, ""),
    ({"bidirectional": True, "batch_first": True, "result": "h"}, 0, "-train"),
    ({"bias": False}, 0, ""),
]


@pytest.mark.parametrize(("options", "states", "mode"), LAYERS)
def test_layers(options: dict[str, Any], states: int, mode: str) -> None:
    """torch's dynamo exporter writes a plain RNN step by step."""
    model = Layer(**options)
    given = [torch.randn(states, 2, 5)] if states else []
    ran = held(model, [X, *given], f"dynamo-18{mode}")
    assert ran.source.count("nn.RNN(") == 1 and "tanh" not in ran.source and "F.linear" not in ran.source
    longer = torch.randn(*((2, 7) if options.get("batch_first") else (7, 2)), 4)
    with torch.no_grad():
        for ours, theirs in zip(_tensors(ran.model(longer, *given)), _tensors(model(longer, *given)), strict=True):
            torch.testing.assert_close(ours, theirs)


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def test_what_is_known_of_weights_side_by_side(tmp_path: Path) -> None:
    """They have the rows of all of them: those of both directions, and both biases in a row."""
    onnx.save(exported(Layer(bidirectional=True), [X], "dynamo-18-train"), tmp_path / "m.onnx")
    graph = read_and_simplify(tmp_path / "m.onnx", Options()).graph
    (layer,) = [node for node in graph if node.op_type == "RNN"]
    made = [node for node in graph if node.op_type == "Concat" and node.outputs[0] in layer.inputs]
    assert [info(node.outputs[0]).shape for node in made] == [(2, 5, 4), (2, 5, 5), (2, 10)]


@pytest.mark.parametrize("case", ["legacy-17", "legacy-17-train", "dynamo-18"])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_cells(kind: str, case: str) -> None:
    options = {"RNN": {"nonlinearity": "relu"}, "GRU": {}, "LSTM": {"bias": False}}[kind]
    ran = held(Cell(kind, **options), [X[0]], case)
    assert ran.source.count(f"nn.{kind}Cell(4, 5") == 1 and "sigmoid" not in ran.forward


def test_copies_of_weights_are_written_back(tmp_path: Path) -> None:
    """Folding stores a large weight again for every step, and the bias as the first step's product with zeros."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.net = nn.RNN(64, 64)
    proto = exported(model, [torch.randn(4, 2, 64)], "dynamo-18")
    onnx.save(proto, tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    ours = imported(tmp_path / "net.py").Model.from_pretrained()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    onnxgen.export(tmp_path / "net.py", weights=ours, out=tmp_path / "back.onnx")  # compares with onnxruntime
    back = onnx.load(tmp_path / "back.onnx")
    assert [n.op_type for n in back.graph.node] == [n.op_type for n in proto.graph.node]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in back.graph.initializer}
    matrices = [a for a in stored.values() if a.shape == (64, 64)]
    wanted = [w.detach().numpy().T for w in (ours.net.weight_ih_l0, ours.net.weight_hh_l0)]
    assert len(matrices) > 2 and all(any(np.array_equal(a, w) for w in wanted) for a in matrices)


# ---- chains that no exporter of torch writes ----

RNN = {
    "head": "x0 = Gather(x, i0)  x1 = Gather(x, i1)  x2 = Gather(x, i2)",
    "sums": "p0 = Gemm(x0, W, a)  p1 = Gemm(x1, W, a)  p2 = Gemm(x2, W, a)  q1 = Gemm(h0, U, b)  q2 = Gemm(h1, U, b)",
    "cells": "s0 = Add(p0, past)  h0 = Tanh(s0)  s1 = Add(p1, q1)  h1 = Tanh(s1)  s2 = Add(p2, q2)  h2 = Tanh(s2)",
}
GRU = """
    p{t} = Gemm(x{t}, W, a)  q{t} = Gemm(h{s}, U, b)  zx{t}, rx{t}, nx{t} = Split<axis = 1>(p{t}, parts)
    zh{t}, rh{t}, nh{t} = Split<axis = 1>(q{t}, parts)  zs{t} = Add(zx{t}, zh{t})  z{t} = Sigmoid(zs{t})
    rs{t} = Add(rx{t}, rh{t})  r{t} = Sigmoid(rs{t})  m{t} = Mul(r{t}, nh{t})  ns{t} = Add(m{t}, nx{t})
    n{t} = Tanh(ns{t})  o{t} = Sub(one, z{t})  new{t} = Mul(o{t}, n{t})
    old{t} = Mul(z{t}, h{s})  h{t} = Add(new{t}, old{t})"""
LSTM = """
    p{t} = Gemm(x{t}, W, a)  q{t} = Gemm(h{s}, U, b)  s{t} = Add(p{t}, q{t})
    fg{t}, ig{t}, og{t}, g{t} = Split<axis = 1>(s{t}, parts)  fs{t} = Sigmoid(fg{t})  is{t} = Sigmoid(ig{t})
    os{t} = Sigmoid(og{t})  gs{t} = Tanh(g{t})  kept{t} = Mul(fs{t}, c{s})  new{t} = Mul(is{t}, gs{t})
    c{t} = Add(kept{t}, new{t})  cs{t} = Tanh(c{t})  h{t} = Mul(os{t}, cs{t})"""


def _graph(body: str, gates: int, inputs: str = "", outputs: str = "") -> onnx.ModelProto:
    text = f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[3, 2, 4] x{inputs}) => (float[3, 2, 5] y{outputs})
        <int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}, int64[1] axis = {{0}}, float one = {{1}},
         int64[{gates}] parts = {{{", ".join(["5"] * gates)}}}> {{
            {body}
            u0 = Unsqueeze(h0, axis)  u1 = Unsqueeze(h1, axis)  u2 = Unsqueeze(h2, axis)
            y = Concat<axis = 0>(u0, u1, u2)
        }}"""
    model = onnx.parser.parse_model(text)
    chance = np.random.default_rng(0)
    columns = 5 * gates
    stored = {"W": (4, columns), "V": (4, columns), "U": (5, columns), "a": (columns,), "b": (columns,)}
    arrays = {name: chance.normal(size=shape).astype("float32") for name, shape in stored.items()}
    arrays["past"] = np.stack([arrays["b"]] * 2)
    model.graph.initializer.extend(tensor_proto(array, name) for name, array in arrays.items() if name in text)
    return model


def _rnn(*changes: tuple[str, str], outputs: str = "") -> onnx.ModelProto:
    body = " ".join(RNN.values())
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    return _graph(body, 1, outputs=outputs)


FEEDS = {"x": X.numpy()}


def test_a_chain_of_cells() -> None:
    assert "nn.RNN(4, 5)" in held_graph(_rnn(), FEEDS).source


@pytest.mark.parametrize("body", [GRU, LSTM], ids=["GRU", "LSTM"])
def test_chains_of_gates(body: str) -> None:
    """Gates in Keras' order and another one, an update in its other spelling, states that are inputs."""
    kind, gates, inputs = ("GRU", 3, "h") if body is GRU else ("LSTM", 4, "hc")
    feeds = FEEDS | {f"{s}9": np.random.default_rng(1).normal(size=(2, 5)).astype("float32") for s in inputs}
    steps = RNN["head"] + "".join(body.format(t=t, s=t - 1 if t else 9) for t in range(3))
    declared = "".join(f", float[2, 5] {s}9" for s in inputs)
    assert f"nn.{kind}(4, 5)" in held_graph(_graph(steps, gates, declared), feeds).source


def test_directions_that_begin_with_memories_of_their_own() -> None:
    """Nothing but the sequences is joined, and no name tells that they are one layer: they are not taken for one."""
    steps = RNN["head"]
    for order, new in ((range(3), ""), (range(2, -1, -1), "r")):
        for before, t in zip((9, *order), order):
            step = LSTM.format(t=t, s=before)
            if before == 9:  # there is no state yet, but a memory
                step = step.replace(f"q{t} = Gemm(h9, U, b)", "").replace(f"Add(p{t}, q{t})", f"Add(p{t}, past)")
            names = r"\b(?=(?:p|q|s|[fio]?g|[fiog]s|kept|new|cs?|h)[0-29]\b)"
            steps += re.sub(names, new, step).replace("W", "V" if new else "W")
    steps += " v0 = Unsqueeze(rh0, axis) v1 = Unsqueeze(rh1, axis) v2 = Unsqueeze(rh2, axis)"
    steps += " w = Concat<axis = 0>(v0, v1, v2) z = Concat<axis = 2>(y, w)"
    model = _graph(steps, 4, ", float[2, 5] c9, float[2, 5] rc9", ", float[3, 2, 10] z")
    memories = {name: np.random.default_rng(1).normal(size=(2, 5)).astype("float32") for name in ("c9", "rc9")}
    assert "bidirectional" not in held_graph(model, FEEDS | memories).source


UNLIKE: dict[str, tuple[tuple[str, str], ...]] = {
    "another weight": (("x2, W", "x2, V"),),
    "another bias": (("h1, U, b", "h1, U, a"),),
    "a bias for one product only": (("x0, W, a", "x0, W"), ("x1, W, a", "x1, W"), ("x2, W, a", "x2, W")),
    "another activation": (("Tanh(s2)", "Relu(s2)"),),
    "a step twice": (("x, i2", "x, i1"),),
    "steps in another order": (("x, i0", "x, i1"), ("x1 = Gather(x, i1)", "x1 = Gather(x, i0)")),
    "a product with zeros that is not the bias": (("past", "a"),),
    "a state that is not the last one": (("h1, U", "h0, U"),),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_chains_that_are_no_layer(what: str) -> None:
    assert "nn.RNN" not in held_graph(_rnn(*UNLIKE[what]), FEEDS).source


def test_a_sum_that_something_else_uses() -> None:
    more = ("s1 = Add(p1, q1)", "s1 = Add(p1, q1)  z = Neg(s1)")
    assert "nn.RNN" not in held_graph(_rnn(more, outputs=", float[2, 5] z"), FEEDS).source


def test_a_weight_that_something_else_uses() -> None:
    """The layer's weight would be tied to another module, and its bias trained apart."""
    more = ("x0 = Gather", "x9 = Gather(x, i0)  v = Gemm(x9, W, a)  z = Neg(v)  x0 = Gather")
    assert "nn.RNN" not in held_graph(_rnn(more, outputs=", float[2, 5] z"), FEEDS).source


def test_a_state_in_the_middle() -> None:
    ran = held_graph(_rnn(("h1 = Tanh(s1)", "h1 = Tanh(s1)  z = Neg(h1)"), outputs=", float[2, 5] z"), FEEDS)
    assert "nn.RNN(4, 5)" in ran.source


def test_a_state_for_all_samples() -> None:
    """torch's layer wants a row for every sample."""
    steps = RNN["head"] + "".join(GRU.format(t=t, s=t - 1 if t else 9) for t in range(3))
    proto = _graph(steps, 3, ", float[1, 5] h9")
    assert "nn.GRU(" not in held_graph(proto, FEEDS | {"h9": np.ones((1, 5), "float32")}).source


def test_a_gru_that_resets_before_its_product() -> None:
    """torch's layer multiplies by the reset gate after it; ONNX's default is the other way."""
    text = GRU.replace("m{t} = Mul(r{t}, nh{t})", "m0{t} = Mul(r{t}, h{s})  m{t} = Gemm(m0{t}, V)")
    steps = RNN["head"] + "".join(text.format(t=t, s=t - 1 if t else 9) for t in range(3))
    proto = _graph(steps, 3, ", float[2, 5] h9")
    next(t for t in proto.graph.initializer if t.name == "V").CopyFrom(tensor_proto(np.ones((5, 5), "float32"), "V"))
    source = held_graph(proto, FEEDS | {"h9": np.ones((2, 5), "float32")}).source
    assert "nn.GRU" not in source
