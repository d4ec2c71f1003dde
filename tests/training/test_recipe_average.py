"""`--ema`: the oracle is torch's `AveragedModel`."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit
from onnxgen.training.recipes.callbacks import Average
from tests.training.small import network
from tests.training.test_fit_options import CPU, net, points
from tests.training.test_resume import Ask

DECAY = 0.6


def mean(average: Tensor, latest: Tensor, count: Tensor | int) -> Tensor:
    """An exponential moving average that begins as TensorFlow's, for `avg_fn`; whole numbers are the latest."""
    if not average.is_floating_point():
        return latest
    decay = min(DECAY, (1 + int(count)) / (10 + int(count)))
    return decay * average + (1 - decay) * latest


class Torch(lightning.Callback):
    """Averages beside `fit`, with torch's class."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.averaged = AveragedModel(copy.deepcopy(pl_module.model), avg_fn=mean, use_buffers=True)
        self.latest: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *of_the_step: Any) -> None:
        if trainer.fit_loop._should_accumulate():
            return
        self.averaged.update_parameters(pl_module.model)
        self.latest.append(copy.deepcopy(pl_module.model.state_dict()))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_average_is_that_of_torch_and_is_what_is_validated_and_kept(tmp_path: Path, accumulate: int) -> None:
    data = {"x_train": points(40)["x"], "y_train": points(40)["label"], "x_val": points()["x"]}
    data["y_val"] = points()["label"]
    beside, out = Torch(), tmp_path / "run"
    given = {"epochs": 4, "batch_size": 8, "lr": 0.05, "ema": DECAY, "accumulate": accumulate}
    result = fit(net(norm=True), data, out=out, callbacks=[beside], **given, **CPU)
    last, expected = load_file(out / "last.safetensors"), beside.averaged.module.state_dict()
    assert last.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(last[name], tensor)
        assert name.endswith("tracked") or not torch.allclose(tensor, beside.latest[-1][name], rtol=1e-4)
    model = net(norm=True)
    for name in ("last", "best"):
        model.load_state_dict(load_file(out / f"{name}.safetensors"))
        row = result.history[-1 if name == "last" else result.best_epoch]
        found = evaluate(model.eval(), {"x": data["x_val"], "y": data["y_val"]}, device="cpu")
        assert found["loss"] == pytest.approx(row["val_loss"], rel=1e-6)


def test_the_average_of_an_interrupted_run_is_kept(tmp_path: Path) -> None:
    beside = Torch()
    given = {"epochs": 4, "batch_size": 8, "lr": 0.05, "ema": DECAY, "val": 0.0, "out": tmp_path}
    made = fit(net(), points(40), callbacks=[beside, Ask(2, signal.SIGTERM)], **given, **CPU)
    assert made.stopped == "interrupted"
    for name, tensor in load_file(tmp_path / "last.safetensors").items():
        torch.testing.assert_close(tensor, beside.averaged.module.state_dict()[name])
        assert torch.equal(made.model.state_dict()[name], tensor)


def test_what_is_trained_later_is_averaged_from_then_on_and_training_goes_on_from_the_latest() -> None:
    model, average = net(), Average(DECAY)
    model[0].weight.requires_grad_(False)
    trainer: Any = type("Trainer", (), {"global_step": 0})()
    task = type("Task", (), {"model": model})()
    average.on_train_start(trainer, task)
    for step in (1, 2, 3):
        trainer.global_step = step
        model[0].weight.requires_grad_(step > 1)
        with torch.no_grad():
            model[2].bias.fill_(step)
        average.on_train_batch_end(trainer, task, None, None, 0)
        assert ("0.weight" in average.state_dict()["averages"]) == (step > 1)
    with average.in_place():
        kept = model[2].bias[0].item()
    assert kept == pytest.approx((1 * 2 / 11 + 2 * 9 / 11) * 3 / 12 + 3 * 9 / 12) and model[2].bias[0] == 3


def test_half_precision_is_averaged_in_single() -> None:
    model, average = net().to(torch.bfloat16), Average(0.999, lerp=False)
    trainer: Any = type("Trainer", (), {"global_step": 0})()
    task = type("Task", (), {"model": model})()
    average.on_train_start(trainer, task)
    average._steps = 10**6
    for trainer.global_step, value in ((1, 1.0), (2, 2.0)):
        with torch.no_grad():
            model[2].bias.fill_(value)
        average.on_train_batch_end(trainer, task, None, None, 0)
    found = average.state_dict()["averages"]["2.bias"]
    torch.testing.assert_close(found, torch.full((3,), 1.001))


def test_an_adapter_is_averaged(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed: no adapter was averaged")
    beside = Torch()
    given = {"epochs": 2, "batch_size": 8, "lr": 0.05, "ema": DECAY, "lora": 2, "out": tmp_path / "run"}
    fit(network(tmp_path, x=("float32", ["n", 6])), points(40), callbacks=[beside], **given, **CPU)
    last = load_file(tmp_path / "run" / "last.safetensors")
    assert last and all("lora" in name for name in last)
    for name, tensor in last.items():
        torch.testing.assert_close(tensor, beside.averaged.module.state_dict()[name])


def test_what_can_not_be_averaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="ema must be between 0 and 1, not 1.0 -> ema=0.999"):
        fit(net(), points(), ema=1.0, out=tmp_path / "run", **CPU)
    with pytest.raises(OnnxgenError, match="ema and fsdp exclude each other"):
        fit(net(), points(), ema=0.9, devices=2, strategy="fsdp", out=tmp_path / "run", **CPU)
