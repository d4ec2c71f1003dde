"""`--task module:function`: a loss of one's own, its errors, its parameters, and what the run can do afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit, load, open_model
from tests.training import goal_functions
from tests.training.test_goals_tasks import QUIET, draw, module

SPEC = "tests.training.goal_functions"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("function")
    return module(nn.Sequential(nn.Linear(3, 1)), torch.zeros(2, 3), "y", folder)


X = draw(20, 3)
DATA = {"x": X, "t": X.sum(1) + 1}


def test_a_function_is_trained_evaluated_asked_and_exported(path: Path, tmp_path: Path) -> None:
    given = {"task": f"{SPEC}:scaled", "val": 0.25, "out": tmp_path / "run", "inputs": {"x": "x"}}
    result = fit(path, DATA, **{**QUIET, **given, "epochs": 2, "lr": 0.1, "monitor": "val_away_error"})
    with pytest.raises(OnnxgenError, match="names code outside of its folder, which is not run unasked: task "):
        load(tmp_path / "run", device="cpu").evaluate(DATA)
    learner = load(tmp_path / "run", device="cpu", task=f"{SPEC}:scaled")
    away = learner.model(DATA["x"])[:, 0] - DATA["t"]
    found = learner.evaluate(DATA, part="train")
    assert result.history[1]["val_away_error"] < result.history[0]["val_away_error"]
    whole = evaluate(learner.model, DATA, task=f"{SPEC}:scaled", inputs={"x": "x"}, device="cpu", batch_size=7)
    expected = {"loss": away.square().mean().item(), "away_error": away.abs().mean().item()}
    assert whole == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}
    assert found.keys() == expected.keys()
    assert learner.predict({"x": X[:1]})[0].answer.value == pytest.approx(learner.model(X[:1])[0].detach().numpy())
    assert run(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.onnx"), "-q"]) == 0


def test_parameters_of_the_function_are_trained_resumed_and_kept(path: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {**QUIET, "task": f"{SPEC}:Learned", "val": 0.25, "inputs": {"x": "x"}, "lr": 0.05}
    whole = fit(path, DATA, **given | {"epochs": 3, "out": tmp_path / "whole"})
    fit(path, DATA, **given | {"epochs": 1, "out": tmp_path / "run"})
    resumed = fit(path, DATA, **given | {"epochs": 3, "out": tmp_path / "run", "resume": True})
    names = ("val_loss", "val_variance")
    assert [[row[n] for n in names] for row in resumed.history] == [[row[n] for n in names] for row in whole.history]
    (own,) = load_file(tmp_path / "run/goal.safetensors").items()
    best = resumed.history[resumed.best_epoch]
    assert own[0] == "0.function.log_variance" and own[1].exp().item() == pytest.approx(best["val_variance"])
    assert own[1].item() != 0
    learner = load(tmp_path / "run", device="cpu", task=f"{SPEC}:Learned")
    assert learner.evaluate(DATA)["loss"] == pytest.approx(best["val_loss"], rel=1e-5)
    with pytest.raises(OnnxgenError, match="evaluate the folder of the run"):
        evaluate(path, DATA, task=f"{SPEC}:Learned", inputs={"x": "x"}, device="cpu")
    with pytest.raises(OnnxgenError, match="parameters of its own, which .*fsdp does not exchange"):
        fit(path, DATA, **given | {"out": tmp_path / "other", "strategy": "fsdp"})


def test_the_step_is_that_of_a_loop_by_hand(path: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {**QUIET, "task": f"{SPEC}:Learned", "val": 0.0, "inputs": {"x": "x"}, "batch_size": 20}
    given |= {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "epochs": 3}
    fit(path, DATA, out=tmp_path / "run", **given)
    network, task = nn.Linear(3, 1), goal_functions.Learned()
    network.load_state_dict({k.rpartition(".")[2]: v for k, v in open_model(path).state_dict().items()})
    optimizer = torch.optim.SGD([*network.parameters(), *task.parameters()], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        task({"y": network(DATA["x"])}, DATA)["loss"].backward()
        optimizer.step()
    last = {name.rpartition(".")[2]: tensor for name, tensor in load_file(tmp_path / "run/last.safetensors").items()}
    torch.testing.assert_close(last, dict(network.state_dict()))


@pytest.mark.parametrize(
    "name, says",
    [
        ("fails", "task .*:fails: KeyError: 'nothing'"),
        ("many", r"loss is a tensor \[2, 1\], not a single number"),
        ("nothing", "loss is NoneType, not a single number"),
        ("changes", "returned error2, and error1 before"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_what_is_refused_of_a_function(name: str, says: str, path: Path, tmp_path: Path) -> None:
    goal_functions.calls = 0
    with pytest.raises(OnnxgenError, match=says):
        fit(path, DATA, task=f"{SPEC}:{name}", inputs={"x": "x"}, out=tmp_path / "run", **QUIET)
