"""The loss of a step is the mean over its targets that count, however the step is divided into batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from onnxgen.training.memory import Micro
from tests.training.counted import GIVEN, loss, made, train
from tests.training.test_fit import Seen


def by_hand(task: str, batches: list[dict[str, Tensor]], a_step: int, an_epoch: int) -> dict[str, Tensor]:
    """Return the weights after a training with one large batch for each step."""
    network, _, _ = made(task)
    optimizer = torch.optim.SGD(network.parameters(), GIVEN["lr"])
    for epoch in range(0, len(batches), an_epoch):
        for start in range(epoch, epoch + an_epoch, a_step):
            step = batches[start : min(start + a_step, epoch + an_epoch)]
            optimizer.zero_grad()
            loss(task, network, {n: torch.cat([batch[n] for batch in step]) for n in step[0]}).backward()
            optimizer.step()
    return network.state_dict()


@pytest.mark.parametrize("accumulate", [1, 2, 3, 8])
@pytest.mark.parametrize("task", ["tokens", "tags", "pixels"])
def test_accumulated_batches_train_as_one_large_batch(task: str, accumulate: int, tmp_path: Path) -> None:
    seen = Seen()
    train(task, tmp_path, seen, accumulate=accumulate)
    assert [len(next(iter(batch.values()))) for batch in seen.batches] == [4, 4, 4, 4, 2] * 2
    for name, value in by_hand(task, seen.batches, accumulate, 5).items():
        torch.testing.assert_close(seen.last[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("task", ["tokens", "tags", "pixels"])
def test_parts_of_accumulated_batches_count_alike(task: str, tmp_path: Path, monkeypatch: Any) -> None:
    def small(self: Micro, batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return [{n: c[i : i + 1] for n, c in batch.items()} for i in range(len(next(iter(batch.values()))))]

    monkeypatch.setattr(Micro, "parts", small)
    seen = Seen()
    train(task, tmp_path, seen, accumulate=2)
    for name, value in by_hand(task, seen.batches, 2, 5).items():
        torch.testing.assert_close(seen.last[name], value, rtol=1e-6, atol=1e-6)
