"""A head for more classes, in which those that the model has keep what they learned: `--replace-head 5 --keep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import set_classes
from onnxgen.training import Settings
from onnxgen.training.prepare import prepare
from tests.training.small import network


def planned(folder: Path, names: tuple[str, ...] = (), **settings: Any) -> tuple[Tensor, Tensor]:
    """The weight of the head before, and when the training is prepared."""
    torch.manual_seed(0)
    model, rows = network(folder, x=("float32", ["n", 4])), torch.randn(20, 4)
    set_classes(model, names)
    old = model.fc.weight.detach().clone()
    data = {"train": (rows, torch.arange(20) % 5), "val": (rows, torch.arange(20) % 5)}
    given = {"replace_head": 5, "keep": True, "workers": 0, "device": "cpu", **settings}
    plan = prepare(model, data, Settings(out=folder, **given))
    assert plan.model is model
    return old, model.fc.weight.detach()


def test_by_their_places(tmp_path: Path) -> None:
    old, new = planned(tmp_path)
    assert new.shape == (5, 1) and torch.equal(new[:3], old)
    old, new = planned(tmp_path, keep=False)
    assert not any(torch.equal(a, b) for a in new for b in old)


def test_by_their_names(tmp_path: Path) -> None:
    """As a run's module knows them. The data has them in another order."""
    old, new = planned(tmp_path, ("cat", "dog", "owl"), classes=("ant", "cat", "emu", "owl", "yak"))
    assert torch.equal(new[1], old[0]) and torch.equal(new[3], old[2])
    assert not any(torch.equal(row, old[1]) for row in new)


def test_by_names_that_the_user_lists(tmp_path: Path) -> None:
    """In a file, if nothing else says which classes the model has."""
    listed = tmp_path / "own.txt"
    listed.write_text("cat\ndog\nowl\n")
    given = {"own_classes": str(listed), "classes": ("ant", "cat", "emu", "owl", "yak")}
    old, new = planned(tmp_path, **given)
    assert torch.equal(new[1], old[0]) and torch.equal(new[3], old[2])
    listed.write_text("cat\ndog\nowl\n", encoding="utf-8-sig")
    old, new = planned(tmp_path, **given)
    assert torch.equal(new[1], old[0])
    listed.write_text("cat\ndog\ndog\n")
    with pytest.raises(OnnxgenError, match="own.txt lists 'dog' twice"):
        planned(tmp_path, **given)
    listed.write_text("cat\ndog\n")
    with pytest.raises(OnnxgenError, match=r"own.txt lists 2 classes, but the model has 3 -> one in each line"):
        planned(tmp_path, **given)
    with pytest.raises(OnnxgenError, match=r"own-classes: .*gone.txt can't be read"):
        planned(tmp_path, **{**given, "own_classes": tmp_path / "gone.txt"})
    with pytest.raises(OnnxgenError, match=r"own_classes lists .* -> --replace-head 12 --keep --own-classes FILE"):
        Settings(own_classes=listed)


def test_fewer_classes(tmp_path: Path) -> None:
    """Those at their places stay; a classifier of two is learned from the five that the data has only if it fits."""
    with pytest.raises(OnnxgenError, match="--replace-head 5"):
        planned(tmp_path, replace_head=2)


@pytest.mark.parametrize(
    ("names", "settings", "said"),
    [
        (("cat", "dog", "owl"), {"classes": ("a", "b", "c", "d", "e")}, "no class of the data is one of the model's"),
        ((), {"task": "ctc"}, "the blank may be the last one"),
    ],
)
def test_what_can_not_stay_is_refused(
    tmp_path: Path, names: tuple[str, ...], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(OnnxgenError, match=said):
        planned(tmp_path, names, **settings)


@pytest.mark.parametrize("given", [{"keep": True}, {"keep": True, "replace_head": 3, "task": "detection"}])
def test_keep_needs_the_head_of_a_classifier(given: dict[str, Any]) -> None:
    with pytest.raises(
        OnnxgenError, match=r"in a new head of a classifier.* -> (--replace-head 12 --keep|leave out --keep)$"
    ):
        Settings(**given)
