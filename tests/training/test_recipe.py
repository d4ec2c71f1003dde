"""`--recipe fine-tune`: the settings that it becomes; and the head, which it trains first."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import fit, freeze
from onnxgen.training.config import FINE_TUNE, read_config, resolved
from onnxgen.training.settings import Settings
from tests.training.runs import state
from tests.training.small import network
from tests.training.test_fit import images
from tests.training.test_fit import net as convolutions
from tests.training.test_fit_options import CPU, net, points
from tests.training.test_resume import Ask


class States(lightning.Callback):
    """Keeps the state after each step."""

    def __init__(self) -> None:
        self.states: list[dict[str, Tensor]] = []
        self.trained: list[set[str]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *of_the_step: Any) -> None:
        self.states.append({name: value.clone() for name, value in pl_module.model.state_dict().items()})
        self.trained.append({name for name, p in pl_module.model.named_parameters() if p.requires_grad})


@pytest.mark.parametrize("length, steps", [(1, 3), (2, 6), (0.5, 5)])
def test_the_head_is_trained_first_and_what_is_frozen_stays_so(tmp_path: Path, length: float, steps: int) -> None:
    model, seen = convolutions(), States()
    freeze(model, "norm.bias")
    given = {"epochs": 3, "batch_size": 30, "val": 0.0, "head_first": length, "callbacks": [seen]}
    fit(model, images(), out=tmp_path, **given, **CPU)
    states = [convolutions().state_dict(), *seen.states]
    for n, (before, after) in enumerate(zip(states, states[1:], strict=False)):
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        body = {"conv.weight", "conv.bias", "norm.weight", "norm.running_mean", "norm.running_var"}
        assert moved == {"fc.weight", "fc.bias"} | ({*body, "norm.num_batches_tracked"} if n >= steps else set())
    assert len(seen.states) == 9 and "norm.bias" not in seen.trained[-1] and not model.training


def test_a_norm_that_is_frozen_stays_frozen(tmp_path: Path) -> None:
    model = convolutions()
    given = {"epochs": 2, "batch_size": 30, "val": 0.0, "head_first": 1, "freeze": ("norm",)}
    before = model.state_dict()["norm.running_mean"].clone()
    fit(model, images(), out=tmp_path, **given, **CPU)
    assert torch.equal(model.state_dict()["norm.running_mean"], before)
    assert model.train().norm.training is False


def test_a_run_that_ends_with_the_head_alone_leaves_a_model_that_can_be_trained(tmp_path: Path) -> None:
    model = convolutions()
    fit(model, images(), epochs=1, head_first=3, out=tmp_path, **CPU)
    assert all(p.requires_grad for p in model.parameters()) and model.train().norm.training


RESUMED: dict[str, dict[str, Any]] = {
    "average": {"ema": 0.8},
    "mixed": {"mixup": 0.3, "cutmix": 1.0},
    "balanced": {"sampler": "balanced"},
    "head": {"head_first": 0.4, "ema": 0.8},
    "recipe": {"recipe": "fine-tune", "ema": 0.8, "mixup": 0.3, "sampler": "balanced"},
}


@pytest.mark.parametrize("given", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("step", [2, 10])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, given: dict[str, Any], step: int) -> None:
    more = {"epochs": 4, "batch_size": 16, "checkpoint_minutes": 1e9, **given, **CPU}
    stopped = fit(convolutions(), images(), callbacks=[Ask(step, signal.SIGTERM)], out=tmp_path / "parts", **more)
    assert stopped.stopped == "interrupted"
    fit(convolutions(), images(), out=tmp_path / "parts", resume=True, **more)
    fit(convolutions(), images(), out=tmp_path / "whole", **more)
    assert state(tmp_path / "parts") == state(tmp_path / "whole")


def test_a_recipe_sets_what_is_not_given() -> None:
    made, (note,) = resolved(None, {"recipe": "fine-tune"})
    assert {name: getattr(made, name) for name in FINE_TUNE} == FINE_TUNE and made.recipe is None
    assert all(f"--{name.replace('_', '-')}" in note for name in FINE_TUNE)
    given = {"recipe": "fine-tune", "warmup": 0, "lr": 0.01, "early_stop": None, "head_first": 2}
    made, (note,) = resolved(Settings(layer_decay=0.5), given)
    assert (made.warmup, made.lr, made.early_stop, made.head_first) == (0, 0.01, None, 2)
    assert made.layer_decay == 0.5 and not made.find_lr and made.schedule == FINE_TUNE["schedule"]
    assert note == "recipe fine-tune chose --schedule cosineannealinglr"
    assert resolved(Settings(seed=3), {}) == (Settings(seed=3), [])


@pytest.mark.parametrize(
    "given, left_out",
    [
        ({"lora": 4}, {"head_first"}),
        ({"devices": 2}, {"head_first", "find_lr"}),
        ({"schedule": "steplr"}, {"warmup"}),
    ],
)
def test_a_recipe_leaves_out_what_does_not_fit(given: dict[str, Any], left_out: set[str]) -> None:
    made, _ = resolved(Settings(**given), {"recipe": "fine-tune"})
    default = Settings()
    assert {name for name in FINE_TUNE if getattr(made, name) == getattr(default, name)} == left_out


@pytest.mark.parametrize(
    "given, said",
    [
        ({"recipe": "finetune"}, "recipe must be one of fine-tune, not 'finetune'"),
        ({"recipe": "fine-tune", "from_scratch": True}, "recipe fine-tune and from_scratch exclude each other"),
        ({"head_first": 1, "lora": 2}, "head_first and lora exclude each other"),
        ({"head_first": 1, "devices": 2}, "head_first and several processes exclude each other"),
        ({"head_first": 1.5}, "head_first must be a whole number or a share below 1, not 1.5"),
        ({"warmup": 2.5}, "warmup must be a whole number or a share below 1, not 2.5"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OnnxgenError, match=said):
        fit(net(), points(), out=tmp_path / "run", **given, **CPU)
    assert not (tmp_path / "run").exists()


def test_a_warm_up_may_be_a_share_of_the_run(tmp_path: Path) -> None:
    rates = {}
    for warmup in (0.2, 3):
        seen = Rates()
        given = {"epochs": 3, "batch_size": 8, "val": 0.0, "lr": 0.1, "warmup": warmup, "callbacks": [seen]}
        fit(net(), points(40), out=tmp_path / str(warmup), **given, **CPU)
        rates[warmup] = seen.rates
    assert len(rates[3]) == 15 and rates[0.2] == rates[3] and rates[3][:3] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])


class Rates(lightning.Callback):
    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def test_the_command_records_what_a_recipe_became(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    network(tmp_path, x=("float32", ["n", 6]))
    x = points(40)["x"]
    np.savez(tmp_path / "data.npz", x=x, y=np.digitize(x.mean(1), [-0.2, 0.2]))
    monkeypatch.chdir(tmp_path)
    begin = "train small.py --data data.npz --workers 0 --device cpu --epochs 2"
    assert cli([*begin.split(), *"--out one --recipe fine-tune --warmup 0 --early-stop none".split()]) == 0
    assert "note: recipe fine-tune chose --head-first 1, --layer-decay" in capsys.readouterr().out
    config = read_config(tmp_path / "one" / "config.toml")
    assert "recipe" not in config and (config["head_first"], config["warmup"]) == (1, 0) and "early_stop" not in config
    assert config["layer_decay"] == FINE_TUNE["layer_decay"] and config["lr"] > 0 and config["find_lr"] is False
    assert cli("train --config one/config.toml --out two --quiet".split()) == 0
    assert cli("train --resume --out one --epochs 2 --quiet".split()) == 0
    one, two = (load_file(tmp_path / name / "last.safetensors") for name in ("one", "two"))
    assert all(torch.equal(two[name], tensor) for name, tensor in one.items())


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.a(x) + self.b(x)
            return found

    with pytest.raises(OnnxgenError, match="no classifier was found"):
        fit(Sum(), points(), head_first=1, out=tmp_path / "run", **CPU)
    assert not (tmp_path / "run").exists()
