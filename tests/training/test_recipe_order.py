"""`--sampler balanced`: each class is drawn equally often, in an order that seed and epoch decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.data.arrays import Columns
from onnxgen.training.loader import Loader, balanced_order
from tests.training.test_fit import Seen
from tests.training.test_fit_options import CPU, net, points

CLASSES = np.repeat([0, 1, 2, 7], [70, 20, 9, 1])


def drawn(rank: int = 0, world: int = 1, size: int = 12, seed: int = 3) -> Loader:
    samples = Columns({"i": torch.arange(100)}, {})
    return Loader(samples, size, shuffle=True, seed=seed, rank=rank, world=world, classes=CLASSES)


def order(loader: Loader) -> list[int]:
    return torch.cat([batch["i"] for batch in loader]).tolist()


def test_each_class_is_drawn_equally_often_and_each_sample_of_it_in_turn() -> None:
    loader = drawn()
    epochs = [order(loader) for _ in range(20)]
    for epoch in epochs:
        counts = np.bincount(epoch, minlength=100)
        assert [counts[kind == CLASSES].sum() for kind in (0, 1, 2, 7)] == [25, 25, 25, 25]
        assert max(counts[CLASSES == 0]) == 1 and set(counts[CLASSES == 1]) == {1, 2}
        assert set(counts[CLASSES == 2]) == {2, 3}
    assert len({tuple(epoch) for epoch in epochs}) == 20
    often = np.bincount(np.concatenate(epochs), minlength=100)[CLASSES == 0]
    assert often.min() > 0 and often.mean() == pytest.approx(20 * 25 / 70)
    spread = [np.mean(CLASSES[epoch[:50]] == 1) for epoch in epochs]  # a class is spread over the epoch
    assert np.mean(spread) == pytest.approx(0.25, abs=0.05)


def test_a_rest_goes_to_other_classes_in_each_epoch() -> None:
    classes = np.array([0] * 8 + [1] * 2 + [2] * 1)
    counts = {tuple(np.bincount(classes[balanced_order(classes, np.random.default_rng(n))])) for n in range(30)}
    assert counts == {(4, 4, 3), (4, 3, 4), (3, 4, 4)}


def test_the_order_depends_on_seed_and_epoch_and_is_shared_by_processes() -> None:
    whole = drawn(size=12)
    first, second = order(whole), order(whole)
    ranks = [[batch["i"].tolist() for batch in drawn(rank, 3, 4)] for rank in range(3)]
    assert sum((a + b + c for a, b, c in zip(*ranks, strict=True)), []) == first
    again = drawn()
    again.load_state_dict({"epoch": 1, "given": 5})
    assert order(again) == second[60:] and order(drawn(seed=4)) != first


def test_a_run_draws_rare_classes_as_often(tmp_path: Path) -> None:
    data: dict[str, Any] = points(60)
    data["label"] = np.array([0] * 45 + [1] * 12 + [2] * 3)
    seen = Seen()
    given = {"epochs": 2, "val": 0.0, "batch_size": 10, "sampler": "balanced"}
    fit(net(), data, callbacks=[seen], out=tmp_path, **given, **CPU)
    labels = torch.cat([batch["label"] for batch in seen.batches])
    assert labels.bincount().tolist() == [40, 40, 40]


def test_what_has_no_classes_is_refused(tmp_path: Path) -> None:
    for given, data, said in (
        (
            {},
            {"x": points()["x"], "y": points()["x"][:, :3]},
            "needs a class for each sample",
        ),
        ({"class_weights": "balanced"}, points(), "sampler and class_weights exclude each other"),
    ):
        with pytest.raises(OnnxgenError, match=said):
            fit(net(), data, sampler="balanced", out=tmp_path / "run", **given, **CPU)  # type: ignore[arg-type]
    with pytest.raises(OnnxgenError, match="sampler must be one of shuffle, balanced, not 'even'"):
        fit(net(), points(), sampler="even", out=tmp_path / "run", **CPU)
