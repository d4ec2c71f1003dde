"""Broken folders of classes, tables and arrays: one line with the place, and a way out."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, fit
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource
from tests.training.small import network
from tests.training.test_data_broken import FATAL, cut

Breaks = Callable[[Path], Any]
BAD = "owl/1.png"


def ids(cases: list[tuple[Any, ...]]) -> Any:
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


# ---- folders of classes ----------------------------------------------------------------------------------------------


def classes(folder: Path) -> Path:
    for label in ("cat", "owl"):
        (folder / label).mkdir(parents=True)
        for number in range(3):
            noise = np.random.default_rng(number).integers(0, 256, (6, 5, 3), np.uint8)
            Image.fromarray(noise).save(folder / label / f"{number}.png")
    return folder


def written(data: bytes) -> Breaks:
    return lambda folder: (folder / BAD).write_bytes(data)


def saved(image: Image.Image, suffix: str) -> Breaks:
    return lambda folder: image.save((folder / BAD).with_suffix(suffix))


def cut_as(suffix: str) -> Breaks:
    def breaks(folder: Path) -> None:
        path = (folder / BAD).with_suffix(suffix)
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
        cut(path)

    return breaks


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int = 8, pixels: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def emptied(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


IMAGES: list[tuple[str, Breaks, str, int]] = [
    ("cut PNG", lambda f: cut(f / BAD), f"{BAD} (", 5),
    ("cut JPEG", cut_as(".jpg"), "owl/1.jpg (", 6),
    ("cut GIF", cut_as(".gif"), "owl/1.gif (", 6),
    ("cut BMP", cut_as(".bmp"), "owl/1.bmp (", 6),
    ("cut WebP", cut_as(".webp"), "owl/1.webp (", 6),
    ("cut TIFF", cut_as(".tif"), "owl/1.tif (", 6),
    ("empty", written(b""), f"{BAD} (cannot identify image file)", 5),
    ("text", written(b"hello"), f"{BAD} (cannot identify image file)", 5),
    ("UTF-16", written("hello".encode("utf-16")), f"{BAD} (cannot identify image file)", 5),
    ("a header alone", written(b"\x89PNG\r\n\x1a\n"), f"{BAD} (", 5),
    ("another checksum", written(png(5, 6)[:-14] + b"0" * 14), f"{BAD} (", 5),
    ("no pixels", written(png(5, 6)), f"{BAD} (", 5),
    ("no width", written(png(0, 6)), f"{BAD} (", 5),
    ("a bomb", written(png(60_000, 60_000)), f"{BAD} (Image size (3600000000 pixels) exceeds limit", 5),
    ("floats", saved(Image.fromarray(np.ones((6, 5), np.float32)), ".tif"), "owl/1.tif (the range of numbers of 32", 6),
    ("a folder", lambda f: ((f / BAD).unlink(), (f / BAD).mkdir()), f"{BAD} (it is not a regular file)", 5),
    ("a link to nothing", lambda f: ((f / BAD).unlink(), (f / BAD).symlink_to("none")), f"{BAD} ([Errno 2] No such", 5),
    ("a link to itself", lambda f: ((f / BAD).unlink(), (f / BAD).symlink_to("1.png")), f"{BAD} ([Errno 40] Too", 5),
    ("an empty class", lambda f: emptied(f / "owl"), "owl has no images -> put images into it", FATAL),
    (
        "a class that can't be read", lambda f: [cut(p) for p in (f / "owl").iterdir()],
        "none of the images of 'owl'", FATAL,
    ),
    ("no classes", lambda f: [shutil.rmtree(p) for p in f.iterdir()], "has no images -> lay it out as folder/", FATAL),
    ("no class folders", lambda f: [shutil.rmtree(f / "owl"), *(p.rename(f / p.name) for p in (f / "cat").iterdir()),
     (f / "cat").rmdir()], "has images but no folder for each class", FATAL),
]  # fmt: skip


@pytest.mark.parametrize("breaks, says, left", ids(IMAGES))
def test_class_folders(breaks: Breaks, says: str, left: int, tmp_path: Path) -> None:
    folder = classes(tmp_path / "data")
    breaks(folder)
    with pytest.raises(OnnxgenError) as strict:
        open_source(folder, Settings(strict=True))
    if left == FATAL:
        with pytest.raises(OnnxgenError) as caught:
            open_source(folder, Settings())
        assert says in str(caught.value) and "\n" not in str(caught.value) + str(strict.value)
        return
    said = str(strict.value)
    assert says in said and "\n" not in said and strict.value.exit_code == 2, said
    found = open_source(folder, Settings())
    assert isinstance(found, DataSource) and len(found.parts["train"]) == left
    (note,) = found.notes
    assert note.startswith(f"1 image of {folder} can't be read, skipped: {says}") and "\n" not in note


def test_images_beside_the_class_folders_are_told(tmp_path: Path) -> None:
    """They have no class, so they are in no part; with parts, those of each count."""
    folder = classes(tmp_path / "one")
    shutil.copy(folder / "owl" / "1.png", folder / "lost.png")
    (note,) = open_source(folder, Settings()).notes
    assert note == "1 image beside the folders of the classes, which has no class, ignored: lost.png"
    assert isinstance(note, LeftOut), "evaluate tells it, too"
    for part in ("train", "val"):
        inner = classes(tmp_path / "parts" / part)
        shutil.copy(inner / "owl" / "1.png", inner / f"{part}.png")
    (note,) = open_source(tmp_path / "parts", Settings()).notes
    assert note.endswith("2 images beside the folders of the classes, which have no class, ignored: train.png, val.png")


# ---- tables and arrays -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vector(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("vector"), x=("float32", ("batch", 2)))


def refused(path: Path, model: torch.nn.Module) -> str:
    with pytest.raises(OnnxgenError) as caught:
        settings = Settings(val=0, batch_size=2)
        data = open_data(path, model, settings)
        check(model, data, feed(data, model, settings), settings)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    return str(caught.value)


TABLES: list[tuple[str, str | bytes, str]] = [
    ("empty", "", "is empty"),
    ("names alone", "a,b,y\n", "has no rows"),
    ("no names", "1,2,0\n3,4,1\n", "has no line of column names -> put a line of names at the top"),
    ("a name twice", "a,a,y\n1,2,0\n", "has two columns called 'a'"),
    ("no name", "a,,y\n1,2,0\n", "has no name for column 2"),
    ("a value too few", "a,b,y\n1,2,0\n3,4\n", ", line 3: 2 values, but 3 columns"),
    ("a value too many", "a,b,y\n1,2,0\n3,4,1,9\n", ", line 3: 4 values, but 3 columns"),
    ("text for a number", "a,b,y\n1,2,0\n3,x,1\n", "column 'b' holds text, but an input takes numbers"),
    ("a gap", "a,b,y\n1,2,0\n3,,1\n", ", line 3: column 'b' has no value"),
    ("a gap in the target", "a,b,y\n1,2,0\n3,4,\n", ", line 3: column 'y' has no value"),
    ("infinity", "a,b,y\n1,2,0\n3,inf,1\n", "has inf in row 1"),
    ("too large for float32", "a,b,y\n1,2,0\n3,1e300,1\n", "in row 1"),
    ("class out of range", "a,b,y\n1,2,0\n3,4,7\n", "has the labels 0, 7 (7 in row 1), but the model's 3 are 0 to 2"),
    ("negative class", "a,b,y\n1,2,0\n3,4,-1\n", "-1 in row 1"),
    ("no target", "a,b,c\n1,2,0\n3,4,1\n", "which column is the target?"),
    ("a column too many", "a,b,c,y\n1,2,3,0\n3,4,5,1\n", "takes [batch, 2], but column 'x' gives [n, 3]"),
    ("one column", "a,y\n1,0\n3,1\n", "takes [batch, 2], but column 'a' gives [n]"),
    ("UTF-16", "a,b,y\n1,2,0\n".encode("utf-16"), "can't be read: 'utf-8' codec can't decode"),
    ("Latin-1", "größe,b,y\n1,2,0\n".encode("latin-1"), "can't be read: 'utf-8' codec can't decode"),
    ("an open quote", 'a,b,y\n1,"2,0\n3,4,1\n', ", line 3: 2 values, but 3 columns"),
    ("zero bytes", b"a,b,y\n1,\0,0\n3,4,1\n", "column 'b' holds text"),
]


@pytest.mark.parametrize("text, says", ids(TABLES))
def test_tables(text: str | bytes, says: str, vector: torch.nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert says in refused(path, vector)


def test_a_table_of_one_class_is_refused_in_words_of_a_table(vector: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b,y\n1,2,cat\n3,4,cat\n")
    with pytest.raises(OnnxgenError, match="has one class alone, 'cat': .* -> name another column than y: target"):
        fit(vector, tmp_path / "table.csv", val=0.0, out=tmp_path / "run")


X, Y = np.ones((4, 2), np.float32), np.arange(4) % 2
ARRAYS: list[tuple[str, dict[str, Any], str]] = [
    ("no arrays", {}, "has no arrays"),
    ("no samples", {"x": X[:0], "y": Y[:0]}, "has no samples"),
    ("other lengths", {"x": X, "y": Y[:3]}, "columns are of different length: x 4, y 3"),
    ("a number", {"x": X, "y": np.array(3)}, "column 'y' is a single number"),
    ("objects", {"x": X, "y": np.array([None, 1, "a", 2], object)}, "reading pickled objects would run code"),
    ("complex", {"x": X.astype(complex), "y": Y}, "has dtype complex128"),
    ("text of rank 2", {"x": X, "y": np.array([["a", "b"]] * 4)}, "is text of rank 2"),
    ("dates", {"x": X, "y": np.array(["2020-01-01"] * 4, "datetime64[D]")}, "has dtype datetime64[D]"),
    ("NaN", {"x": np.where(X > 2, X, np.nan), "y": Y}, "has nan in row 0"),
    ("infinity", {"x": X * np.inf, "y": Y}, "has inf in row 0"),
    ("too large for float32", {"x": X.astype(np.float64) * 1e300, "y": Y}, "in row 0"),
    ("another width", {"x": np.ones((4, 3)), "y": Y}, "takes [batch, 2], but column 'x' gives [n, 3]"),
    ("another rank", {"x": np.ones((4, 2, 2)), "y": Y}, "takes [batch, 2], but column 'x' gives [n, 2, 2]"),
    ("class out of range", {"x": X, "y": Y * 5}, "has the labels 0, 5 (5 in row 1), but the model's 3"),
    ("negative class", {"x": X, "y": -Y}, "-1 in row 1"),
    ("classes from 1", {"x": X, "y": np.array([1, 2, 3, 1])}, "has classes 1 to 3, but the model's 3 classes are 0"),
    (
        "too many names", {"x": X, "y": np.array(list("abcd"))},
        "the data has 4 classes (a, b, c, ...), but the model has 3",
    ),
    (
        "whole numbers too large", {"x": X, "y": np.full(4, 2**63 + 1, np.uint64)},
        "torch's whole numbers end below 2**63",
    ),
    ("no target", {"x": X, "a": Y, "b": Y}, "which column is the target?"),
    ("no input", {"y": Y}, "which column feeds x?"),
    ("other columns in a part", {"x_train": X, "y_train": Y, "x_test": X}, "part test has columns x, but part train"),
]  # fmt: skip


@pytest.mark.parametrize("arrays, says", ids(ARRAYS))
def test_arrays(arrays: dict[str, Any], says: str, vector: torch.nn.Module, tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", **arrays)
    assert says in refused(tmp_path / "some.npz", vector)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.95])
def test_arrays_that_are_cut(share: float, vector: torch.nn.Module, tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", x=X, y=Y)
    cut(tmp_path / "some.npz", share)
    assert refused(tmp_path / "some.npz", vector).startswith(f"{tmp_path / 'some.npz'} can't be read: ")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_ends_with_exit_code_2(
    vector: torch.nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network(tmp_path, image=("float32", ("batch", 3, 6, 5)))
    folder = classes(tmp_path / "data")
    cut(folder / BAD)
    assert run(["train", str(tmp_path / "small.py"), "--data", str(folder), "--strict"]) == 2
    assert f"1 image of {folder} can't be read: {BAD}" in " ".join(capsys.readouterr().err.split())
