"""Class names are numbered in the order of the model's outputs, in all kinds of data."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import Dataset

from onnxgen.cli import run as cli
from onnxgen.cli.app import app
from onnxgen.cli.train_options import given_settings
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, fit, open_model, replace_head
from onnxgen.training.config import read_config
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.columns import from_columns
from onnxgen.training.data.fitting import number_classes
from onnxgen.training.data.samples import Feeding
from onnxgen.training.prepare import prepare
from tests.training.small import network

ORDER = ("owl", "cat", "ant")  # not that of the alphabet
CPU: dict[str, Any] = {"device": "cpu", "workers": 0, "batch_size": 4}
RAW: dict[str, Any] = {**CPU, "normalize": "0,1"}
QUICK: dict[str, Any] = {**CPU, "epochs": 1, "val": 0.0, "show": "nothing"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("model"), x=("float32", ("batch", 1, 4, 4)))


def fresh(model: torch.nn.Module) -> torch.nn.Module:
    """Open the same file again, without what was remembered for the model."""
    return open_model(Path(str(sys.modules[type(model).__module__].__file__)))


def photos(folder: Path, **images: int) -> dict[str, torch.Tensor]:
    """Write class folders with `images` images each. Return the pixels, from 0 to 1, by class."""
    made = {}
    for name, count in images.items():
        (folder / name).mkdir(parents=True)
        pixels = np.random.default_rng(len(name) + ord(name[0])).integers(0, 256, (count, 4, 4), dtype=np.uint8)
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(folder / name / f"{number}.png")
        made[name] = torch.from_numpy(pixels).float()[:, None] / 255
    return made


def by_hand(model: torch.nn.Module, images: dict[str, torch.Tensor], order: tuple[str, ...]) -> tuple[float, float]:
    """Return loss and accuracy if the outputs are in this order."""
    scores = torch.cat([model(x).detach() for x in images.values()])
    wanted = torch.cat([torch.full((len(x),), order.index(name)) for name, x in images.items()])
    return float(F.cross_entropy(scores, wanted)), float((scores.argmax(1) == wanted).float().mean())


def said(*arguments: Any, **given: Any) -> str:
    with pytest.raises(OnnxgenError) as caught:
        evaluate(*arguments, **given)
    (problem,) = caught.value.problems
    return str(problem)


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [{"owl": 3, "cat": 4, "ant": 2}, {"cat": 4}, {"ant": 5, "owl": 3}])
def test_a_folder_with_some_classes_is_numbered_like_the_model(
    there: dict[str, int], model: torch.nn.Module, tmp_path: Path
) -> None:
    images = photos(tmp_path, **there)
    loss, accuracy = by_hand(model, images, ORDER)
    found = evaluate(fresh(model), tmp_path, classes=ORDER, **RAW)
    assert found["loss"] == pytest.approx(loss, rel=1e-5) and found["accuracy"] == pytest.approx(accuracy)


def test_some_classes_without_their_order_are_refused(model: torch.nn.Module, tmp_path: Path) -> None:
    photos(tmp_path, cat=4, owl=3)
    message = said(fresh(model), tmp_path, **RAW)
    assert message.startswith(f"{tmp_path.name} has classes cat, owl, but the model has 3 classes: which are they? -> ")
    assert "classes=(" in message and "\n" not in message


def test_one_class_of_two_with_one_output_is_refused(tmp_path: Path) -> None:
    binary = network(tmp_path, classes=1, x=("float32", ("batch", 1, 4, 4)))
    images = photos(tmp_path / "images", owl=4)
    assert "has classes owl, but the model has 2 classes" in said(binary, tmp_path / "images", **RAW)
    found = evaluate(binary, tmp_path / "images", classes=("cat", "owl"), **RAW)
    scores = binary(images["owl"]).detach().flatten()
    expected = F.binary_cross_entropy_with_logits(scores, torch.ones(4))
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_an_unknown_class_is_refused(model: torch.nn.Module, tmp_path: Path) -> None:
    photos(tmp_path, cat=2, dog=2)
    message = said(fresh(model), tmp_path, classes=ORDER, **RAW)
    assert message.startswith(f"{tmp_path.name} has class dog, and the classes are owl, cat, ant -> ")


def test_more_classes_than_outputs_are_refused(model: torch.nn.Module, tmp_path: Path) -> None:
    photos(tmp_path, cat=2)
    assert "has 4 classes" in said(fresh(model), tmp_path, classes=(*ORDER, "dog"), **RAW)


# ---- text ------------------------------------------------------------------------------------------------------------


def table(path: Path, names: list[str]) -> torch.Tensor:
    x = np.random.default_rng(0).normal(size=(len(names), 2)).astype(np.float32)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("a", "b", "label"), *((*map(float, row), n) for row, n in zip(x, names))])
    return torch.from_numpy(x)


@pytest.mark.parametrize("kind", ["csv", "arrays"])
def test_text_with_some_classes(kind: str, tmp_path: Path) -> None:
    vector = network(tmp_path, x=("float32", ("batch", 2)))
    names = ["cat", "ant", "cat", "cat", "ant"]
    x = table(tmp_path / "some.csv", names)
    data: Any = tmp_path / "some.csv" if kind == "csv" else {"x": x.numpy(), "label": np.array(names)}
    assert "which are they" in said(vector, data, **CPU)
    assert "has class ant" in said(vector, data, classes=("cat", "owl", "bat"), **CPU)
    expected = F.cross_entropy(vector(x).detach(), torch.tensor([ORDER.index(name) for name in names]))
    assert evaluate(vector, data, classes=ORDER, **CPU)["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_classes_for_two_targets_with_names_are_refused() -> None:
    source = from_columns({"x": np.zeros((2, 2)), "a": ["cat", "owl"], "b": ["red", "red"]}, "both")
    with pytest.raises(OnnxgenError, match="--classes names the classes of one target, but a, b all hold names"):
        number_classes(source, Feeding(("x",), {0: "a", 1: "b"}), ORDER)


# ---- what numbers its classes itself ---------------------------------------------------------------------------------


class Named(Dataset):  # type: ignore[type-arg]
    def __init__(self, *classes: str) -> None:
        self.classes = list(classes)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(1, 4, 4), index % len(self.classes)


def test_a_dataset_must_have_the_order_of_classes(model: torch.nn.Module) -> None:
    def opened(data: Any) -> None:
        settings = Settings(val=0, batch_size=2, classes=ORDER)
        found = open_data(data, model, settings)
        check(model, found, feed(found, model, settings), settings)

    opened(Named("owl", "cat"))
    with pytest.raises(
        OnnxgenError, match="numbers the classes of target .* as cat, owl, and the classes are owl, cat, ant"
    ):
        opened(Named("cat", "owl"))


def test_class_indices_are_not_names(tmp_path: Path) -> None:
    vector = network(tmp_path, x=("float32", ("batch", 2)))
    data = {"x": np.ones((4, 2), np.float32), "label": np.array([1, 2, 2, 1])}
    assert "holds class indices, and not the classes 1, 2, 3" in said(vector, data, classes=("1", "2", "3"), **CPU)
    expected = F.cross_entropy(vector(torch.ones(4, 2)).detach(), torch.tensor([1, 2, 2, 1]))
    assert evaluate(vector, data, classes=ORDER, **CPU)["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert evaluate(vector, data, **CPU)["loss"] == pytest.approx(float(expected), rel=1e-5)


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_keeps_its_classes(model: torch.nn.Module, tmp_path: Path) -> None:
    everything = photos(tmp_path / "all", owl=4, cat=4, ant=4)
    photos(tmp_path / "some", cat=4)
    photos(tmp_path / "other", cat=2, dog=2)
    result = fit(fresh(model), tmp_path / "all", out=tmp_path / "run", normalize="0,1", **QUICK)
    written = read_config(tmp_path / "run" / "config.toml")
    assert written["classes"] == ("ant", "cat", "owl")
    settings = Settings(**{name: value for name, value in written.items() if name not in ("model", "data")})
    expected, _ = by_hand(result.model, {"cat": everything["cat"]}, ("ant", "cat", "owl"))
    weights = {"weights": tmp_path / "run" / "best.safetensors"}
    path = written["model"]
    assert evaluate(path, tmp_path / "some", settings=settings, **weights)["loss"] == pytest.approx(expected, rel=1e-5)
    assert evaluate(result.model, tmp_path / "some", **RAW)["loss"] == pytest.approx(expected, rel=1e-5)
    assert "has class dog" in said(result.model, tmp_path / "other", **RAW)


def test_training_with_some_classes(model: torch.nn.Module, tmp_path: Path) -> None:
    photos(tmp_path, cat=4, ant=4)
    plan = prepare(fresh(model), tmp_path, Settings(val=0.0, device="cpu", batch_size=4))
    assert any("the model has 3 classes, the data 2" in note for note in plan.notes)
    assert plan.settings.classes == ("ant", "cat")
    plan = prepare(fresh(model), tmp_path, Settings(val=0.0, device="cpu", batch_size=4, classes=ORDER))
    assert plan.data.train is not None and plan.settings.classes == ORDER
    assert sorted(plan.data.train.take(range(8), 0)["label"].tolist()) == [1] * 4 + [2] * 4


def test_a_new_head_has_no_class_names(model: torch.nn.Module, tmp_path: Path) -> None:
    photos(tmp_path / "old", owl=2, cat=2, ant=2)
    images = photos(tmp_path / "new", bee=3, fly=2)
    settings = Settings(val=0.0, device="cpu", batch_size=4)
    network = prepare(fresh(model), tmp_path / "old", settings).model
    assert "has class bee, fly" in said(network, tmp_path / "new", **RAW)
    expected, _ = by_hand(replace_head(network, 2), images, ("bee", "fly"))
    assert evaluate(network, tmp_path / "new", **RAW)["loss"] == pytest.approx(expected, rel=1e-5)


def test_numbers_are_not_saved_as_class_names(tmp_path: Path) -> None:
    vector = network(tmp_path, x=("float32", ("batch", 2)))
    data = {"x": np.ones((4, 2), np.float32), "label": np.array([0, 1, 2, 1])}
    assert prepare(vector, data, Settings(val=0.0, device="cpu", batch_size=4)).settings.classes == ()


# ---- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cat,dog", ("cat", "dog")),
        ("none", ()),
        ("sea lion, cat", ("sea lion", "cat")),
        (" ,-,\u3000", (" ", "-", "\u3000")),
        ("a,,,b", ("a", ",", "b")),  # a comma is a name, too
        (",,b", (",", "b")),
        ("b,,", ("b", ",")),
        (",", (",",)),
        ('-,=,,,"', ("-", "=", ",", '"')),
    ],
)
def test_the_option(text: str, value: tuple[str, ...]) -> None:
    context = app.commands["train"].make_context("train", ["--classes", text])
    assert given_settings(context) == {"classes": value}


def test_an_empty_name_is_told_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["train", "model.py", "--data", "x.npz", "--classes", "a,,b"]) == 2
    assert "'a,,b' has an empty name at place 2 of 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("classes", "what"),
    [
        (("cat", "cat"), "classes has 'cat' twice"),
        (("cat", ""), "classes has an empty name at place 2 of 2"),
        ("cat,dog", "classes must be a list of names, not the text 'cat,dog' -> give it like classes=('cat', 'dog')"),
    ],
)
def test_invalid_lists_of_classes(classes: Any, what: str) -> None:
    with pytest.raises(OnnxgenError) as caught:
        Settings(classes=classes)
    assert str(caught.value.problems[0]) == what
