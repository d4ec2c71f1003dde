"""`--task image-to-image`: pairs of images, clean images with drawn noise, larger targets, maps of numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, fit, load
from onnxgen.training.data import open_data
from onnxgen.training.data.image_pairs import open_pairs
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.samples import Feeding
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.goal import Goal
from onnxgen.training.goals.images import Images
from onnxgen.training.prepare import objectives_of
from onnxgen.training.tasks import with_task

SIDE = 16
QUIET: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1, "batch_size": 4}
RNG = np.random.default_rng(0)


def pictures(count: int, side: int = SIDE, channels: int = 1) -> np.ndarray[Any, Any]:
    """Return bytes [count, side, side] or [count, side, side, channels]: blocks of 4 pixels."""
    small = RNG.integers(0, 256, (count, side // 4, side // 4, channels), dtype=np.uint8)
    made = small.repeat(4, 1).repeat(4, 2)
    return made[..., 0] if channels == 1 else made


class Net(nn.Module):
    """image [n, C, H, W] to an image, `factor` times larger, after `last`."""

    def __init__(self, factor: int = 1, last: Callable[[Tensor], Tensor] = lambda x: x, ins: int = 1, outs: int = 1):
        super().__init__()
        self.conv, self.factor, self.last = nn.Conv2d(ins, outs * factor**2, 3, padding=1), factor, last

    def forward(self, image: Tensor) -> Tensor:
        return self.last(F.pixel_shuffle(self.conv(image), self.factor))


# ---- losses and metrics ----------------------------------------------------------------------------------------------

A, B = torch.rand(3, 2, 16, 20, generator=torch.Generator().manual_seed(1)), torch.rand(3, 2, 16, 20)


@pytest.mark.parametrize("name", ["l1", "mse", "smooth_l1", "huber"])
@pytest.mark.parametrize("axes", ["CHW", "HWC"])
def test_losses_are_torchs_in_the_range_of_the_output(name: str, axes: str) -> None:
    order = (0, 1, 2, 3) if axes == "CHW" else (0, 2, 3, 1)
    scale = (0.5, 0.25), (0.5, 0.1)
    goal = Images(0, "y", "t", axes, scale, name)
    wanted = torch.stack([(B[:, c] - scale[0][c]) / scale[1][c] for c in (0, 1)], 1)
    loss, weight, _ = goal.compute((A.permute(order),), {"t": B.permute(order)}, True)
    measure = getattr(
        F, {"l1": "l1_loss", "mse": "mse_loss", "smooth_l1": "smooth_l1_loss", "huber": "huber_loss"}[name]
    )
    torch.testing.assert_close(loss, measure(A, wanted))
    assert int(weight) == 3


def by_hand(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> float:
    """Return the structural similarity of two images (Wang et al. 2004); at the edges they are mirrored."""

    def window(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return gaussian_filter(x, 1.5, truncate=3.5, mode="mirror")

    m1, m2 = window(one), window(two)
    v1, v2, both = window(one**2) - m1**2, window(two**2) - m2**2, window(one * two) - m1 * m2
    c1, c2 = 0.01**2, 0.03**2
    return float(np.mean((2 * m1 * m2 + c1) * (2 * both + c2) / ((m1**2 + m2**2 + c1) * (v1 + v2 + c2))))


@pytest.mark.parametrize("axes", ["CHW", "HWC", "HW"])
def test_psnr_and_ssim_are_the_published_formulas_in_mean_over_images(axes: str) -> None:
    order = {"CHW": (0, 1, 2, 3), "HWC": (0, 2, 3, 1)}.get(axes)
    made, target = (A, B) if order else (A[:, 0], B[:, 0])
    scale = ((0.5,) * 2, (0.5,) * 2) if order else ((0.5,), (0.5,))
    scores = Images(0, "y", "t", axes, scale).scores()
    stored = (x.permute(order) if order else x for x in (made, target))
    output, wanted = stored
    for part in (slice(0, 1), slice(1, 3)):
        scores.update((output[part] * 2 - 1,), {"t": wanted[part]})  # the output goes from -1 to 1
    found = scores.compute(torch.device("cpu"))
    each = [-10 * np.log10(np.mean((a - b) ** 2)) for a, b in zip(made.double().numpy(), target.double().numpy())]
    assert found["psnr"] == pytest.approx(np.mean(each), rel=1e-5)
    planes = zip(made.reshape(-1, 16, 20).double().numpy(), target.reshape(-1, 16, 20).double().numpy())
    assert found["ssim"] == pytest.approx(np.mean([by_hand(a, b) for a, b in planes]), rel=1e-4, abs=1e-6)


def test_numbers_are_measured_as_they_are() -> None:
    goal = Images(0, "y", "t", "CHW", None)
    scores = goal.scores()
    scores.update((A * 50,), {"t": B * 50})
    found = scores.compute(torch.device("cpu"))
    assert goal.monitor == "mean_absolute_error"
    assert found["mean_absolute_error"] == pytest.approx(50 * (A - B).abs().mean().item(), rel=1e-5)
    assert found["root_mean_squared_error"] == pytest.approx(50 * (A - B).square().mean().sqrt().item(), rel=1e-5)


def goal_of(model: nn.Module, data: Any, **settings: Any) -> tuple[Images, Any]:
    given = Settings(**{"val": 0.0, "task": "image-to-image", **settings})
    opened = open_data(data, model, given)
    assert opened.train is not None
    feeding = Feeding(("image",), {}, ("target",))
    (goal,) = objectives_of(model, opened.train, feeding, with_task(given, opened))
    assert isinstance(goal, Goal) and isinstance(goal, Images)
    return goal, opened


ENDS: list[tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = [
    (torch.tanh, (-1, 1)),
    (torch.sigmoid, (0, 1)),
    (lambda x: x.clamp(0, 255), (0, 255)),
    (lambda x: x.clamp(-1, 1).flatten(1).reshape(len(x), 1, SIDE, SIDE), (-1, 1)),
    (lambda x: F.hardtanh(x, 0, 1), (0, 1)),
    (lambda x: x, (0, 1)),  # as the input
    (lambda x: x.clamp(-3, 3), (0, 1)),
]


@pytest.mark.parametrize("last, bounds", ENDS)
def test_the_target_gets_the_range_of_the_output(last: Callable[[Tensor], Tensor], bounds: tuple[int, int]) -> None:
    images = pictures(4)
    images[0, 0, 0], images[0, 0, 1] = 0, 255
    data = {"image": images, "target": images}
    goal, opened = goal_of(Net(last=last), data)
    batch = opened.train.take(range(4), 0)
    mean, deviation = goal.scale or ((), ())
    wanted = (batch["target"] - mean[0]) / deviation[0]
    assert (wanted.min().item(), wanted.max().item()) == pytest.approx(bounds)
    torch.testing.assert_close(batch["image"][:, 0], torch.from_numpy(images) / 255)
    loss = goal.mean_loss((wanted,), batch, True)
    assert loss.item() == pytest.approx(0, abs=1e-5) and "from" in goal.said[0] or "like the input" in goal.said[0]


def test_a_scale_of_the_input_counts_for_an_output_without_bounds() -> None:
    data = {"image": pictures(4), "target": pictures(4)}
    assert goal_of(Net(), data, normalize="0.5,0.25")[0].scale == ((0.5,), (0.25,))
    assert goal_of(Net(), data, normalize="none")[0].scale == ((0.0,), (1 / 255,))
    colours = {"image": pictures(4, channels=3), "target": pictures(4)}
    assert goal_of(Net(ins=3), colours, normalize="0.5,0.25")[0].scale == ((0.5,), (0.25,))
    with pytest.raises(OnnxgenError, match="the range of output output0 is open"):
        goal_of(Net(ins=3), colours, normalize="0.5/0.4/0.3,0.25/0.25/0.25")


# ---- data ------------------------------------------------------------------------------------------------------------


def write(folder: Path, images: np.ndarray[Any, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:03}.png")


@pytest.mark.parametrize("names", [("input", "target"), ("noisy", "clean"), ("lr", "hr")])
def test_two_folders_of_equal_names_are_pairs(names: tuple[str, str], tmp_path: Path) -> None:
    inputs, targets = pictures(5), pictures(5, 2 * SIDE)
    for part, which in (("train", slice(0, 3)), ("val", slice(3, 5))):
        write(tmp_path / part / names[0], inputs[which])
        write(tmp_path / part / names[1], targets[which])
    source = open_source(tmp_path, Settings())
    assert isinstance(source, DataSource) and source.task == "image-to-image" and source.enlarged == 2
    goal, opened = goal_of(Net(2), tmp_path, task="auto", val=0.1)
    batch = opened.val.take([0, 1], 0)
    torch.testing.assert_close(batch["image"][:, 0], torch.from_numpy(inputs[3:]) / 255)
    torch.testing.assert_close(batch["target"][:, 0], torch.from_numpy(targets[3:]) / 255)
    assert any("have pairs of images: trained with --task image-to-image" in note for note in opened.notes)
    other = open_source(tmp_path, Settings(task="outputs"))
    assert isinstance(other, DataSource) and other.target == "label"  # folders of classes
    assert goal.scale == ((0.0,), (1.0,))


def test_each_fault_of_pairs_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "input", pictures(7))
    write(tmp_path / "target", pictures(7))
    (tmp_path / "target/000.png").unlink()
    (tmp_path / "input/001.png").unlink()
    (tmp_path / "target/002.png").write_bytes(b"no image")
    Image.fromarray(pictures(1, 2 * SIDE)[0]).save(tmp_path / "target/003.png")
    Image.fromarray(np.zeros((SIDE, SIDE), np.uint16)).save(tmp_path / "target/004.png")
    found = open_pairs(tmp_path, strict=False)
    (note,) = [note for note in found.notes if "faults" in note]
    assert len(found.parts["train"]) == 2
    for says in (
        "5 faults in ",
        "target/001.png: the target has no image in input",
        "input/000.png: the image has no target",
        "target/002.png: can't be read",
        "target/003.png: the target is 32x32, which is not the size of 003.png, 16x16",
        "target/004.png: it has 16 bits, of which 8 would be left; save its numbers as .npz",
    ):
        assert says in note, note
    with pytest.raises(OnnxgenError, match="5 faults"):
        open_pairs(tmp_path, strict=True)


@pytest.mark.parametrize(
    "data, settings, says",
    [
        ({"target": np.zeros((4, 24, 24), np.uint8)}, {}, "has images 24x24, and 'image' 16x16 -> a target"),
        ({"target": np.zeros((4, 5), np.float32)}, {}, r"has float32 \[5\] for each sample, which is no image"),
        ({"target": np.zeros((4, 16, 16), np.int64)}, {}, r"has int64 \[16, 16\] for each sample, which is no image"),
        ({"target": pictures(4, 32)}, {}, r"needs an output like column 'target', \[2, 1, 32, 32\]"),
        ({"target": np.zeros((4, 2, 16, 16), np.float32)}, {}, r"like column 'target', \[2, 2, 16, 16\]"),
        ({"target": pictures(4)}, {"augment": "flip,light"}, "light changes the input, but not the image"),
        ({"target": pictures(4)}, {"loss": "ce"}, "no loss of --task image-to-image is called 'ce'"),
        ({"target": pictures(4)}, {"noise": 0.1}, "--noise is for clean images alone, but data has a target"),
        ({"label": np.arange(4)}, {"noise": 0.1, "task": "outputs"}, "--noise does not go with --task outputs"),
        ({"target": pictures(4)}, {"label_smoothing": 0.1}, "--label-smoothing does not go with --task image-to-image"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(data: dict[str, Any], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(OnnxgenError, match=says):
        goal_of(Net(), {"image": pictures(4), **data}, **settings)


def test_moves_of_the_image_move_the_target() -> None:
    images = pictures(6)
    data = {"image": images, "target": images.repeat(2, 1).repeat(2, 2)}
    for augment in ("flip", "vflip", "shift,rotate,crop", "auto"):
        _, opened = goal_of(Net(2), data, augment=augment)
        batch = opened.train.take(range(6), 5)
        plain = torch.from_numpy(images)[:, None] / 255
        assert (batch["image"] - plain).abs().max() > 0.1
        smaller = F.avg_pool2d(batch["target"], 2)
        inner = (batch["image"] - smaller)[:, :, 2:-2, 2:-2].abs()  # interpolation differs at edges of blocks
        assert inner.mean() < (0.002 if augment[-4:] == "flip" else 0.06)
    _, opened = goal_of(Net(2), data, augment="noise")
    batch = opened.train.take(range(6), 5)
    torch.testing.assert_close(F.avg_pool2d(batch["target"], 2), plain)
    assert 0.005 < (batch["image"] - plain).abs().mean() < 0.03


def test_noise_is_drawn_anew_in_training_and_fixed_in_a_validation(tmp_path: Path) -> None:
    write(tmp_path / "clean", pictures(40))
    for data in (tmp_path / "clean", {"image": pictures(40), "label": np.arange(40)}):
        _, opened = goal_of(Net(), data, noise=0.2, task="auto", val=0.5)
        assert opened.task == "image-to-image"
        one, two = (opened.train.take(range(20), seed) for seed in (1, 2))
        assert torch.equal(one["target"], two["target"]) and not torch.equal(one["image"], two["image"])
        assert (one["image"] - one["target"]).std().item() == pytest.approx(0.2, rel=0.05)
        one, two = (opened.val.take(range(20), seed) for seed in (1, 2))
        assert torch.equal(one["image"], two["image"])
        assert (one["image"] - one["target"]).std().item() == pytest.approx(0.2, rel=0.05)


# ---- from a file to a prediction -------------------------------------------------------------------------------------


def module(network: nn.Module, folder: Path, ins: int = 1) -> Path:
    torch.manual_seed(0)
    torch.onnx.export(
        network.eval(), (torch.zeros(2, ins, SIDE, SIDE),), folder / "net.onnx", input_names=["image"],
        output_names=["made"], dynamic_axes={"image": {0: "batch"}, "made": {0: "batch"}}, opset_version=17,
        dynamo=False,
    )  # fmt: skip
    generate(folder / "net.onnx", folder / "net.py", force=True)
    return folder / "net.py"


def test_a_denoiser_is_trained_evaluated_and_asked(tmp_path: Path) -> None:
    write(tmp_path / "clean", pictures(24))
    path = module(Net(last=torch.sigmoid), tmp_path)
    result = fit(path, tmp_path / "clean", noise=0.1, val=0.25, out=tmp_path / "run", **QUIET)
    assert {"val_psnr", "val_ssim", "val_loss"} <= result.history[0].keys()
    learner = load(tmp_path / "run", device="cpu")
    assert learner.settings.task == "image-to-image" and learner.settings.noise == 0.1
    held = learner.evaluate()
    assert held["psnr"] == pytest.approx(result.history[0]["val_psnr"], rel=1e-5)  # the same noise
    assert "input, target, answer" not in (tmp_path / "run/report.html").read_text()  # it is in the picture
    assert "data:image/png" in (tmp_path / "run/report.html").read_text()
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "clean"), "-o", str(tmp_path / "made"), "-q"]) == 0
    for number in (0, 23):
        x = torch.from_numpy(np.asarray(Image.open(tmp_path / f"clean/{number:03}.png")))[None, None] / 255
        wanted = (learner.model(x)[0, 0].detach() * 255).round()
        made = np.asarray(Image.open(tmp_path / f"made/{number:03}.png"))
        np.testing.assert_allclose(made, wanted, atol=1)
    assert run(["predict", str(tmp_path / "run"), str(tmp_path / "clean"), "-o", str(tmp_path / "a.npz"), "-q"]) == 0
    assert np.load(tmp_path / "a.npz")["made"].shape == (24, SIDE, SIDE)


def test_larger_colour_images_of_a_network_that_says_what_it_is_for(tmp_path: Path) -> None:
    path = module(Net(2, ins=3, outs=3), tmp_path, 3)  # larger by PixelShuffle: the purpose is sure
    data = {"image": pictures(12, channels=3), "target": pictures(12, 2 * SIDE, 3)}
    result = fit(path, data, val=0.25, out=tmp_path / "run", **QUIET)
    assert "val_psnr" in result.history[0]
    (found,) = load(tmp_path / "run", device="cpu").predict({"image": data["image"][:1]})
    assert found.answer.is_image and found.answer.value.shape == (2 * SIDE, 2 * SIDE, 3)


def test_maps_of_numbers(tmp_path: Path) -> None:
    data = {"image": pictures(12), "target": (pictures(12) / 255 * 80).astype(np.float32)}
    model = Net()
    found = evaluate(model, data, task="image-to-image", loss="mse", device="cpu")
    with torch.inference_mode():
        made = model(torch.from_numpy(data["image"])[:, None] / 255)[:, 0]
    away = made - torch.from_numpy(data["target"])
    assert found["loss"] == pytest.approx(away.square().mean().item(), rel=1e-5)
    assert found["root_mean_squared_error"] == pytest.approx(away.square().mean().sqrt().item(), rel=1e-5)
    assert not re.search("psnr|ssim", " ".join(found))
