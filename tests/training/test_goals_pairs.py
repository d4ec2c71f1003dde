"""`--task embedding` with pairs and triplets: batches, losses, the metric, and folders of images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, fit, load
from onnxgen.training.data import feed, open_data
from onnxgen.training.data.arrays import Tuples
from onnxgen.training.goals.embedding import InfoNce, PairedBatchHard, PairRecallAt1
from onnxgen.training.loader import Loader

QUIET: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1, "batch_size": 8}
DRAW = torch.Generator().manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=DRAW)


def batch_of(count: int, members: int) -> dict[str, Tensor]:
    ids = torch.arange(count)
    pair = torch.stack([ids, ids, -1 - ids][:members], 1).flatten()
    return {"pair": pair, "role": torch.arange(members).repeat(count)}


class Flat(nn.Module):
    """image [n, 1, 8, 8] or [n, 6] to vectors [n, 5]."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(image.flatten(1))


def numbers(count: int, members: int = 2) -> dict[str, Any]:
    anchor = draw(count, 6)
    names = ("anchor", "positive", "negative")[:members]
    return {name: (anchor * (role < 2) + 0.1 * draw(count, 6)).numpy() for role, name in enumerate(names)}


# ---- losses and the metric -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3])
def test_info_nce_is_the_published_formula(members: int) -> None:
    x = draw(4 * members, 5)
    loss, weight, _ = InfoNce(0, "pair").compute((x,), batch_of(4, members))
    total = 0.0
    for i in range(4):
        cosines = {r: F.cosine_similarity(x[i * members], x[r], 0).item() for r in range(len(x)) if r % members}
        own = cosines[i * members + 1]
        total += math.log(sum(math.exp((c - own) / 0.05) for c in cosines.values()))
    assert int(weight) == 4 and loss.item() == pytest.approx(total / 4, rel=1e-4)


def test_triplets_are_compared_within_a_batch() -> None:
    x = draw(9, 4)
    loss, weight, _ = PairedBatchHard(0, "pair").compute((x,), batch_of(3, 3))
    each = []
    for i in range(3):
        for one, other in ((3 * i, 3 * i + 1), (3 * i + 1, 3 * i)):
            near = min((x[one] - x[r]).norm().item() for r in range(9) if r not in (3 * i, 3 * i + 1))
            each.append(math.log1p(math.exp((x[one] - x[other]).norm().item() - near)))
    assert int(weight) == 6 and loss.item() == pytest.approx(sum(each) / 6, rel=1e-5)


@pytest.mark.parametrize("members", [2, 3])
def test_recall_is_that_of_scikit_learns_neighbours(members: int) -> None:
    x, batch = draw(40 * members, 3), batch_of(40, members)
    metric = PairRecallAt1()
    for part in (slice(0, 10 * members), slice(10 * members, None)):
        metric.update(x[part], batch["pair"][part], batch["role"][part])
    anchors, positives = x[batch["role"] == 0], x[batch["role"] == 1]
    near = NearestNeighbors(n_neighbors=1, metric="cosine").fit(positives).kneighbors(anchors, return_distance=False)
    assert metric.compute().item() == pytest.approx(np.mean(near[:, 0] == np.arange(40)))


# ---- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 3])
def test_a_tuple_is_never_divided(members: int) -> None:
    data = numbers(20, members)
    opened = open_data(data, Flat(), Settings(task="embedding", val=0.25))
    assert isinstance(opened.train, Tuples) and len(opened.train) == 15 and opened.target == "pair"
    settings = Settings(task="embedding")
    assert (feed(opened, Flat(), settings).inputs, feed(opened, Flat(), settings).others) == (("image",), ("pair",))
    whole = np.stack(list(data.values()), 1)
    found: list[bytes] = []
    for batch in Loader(opened.train, 4, shuffle=True, seed=3, workers=0):
        rows = batch["image"].numpy().reshape(-1, members, 6)
        assert batch["pair"].reshape(-1, members)[:, :2].diff().eq(0).all()
        assert batch["role"].tolist() == [*range(members)] * len(rows)
        found += [row.tobytes() for row in rows]
    assert len({*found}) == 15 and {*found} < {row.tobytes() for row in whole}


@pytest.mark.parametrize(
    "data, settings, says",
    [
        (
            {"positive": np.zeros((8, 5), np.float32)},
            {},
            r"'anchor' and 'positive' are for one input, but differ: \[6\]",
        ),
        ({}, {"loss": "arcface"}, "no loss of pairs is called 'arcface' -> one of info_nce, triplet"),
        ({"negative": np.full((8, 6), np.nan, np.float32)}, {}, "column 'image' of train has nan in row 0"),
    ],
)
def test_what_does_not_fit_is_one_line(data: dict[str, Any], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(OnnxgenError, match=says):
        evaluate(Flat(), {**numbers(8), **data}, task="embedding", device="cpu", **settings)


def test_info_nce_needs_pairs() -> None:
    data = {"image": numbers(8)["anchor"], "label": np.arange(8) % 2}
    with pytest.raises(OnnxgenError, match="loss='info_nce'. needs pairs.*columns anchor and positive"):
        evaluate(Flat(), data, task="embedding", loss="info_nce", device="cpu")


def write(folder: Path, images: np.ndarray[Any, Any]) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")


def test_folders_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, (8, 8, 8), dtype=np.uint8) for name in ("anchor", "positive", "negative")}
    for name, made in images.items():
        write(tmp_path / name, made)
    opened = open_data(tmp_path, Flat(64), Settings(val=0.0, normalize="0,1"))
    assert opened.task == "embedding"  # which the data says
    batch = opened.train.take([3, 5], 0) if opened.train is not None else {}
    wanted = np.stack([images[name][i] for i in (3, 5) for name in images]) / 255
    np.testing.assert_allclose(batch["image"][:, 0].numpy(), wanted, atol=1e-6)
    moved = open_data(tmp_path, Flat(64), Settings(val=0.0, normalize="0,1", augment="shift"))
    twice = [moved.train.take([3], seed)["image"] for seed in (1, 1, 2)] if moved.train is not None else []
    assert torch.equal(twice[0], twice[1]) and not torch.equal(twice[0], twice[2])
    result = fit(Flat(64), tmp_path, val=0.25, out=tmp_path / "run", **QUIET)
    assert result.history[0]["val_recall_at_1"] in (0, 0.5, 1)
    (tmp_path / "positive/0.png").unlink()
    (tmp_path / "negative/1.png").write_bytes(b"none")
    (tmp_path / "anchor/2.png").unlink()
    found = open_data(tmp_path, Flat(64), Settings(val=0.0))
    (note,) = [note for note in found.notes if "faults" in note]
    for says in (
        "anchor/0.png: the image has no positive",
        "negative/1.png: can't be read",
        "positive/2.png: the positive has no image in anchor",
        "negative/2.png: the negative has no image in anchor",
    ):
        assert says in note, note
    assert found.train is not None and len(found.train) == 5
    with pytest.raises(OnnxgenError, match="4 faults"):
        open_data(tmp_path, Flat(64), Settings(strict=True))


# ---- from a file to a run --------------------------------------------------------------------------------------------


def test_a_network_is_trained_resumed_evaluated_and_asked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.onnx.export(
        Flat().eval(), (torch.zeros(2, 6),), tmp_path / "net.onnx", input_names=["image"], output_names=["embedding"],
        dynamic_axes={"image": {0: "batch"}, "embedding": {0: "batch"}}, opset_version=17, dynamo=False,
    )  # fmt: skip
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    data, given = numbers(40), {**QUIET, "task": "embedding", "val": 0.25, "lr": 0.01}
    whole = fit(tmp_path / "net.py", data, out=tmp_path / "whole", **{**given, "epochs": 2})
    fit(tmp_path / "net.py", data, out=tmp_path / "run", **given)
    resumed = fit(tmp_path / "net.py", data, out=tmp_path / "run", resume=True, **{**given, "epochs": 2})
    assert [r["val_loss"] for r in resumed.history] == [r["val_loss"] for r in whole.history]
    learner = load(tmp_path / "run", device="cpu")
    best = resumed.history[resumed.best_epoch]
    assert learner.evaluate(data)["recall_at_1"] == pytest.approx(best["val_recall_at_1"])
    made = learner.predict({"image": data["anchor"][:3]})
    wanted = learner.model(torch.from_numpy(data["anchor"][:3])).detach()
    np.testing.assert_allclose(np.stack([one.answer.value for one in made]), wanted, atol=1e-6)
