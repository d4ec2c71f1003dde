"""Metrics of labels, maps and numbers: against scikit-learn, in parts, resumed, and which way is better."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, jaccard_score, roc_auc_score
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import evaluate, fit
from onnxgen.training.goals.ctc import Reading
from onnxgen.training.goals.embedding import RecallAt1
from onnxgen.training.goals.goal import known_metrics, snake
from onnxgen.training.goals.keypoints import Keypoints
from onnxgen.training.losses import Objective
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.metrics import lower_is_better
from onnxgen.training.settings import Settings
from tests.training.test_goals_tasks import QUIET

GIVEN: dict[str, Any] = {"device": "cpu", "workers": 0, "batch_size": 8}


class Limited(nn.Module):
    """A layer that fails with more than `most` samples."""

    def __init__(self, layer: nn.Module, most: int = 10**6) -> None:
        super().__init__()
        self.layer, self.most = layer, most

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.layer(x)  # type: ignore[no-any-return]


def labels() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(1)
    x = torch.randn(40, 5)
    return nn.Linear(5, 3), {"x": x, "y": (x[:, :3] + torch.randn(40, 3) > 0)}


def maps(classes: int = 3) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(1)
    x = torch.randn(20, 2, 4, 6)
    target = (x[:, 0] * 2 + torch.randn(20, 4, 6)).long().clamp(0, classes - 1)
    target[:3, 0] = -100  # counts nowhere
    return nn.Conv2d(2, classes, 1), {"x": x, "y": target}


def test_labels_have_the_scores_of_scikit_learn() -> None:
    network, data = labels()
    found = evaluate(network, data, **GIVEN)
    likely, true = network(data["x"]).sigmoid().detach().numpy(), data["y"].numpy()
    assert found["f1_score"] == pytest.approx(f1_score(true, likely > 0.5, average="macro"), abs=1e-6)
    assert found["average_precision"] == pytest.approx(average_precision_score(true, likely), abs=1e-6)


@pytest.mark.parametrize("width", [1, 3])
def test_areas_are_those_of_scikit_learn_for_scores_that_are_close(width: int) -> None:
    """The probabilities of rare things all lie in one of 200 bins."""
    torch.manual_seed(0)
    x, network = torch.randn(300, 5), nn.Linear(5, width)
    network.bias.data.fill_(-9.0)
    data = {"x": x, "y": x[:, :width] + torch.randn(300, width) > 1}
    found = evaluate(network, data, metric=("AUROC", "AveragePrecision"), **GIVEN)
    likely, true = network(x).sigmoid().detach().numpy(), data["y"].numpy()
    assert found["auroc"] == pytest.approx(roc_auc_score(true, likely), abs=1e-6)
    assert found["average_precision"] == pytest.approx(average_precision_score(true, likely), abs=1e-6)


def test_the_mean_iou_of_a_map_decides_without_being_asked(tmp_path: Path) -> None:
    """Nearly all pixels are background: an epoch that says so everywhere has the accuracy 0.97, and finds nothing."""
    network, data = maps(2)
    data["y"] = torch.zeros_like(data["y"])
    data["y"][:, 0, 0] = 1
    plan = prepare(network, data, Settings(device="cpu", val=0.25))
    assert plan.monitor == "val_mean_iou"
    assert prepare(network, data, Settings(device="cpu", val=0.0)).monitor == "train_loss"
    yes, _ = maps(1)
    only = {"x": data["x"], "y": data["x"][:, :1] > 0}
    assert prepare(yes, only, Settings(device="cpu", val=0.25)).monitor == "val_mean_iou"
    result = fit(network, data, out=tmp_path, **QUIET | {"epochs": 4, "val": 0.25, "lr": 0.2})
    assert result.best_epoch == int(np.argmax([row["val_mean_iou"] for row in result.history]))


def test_maps_have_the_mean_iou_of_scikit_learn() -> None:
    network, data = maps()
    found = evaluate(network, data, **GIVEN)
    true, chosen = data["y"].flatten(), network(data["x"]).argmax(1).flatten()
    counts = true != -100
    expected = jaccard_score(true[counts].numpy(), chosen[counts].numpy(), average="macro")
    assert found["mean_iou"] == pytest.approx(expected, abs=1e-6)


def test_a_map_of_yes_or_no_has_the_iou_by_hand() -> None:
    network, data = maps(1)
    data["y"] = data["x"][:, :1] > 0
    found = evaluate(network, data, **GIVEN)
    chosen = network(data["x"]) > 0
    both, either = (chosen & data["y"]).sum(), (chosen | data["y"]).sum()
    assert found["mean_iou"] == pytest.approx((both / either).item(), abs=1e-6)


@pytest.mark.parametrize("made", [labels, maps])
def test_metrics_in_parts_are_those_of_whole_batches(made: Any) -> None:
    network, data = made()
    whole = evaluate(network, data, **GIVEN)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        parts = evaluate(Limited(network, 3), data, **GIVEN)
    assert any("out of memory" in str(one.message) for one in said)
    assert parts == {name: pytest.approx(value, abs=1e-6) for name, value in whole.items()}


def test_the_mean_iou_decides_and_is_resumed(tmp_path: Path) -> None:
    runs = []
    for name, steps in (("whole", (3,)), ("run", (1, 3))):
        for epochs in steps:
            network, data = maps()
            given = {**QUIET, "epochs": epochs, "val": 0.25, "lr": 0.1, "monitor": "val_mean_iou"}
            runs.append(fit(network, data, out=tmp_path / name, resume=epochs == 3 and len(steps) > 1, **given))
    whole, _, resumed = ([row["val_mean_iou"] for row in result.history] for result in runs)
    assert whole == resumed and runs[0].best_epoch == int(np.argmax(whole))
    with pytest.raises(OnnxgenError, match="no metric is called 'val_iou'.*val_mean_iou"):
        fit(maps()[0], data, out=tmp_path / "other", **QUIET, monitor="val_iou")


OBJECTIVES = {
    "classes": Objective(0, "", "y", "cross_entropy", classes=3),
    "labels": Objective(0, "", "y", "binary_cross_entropy", classes=2, labels=3),
    "yes or no": Objective(0, "", "y", "binary_cross_entropy", classes=2),
    "numbers": Objective(0, "", "y", "mse_loss"),
}


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_the_better_direction_of_each_metric_is_torchmetrics(kind: str) -> None:
    wrong = [
        name
        for name, metric in known_metrics(OBJECTIVES[kind]).items()
        for suffix in ("", "_distance", "_loss", "_error", "_accuracy", "_mse", "_gain")  # an output's name
        if lower_is_better(f"val_{snake(name)}{suffix}") == metric.higher_is_better
    ]
    assert not wrong


def test_the_better_direction_of_what_tasks_measure() -> None:
    assert lower_is_better(f"val_{Reading.monitor}") and lower_is_better(f"val_{Keypoints.monitor}")
    assert not any(map(lower_is_better, ("val_recall_at_1", "val_exact_match", "val_pck", "val_mean_iou")))
    assert not any(map(lower_is_better, ("val_accuracy_distance", "train_accuracy_loss", "test_agreement_teacher")))
    assert lower_is_better("val_loss_accuracy") and lower_is_better("val_my_distance")
    assert RecallAt1.higher_is_better
