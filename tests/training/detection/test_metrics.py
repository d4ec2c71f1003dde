"""Mean average precision, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from onnxgen.training.goals.detection.boxes import Decoder
from onnxgen.training.goals.detection.goal import MeanAveragePrecision, Row, average_precision
from onnxgen.training.runs.contract import finds_nothing
from tests.training.detection import heads

pytest.importorskip("faster_coco_eval")


def test_precision_by_hand() -> None:
    """Two boxes of one class: one is found first, then a wrong box, then the other.

    Up to a recall of 1/2 the precision is 1, and then 2/3. COCO takes the mean of 101 recalls: 51 and 50 of them.
    """
    truth = [Row(0, 1, (0, 0, 10, 10)), Row(1, 1, (0, 0, 10, 10))]
    found = [Row(0, 1, (0, 0, 10, 10), 0.9), Row(0, 1, (50, 50, 60, 60), 0.8), Row(1, 1, (0, 0, 10, 10), 0.7)]
    figures = average_precision(found, truth, 2)
    assert figures["AP_50"] == pytest.approx((51 + 50 * 2 / 3) / 101)
    shifted = [Row(0, 1, (0, 0, 10, 6), 0.9), *found[2:]]  # an IoU of 0.6 counts for thresholds of 0.5, 0.55 and 0.6
    figures = average_precision(shifted, truth, 2)
    assert figures["AP_50"] == pytest.approx(1) and figures["AP_75"] == pytest.approx(51 / 101 / 2, abs=0.01)


def test_nothing_found_and_nothing_there() -> None:
    box = Row(0, 0, (0, 0, 10, 10), 0.9)
    assert average_precision([], [box], 1)["AP_50"] == 0
    assert average_precision([box], [], 1)["AP_50"] == -1


def test_the_metric_of_maps() -> None:
    tail = heads.distances(bins=1)
    maps = [m.detach() * 0 - 9 * (i % 2) for i, m in enumerate(heads.maps(tail))]
    maps[0] += 1  # distances of one stride
    maps[1][0, 2, 1, 1], maps[1][1, 0, 0, 0] = 9, 9
    targets = torch.tensor([[[2.0, 4, 4, 20, 20], [-1] * 5], [[0, 4, 4, 20, 20], [-1] * 5]])
    targets[..., 1:] /= 32
    metric = MeanAveragePrecision(Decoder(tail))
    metric.update(maps, {"boxes": targets})
    found = metric.compute()
    assert sorted(found) == ["best_score", "map", "map50", "map75"]
    assert found["best_score"].item() == pytest.approx(torch.tensor(9.0).sigmoid().item(), rel=1e-6)
    assert found["map50"] == pytest.approx(0.5)  # of class 2, and not of class 0, whose box is elsewhere
    metric.reset()
    assert metric.compute()["map"] == -1 and metric.compute()["best_score"] == 0


@pytest.mark.parametrize(("best", "least"), [(0.031, "0.02"), (0.2499, "0.1"), (0.25, ""), (1.0, ""), (math.nan, "")])
def test_a_detector_that_finds_nothing_is_told(best: float, least: str) -> None:
    said = finds_nothing(best)
    assert bool(said) is bool(least)
    if least:
        assert f"the best one has {best:.3g} -> onnxgen predict --min-score {least} shows it" in said


def test_boxes_end_at_the_edges_of_their_image() -> None:
    """A box found from -4 to 12 is that from 0 to 12, or from 2 on if its image begins there."""
    tail = heads.distances(bins=1)
    maps = [m.detach() * 0 - 9 * (i % 2) for i, m in enumerate(heads.maps(tail))]
    maps[0] += 1
    maps[1][0, 2, 0, 0], maps[1][1, 2, 0, 0] = 9, 9
    targets = torch.tensor([[[2.0, 0, 0, 12, 12], [-1] * 5], [[2, 2, 0, 12, 12], [-1] * 5]])
    targets[..., 1:] /= 32
    metric = MeanAveragePrecision(Decoder(tail))
    metric.update([m[:1] for m in maps], {"boxes": targets[:1]})
    assert metric.compute()["map"] == pytest.approx(1)
    metric.reset()
    inner = torch.tensor([[0.0, 0, 1, 1], [2 / 32, 0, 1, 1]])
    metric.update(maps, {"boxes": targets, "inner": inner})
    assert metric.compute()["map"] == pytest.approx(1)
