"""Images are converted for the model's input; compared with PIL and hand-written numpy."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.folder import open_images
from onnxgen.training.data.image_options import RECIPES
from onnxgen.training.data.samples import Data
from onnxgen.training.loader import Loader
from tests.training.small import network

RNG = np.random.default_rng(0)
RAW = Settings(val=0, normalize="none", batch_size=1)
Model = Callable[..., nn.Module]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a model with one input of these dims; each is made once."""

    @cache
    def of(*dims: int | str, dtype: str = "float32") -> nn.Module:
        return network(tmp_path_factory.mktemp("image"), image=(dtype, ("batch", *dims)))

    return of


def fed(spec: Any, network: nn.Module, settings: Settings = RAW) -> torch.Tensor:
    """Return everything that the training part feeds to the model."""
    data = open_data(spec, network, settings)
    check(network, data, feed(data, network, settings), settings)
    assert data.train is not None
    name = feed(data, network, settings).inputs[0]
    found = data.train.take(range(len(data.train)), 0)[name]
    assert data.train.fields[name].shape == tuple(found.shape[1:]) and data.train.fields[name].dtype == found.dtype
    return found


def pixels(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, shape, np.uint8)


def labelled(images: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return images, np.arange(len(images)) % 3


@pytest.mark.parametrize(
    "stored, dims, expected",
    [
        ((2, 6, 5), (1, 6, 5), lambda x: x[:, None]),
        ((2, 6, 5), (6, 5), lambda x: x),
        ((2, 6, 5), (30,), lambda x: x.reshape(2, 30)),
        ((2, 6, 5), (6, 5, 1), lambda x: x[..., None]),
        ((2, 6, 5, 3), (3, 6, 5), lambda x: x.transpose(0, 3, 1, 2)),
        ((2, 6, 5, 3), (6, 5, 3), lambda x: x),
        ((2, 3, 6, 5), (3, 6, 5), lambda x: x),
        ((2, 3, 6, 5), (6, 5, 3), lambda x: x.transpose(0, 2, 3, 1)),
        ((2, 3, 6, 5), (90,), lambda x: x.reshape(2, 90)),
        ((2, 3, 6, 5), (3, "h", "w"), lambda x: x),
        ((2, 3, 6, 5), ("c", "h", "w"), lambda x: x),
        ((2, 6, 5), (3, 6, 5), lambda x: np.repeat(x[:, None], 3, 1)),
        ((2, 6, 5, 4), (3, 6, 5), lambda x: x[..., :3].transpose(0, 3, 1, 2)),
        ((2, 3, 6, 5), (4, 6, 5), lambda x: np.concatenate([x, np.full_like(x[:, :1], 255)], 1)),
        ((2, 3, 6, 5), (1, 6, 5), lambda x: (x * np.array([0.299, 0.587, 0.114])[:, None, None]).sum(1)[:, None]),
    ],
)
def test_channels_and_axes(stored: tuple[int, ...], dims: tuple[Any, ...], expected: Any, model: Model) -> None:
    x = pixels(*stored)
    found = fed(labelled(x), model(*dims))
    np.testing.assert_allclose(found.numpy(), expected(x.astype(np.float32)), rtol=1e-6)


@pytest.mark.parametrize("size", [(40, 30), (10, 12), (16, 24)])
def test_arrays_are_resized_as_pil_does(size: tuple[int, int], model: Model) -> None:
    x = pixels(2, *size, 3)
    found = fed(labelled(x), model(3, 16, 24))
    for image, made in zip(x, found.numpy()):
        for channel in range(3):
            by_pil = Image.fromarray(image[..., channel].astype(np.float32)).resize((24, 16), Image.Resampling.BILINEAR)
            np.testing.assert_allclose(made[channel], np.asarray(by_pil), atol=0.02)


def test_gray_images_for_a_flat_input_are_made_square(model: Model) -> None:
    x = pixels(2, 8, 8)
    assert torch.equal(fed(labelled(x), model(784)), fed(labelled(x), model(1, 28, 28)).reshape(2, 784))


def test_a_uint8_input_gets_uint8(model: Model) -> None:
    x = pixels(2, 6, 5, 3)
    found = fed(labelled(x), model(6, 5, 3, dtype="uint8"), Settings(val=0, batch_size=1))
    assert found.dtype == torch.uint8 and np.array_equal(found.numpy(), x)


def test_float16_and_float64_inputs(model: Model) -> None:
    x = pixels(2, 6, 5)
    assert fed(labelled(x), model(1, 6, 5, dtype="float64")).dtype == torch.float64
    assert fed(labelled(x), model(1, 6, 5, dtype="float16")).dtype == torch.float16


# ---- files -----------------------------------------------------------------------------------------------------------


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options: Any) -> Path:
    for label in ("cat", "owl"):
        (folder / label).mkdir(parents=True, exist_ok=True)
    Image.new("L", image.size).save(folder / "cat" / "b.png")
    image.save(folder / "owl" / name, **options)
    return folder


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK", "1", "P"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_files_of_all_modes(mode: str, channels: int, model: Model, tmp_path: Path) -> None:
    image = Image.fromarray(pixels(9, 7, 3)).convert(mode)
    name = "a.tif" if mode == "CMYK" else "a.png"
    found = fed(saved(tmp_path, image, name), model(channels, 6, 5))[1]
    with Image.open(tmp_path / "owl" / name) as read:
        wanted = read.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]).resize((5, 6), Image.Resampling.BILINEAR)
    expected = np.asarray(wanted, dtype=np.float32).reshape(6, 5, channels).transpose(2, 0, 1)
    assert np.array_equal(found.numpy(), expected)


def test_16_bit_images_are_scaled(model: Model, tmp_path: Path) -> None:
    deep = (pixels(6, 5).astype(np.uint16)) * 257
    found = fed(saved(tmp_path, Image.fromarray(deep)), model(1, 6, 5))[1, 0]
    assert np.array_equal(found.numpy(), (deep / 257).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_numbers_of_32_bits_have_no_known_range(tmp_path: Path, dtype: type[np.generic]) -> None:
    wide = Image.fromarray((pixels(6, 5).astype(np.float64) * 2**20).astype(dtype))
    with pytest.raises(OnnxgenError, match="the range of numbers of 32 bits is unknown; save it with 8 or 16 bits"):
        open_images([saved(tmp_path, wide, "a.tif") / "owl" / "a.tif"])


def test_exif_orientation_is_applied(model: Model, tmp_path: Path) -> None:
    x = pixels(5, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    folder = saved(tmp_path, Image.fromarray(x), exif=exif)
    found = fed(folder, model(1, 6, 5))[1, 0]
    assert np.array_equal(found.numpy(), np.rot90(x, -1).astype(np.float32))


def test_the_size_of_the_files_is_kept_for_an_input_of_any_size(model: Model, tmp_path: Path) -> None:
    assert fed(saved(tmp_path, Image.fromarray(pixels(9, 7))), model(3, "h", "w")).shape == (2, 3, 9, 7)


# ---- scale -----------------------------------------------------------------------------------------------------------


def test_normalisation_by_the_training_part(model: Model) -> None:
    x = np.concatenate([pixels(8, 6, 5, 3) // 2, np.zeros((2, 6, 5, 3), np.uint8)])
    settings = Settings(val=0.2, batch_size=1)
    data = open_data((x, np.zeros(10)), model(3, 6, 5), settings)
    raw = open_data((x, np.zeros(10)), model(3, 6, 5), Settings(val=0.2, normalize="none"))
    assert data.train is not None and raw.train is not None and data.val is not None and raw.val is not None
    seen = raw.train.take(range(8), 0)["0"].numpy() / 255
    mean, std = seen.mean((0, 2, 3)).round(4), seen.std((0, 2, 3)).round(4)
    assert [[float(n) for n in part.split("/")] for part in data.normalize.split(",")] == [
        pytest.approx(mean, abs=2e-4),
        pytest.approx(std, abs=2e-4),
    ]
    for part, unscaled in ((data.train, raw.train), (data.val, raw.val)):
        values = unscaled.take(range(2), 0)["0"].numpy() / 255
        expected = (values - mean[:, None, None]) / std[:, None, None]
        np.testing.assert_allclose(part.take(range(2), 0)["0"].numpy(), expected, atol=2e-3)
    assert any(f"mean and deviation of the train part, {data.normalize}" in note for note in data.notes)
    again = open_data((x, np.zeros(10)), model(3, 6, 5), Settings(val=0.2, normalize=data.normalize))
    assert again.train is not None
    assert torch.equal(again.train.take([0], 0)["0"], data.train.take([0], 0)["0"]), "what is noted can be said"


@pytest.mark.parametrize("text, mean, std", [("0,1", 0, 1), ("0.5/0.5/0.5,0.25/0.25/0.25", 0.5, 0.25)])
def test_normalisation_as_given(text: str, mean: float, std: float, model: Model) -> None:
    x = pixels(2, 3, 6, 5)
    found = fed(labelled(x), model(3, 6, 5), Settings(val=0, normalize=text, batch_size=1))
    np.testing.assert_allclose(found.numpy(), (x.astype(np.float32) / 255 - mean) / std, atol=1e-6)


def test_images_of_one_value_are_not_divided_by_zero(model: Model) -> None:
    x = np.full((3, 6, 5), 7, np.uint8)
    assert fed((x, np.zeros(3)), model(1, 6, 5), Settings(val=0, batch_size=1)).abs().max() < 1e-3


def test_floating_point_arrays_are_not_normalised_by_default(model: Model) -> None:
    x = RNG.normal(size=(2, 3, 6, 5))
    found = fed(labelled(x), model(3, 6, 5), Settings(val=0, batch_size=1))
    assert np.array_equal(found.numpy(), x.astype(np.float32))
    turned = fed(labelled(x.transpose(0, 2, 3, 1)), model(3, 6, 5), Settings(val=0, batch_size=1))
    assert torch.equal(turned, found), "axes are no values"
    said = fed(labelled(x), model(3, 6, 5), Settings(val=0, normalize="0.5,2", batch_size=1))
    np.testing.assert_allclose(said.numpy(), (x - 0.5) / 2, atol=1e-6)


def test_bytes_that_are_not_images_are_noted(model: Model) -> None:
    x = pixels(4, 30)
    data = open_data(labelled(x), model(30), Settings(val=0))
    assert data.train is not None and data.train.take([2], 0)["0"].tolist() == [x[2].tolist()]
    assert "0 is fed as it is stored, from 0 to 255: images would be [n, height, width]" in data.notes


# ---- augmentation ----------------------------------------------------------------------------------------------------


def augmented(names: str, network: nn.Module, x: np.ndarray[Any, Any] | None = None) -> Data:
    images = pixels(12, 20, 16, 3) if x is None else x
    return open_data((images, np.zeros(len(images))), network, Settings(val=0, normalize="none", augment=names))


@pytest.mark.parametrize("names", [*RECIPES, ",".join(RECIPES), "auto"])
def test_augmentation_depends_only_on_seed_and_sample(names: str, model: Model) -> None:
    data = augmented(names, model(3, 16, 16))
    assert data.train is not None
    whole = data.train.take(range(12), 7)["0"]
    for batch in ([3], [5, 3, 11], list(range(11, -1, -1)), [3, 3]):
        assert torch.equal(data.train.take(batch, 7)["0"], whole[batch])
    other = pickle.loads(pickle.dumps(data.train))
    torch.manual_seed(5)
    assert torch.equal(other.take(range(12), 7)["0"], whole)
    assert not torch.equal(data.train.take(range(12), 8)["0"], whole)
    assert whole.shape == (12, 3, 16, 16) and whole.min() >= 0 and whole.max() <= 255


def test_a_large_image_is_augmented_the_same_in_any_batch(model: Model) -> None:
    """A sum over a whole image could be split among threads if the batch is one image."""
    data = augmented(",".join(RECIPES), model(3, 224, 224), pixels(3, 224, 224, 3))
    assert data.train is not None
    assert torch.equal(data.train.take([1], 7)["0"][0], data.train.take([0, 1, 2], 7)["0"][1])


def test_half_of_the_images_are_mirrored(model: Model) -> None:
    x = pixels(200, 5, 6, 1)
    for name, axis in (("flip", 2), ("vflip", 1)):
        samples = augmented(name, model(5, 6, 1), x).train
        assert samples is not None
        found, mirrored = samples.take(range(200), 1)["0"].numpy(), np.flip(x, axis)
        turned = [np.allclose(a, b, atol=0.01) for a, b in zip(found, mirrored)]
        same = [np.allclose(a, b, atol=0.01) for a, b in zip(found, x)]
        assert all(t or s for t, s in zip(turned, same)) and 70 < sum(turned) < 130


def test_the_sizes_of_shifts_and_rotations(model: Model) -> None:
    x = np.zeros((300, 41, 41), np.uint8)
    x[:, 20, 30] = 255  # ten pixels right of the middle
    rows, columns = np.mgrid[:41, :41]

    def places(name: str) -> np.ndarray[Any, Any]:
        samples = augmented(name, model(1, 41, 41), x).train
        assert samples is not None
        found = samples.take(range(300), 3)["0"].squeeze(1).numpy()
        weight = found.sum((1, 2))
        return np.stack([(found * rows).sum((1, 2)) / weight - 20, (found * columns).sum((1, 2)) / weight - 20])

    down, right = places("shift")
    assert np.abs(down).max() < 4.2 and np.abs(right - 10).max() < 4.2 and np.abs(down).max() > 3.5
    down, right = places("rotate")
    angles = np.degrees(np.arctan2(down, right))
    assert 9 < np.abs(angles).max() < 12 and np.allclose(np.hypot(down, right), 10, atol=0.6)
    assert abs(angles.mean()) < 1.5


def test_measuring_and_validation_do_not_augment(model: Model) -> None:
    x = (pixels(40, 6, 5), np.zeros(40))
    plain = open_data(x, model(1, 6, 5), Settings(val=0.5))
    noisy = open_data(x, model(1, 6, 5), Settings(val=0.5, augment="noise"))
    assert plain.normalize == noisy.normalize
    assert plain.val is not None and noisy.val is not None and noisy.train is not None and plain.train is not None
    assert torch.equal(plain.val.take(range(20), 0)["0"], noisy.val.take(range(20), 0)["0"])
    assert not torch.equal(plain.train.take(range(20), 0)["0"], noisy.train.take(range(20), 0)["0"])


def test_prediction_does_not_augment(model: Model) -> None:
    data = open_data(pixels(4, 6, 5), model(1, 6, 5), Settings(augment="noise"), targets=False)
    assert data.train is not None
    assert torch.equal(data.train.take(range(4), 0)["0"], data.train.take(range(4), 1)["0"])


def test_automatic_augmentation_does_not_mirror_characters(model: Model) -> None:
    data = open_data("digits", model(1, 28, 28), Settings(augment="auto"))
    assert "augmented with rotate, shift; not mirrored, since these are characters" in data.notes
    photos = augmented("auto", model(3, 16, 16))
    assert "augmented with flip, crop, light" in photos.notes
    numbers = open_data(labelled(RNG.normal(size=(9, 7))), model(7), Settings(augment="auto"))
    assert "not augmented: the data has no images" in numbers.notes


def test_noise_is_normally_distributed(model: Model) -> None:
    samples = augmented("noise", model(1, 40, 40), np.full((50, 40, 40), 128, np.uint8)).train
    assert samples is not None
    noise = (samples.take(range(50), 0)["0"] - 128).flatten().double()
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 0.02 * 255) < 0.05
    assert abs((noise.abs() < 0.02 * 255).double().mean() - 0.6827) < 0.005, "as many within one deviation as there are"


@pytest.mark.parametrize("kind", ["files", "dataset"])
def test_workers_prepare_the_same_batches(kind: str, model: Model, tmp_path: Path) -> None:
    """For augmented image files, and for a dataset that uses the global generators."""
    network, settings = model(3, 16, 16), Settings(val=0, augment="crop,flip,noise", batch_size=3)
    if kind == "files":
        for i, label in enumerate(("cat", "owl") * 4):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.fromarray(pixels(20, 18, 3)).save(tmp_path / label / f"{i}.png")
    spec: Any = tmp_path if kind == "files" else Drawn()
    samples = open_data(spec, network, settings).train
    assert samples is not None and not getattr(samples, "in_memory", False)
    name = next(iter(samples.fields))
    alone, shared = (
        [batch[name] for batch in Loader(samples, 3, shuffle=True, seed=5, workers=workers)] for workers in (0, 2)
    )
    assert len(alone) == 3 and all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        noise = np.random.randint(0, 9, (16, 16, 3)) + torch.randint(0, 9, (1,)).item() + random.randrange(9)
        return (noise * (index + 1)).astype(np.uint8), index % 3
