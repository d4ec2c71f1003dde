"""A file that stands in for a module is measured by the module's loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from onnxgen.training import evaluate
from onnxgen.training.standing_in import standing_in
from tests.training.small import network


def test_outputs_that_look_like_probabilities_are_no_reason_for_another_loss(tmp_path: Path) -> None:
    """So integers may answer that lost nearly all."""
    torch.manual_seed(0)
    model, rows = network(tmp_path, x=("float32", ["n", 4])), torch.randn(30, 4)
    classes = torch.arange(30) % model.fc.out_features
    before = evaluate(model, (rows, classes))
    with standing_in(model, lambda x: torch.full((len(x), model.fc.out_features), 0.5)):
        assert float(model(rows[:2]).detach().std()) == 0
        found = evaluate(model, (rows, classes))
    assert found["loss"] == pytest.approx(F.cross_entropy(torch.zeros(30, model.fc.out_features), classes).item())
    assert evaluate(model, (rows, classes)) == before
