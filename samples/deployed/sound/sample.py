"""Sounds of a hall full of people, in which one person speaks near the microphone, for Silero VAD.

Each sound is 5 seconds at 16 kHz. Behind it six voices talk at once, and now and then a toy babbles. The labels say for
each chunk of 512 samples whether the near voice speaks. All voices are espeak-ng's. Those of "test" speak other
languages than those of "data".
"""

from __future__ import annotations

import io
import json
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import lfilter, resample_poly

from samples.deployed.compare import Sample

RATE, CHUNK, SECONDS = 16000, 512, 5
LENGTH = RATE * SECONDS
LANGUAGES = {"data": ("en-us", "de", "fr", "es", "it"), "test": ("en-gb", "pt", "nl", "pl", "sv")}
VARIANTS = {"data": ("m1", "m3", "m7", "f1", "f3"), "test": ("m2", "m4", "f2", "f4")}
TESTED = 60  # sounds
PARTS = "ba do ke li mu na po ri sa te vo wi gra sti lon mer tan ver".split()

Wave = NDArray[np.float64]


@cache
def said(text: str, voice: str, speed: int, pitch: int) -> Wave:
    """Return what espeak-ng makes of a text."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    done = subprocess.run(command, capture_output=True, check=True)
    wave, rate = soundfile.read(io.BytesIO(done.stdout))
    return np.asarray(resample_poly(wave, RATE, rate))


def speech(rng: np.random.Generator, part: str, words: int) -> Wave:
    """Return made-up words in one of the voices of a part."""
    text = " ".join("".join(rng.choice(PARTS, rng.integers(1, 4))) for _ in range(words))
    voice = f"{rng.choice(LANGUAGES[part])}+{rng.choice(VARIANTS[part])}"
    return said(text, voice, int(rng.integers(130, 190)), int(rng.integers(35, 65)))


def toy(rng: np.random.Generator) -> Wave:
    """Return pulses behind three resonances that jump: it babbles, and says nothing."""
    size, pitch, made = int(rng.integers(RATE // 8, RATE // 3)), rng.uniform(110, 300), []
    for _ in range(int(rng.integers(3, 8))):
        phase = np.cumsum(np.full(size, pitch * rng.uniform(0.8, 1.2))) / RATE
        pulses = np.diff(np.floor(phase), prepend=0.0)
        near = np.exp(-np.pi * 90 / RATE)
        for low, high in ((300, 900), (900, 2400), (2400, 3200)):
            turn = -2 * near * np.cos(2 * np.pi * rng.uniform(low, high) / RATE)
            pulses = pulses + lfilter([1 - near], [1, turn, near**2], pulses)
        made.append(pulses * np.hanning(size))
    return np.concatenate(made)


def level(wave: Wave, rms: float) -> Wave:
    return wave * rms / (np.sqrt(np.mean(wave**2)) + 1e-9)


def put(into: Wave, wave: Wave, start: int) -> None:
    end = min(len(into), start + len(wave))
    into[start:end] += wave[: end - start]


def scene(rng: np.random.Generator, part: str) -> tuple[Wave, list[int]]:
    """Return a sound, and for each chunk 1 if the near voice speaks."""
    hall, near = rng.normal(0, 0.002, LENGTH), np.zeros(LENGTH)
    for _ in range(6):
        voice = speech(rng, part, 14)
        voice = voice[::-1] if rng.random() < 0.5 else voice
        hall += level(np.roll(np.resize(voice, LENGTH), int(rng.integers(LENGTH))), 0.02)
    if rng.random() < 0.5:
        put(hall, level(toy(rng), 0.06), int(rng.integers(LENGTH)))
    for _ in range(int(rng.integers(0, 3))):
        loudness = 0.05 * 10 ** (rng.uniform(0, 10) / 20)  # the hall is at 0.05
        put(near, level(speech(rng, part, int(rng.integers(2, 6))), loudness), int(rng.integers(LENGTH * 3 // 4)))
    chunks = np.pad(near, (0, -LENGTH % CHUNK)).reshape(-1, CHUNK)
    speaks = np.sqrt((chunks**2).mean(1)) > 0.01
    return np.clip(hall + near, -1, 1), speaks.astype(int).tolist()


def write(folder: Path, part: str, sounds: int, seed: list[int]) -> None:
    """Write a part: sounds, and a table of their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "labels.jsonl").open("w") as table:
        for number in range(sounds):
            wave, labels = scene(np.random.default_rng([*seed, number]), part)
            soundfile.write(folder / f"{number:03}.wav", wave, RATE, subtype="PCM_16")
            print(json.dumps({"sound": f"{number:03}.wav", "speech": labels}), file=table)


def draw(folder: Path, amount: int, seed: int) -> None:
    write(folder / "data", "data", amount, [1, seed])
    write(folder / "test", "test", TESTED, [0])


def listened(file: Path, folder: Path) -> tuple[Wave, NDArray[np.int64]]:
    """Return the probability of each chunk of a folder's sounds, in the package's own code, and the labels."""
    import torch
    from silero_vad.utils_vad import OnnxWrapper

    model, found, wanted = OnnxWrapper(str(file), force_onnx_cpu=True), [], []
    for line in (folder / "labels.jsonl").read_text().splitlines():
        row = json.loads(line)
        wave, _ = soundfile.read(folder / row["sound"], dtype="float32")
        found.append(model.audio_forward(torch.from_numpy(wave), RATE).numpy().ravel())
        wanted.append(row["speech"])
    return np.concatenate(found), np.concatenate(wanted)


def score(file: Path, folder: Path) -> float:
    """Return the average precision of the chunks of the test part."""
    found, wanted = listened(file, folder / "test")
    right = wanted[np.argsort(-found, kind="stable")]
    return float((np.cumsum(right) / np.arange(1, len(right) + 1))[right == 1].mean())


# What is tuned of the frozen network is its last layer: a logistic regression, whose start does not matter.
FROZEN = ("--freeze", "model.stft", "--freeze", "model.encoder", "--freeze", "model.decoder.rnn")
SAMPLE = Sample(
    file="silero_vad/silero_vad_16k_op15.onnx",
    metric="average precision of chunks",
    amounts={8: ("--batch-size", "4"), 30: ("--batch-size", "8"), 100: ("--batch-size", "8")},
    ways={
        "from scratch": ("--from-scratch", "--lr", "0.002"),
        "last layer": (*FROZEN, "--lr", "0.01"),
        "fine-tuned": ("--lr", "0.001"),
    },
    train=("--chunk", "512", "--context", "64", "--target", "speech", "--epochs", "16", "--val", "0.25"),
    draw=draw,
    score=score,
)
