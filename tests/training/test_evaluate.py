"""`evaluate` and `predict` are compared with hand-written code."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from PIL import Image

from onnxgen import generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, fit, open_model, predict
from onnxgen.training.prepare import prepare
from tests.training.small import network

CPU = {"device": "cpu", "workers": 0}
FLOATS = {"x": ("float32", ["n", 5])}
IMAGES = {"image": ("float32", ["n", 3, 4, 4])}


def points(count=50, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32, bool])
@pytest.mark.parametrize("column", ["label", "survived"])
def test_a_target_of_zeros_and_ones_has_two_classes(tmp_path, column, kind, shape):
    model, x = network(tmp_path, classes=1, **FLOATS), points()
    y = (x[:, 0] > 0.2).astype(kind).reshape(shape)
    found = evaluate(model, {"x": x, column: y}, target=column, batch_size=16, **CPU)
    scores, wanted = model(torch.tensor(x)).detach().flatten(), torch.tensor(y).float().flatten()
    expected = F.binary_cross_entropy_with_logits(scores, wanted)
    assert found["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float(((scores > 0) == (wanted > 0)).float().mean()))


def test_several_binary_labels(tmp_path):
    model, x = network(tmp_path, **FLOATS), points()
    y = (np.random.default_rng(1).random((50, 3)) < 0.5).astype(np.int64)
    found = evaluate(model, {"x": x, "label": y}, batch_size=16, **CPU)
    expected = F.binary_cross_entropy_with_logits(model(torch.tensor(x)), torch.tensor(y).float())
    assert found["loss"] == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("kind", [np.int64, np.float32, bool])
def test_one_hot_targets_need_a_named_loss(tmp_path, kind):
    model, x, classes = network(tmp_path, **FLOATS), points(), np.arange(50) % 3
    data = {"x": x, "label": np.eye(3)[classes].astype(kind)}
    with pytest.raises(OnnxgenError, match="one class of 3, or 3 yes/no labels"):
        evaluate(model, data, **CPU)
    found = evaluate(model, data, loss="cross_entropy", batch_size=16, **CPU)
    expected = F.cross_entropy(model(torch.tensor(x)), torch.tensor(classes))
    assert found["loss"] == pytest.approx(float(expected), rel=1e-6)


def test_classes_counted_from_one_are_refused(tmp_path):
    model, y = network(tmp_path, **FLOATS), np.arange(50) % 3
    with pytest.raises(OnnxgenError, match=r"classes 1 to 3.*count the classes from 0"):
        evaluate(model, {"x": points(), "label": y + 1}, **CPU)


def test_a_loss_without_a_target_is_refused(tmp_path):
    model = network(tmp_path, **FLOATS)
    with pytest.raises(OnnxgenError, match="no output 'score'"):
        evaluate(model, {"x": points(), "y": np.arange(50) % 3}, loss={"score": "mse"}, **CPU)


def test_settings_take_text_for_paths_and_lists():
    settings = Settings(out="runs/x", weights="w.safetensors", freeze="layer1.*", imports=["a", "b"])
    assert settings.out == Path("runs/x") and settings.weights == Path("w.safetensors")
    assert settings.freeze == ("layer1.*",) and settings.imports == ("a", "b")


def test_a_file_is_evaluated_with_the_given_weights(tmp_path):
    model, data = network(tmp_path, **FLOATS), {"x": points(), "label": np.arange(50) % 3}
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / "zeros.safetensors")
    named = {"weights": tmp_path / "zeros.safetensors", **CPU}
    assert evaluate(tmp_path / "small.py", data, **named)["loss"] == pytest.approx(np.log(3), rel=1e-6)
    assert not predict(tmp_path / "small.py", {"x": data["x"]}, **named).any()
    with pytest.raises(OnnxgenError, match="given as a file"):
        evaluate(model, data, **named)


def test_predictions_are_in_the_data_order_and_do_not_change_the_model(tmp_path):
    model, x = network(tmp_path, **FLOATS).train(), torch.tensor(points())
    found = predict(model, {"x": x}, batch_size=16, **CPU)
    assert torch.equal(found, torch.cat([model(part) for part in x.split(16)]).detach())
    assert model.training and all(p.requires_grad for p in model.parameters())


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = torch.nn.GRU(5, 4, batch_first=True)

    def forward(self, x):
        steps, last = self.gru(x)
        return steps[:, -1], last


def test_predictions_are_joined_along_the_batch_axis(tmp_path):
    names = {"input_names": ["x"], "output_names": ["y", "last"]}
    axes = {"x": {0: "n"}, "y": {0: "n"}, "last": {1: "n"}}
    x, file = torch.randn(32, 3, 5, generator=torch.Generator().manual_seed(0)), tmp_path / "gru.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Recurrent().eval(), (x,), file, dynamo=False, dynamic_axes=axes, **names)
    generate(file, tmp_path / "gru.py")
    model = open_model(tmp_path / "gru.py").eval()
    for count in (32, 30):
        found = predict(model, {"x": x[:count]}, batch_size=16, **CPU)
        for made, expected in zip(found, model(x[:count]), strict=True):
            torch.testing.assert_close(made, expected.detach())


def test_predictions_with_a_fixed_batch_size(tmp_path):
    model = network(tmp_path, x=("float32", [8, 5]))
    with pytest.raises(OnnxgenError, match="batches of 8 only, but the data has 50"):
        predict(model, {"x": points(50)}, batch_size=8, **CPU)
    assert len(predict(model, {"x": points(48)}, batch_size=8, **CPU)) == 48


def pictures(folder, count=12):
    rng = np.random.default_rng(0)
    for index in range(count):
        path = folder / f"class{index % 2}" / f"{index:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 120, (4, 4, 3), dtype=np.uint8)).save(path)
    return folder


def test_other_images_are_normalised_as_in_training(tmp_path):
    model = network(tmp_path, classes=2, **IMAGES)
    folder = pictures(tmp_path / "all")
    one = folder / "class0" / "00.png"
    with pytest.warns(UserWarning, match="their own mean and deviation"):
        predict(model, folder, **CPU)
    fit(model, folder, epochs=1, val=0.0, out=tmp_path / "run", show="nothing", **CPU)
    (tmp_path / "one").mkdir()
    one.rename(tmp_path / "one" / one.name)
    pixels = torch.tensor(np.array(Image.open(tmp_path / "one" / one.name))).permute(2, 0, 1)[None] / 255
    settings = prepare(model, folder, Settings(val=0.0, device="cpu")).settings
    mean, std = (
        torch.tensor([float(n) for n in part.split("/")]).view(1, 3, 1, 1) for part in settings.normalize.split(",")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = predict(model, tmp_path / "one", **CPU)
    torch.testing.assert_close(found, model.eval()((pixels - mean) / std).detach())


def test_predict_refuses_unreadable_samples(tmp_path):
    model, folder = network(tmp_path, classes=2, **IMAGES), pictures(tmp_path / "all")
    (folder / "class0" / "01.png").write_bytes(b"no image")
    with pytest.raises(OnnxgenError, match=r"class0/01\.png"):
        predict(model, folder, normalize="0,1", **CPU)


def test_evaluation_does_not_augment(tmp_path):
    model, folder = network(tmp_path, classes=2, **IMAGES), pictures(tmp_path / "all")
    plain, drawn = (evaluate(model, folder, normalize="0,1", augment=how, **CPU) for how in ("none", "noise"))
    assert plain == drawn


def test_a_module_that_was_generated_again_is_imported_again(tmp_path):
    assert predict(network(tmp_path, classes=3, **FLOATS), {"x": points()}, **CPU).shape == (50, 3)
    assert predict(network(tmp_path, classes=4, **FLOATS), {"x": points()}, **CPU).shape == (50, 4)


def test_images_of_each_input_have_their_own_normalisation(tmp_path):
    """The run's configuration file has the normalisation, for other data, another run, and the same model."""
    from onnxgen.training.config import read_config

    random = np.random.default_rng(0)
    left, right = (random.integers(0, high, (40, 4, 4, 3), dtype=np.uint8) for high in (40, 256))
    depth = random.normal(size=(40, 3, 4, 4)).astype(np.float32)
    data = {"left": left, "right": right, "depth": depth, "label": np.arange(40) % 3}
    model = network(tmp_path, **{name: ("float32", ["n", 3, 4, 4]) for name in ("left", "right", "depth")})
    fresh = copy.deepcopy(model)
    fit(model, data, epochs=1, val=0.0, out=tmp_path / "run", show="nothing", **CPU)
    found = read_config(tmp_path / "run" / "config.toml")["normalize"]
    scales = {name: how.split(",") for name, how in (part.split("=") for part in found.split(";"))}
    for name, images in (("left", left), ("right", right)):
        for said, axis in zip(scales[name], (images.mean((0, 1, 2)), images.std((0, 1, 2))), strict=True):
            np.testing.assert_allclose([float(n) for n in said.split("/")], axis / 255, atol=1e-4)
    assert list(scales) == ["left", "right"], "and what is no image is fed as it is"

    other = {**data, "left": left[::-1] // 2, "right": right[::-1] // 3}
    by_hand = {"depth": torch.tensor(depth)}
    for name in ("left", "right"):
        mean, std = (torch.tensor([float(n) for n in s.split("/")]).view(3, 1, 1) for s in scales[name])
        by_hand[name] = (torch.tensor(other[name].copy()).permute(0, 3, 1, 2) / 255 - mean) / std
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(predict(model, other, **CPU), model(**by_hand))
        torch.testing.assert_close(predict(fresh, other, normalize=found, **CPU), fresh(**by_hand))
    with pytest.raises(OnnxgenError, match="the model has no input 'middle' -> there are left, right, depth"):
        predict(fresh, other, normalize="middle=0,1", **CPU)


def test_a_scale_is_written_with_all_its_digits(tmp_path):
    data = {"image": np.zeros((4, 4, 4, 3), np.uint8), "label": np.arange(4) % 3}
    plan = prepare(network(tmp_path, **IMAGES), data, Settings(normalize="0.13071234567,0.3", val=0.0, device="cpu"))
    assert plan.settings.normalize == ",".join(["/".join(["0.13071234567"] * 3), "/".join(["0.3"] * 3)])


@pytest.mark.parametrize("labels", [[0, 1, 2, 1], [0.0, 1.0, 0.5, -0.5]])
@pytest.mark.parametrize("loss", ["auto", "bce"])
def test_targets_of_a_binary_loss_are_from_0_to_1(labels: list[float], loss: str, tmp_path: Path) -> None:
    """In any part: torch fails on them in the middle of an epoch."""
    network, y = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Sigmoid()), torch.tensor(labels)
    good, bad = (torch.rand(4, 3), y.clamp(0, 1)), (torch.rand(4, 3), y)
    message = (
        "^binary_cross_entropy needs targets from 0 to 1, but column 'target' has (2|-0.5) -> give the model an output"
    )
    with pytest.raises(OnnxgenError, match=message):
        fit(network, {"train": good, "val": bad}, loss=loss, device="cpu", show="nothing", out=tmp_path / "run")
    with pytest.raises(OnnxgenError, match=message):
        evaluate(network, bad, loss=loss, device="cpu", workers=0)
    assert evaluate(network, good, loss=loss, device="cpu", workers=0)["loss"] > 0
