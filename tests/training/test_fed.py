"""Inputs whose batch axis is not the first one, and inputs that a number fills: compared with a loop by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from onnxgen import Options, generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, load, open_model, predict

HIDDEN, COUNT = 4, 24
CPU: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "batch_size": 6}


def recurrent(folder: Path, state: list[int | str], batch: str | int = "batch") -> nn.Module:
    """A network of the kind of voice detectors: `x` [batch, 5], `sr` [], `state` [2, batch, 4] -> scores, next state.

    It multiplies the scores by sr / 1000.
    """
    rng = np.random.default_rng(0)
    stored = {
        "fc.weight": rng.normal(size=(5 + 2 * HIDDEN, 3)).astype(np.float32),
        "fc.bias": rng.normal(size=3).astype(np.float32),
        "thousand": np.array(1000, np.float32),
        "flat": np.array([0, -1]),
        "two": np.array(2, np.float32),
    }
    nodes = [
        helper.make_node("Transpose", ["state"], ["rows"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["rows", "flat"], ["row"]),
        helper.make_node("Concat", ["x", "row"], ["all"], axis=1),
        helper.make_node("Gemm", ["all", "fc.weight", "fc.bias"], ["made"]),
        helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["rate", "thousand"], ["factor"]),
        helper.make_node("Mul", ["made", "factor"], ["scores"]),
        helper.make_node("Mul", ["state", "two"], ["next"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", 1, [batch, 5]), value("sr", TensorProto.INT64, []), value("state", 1, state)]
    outputs = [value("scores", 1, [batch, 3]), value("next", 1, state)]
    held = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "recurrent.onnx")
    generate(folder / "recurrent.onnx", folder / "recurrent.py", force=True)
    return open_model(folder / "recurrent.py")


def samples(**more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(COUNT, 5)).astype(np.float32), "scores": np.arange(COUNT) % 3, **more}


def by_hand(model: nn.Module, data: dict[str, Any], state: Tensor) -> tuple[Tensor, list[float]]:
    """Return the outputs before, and the losses of four steps of SGD on batches in their order."""
    x, y, sr = torch.tensor(data["x"]), torch.tensor(data["scores"]), torch.tensor(2)
    model.eval()
    with torch.no_grad():
        outputs = model(x, sr, state)[0]
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for begin in range(0, COUNT, 6):
        loss = F.cross_entropy(model(x[begin : begin + 6], sr, state[:, begin : begin + 6])[0], y[begin : begin + 6])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return outputs, losses


@pytest.mark.parametrize("fed", [True, False])
def test_a_state_in_the_middle_and_a_rate(fed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is a column of [2, 4] for each sample, or filled with 0.5."""
    rows = np.random.default_rng(2).normal(size=(COUNT, 2, HIDDEN)).astype(np.float32)
    data = samples(**({"state": rows} if fed else {}))
    state = torch.tensor(rows).movedim(0, 1) if fed else torch.full((2, COUNT, HIDDEN), 0.5)
    const = {"sr": 2} if fed else {"sr": 2, "state": 0.5}
    wanted, losses = by_hand(recurrent(tmp_path, [2, "batch", HIDDEN]), data, state)
    model = recurrent(tmp_path, [2, "batch", HIDDEN])
    assert torch.allclose(predict(model, data, const=const, **PLAIN)[0], wanted, atol=1e-6)
    assert torch.allclose(predict(model, data, const=const, **PLAIN)[1], 2 * state)
    monkeypatch.setattr("onnxgen.training.loader.BatchPlan.tickets", in_order)
    given = {"val": 0.0, "lr": 0.1, "optimizer": "sgd", "epochs": 1, "weight_decay": 0.0}
    run = fit(tmp_path / "recurrent.py", data, const=const, out=tmp_path / "run", **given, **CPU)
    assert run.history[0]["train_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    learner = load(tmp_path / "run", device="cpu")
    found = evaluate(run.model, data, const=const, **PLAIN)
    assert learner.evaluate(data, part="train") == pytest.approx(found)
    assert len(learner.predict(data)) == COUNT


PLAIN = {"device": "cpu", "workers": 0}


def in_order(plan: Any, epoch: int, first: int = 0) -> Any:
    for number in range(first, plan.batches):
        begin, end = plan.share(number)
        yield 0, list(range(begin, end)), [], None


@pytest.mark.parametrize(
    ("const", "said"),
    [
        ({}, r"which column feeds sr, state\? .*; a number for all samples: const={'sr': 0}"),
        ({"sr": 2}, r"which column feeds state\?"),
        ({"sr": 2.5, "state": 0}, "const={'sr': 2.5}: the input takes whole numbers"),
        ({"rate": 2}, "the model has no input 'rate' .it has x, sr, state"),
        ({"sr": 2, "state": 0, "x": 1}, "const fills all inputs"),
    ],
)
def test_inputs_that_stay_open(const: dict[str, float], said: str, tmp_path: Path) -> None:
    recurrent(tmp_path, [2, "batch", HIDDEN])
    with pytest.raises(OnnxgenError, match=said):
        fit(tmp_path / "recurrent.py", samples(), const=const, out=tmp_path / "run", **CPU)


def test_a_first_axis_that_is_no_batch_is_not_advised_as_one(tmp_path: Path) -> None:
    """With `--batch-size 2` the network would train over swapped axes."""
    recurrent(tmp_path, [2, 1, HIDDEN], batch=1)
    rows = np.zeros((COUNT, 1, HIDDEN), np.float32)
    for batch in (1, 2):
        with pytest.raises(OnnxgenError, match="first axis of input 'state' .* is not that of the other") as caught:
            fit(tmp_path / "recurrent.py", samples(state=rows), const={"sr": 2}, **{**CPU, "batch_size": batch})
        assert "--batch-size 2" not in str(caught.value)
    freed = Options(dynamic_batch=True, batch_axes={"state": 1, "sr": None})  # as the message says
    generate(tmp_path / "recurrent.onnx", tmp_path / "free.py", freed)
    both = samples(state=np.zeros((COUNT, 2, HIDDEN), np.float32))
    fit(tmp_path / "free.py", both, const={"sr": 2}, epochs=1, out=tmp_path / "free", **CPU)
    given = {"val": 0.25, "epochs": 1, "out": tmp_path / "run", **CPU, "batch_size": 1}
    assert fit(tmp_path / "recurrent.py", samples(), const={"sr": 2, "state": 0}, **given).stopped == "epochs"
