"""The options of `fit`; the oracle is a hand-written loop."""

from __future__ import annotations

import copy

import lightning
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit
from onnxgen.training.data.arrays import Columns
from onnxgen.training.loader import Loader
from tests.training.test_fit import Seen

CPU = {"device": "cpu", "workers": 0, "show": "nothing"}


def points(count=35):
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(count, 6)).astype(np.float32), "label": np.arange(count) % 3}


def net(norm=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), *([nn.BatchNorm1d(4)] if norm else []), nn.ReLU(), nn.Linear(4, 3))


def test_a_smaller_last_step_weights_all_samples_equally(tmp_path):
    """Steps of three batches (10, 10, 10 and 5 samples), then of two batches (10 and 5)."""
    for count, accumulate in ((35, 3), (15, 2), (40, 4)):
        model, expected, seen = net(), net(), Seen()
        options = {"epochs": 2, "val": 0.0, "batch_size": 10, "optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0}
        fit(model, points(count), **options, accumulate=accumulate, callbacks=[seen], out=tmp_path / "run", **CPU)
        optimizer, an_epoch = torch.optim.SGD(expected.parameters(), 0.3), len(seen.batches) // 2
        for epoch in (seen.batches[:an_epoch], seen.batches[an_epoch:]):
            for start in range(0, len(epoch), accumulate):
                step = epoch[start : start + accumulate]
                x, y = (torch.cat([batch[name] for batch in step]) for name in ("x", "label"))
                optimizer.zero_grad()
                F.cross_entropy(expected(x), y).backward()
                optimizer.step()
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(seen.last[name], value)


@pytest.mark.parametrize("count, world, accumulate", [(35, 1, 3), (35, 2, 3), (47, 3, 2), (40, 2, 2)])
def test_loader_weights_give_the_mean_over_all_samples_of_a_step(count, world, accumulate):
    samples = Columns({"x": torch.arange(count)}, {})
    loaders = [Loader(samples, 5, rank=r, world=world, accumulate=accumulate) for r in range(world)]
    given = [[(batch["x"], loader.weight) for batch in loader] for loader in loaders]
    for start in range(0, len(loaders[0]), accumulate):
        parts = [part for rank in given for part in rank[start : start + accumulate]]
        whole = torch.cat([x for x, _ in parts]).double()
        means = sum(x.double().mean() * weight for x, weight in parts) / (accumulate * world)
        torch.testing.assert_close(means, whole.mean())


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_the_returned_model_has_its_dtypes_and_is_in_evaluation_mode(tmp_path, precision):
    model = net(norm=True)
    result = fit(model, points(), epochs=1, val=0.0, precision=precision, out=tmp_path / "run", **CPU)
    assert {t.dtype for t in result.model.state_dict().values()} == {torch.float32, torch.int64}
    assert not any(module.training for module in result.model.modules())
    assert set(evaluate(result.model, points(), device="cpu")) == {"loss", "accuracy"}


@pytest.mark.parametrize("options", [{}, {"early_stop": 1}])
@pytest.mark.parametrize("monitor, val", [("val_acc", 0.2), ("val_loss", 0.0)])
def test_an_unknown_metric_is_refused_before_the_first_step(tmp_path, monitor, val, options):
    with pytest.raises(OnnxgenError, match=rf"no metric is called '{monitor}' -> there are train_loss, train_accuracy"):
        fit(net(), points(), val=val, monitor=monitor, out=tmp_path / "run", **options, **CPU)
    assert not (tmp_path / "run").exists()


def test_a_plateau_schedule_without_validation_watches_the_training_loss(tmp_path):
    arguments = {"patience": 0, "threshold": 10.0, "factor": 0.5}  # the loss never improves so much
    result = fit(
        net(), points(), epochs=3, val=0.0, lr=0.1, schedule="ReduceLROnPlateau", schedule_args=arguments,
        out=tmp_path / "run", **CPU,
    )  # fmt: skip
    assert result.history[-1]["lr"] < 0.1


def test_batchnorm_with_batches_of_one_sample_is_refused(tmp_path):
    with pytest.raises(OnnxgenError, match="batch of one sample"):
        fit(net(norm=True), points(), batch_size=1, out=tmp_path / "run", **CPU)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"optimizer": "adamx"}, "no optimizer is called 'adamx'"),
        ({"optimizer_args": {"momentum": 0.9}}, "momentum"),
        ({"schedule": "StepLR"}, "step_size"),
        ({"precision": "16-true"}, "AdamW makes weights of float16 NaN: its eps of 1e-08 is 0 there -> .*bf16-mixed"),
        ({"precision": "16-true", "optimizer": "adagrad"}, "Adagrad makes weights of float16 NaN"),
    ],
)
def test_errors_of_the_optimizer_come_before_an_older_run_is_replaced(tmp_path, options, message):
    fit(net(), points(), epochs=1, val=0.0, out=tmp_path / "run", **CPU)
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(OnnxgenError, match=message):
        fit(net(), points(), epochs=1, val=0.0, out=tmp_path / "run", **options, **CPU)
    assert kept == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [{"optimizer": "sgd", "lr": 0.1}, {"optimizer_args": {"eps": 1e-4}, "lr": 0.01}])
def test_float16_trains_with_a_suitable_optimizer(tmp_path, options):
    result = fit(net(), points(), epochs=2, val=0.0, precision="16-true", out=tmp_path / "run", **options, **CPU)
    before, after = (row["train_loss"] for row in result.history)
    assert after < before


class Same(lightning.Callback):
    """Logs a constant metric, and keeps the weights of each epoch."""

    def __init__(self):
        self.weights = []

    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("val_f1", 0.5)

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.weights.append(copy.deepcopy(pl_module.model.state_dict()))


@pytest.mark.parametrize("cut", [False, True])
def test_the_loss_decides_between_equal_epochs(tmp_path, cut):
    x = points()
    data = {"train": x, "val": {"x": -x["x"], "label": x["label"]}}  # the model learns the opposite
    data["val"]["x"][0] *= 50
    same, options = Same(), {"lr": 0.3, "optimizer": "sgd", "batch_size": 5, "monitor": "val_f1", "seed": 1, **CPU}
    if cut:
        fit(net(), data, epochs=3, callbacks=[same], out=tmp_path / "run", **options)
    result = fit(net(), data, epochs=6, callbacks=[same], resume=cut, out=tmp_path / "run", **options)
    losses = [row["val_loss"] for row in result.history]
    assert len(losses) == len(same.weights) == 6 and 0 < min(range(6), key=losses.__getitem__) < 5
    assert result.best_epoch == losses.index(min(losses))
    for name, value in result.model.state_dict().items():
        assert torch.equal(value, same.weights[result.best_epoch][name])


def test_the_exact_learning_rate_is_written(tmp_path):
    """It is not rounded to float32, and it is not the rate of the next epoch."""
    given = {"lr": 0.01, "schedule": "StepLR", "schedule_args": {"step_size": 1, "gamma": 0.1}, "val": 0.0, **CPU}
    result = fit(net(), points(), epochs=2, out=tmp_path / "run", **given)
    assert [row["lr"] for row in result.history] == [0.01, 0.1 * 0.01]
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[lines[0].split(",").index("lr")] for line in lines[1:]] == ["0.01", "0.001"]
