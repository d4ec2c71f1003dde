"""`predict --soft`: the probability of each class at each place, by softmax and sigmoid, in arrays and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import fit, load
from onnxgen.training.runs.answers import answer
from onnxgen.training.runs.record import Target
from samples.tasks.scenes import draw_scenes, write_masks
from tests.training.test_data_placed import convolution

SIZE = (12, 16)


def target(loss: str, activation: str, classes: int, axis: int = 1) -> Target:
    return Target(0, "y", "mask", loss, activation, classes, axis, ())


DRAWN = torch.randn(1, 3, 4, 5, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Target, torch.Tensor, torch.Tensor]] = {
    "logits": (target("cross_entropy", "", 3), DRAWN, DRAWN.softmax(1)[0]),
    "classes last": (target("cross_entropy", "", 5, 3), DRAWN, DRAWN.softmax(3)[0].permute(2, 0, 1)),
    "softmax": (target("cross_entropy", "softmax", 3), DRAWN.softmax(1), DRAWN.softmax(1)[0]),
    "logarithms": (target("nll_loss", "log_softmax", 3), DRAWN.log_softmax(1), DRAWN.softmax(1)[0]),
    "labels": (target("binary_cross_entropy_with_logits", "", 3), DRAWN, DRAWN.sigmoid()[0]),
    "one label": (target("binary_cross_entropy_with_logits", "", 2), DRAWN[:, :1], DRAWN.sigmoid()[0, :1]),
    "no axis of classes": (target("binary_cross_entropy_with_logits", "", 2), DRAWN[:, 0], DRAWN.sigmoid()[0, :1]),
    "tags": (target("cross_entropy", "", 3), DRAWN[..., 0], DRAWN[..., 0].softmax(1)[0]),
}


@pytest.mark.parametrize("case", CASES)
def test_probabilities(case: str) -> None:
    of, output, wanted = CASES[case]
    found = answer(output, of, soft=True)
    assert found.soft and found.label is None and found.value.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(found.value), wanted)


def test_what_is_no_map_stays() -> None:
    of = target("cross_entropy", "", 3)
    found = answer(DRAWN[:, :, 0, 0], of, soft=True)
    assert not found.soft and found.value.tolist() == DRAWN[0, :, 0, 0].tolist() and len(found.probabilities) == 3


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was trained on masks of four classes."""
    folder = tmp_path_factory.mktemp("masks")
    scenes = {"train": draw_scenes(8, 1, *SIZE), "val": draw_scenes(3, 2, *SIZE)}
    write_masks(folder / "data", scenes)
    convolution(folder, *SIZE)
    given: dict[str, Any] = {"classes": ("ground", "a/b", "square", "triangle"), "workers": 0, "show": "nothing"}
    fit(folder / "maps.py", folder / "data", out=folder / "run", epochs=1, batch_size=4, **given)
    return folder


def test_images_and_arrays(segmenter: Path, tmp_path: Path) -> None:
    data, learner = segmenter / "data" / "images" / "val", load(segmenter / "run")
    asked = ["predict", str(segmenter / "run"), str(data), "--quiet", "-o"]
    for out, more in (("soft", ["--soft"]), ("soft.npz", ["--soft"]), ("hard", [])):
        assert cli([*asked, str(tmp_path / out), *more]) == 0
    soft = np.stack([one.answer.value for one in learner.predict(data, soft=True)])
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-5)
    with np.load(tmp_path / "soft.npz") as stored:
        np.testing.assert_array_equal(stored["scores"], soft)
    names = {path.name for path in (tmp_path / "soft").iterdir()}
    classes = ("ground", "a-b", "square", "triangle")
    assert names == {f"val_{n:03}_{name}.png" for n in range(3) for name in classes}
    for number in range(3):
        for place, name in enumerate(classes):
            with Image.open(tmp_path / "soft" / f"val_{number:03}_{name}.png") as image:
                assert np.abs(np.asarray(image) - soft[number, place] * 255).max() <= 0.51
        with Image.open(tmp_path / "hard" / f"val_{number:03}.png") as image:
            assert image.mode == "P" and np.array_equal(np.asarray(image), soft[number].argmax(0))


def test_other_networks_are_refused(tmp_path: Path) -> None:
    from tests.training.small import network

    model = network(tmp_path, x=("float32", ("n", 4)))
    data = {"x": np.ones((8, 4), np.float32), "label": np.arange(8) % 3}
    fit(model, data, out=tmp_path / "run", epochs=1, val=0, workers=0, show="nothing")
    with pytest.raises(OnnxgenError, match="soft masks are of maps of classes, and .*run makes none"):
        load(tmp_path / "run").predict(data["x"], soft=True)
