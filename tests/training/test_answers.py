"""What the outputs of a run say."""

from __future__ import annotations

import numpy as np
import torch

from onnxgen.cli.asking import _cells
from onnxgen.training.runs.answers import Prediction, answer
from onnxgen.training.runs.record import Target


def test_each_position_of_a_sequence_has_the_name_of_its_class() -> None:
    scores = torch.eye(3)[[2, 0, 0, 1]][None]  # [1, 4, 3]
    named = Target(0, "y", "tags", "cross_entropy", "", 3, 2, ("LOC", "O"))  # the data has two of three classes
    found = answer(scores, named)
    assert found.label == ("2", "LOC", "LOC", "O") and found.value.tolist() == [2, 0, 0, 1]
    assert _cells(found, 1) == ("2 LOC LOC O", "")
    assert repr(Prediction("a.txt", {"y": found})) == "<a.txt: 2 LOC LOC O>"
    plain = answer(scores, Target(0, "y", "tags", "cross_entropy", "", 3, 2, ()))
    assert plain.label is None and _cells(plain, 1) == ("2 0 0 1", "")
    a_map = answer(
        scores[:, None].permute(0, 3, 1, 2), Target(0, "y", "mask", "cross_entropy", "", 3, 1, ("a", "b", "c"))
    )
    assert a_map.label is None and np.array_equal(a_map.value, [[2, 0, 0, 1]])
