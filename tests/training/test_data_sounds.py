"""Sounds in folders of classes and in tables of paths, compared with soundfile and scipy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import resample_poly
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, evaluate, fit, load
from onnxgen.training.data import open_data
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource

soundfile = pytest.importorskip("soundfile")

RATE, LENGTH = 800, 96
QUIET: dict[str, Any] = {"device": "cpu", "workers": 0, "show": "nothing", "epochs": 1, "batch_size": 8}
RNG = np.random.default_rng(0)


class Listener(nn.Module):
    """x [n, 1, 96] or [n, 96] to scores of 3 classes, or over steps [n, 12, 4]."""

    def __init__(self, steps: bool = False) -> None:
        super().__init__()
        self.conv, self.steps = nn.Conv1d(1, 4 if steps else 3, 8, 8), steps

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x.reshape(-1, 1, LENGTH))
        return F.log_softmax(made.transpose(1, 2), 2) if self.steps else made.mean(2)


def module(network: nn.Module, folder: Path) -> Path:
    torch.manual_seed(0)
    torch.onnx.export(
        network.eval(), (torch.zeros(2, 1, LENGTH),), folder / "net.onnx", input_names=["x"], output_names=["scores"],
        dynamic_axes={"x": {0: "batch"}, "scores": {0: "batch"}}, opset_version=17, dynamo=False,
    )  # fmt: skip
    generate(folder / "net.onnx", folder / "net.py", force=True)
    return folder / "net.py"


def tone(length: int = LENGTH, channels: int = 1) -> np.ndarray[Any, Any]:
    return RNG.uniform(-0.9, 0.9, (length, channels)).astype(np.float32)


def write(path: Path, sound: np.ndarray[Any, Any], rate: int = RATE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound, rate, subtype="PCM_16")


def source_of(path: Path, **settings: Any) -> DataSource:
    found = open_source(path, Settings(**settings))
    assert isinstance(found, DataSource)
    return found


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module(Listener(), tmp_path_factory.mktemp("listener"))


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_sounds_are_mono_and_get_the_length_of_the_input(ending: str, tmp_path: Path, listener: Path) -> None:
    from onnxgen.training import open_model

    sounds = {"a/short": tone(40), "a/long": tone(200), "b/stereo": tone(LENGTH, 2), "c/right": tone()}
    for name, sound in sounds.items():
        write(tmp_path / f"{name}.{ending}", sound)
    opened = open_data(tmp_path, open_model(listener), Settings(val=0.0))
    assert opened.train is not None and opened.rate == RATE
    batch = opened.train.take(range(4), 0)
    names = ["a/long", "a/short", "b/stereo", "c/right"]
    for row, name in zip(batch["sound"], names):
        read, _ = soundfile.read(tmp_path / f"{name}.{ending}", always_2d=True)
        wanted = np.zeros(LENGTH)
        wanted[: len(read)] = read.mean(1)[:LENGTH]
        assert row.shape == (1, LENGTH)
        np.testing.assert_allclose(row[0], wanted, atol=1e-6)
    assert batch["label"].tolist() == [0, 0, 1, 2]
    said = "sound has 96 samples at 800 Hz, mono; 1 of 4 are longer and are cut; 1 of 4 are shorter and end in zeros"
    assert said in opened.notes


def test_another_rate_is_a_fault_or_resampled(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"a/{number}.wav", tone())
    other = tone(240)
    write(tmp_path / "b/other.wav", other, 2000)
    found = source_of(tmp_path)
    said = "1 sound of another rate: resampled to 800 Hz, which 3 have; --sample-rate names another"
    assert found.notes == [said] and len(found.parts["train"]) == 4
    with pytest.raises(OnnxgenError, match="b/other.wav: it has 2000 Hz"):
        source_of(tmp_path, strict=True)
    found = source_of(tmp_path, sample_rate=800)
    assert found.notes == ["1 sound of another rate: resampled to 800 Hz"]
    opened = open_data(tmp_path, Listener(), Settings(sample_rate=800, val=0.0))
    assert opened.train is not None
    batch = opened.train.take([3], 0)["sound"]
    read, _ = soundfile.read(tmp_path / "b/other.wav", dtype="float32")
    np.testing.assert_allclose(batch[0], resample_poly(read, 2, 5), atol=1e-6)


def test_each_fault_is_one_line(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"sounds/{number}.wav", tone())
    (tmp_path / "sounds/1.wav").write_bytes(b"RIFF and no more")
    write(tmp_path / "sounds/2.wav", tone(0))
    (tmp_path / "list.csv").write_text(
        "path,label\n" + "".join(f"sounds/{n}.wav,{'ab'[n % 2]}\n" for n in (0, 1, 2, 3, 4))
    )
    found = source_of(tmp_path / "list.csv")
    (note,) = found.notes
    for says in (
        "3 faults in ",
        "list.csv, line 3: sounds/1.wav: can't be read",
        "list.csv, line 4: sounds/2.wav: can't be read: it has no samples",
        "list.csv, line 6: sounds/4.wav: there is no such file",
        "3 sounds skipped",
    ):
        assert says in note, note
    assert len(found.parts["train"]) == 2
    for number in (0, 3):
        (tmp_path / f"sounds/{number}.wav").unlink()
    with pytest.raises(OnnxgenError, match="no sound of the train part can be used: 5 faults"):
        source_of(tmp_path / "list.csv")
    with pytest.raises(OnnxgenError, match="has sounds, but no folder for each class"):
        write(tmp_path / "flat/1.wav", tone())
        source_of(tmp_path / "flat")


def test_names_of_a_folder_beside_the_table(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"audio/{number}.wav", tone())
    (tmp_path / "list.csv").write_text("filename,category\n0.wav,a\n1.wav,b\n")
    assert len(source_of(tmp_path / "list.csv", strict=True).parts["train"]) == 2


def test_a_row_without_a_class_or_a_file_is_a_fault(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.wav", tone())
    (tmp_path / "list.csv").write_text("path,label\n0.wav,a\n1.wav,\n,b\n3.wav,b\n")
    found = source_of(tmp_path / "list.csv")
    (note,) = found.notes
    places = "list.csv, line 3: column 'label' has no value; list.csv, line 4: column 'path' has no value"
    assert note.endswith(f"{places}; 2 sounds skipped")
    assert len(found.parts["train"]) == 2 and found.parts["train"].fields["label"].classes == ("a", "b")


def test_a_classifier_is_trained_evaluated_and_asked(tmp_path: Path, listener: Path) -> None:
    for part, count in (("train", 8), ("val", 4)):
        for name in ("no", "up", "yes"):
            for number in range(count):
                write(tmp_path / f"data/{part}/{name}/{number}.wav", tone(60 + 10 * number))
    result = fit(listener, tmp_path / "data", out=tmp_path / "run", **QUIET)
    assert "val_accuracy" in result.history[0]
    learner = load(tmp_path / "run", device="cpu")
    assert learner.settings.sample_rate == RATE and learner.settings.classes == ("no", "up", "yes")
    right = []
    for place, name in enumerate(learner.settings.classes):
        for number in range(4):
            x = np.zeros((1, 1, LENGTH), np.float32)
            sound = soundfile.read(tmp_path / f"data/val/{name}/{number}.wav", dtype="float32")[0][:LENGTH]
            x[0, 0, : len(sound)] = sound
            right.append(int(result.model(torch.from_numpy(x)).argmax()) == place)
    assert learner.evaluate()["accuracy"] == pytest.approx(
        np.mean(right)
    )  # of the best weights: perhaps the first ones
    file = tmp_path / "data/val/up/2.wav"
    (made,) = learner.predict(file)
    x = np.zeros((1, 1, LENGTH), np.float32)
    x[0, 0, :80] = soundfile.read(file, dtype="float32")[0]
    wanted = learner.model(torch.from_numpy(x)).softmax(1)[0].tolist()
    assert made.source == str(file) and list(made.probabilities.values()) == pytest.approx(wanted, rel=1e-5)
    write(tmp_path / "fast.wav", tone(300), 2000)
    (fast,) = learner.predict(tmp_path / "fast.wav")
    read = resample_poly(soundfile.read(tmp_path / "fast.wav", dtype="float32")[0], 2, 5)[:LENGTH]
    wanted = learner.model(torch.from_numpy(read)[None, None].float()).softmax(1)[0].tolist()
    assert list(fast.probabilities.values()) == pytest.approx(wanted, rel=1e-4)


def test_speech_is_read_by_ctc(tmp_path: Path) -> None:
    words = ["ab", "cab", "b", "ca"] * 3
    for number in range(12):
        write(tmp_path / f"sounds/{number}.flac", tone())
    rows = "".join(f"sounds/{n}.flac,{word}\n" for n, word in enumerate(words))
    (tmp_path / "list.csv").write_text(f"path,text\n{rows}")
    model = Listener(steps=True)
    found = evaluate(model, tmp_path / "list.csv", task="ctc", classes=("a", "b", "c"), device="cpu")
    x = np.stack([soundfile.read(tmp_path / f"sounds/{n}.flac", dtype="float32")[0] for n in range(12)])
    targets = [torch.tensor(["-abc".index(letter) for letter in word]) for word in words]
    lengths = torch.tensor([len(target) for target in targets])
    logs = model(torch.from_numpy(x)[:, None]).transpose(0, 1)
    wanted = F.ctc_loss(logs, torch.cat(targets), torch.full((12,), 12), lengths)
    assert found["loss"] == pytest.approx(wanted.item(), rel=1e-5)
