"""Targets that can't be learned are refused."""

from __future__ import annotations

import pytest
import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training.goals.detection.loss import refuse_wrong

RIGHT = torch.tensor([[[1, 0.1, 0.2, 0.6, 0.7], [0, 0.0, 0.0, 1.0, 1.0]], [[2, 0.5, 0.5, 0.6, 0.6], [-1] * 5]])


def test_right_targets() -> None:
    refuse_wrong(RIGHT, 3)
    refuse_wrong(torch.zeros(2, 0, 5), 3)


@pytest.mark.parametrize(
    "row, what",
    [
        ([3, 0.1, 0.2, 0.6, 0.7], r"box \(3, 0.1, 0.2, 0.6, 0.7\) of image 1 is of a class that is none of 0 to 2"),
        ([0.5, 0.1, 0.2, 0.6, 0.7], "is of a class that is none of"),
        ([-1, 0.1, 0.2, 0.6, 0.7], "is of a class that is none of"),
        ([1, 10.0, 20.0, 60.0, 70.0], "has a corner that is no share from 0 to 1"),
        ([1, float("nan"), 0.2, 0.6, 0.7], "has a corner that is no share from 0 to 1"),
        ([1, 0.5, 0.5, 0.2, 0.2], "ends before it begins"),
    ],
)
def test_wrong_rows(row: list[float], what: str) -> None:
    wrong = RIGHT.clone()
    wrong[1, 1] = torch.tensor(row)
    with pytest.raises(OnnxgenError, match=what):
        refuse_wrong(wrong, 3)


def test_wrong_shapes() -> None:
    for given in (torch.zeros(2, 5), torch.zeros(2, 3, 4), torch.zeros(2, 3, 5).long()):
        with pytest.raises(OnnxgenError, match=r"not float32 \[images, most, 5\] -> a row is"):
            refuse_wrong(given, 3)
