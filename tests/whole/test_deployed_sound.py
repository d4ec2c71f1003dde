"""Silero VAD, tuned on a few sounds: the file goes on in its package, and the run is a loop by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.training import fit, load, open_model
from samples.deployed.file import find

pytest.importorskip("silero_vad")
soundfile = pytest.importorskip("soundfile")

RATE, CHUNK, CONTEXT = 16000, 512, 64
STEPS = (9, 12, 7, 12)  # of each sound
BY_FILE = {"silero_vad_16k_op15.onnx": "model", "silero_vad.onnx": "branch1"}  # the part that is for 16 kHz


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    with (folder / "labels.jsonl").open("w") as table:
        for number, steps in enumerate(STEPS):
            loud = rng.random(steps) < 0.5
            wave = (rng.normal(0, 0.2, (steps, CHUNK)) * np.where(loud, 1, 0.1)[:, None]).clip(-1, 1).ravel()
            soundfile.write(folder / f"{number}.wav", wave[: len(wave) - 100], RATE, subtype="PCM_16")
            print(json.dumps({"sound": f"{number}.wav", "speech": loud.astype(int).tolist()}), file=table)
    return folder


@pytest.fixture(scope="module", params=BY_FILE)
def tuned(request: Any, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of three steps of SGD, beside the module `vad.py`; and the part that was trained."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "vad.onnx").write_bytes(find(f"silero_vad/{request.param}").read_bytes())
    generate(folder / "vad.onnx", folder / "vad.py")
    options: dict[str, Any] = {"epochs": 3, "batch_size": 4, "val": 0.0, "optimizer": "sgd", "weight_decay": 0.0}
    options |= {"workers": 0, "device": "cpu", "loggers": "none", "show": "nothing", "lr": 0.01, "target": "speech"}
    fit(folder / "vad.py", data, chunk=CHUNK, context=CONTEXT, bptt=5, out=folder / "run", **options)
    return folder, BY_FILE[request.param]


def heard(data: Path) -> list[tuple[Tensor, Tensor]]:
    rows = [json.loads(line) for line in (data / "labels.jsonl").read_text().splitlines()]
    waves = [soundfile.read(data / row["sound"], dtype="float32")[0] for row in rows]
    return [(torch.from_numpy(wave), torch.tensor(row["speech"])) for wave, row in zip(waves, rows)]


def test_the_run_is_a_loop_by_hand(tuned: tuple[Path, str], data: Path) -> None:
    folder, part = tuned
    model = open_model(folder / "vad.py").train()
    optimizer, rate = torch.optim.SGD(model.parameters(), lr=0.01), torch.tensor(RATE)
    for _ in range(3):
        made, labels = [], []
        for wave, label in heard(data):
            state = torch.zeros(2, 1, 128)
            chunks = F.pad(wave, (CONTEXT, -len(wave) % CHUNK)).unfold(0, CONTEXT + CHUNK, CHUNK)
            for number, chunk in enumerate(chunks):
                probability, state = model(chunk[None], state.detach() if number % 5 == 0 else state, rate)
                made.append(probability)
            labels.append(label)
        optimizer.zero_grad()
        F.binary_cross_entropy(torch.cat(made).ravel(), torch.cat(labels).float()).backward()
        optimizer.step()
    before, trained = open_model(folder / "vad.py").state_dict(), open_model(folder / "run").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-5, atol=1e-6)
    changed = {name.split(".")[0] for name, value in trained.items() if not torch.equal(value, before[name])}
    assert changed == {part}


def test_the_file_goes_on_in_its_package(tuned: tuple[Path, str], data: Path) -> None:
    from silero_vad import get_speech_timestamps
    from silero_vad.utils_vad import OnnxWrapper

    folder, _ = tuned
    assert cli(["export", str(folder / "run"), "-o", str(folder / "tuned.onnx"), "--quiet"]) == 0
    package, run = OnnxWrapper(str(folder / "tuned.onnx"), force_onnx_cpu=True), load(folder / "run")
    for number, (wave, label) in enumerate(heard(data)):
        (ours,) = run.predict(data / f"{number}.wav", soft=True)
        theirs = package.audio_forward(wave, RATE).numpy().ravel()
        assert theirs.shape == label.shape
        np.testing.assert_allclose(ours.answer.value.ravel(), theirs, atol=1e-4)
    assert isinstance(get_speech_timestamps(heard(data)[0][0], package, sampling_rate=RATE), list)
