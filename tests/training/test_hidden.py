"""What systems and programs add to folders is no data: macOS, Jupyter, file managers, archives made on a Mac."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onnxgen.training import Settings
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource
from samples.tasks.scenes import draw_scenes, write_coco, write_masks, write_voc, write_yolo

PARTS = {"train": draw_scenes(3), "val": draw_scenes(2, seed=1)}


def hide(folder: Path) -> None:
    """Put beside all files and into all folders what systems and programs add."""
    for inner in [folder, *folder.rglob("*")]:
        if inner.is_dir():
            for name in ("__MACOSX", ".ipynb_checkpoints", ".train"):
                (inner / name).mkdir()
                Image.new("L", (8, 8)).save(inner / name / "0-checkpoint.png")
            (inner / ".DS_Store").write_bytes(b"\0")
            for ending in ("png", "csv", "txt", "npy", "xml", "json", "tar", "wav", "bin"):
                (inner / f"._train_list.{ending}").write_bytes(b"\0\5\26\7")


def classes(folder: Path) -> None:
    for n in range(4):
        (folder / "train" / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), n).save(folder / "train" / "ab"[n % 2] / f"{n}.png")


def pairs(folder: Path, names: tuple[str, ...] = ("input", "target")) -> None:
    for name in names:
        (folder / "train" / name).mkdir(parents=True)
        for n in range(3):
            Image.new("L", (8, 8), n).save(folder / "train" / name / f"{n}.png")


def anchors(folder: Path) -> None:
    pairs(folder, ("anchor", "positive"))


def tables(folder: Path) -> None:
    for part in ("train", "val"):
        (folder / f"{part}.csv").write_text("a,label\n1,x\n2,y\n")


def texts(folder: Path) -> None:
    for part in ("train", "val"):
        (folder / f"{part}.txt").write_text("a text\nanother\n")


def lists(folder: Path) -> None:
    classes(folder)
    (folder / "train_list.txt").write_text("train/a/0.png\tone\ntrain/b/1.png\ttwo\n")


def sounds(folder: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    for n in range(4):
        (folder / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / "ab"[n % 2] / f"{n}.wav", np.full(9, n / 9), 8000)


def shards(folder: Path) -> None:
    for part in ("train", "val"):
        (folder / part).mkdir()
        np.arange(64, dtype=np.uint16).tofile(folder / part / "0.bin")


def of_scenes(write: Callable[..., Path]) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        write(folder, PARTS)

    return made


KINDS = {
    **{kind.__name__: kind for kind in (classes, pairs, anchors, tables, texts, lists, sounds, shards)},
    **{write.__name__: of_scenes(write) for write in (write_coco, write_yolo, write_voc, write_masks)},
}


def facts(folder: Path) -> tuple[dict[str, tuple[int, object]], list[str], str, str]:
    found = open_source(folder, Settings(max_length=4, batch_size=2))
    assert isinstance(found, DataSource)

    def of(samples: Samples) -> tuple[int, object]:
        return len(samples), samples.fields

    return {part: of(samples) for part, samples in found.parts.items()}, found.notes, found.task, found.target


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hidden_is_no_data(kind: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    KINDS[kind](tmp_path / "data")
    before = facts(tmp_path / "data")
    hide(tmp_path / "data")
    assert facts(tmp_path / "data") == before
