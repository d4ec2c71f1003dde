"""The order of colours that a network takes, and where an image lies in its frame: as its author fed it."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import load
from onnxgen.training.config import read_config
from onnxgen.training.data import feed, open_data
from onnxgen.training.data.letterbox import Placing
from onnxgen.training.data.presets import PRESETS
from onnxgen.training.goals.outputs import greedy, spelled
from onnxgen.training.model import open_model
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.runs.record import read_record
from onnxgen.training.settings import Settings
from tests.conftest import ROOT
from tests.training.shipping import entries, need_same, shipped, with_entry
from tests.training.shipping import network as exported
from tests.training.small import network

RNG = np.random.default_rng(0)
RAW = Settings(val=0, normalize="none", batch_size=1)
Model = Callable[..., nn.Module]
MEANS, DEVIATIONS = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
PAGE = ROOT / "docs" / "EXPORT.md"
GIVEN = "0.1/0.2/0.3,0.4/0.5/0.6"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a model with one input of these dims; each is made once."""

    @cache
    def of(*dims: int | str, dtype: str = "float32") -> nn.Module:
        return network(tmp_path_factory.mktemp("image"), image=(dtype, ("batch", *dims)))

    return of


def pixels(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, shape, np.uint8)


def folders(folder: Path, size: tuple[int, int] = (6, 5), gray: bool = False) -> Path:
    """Two classes of two images."""
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for n in range(2):
            Image.fromarray(pixels(*size) if gray else pixels(*size, 3)).save(folder / label / f"{n}.png")
    return folder


def fed(spec: Any, network: nn.Module, settings: Settings) -> tuple[Tensor, list[str]]:
    """Return all that the training part feeds to the model, and the notes."""
    data = open_data(spec, network, settings)
    assert data.train is not None
    return data.train.take(range(len(data.train)), 0)[feed(data, network, settings).inputs[0]], data.notes


# ---- the order of colours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(3, 6, 5), (6, 5, 3), (90,), (4, 6, 5)])
def test_bgr_is_what_opencv_reads(dims: tuple[int, ...], model: Model, tmp_path: Path) -> None:
    """`cv2.imread` returns the bytes [H, W, BGR]: those of PIL, reversed. Mean and deviation count in this order."""
    data = folders(tmp_path / "data")
    files = sorted(data.glob("*/*.png"))
    x = np.stack([np.asarray(Image.open(path)) for path in files])[..., ::-1].astype(np.float64)
    scale = GIVEN if dims[0] != 4 else "0,1"
    wanted = (x / 255 - MEANS) / DEVIATIONS if scale == GIVEN else x / 255
    wanted = np.concatenate([wanted, np.ones_like(wanted[..., :1])], 3) if dims[0] == 4 else wanted
    wanted = wanted if dims == (6, 5, 3) else wanted.transpose(0, 3, 1, 2)
    found, notes = fed(data, model(*dims), replace(RAW, normalize=scale, channel_order="bgr"))
    np.testing.assert_allclose(found.numpy(), wanted.reshape(found.shape), atol=1e-6)
    assert "colours are fed in the order BGR, as OpenCV reads them" in notes
    rgb, notes = fed(data, model(*dims), replace(RAW, normalize=scale))
    assert not torch.equal(found, rgb) and any("order RGB; " in n and "--channel-order bgr" in n for n in notes)


def test_measured_numbers_are_in_the_order_of_the_channels(model: Model) -> None:
    x = pixels(8, 6, 5, 3) // np.array([1, 2, 4], np.uint8)
    spec = (x, np.arange(8) % 2)
    found, _ = fed(spec, model(3, 6, 5), replace(RAW, normalize="auto", channel_order="bgr"))
    assert found.mean((0, 2, 3)).abs().max() < 1e-3 and (found.std((0, 2, 3)) - 1).abs().max() < 1e-2


def test_gray_images_have_no_order(model: Model, tmp_path: Path) -> None:
    gray, colours = folders(tmp_path / "gray", gray=True), folders(tmp_path / "colours")
    assert not any("order" in note for note in fed(gray, model(3, 6, 5), RAW)[1]), "three equal channels"
    assert not any("order" in note for note in fed(colours, model(1, 6, 5), RAW)[1])
    with pytest.raises(OnnxgenError, match="--channel-order bgr: its images are gray"):
        open_data(colours, model(1, 6, 5), replace(RAW, channel_order="bgr"))
    floats = (RNG.random((4, 3, 6, 5)).astype(np.float32), np.arange(4) % 2)
    with pytest.raises(OnnxgenError, match="the data has no images whose colours onnxgen knows"):
        open_data(floats, model(3, 6, 5), replace(RAW, channel_order="bgr"))


class Means(nn.Module):
    """Scores of two classes, of the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean((2, 3)))


def test_a_run_and_its_file_keep_the_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict`, a run that goes on, the model object and a student know it, and so does the exported file."""
    module = exported(tmp_path, Means(), torch.zeros(2, 3, 6, 5), names="image", output="scores")
    data = folders(tmp_path / "data")
    run = shipped(module, data, tmp_path / "run", channel_order="bgr", resize="corner", beside=7, normalize=GIVEN)
    (image,) = (entry.image for entry in read_record(run).inputs)
    assert image is not None and (image.order, image.at, image.beside) == ("BGR", "corner", (7, 7, 7))
    assert '"order": "BGR"' in entries(run)["onnxgen.preprocessing"]
    Image.fromarray(pixels(9, 4, 3)).save(tmp_path / "new.png")
    need_same(run, tmp_path / "new.png")
    x = np.full((6, 5, 3), 7, np.float32)
    x[:, :3] = np.asarray(Image.open(tmp_path / "new.png").resize((3, 6), Image.Resampling.BILINEAR))
    x = ((x[..., ::-1] / 255 - MEANS) / DEVIATIONS).astype(np.float32).transpose(2, 0, 1)[None]
    learner = load(run, device="cpu")
    (found,) = learner.predict(tmp_path / "new.png")
    with torch.no_grad():
        wanted = learner.model(torch.from_numpy(x)).softmax(1)[0]
    np.testing.assert_allclose([*found.probabilities.values()], wanted, atol=1e-6)
    assert cli(["predict", str(run), str(tmp_path / "new.png")]) == 0
    assert "note: colours are fed in the order BGR" in capsys.readouterr().err
    (tmp_path / "next.toml").write_text('model = "run"\nmax-steps = 1\nworkers = 0\ndevice = "cpu"\n')
    assert cli(["train", "--config", str(tmp_path / "next.toml"), "--out", str(tmp_path / "on"), "-q"]) == 0
    on = read_record(tmp_path / "on")  # on the run's own data, as it was fed
    assert on.parts == read_record(run).parts and on.inputs == read_record(run).inputs
    for model in (run, learner.model):  # other data, as that of the training
        plan = prepare(model, data, Settings(val=0, device="cpu", out=tmp_path / "next"))
        assert plan.settings.channel_order == "bgr" and plan.settings.resize == "corner" and plan.settings.beside == 7
    with pytest.raises(OnnxgenError, match="trained with --channel-order bgr, and the student gets rgb"):
        prepare(module, data, Settings(val=0, device="cpu", teacher=run, normalize=GIVEN, resize="corner"))
    asked = Settings(val=0, device="cpu", teacher=run / "tuned.onnx", normalize=GIVEN, resize="corner")
    for wrong, said in (
        ({"resize": "line", "channel_order": "bgr"}, "--resize corner, and the student gets line"),
        ({}, "--channel-order bgr, and the student gets rgb"),
        ({"channel_order": "bgr", "normalize": "0,1"}, f"normalised by {GIVEN}, and the student gets 0/0/0,1/1/1"),
    ):
        with pytest.raises(OnnxgenError, match=f"the teacher .*tuned.onnx was trained with .*{said}"):
            prepare(module, data, replace(asked, **wrong))
    assert prepare(module, data, replace(asked, channel_order="bgr")).objectives


def test_the_short_program_of_the_page_follows_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what `predict` says, and stops where images keep their proportions."""
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = next(text for text in programs if "Image.open" in text)
    module = exported(tmp_path, Means(), torch.zeros(2, 3, 6, 5), names="image", output="scores")
    data = folders(tmp_path / "data")
    Image.fromarray(pixels(9, 4, 3)).save(tmp_path / "three.png")
    monkeypatch.chdir(tmp_path)
    for given in ({"channel_order": "bgr"}, {"channel_order": "rgb"}, {"resize": "line"}):
        run = shipped(module, data, tmp_path / "-".join(given.values()), normalize=GIVEN, **given)
        shutil.copy(run / "tuned.onnx", "digits.onnx")
        found: dict[str, Any] = {}
        if "resize" in given:
            with pytest.raises(AssertionError, match="images keep their proportions"):
                exec(program, found)
            continue
        exec(program, found)
        (wanted,) = load(run, device="cpu").predict(tmp_path / "three.png")
        assert found["probabilities"] == pytest.approx(wanted.probabilities, rel=1e-5)


class Same(nn.Module):
    """Returns the image, times one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        nn.init.dirac_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


def test_an_image_that_is_answered_has_its_own_colours(tmp_path: Path) -> None:
    module = exported(tmp_path, Same(), torch.zeros(2, 3, 12, 12), names="image", output="clean")
    for part in ("input", "target"):
        (tmp_path / "data" / part).mkdir(parents=True)
        Image.new("RGB", (12, 12), (255, 128, 0)).save(tmp_path / "data" / part / "0.png")
        Image.new("RGB", (12, 12), (0, 64, 255)).save(tmp_path / "data" / part / "1.png")
    settings = {"normalize": "0,1", "lr": 1e-9, "channel_order": "bgr"}
    run = shipped(module, tmp_path / "data", tmp_path / "run", **settings)
    (found,) = load(run, device="cpu").predict(tmp_path / "data" / "input" / "0.png")
    assert found.answers["clean"].value[0, 0].tolist() == [255, 128, 0]
    need_same(run, tmp_path / "data" / "input" / "0.png")
    same = tmp_path / "data" / "same"
    shutil.copytree(tmp_path / "data" / "input", same / "input")
    shutil.copytree(tmp_path / "data" / "input", same / "target")
    assert load(run, device="cpu").evaluate(same, part="train")["loss"] < 1e-6, "the target is BGR, too"
    with pytest.raises(OnnxgenError, match="--resize letterbox would not move 'target'"):
        prepare(module, tmp_path / "data", Settings(val=0, device="cpu", resize="letterbox"))


# ---- where an image lies ---------------------------------------------------------------------------------------------


def paddle(size: tuple[int, int], frame: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a line of text in a frame, by `resize_norm_img` of PaddleOCR."""
    height, most = frame
    ratio = size[1] / float(size[0])
    return height, most if ceil(height * ratio) > most else int(ceil(height * ratio))


@pytest.mark.parametrize("size", [(10, 20), (20, 10), (7, 90), (48, 320), (31, 33), (1, 1)])
def test_places_are_those_of_the_authors(size: tuple[int, int]) -> None:
    frame = (48, 320)
    line, corner, box = (Placing(how).fit(size, frame) for how in ("line", "corner", "letterbox"))
    assert line.inner == paddle(size, frame) and (line.top, line.left) == (0, 0)
    assert corner.inner == box.inner and (corner.top, corner.left) == (0, 0)
    assert (box.top, box.left) == ((frame[0] - box.inner[0]) // 2, (frame[1] - box.inner[1]) // 2)


@pytest.mark.parametrize("how", ["corner", "line"])
@pytest.mark.parametrize("kind", ["files", "arrays"])
def test_gray_is_right_and_below_alone(kind: str, how: str, model: Model, tmp_path: Path) -> None:
    data: Any = folders(tmp_path / "data", (10, 10))
    if kind == "arrays":
        data = (np.stack([np.asarray(Image.open(path)) for path in sorted(data.glob("*/*.png"))]), np.arange(4) % 2)
    found, notes = fed(data, model(3, 10, 30), replace(RAW, resize=how, beside=127))
    wanted = (
        data[0] if kind == "arrays" else np.stack([np.asarray(Image.open(p)) for p in sorted(data.glob("*/*.png"))])
    )
    np.testing.assert_array_equal(found[..., :10], wanted.transpose(0, 3, 1, 2))
    assert (found[..., 10:] == 127).all()


@pytest.mark.parametrize("kind", ["shards", "pairs for vectors"])
def test_other_sources_of_files_are_placed_and_ordered_alike(kind: str, model: Model, tmp_path: Path) -> None:
    images = [pixels(5, 5, 3) for _ in range(4)]
    if kind == "shards":
        data: Path = tmp_path / "data-000.tar"
        with tarfile.open(data, "w") as shard:
            for n, image in enumerate(images):
                Image.fromarray(image).save(tmp_path / "a.png")
                (tmp_path / "a.cls").write_text(str(n % 2))
                shard.add(tmp_path / "a.png", f"{n}.png"), shard.add(tmp_path / "a.cls", f"{n}.cls")
    else:
        data = tmp_path / "data"
        for n, image in enumerate(images):
            for member in ("anchor", "positive"):
                (data / member).mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(data / member / f"{n}.png")
    settings = replace(RAW, resize="line", beside=9, channel_order="bgr")
    settings = replace(settings, task="embedding") if kind != "shards" else settings
    found = open_data(data, model(3, 5, 15), settings)
    assert found.train is not None and any("order BGR" in note for note in found.notes)
    made = next(x for x in found.train.take(range(4), 0).values() if x.ndim >= 4)
    whole = np.full((4, 3, 5, 15), 9.0)
    whole[..., :5] = np.stack(images)[..., ::-1].transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(made[:: len(made) // 4], whole)


def test_what_lies_on_images_that_move_is_refused(model: Model, tmp_path: Path) -> None:
    x, masks = pixels(4, 6, 5, 3), RNG.integers(0, 2, (4, 6, 5))
    with pytest.raises(OnnxgenError, match="--resize corner would not move 'label', which lies on the images"):
        open_data({"image": x, "label": masks}, model(3, 12, 12), replace(RAW, resize="corner"))
    with pytest.raises(OnnxgenError, match="--beside 3: images are stretched, and nothing is beside them"):
        open_data({"image": x, "label": masks}, model(3, 12, 12), replace(RAW, beside=3))
    with pytest.raises(OnnxgenError, match="beside must be a byte from 0 to 255, not 256"):
        replace(RAW, beside=256)


class Line(nn.Module):
    """Reads 10 steps of 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.permute(0, 3, 1, 2).flatten(2)).softmax(2)


def test_a_file_of_paddleocr_s_kind_tells_how_it_is_fed(tmp_path: Path) -> None:
    module = exported(tmp_path, Line(), torch.zeros(2, 3, 8, 10), names="image", output="text")
    generate(with_entry(tmp_path / "net.onnx", "character", "a\nb\nc\n "), module, force=True)
    data = {"image": pixels(4, 8, 20, 3), "text": np.array(["a", "ab", "c", "b"], dtype=object)}
    settings = Settings(val=0, device="cpu", task="ctc")
    told = (
        "fed as PaddleOCR's reader of lines does, by --channel-order bgr --resize line --beside 127 --normalize 0.5,0.5"
    )
    given = {"channel_order": "bgr", "resize": "line", "beside": 127, "normalize": "0.5/0.5/0.5,0.5/0.5/0.5"}
    for more in ({}, {"replace_head": 7}):
        plan = prepare(module, data, replace(settings, **more))
        assert told in "\n".join(plan.notes) and {name: getattr(plan.settings, name) for name in given} == given
    plan = prepare(module, data, replace(settings, channel_order="rgb", resize="stretch"))  # what is given wins
    assert (plan.settings.channel_order, plan.settings.resize, plan.settings.beside) == ("rgb", "stretch", None)
    assert plan.settings.normalize == given["normalize"]
    for other in ({"preprocess": "none"}, given):
        assert "PaddleOCR" not in "\n".join(prepare(module, data, replace(settings, **other)).notes)
    floats = {**data, "image": np.zeros((4, 3, 8, 10), np.float32)}  # which count as scaled
    assert "PaddleOCR" not in "\n".join(prepare(module, floats, settings).notes)


def test_a_reader_is_asked_before_any_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`predict` and `evaluate` take the module, if its file tells its characters and how it is fed."""
    module = exported(tmp_path, Line(), torch.zeros(2, 3, 8, 10), names="image", output="text")
    Image.fromarray(picture := pixels(8, 7, 3)).save(tmp_path / "line.png")
    (tmp_path / "labels.txt").write_text("line.png\tab\n")
    asked = ["predict", str(module), str(tmp_path / "line.png"), "--json"]
    assert (
        cli(asked) == 2
        and "says no characters, or not how images are fed -> onnxgen evaluate" in capsys.readouterr().err
    )
    generate(with_entry(tmp_path / "net.onnx", "character", "a\nb\nc\n "), module, force=True)
    assert cli(asked) == 0
    (found,) = json.loads(capsys.readouterr().out)
    x = np.full((8, 10, 3), 127, np.float32)
    x[:, :7] = picture[..., ::-1]
    scores = open_model(module)(torch.from_numpy((x / 255 - 0.5) / 0.5).permute(2, 0, 1)[None])
    wanted = spelled(greedy(scores.argmax(2), 0)[0], 0, "abc ")
    assert found["outputs"]["text"]["label"] == wanted
    assert cli(["evaluate", str(module), "--data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exact_match"] == float(wanted == "ab")
    assert cli(["evaluate", str(module)]) == 2 and "has no data of its own" in capsys.readouterr().err


def test_it_is_told_before_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `inspect` and where the module is generated, that nothing need be given; of other files nothing."""
    module = exported(tmp_path, Line(), torch.zeros(2, 3, 8, 10), names="image", output="text")
    file, capsys_of = str(tmp_path / "net.onnx"), lambda: capsys.readouterr().out
    given = "--channel-order bgr --resize line --beside 127 --normalize 0.5,0.5"
    command = f"onnxgen train {module} --data DATA"
    assert cli([file, "-o", str(module), "--force"]) == 0
    assert f"  then: {command}\n" in (said := capsys_of()) and "PaddleOCR" not in said
    assert cli(["inspect", file]) == 0 and "PaddleOCR" not in capsys_of()
    with_entry(tmp_path / "net.onnx", "character", "a\nb\nc\n ")
    assert cli([file, "-o", str(module), "--force"]) == 0
    said = capsys_of()
    told = f"fed as PaddleOCR's reader of lines does, by {given}; for another way, --preprocess none"
    assert f"  then: {command}\n" in said and told in said
    assert cli(["inspect", file]) == 0 and told in capsys_of()


def test_a_preset_is_named(tmp_path: Path) -> None:
    """It fills in what is open; run and exported file record it, and a module of that file is fed so without asking."""
    module = exported(tmp_path, Means(), torch.zeros(2, 3, 6, 5), names="image", output="scores")
    data = folders(tmp_path / "data")
    run = shipped(module, data, tmp_path / "run", preprocess="yolox", normalize="0,1")
    (own,) = (entry.image for entry in read_record(run).inputs)
    assert own is not None and (own.order, own.at, own.mean) == ("BGR", "corner", (0.0, 0.0, 0.0))
    Image.fromarray(pixels(9, 4, 3)).save(tmp_path / "new.png")
    need_same(run, tmp_path / "new.png")
    generate(run / "tuned.onnx", tmp_path / "again.py")
    settings = Settings(val=0, device="cpu")
    plan = prepare(tmp_path / "again.py", data, settings)
    assert (plan.settings.channel_order, plan.settings.resize, plan.settings.beside) == ("bgr", "corner", 114)
    assert plan.settings.normalize == "0/0/0,1/1/1"
    assert any("onnxgen.preprocessing says how it is fed" in note for note in plan.notes)
    assert prepare(run, data, replace(settings, preprocess="yolov8")).settings.channel_order == "rgb"
    with pytest.raises(OnnxgenError, match="preprocess must be one of auto, none, paddleocr-rec"):
        Settings(preprocess="paddle")


def test_every_preset_is_made_of_settings() -> None:
    for preset in PRESETS.values():
        assert Settings(**preset.options).preprocess == "auto"


@pytest.mark.parametrize(
    ("task", "is_run", "wanted"), [("ctc", True, "stretch"), ("ctc", False, "auto"), ("outputs", True, "auto")]
)
def test_a_run_that_left_open_how_lines_are_placed_stretched_them(
    task: str, is_run: bool, wanted: str, tmp_path: Path
) -> None:
    """As versions did before there was a placing of lines; now a run's file says it."""
    (tmp_path / "config.toml").write_text(f'task = "{task}"\nresize = "auto"\n')
    if is_run:
        (tmp_path / RECORD).write_text("{}")
    assert read_config(tmp_path / "config.toml")["resize"] == wanted
