"""The cards of tasks: a task is one file, and a metric of classes of pixels is named in one place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from onnxgen.training import Settings, fit
from onnxgen.training.data import open_data
from onnxgen.training.data.arrays import Prepared
from onnxgen.training.tasks import CARDS, card_of, known, possible
from tests.conftest import ROOT
from tests.support import forked

BRIGHTNESS = '''
"""How bright an image is."""

from onnxgen.training.tasks.card import Card


def _make(found):
    from dataclasses import dataclass

    from torchmetrics import MeanMetric

    from onnxgen.training.goals.goal import Goal, Scores, Shown

    class Far(Scores):
        def __init__(self, goal):
            super().__init__({"far": MeanMetric()}, lambda outputs, batch: ())
            self.goal = goal

        def update(self, outputs, batch):
            self.metrics["far"].update((outputs[0][:, 0] - batch[self.goal.columns[0]]).abs())

    @dataclass(frozen=True)
    class Brightness(Goal):
        columns: tuple = ()
        loss: str = "auto"
        name: str = ""
        classes: int = 0
        monitor: str = "far"

        def mean_loss(self, outputs, batch, training):
            away = outputs[0][:, 0] - batch[self.columns[0]]
            return away.abs().mean() if self.loss == "far" else away.square().mean()

        def scores(self):
            return Far(self)

        def shown(self, outputs, batch, place, names):
            return Shown(f"{batch[self.columns[0]][place]:.2f}", f"{outputs[0][place, 0]:.2f}")

    return [Brightness(found.feeding.others, found.settings.loss)]


CARD = Card("brightness", _make, losses=("far",), metrics=("far",), reads="target", columns=("light",))
'''
TRAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import torch

torch.manual_seed(0)
from onnxgen import __file__ as here
from onnxgen.training import Settings, evaluate, fit
from onnxgen.training.data.glance import glance
from pathlib import Path

assert Path(here).is_relative_to(sys.argv[1])
x = np.random.default_rng(0).random((40, 6), np.float32)
data = {"x": x, "light": x.mean(1), "other": x[:, 0]}
np.savez("data.npz", **data)
Path("model.py").touch()
glance(Path("model.py"), "data.npz", Settings(task="brightness", loss="far", monitor="val_far"))
net = torch.nn.Sequential(torch.nn.Linear(6, 1))
found = fit(net, data, task="brightness", loss="far", inputs={"input": "x"}, monitor="val_far", out="run", epochs=2,
            show="nothing", lr=0.05, device="cpu")
print(sorted(found.history[-1]), found.history[0]["val_far"] > found.history[-1]["val_far"])
try:
    Settings(task="bright"), glance(Path("model.py"), "data.npz", Settings(task="bright"))
except Exception as error:
    print(error)
"""


def copied(folder: Path) -> Path:
    """A copy of onnxgen whose folder of tasks is a folder, and all else is linked."""
    for inner in ("onnxgen", "onnxgen/training", "onnxgen/training/tasks"):
        (folder / inner).mkdir(parents=True)
        for path in (ROOT / inner).iterdir():
            if path.name not in ("training", "tasks", "__pycache__"):
                (folder / inner / path.name).symlink_to(path)
    return folder


def test_one_file_adds_a_task(tmp_path: Path) -> None:
    """Its name, its loss and its metric are known before torch is loaded; it is trained, measured and shown."""
    copy = copied(tmp_path / "copy")
    (copy / "onnxgen/training/tasks/brightness.py").write_text(BRIGHTNESS, encoding="utf-8")
    done = forked.run(["-c", TRAIN, str(copy)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    trained, refused = done.stdout.splitlines()[-2:]
    assert trained == "['epoch', 'lr', 'seconds', 'step', 'train_loss', 'val_far', 'val_loss'] True"
    assert refused == "no task is called 'bright' -> perhaps brightness"


def test_one_place_adds_a_metric_of_maps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onnxgen.training.losses.OF_A_MAP", ("JaccardIndex", "F1Score"))
    rng = np.random.default_rng(0)
    data = {"x": rng.random((12, 1, 6, 6), np.float32), "y": rng.integers(0, 3, (12, 6, 6))}
    found = fit(nn.Conv2d(1, 3, 3, padding=1), data, inputs={"input": "x"}, epochs=1, out=tmp_path, show="nothing",
                monitor="val_f1_score")  # fmt: skip
    assert {"val_mean_iou", "val_f1_score"} <= found.history[0].keys()


def test_names_of_tasks() -> None:
    for name, card in CARDS.items():
        assert card_of(name.upper()) is card is known(name) and card.make is not None
    assert card_of("auto").make is card_of("outputs").make is None
    assert card_of("module:function").reads == "rest"
    assert known("of a later version") is known(None) is known(["a"]) is card_of("outputs")
    assert possible(None) == []


def test_each_purpose_is_of_a_card_or_trained_with_a_loss_of_each_output() -> None:
    from onnxgen.record.signature import KINDS

    kinds = {kind for card in CARDS.values() for kind in card.kinds}
    assert {*KINDS} - kinds == {
        "classification", "multilabel", "regression", "segmentation", "token-classification", "denoising"
    } and kinds <= {*KINDS}  # fmt: skip


def test_what_is_stored_of_data_stays_as_runs_know_it() -> None:
    """A run knows its data again by a digest of all columns that were read: also of those that no model is fed."""
    data = {"a": np.arange(8, dtype=np.float32), "b": np.ones(8, np.float32), "y": np.arange(8) % 2, "z": np.zeros(8)}
    found = open_data(data, nn.Linear(2, 2), Settings(inputs={"input": "a+b"}, target="y", val=0.25))
    assert isinstance(found.train, Prepared) and [*found.train.fields] == ["a+b", "y"]
    assert {*found.train.samples.fields} == {*data, "a+b"}
