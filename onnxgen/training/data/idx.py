"""Reads idx files, the format of MNIST and similar data sets (see http://yann.lecun.com/exdb/mnist)."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.layout import part_called
from onnxgen.training.data.source import DataSource

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAME = re.compile(r"(?P<set>.*?)(?P<part>train|t10k|test|val)?[-_.](?P<what>images|labels)[-_.]idx\d(-ubyte)?(\.gz)?")


def is_idx(path: Path) -> bool:
    """Return True if the file has the name of an idx file with images or labels, or the folder has such a file."""
    if path.is_dir():
        return any(_NAME.fullmatch(p.name) for p in path.iterdir())
    return _NAME.fullmatch(path.name) is not None


def read_idx(path: Path) -> NDArray[np.generic]:
    """Return the array of one file, which may be gzipped, in the file's dtype and native byte order.

    Raises:
        OnnxgenError: it is not an idx file, or it has more or fewer bytes than its header says.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise OnnxgenError(f"{path} is truncated or not a gzip file ({error})", help="download it again") from None
    axes = data[3] if len(data) >= 4 else 0
    kind = _TYPES.get(data[2]) if len(data) >= 4 + 4 * axes and data[:2] == b"\0\0" else None
    if kind is None or axes == 0:
        raise OnnxgenError(f"{path} is not an idx file", help="an idx file begins with 0, 0, its type and its rank")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", axes, 4))
    size, has = int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize, len(data) - 4 - 4 * axes
    if size != has:
        state = "truncated" if has < size else "too long"
        what = f"{path} is {state}: {has:,} bytes of data, {size:,} by its header"
        raise OnnxgenError(what, help="download it again")
    found = np.frombuffer(data, kind, offset=4 + 4 * axes).reshape(shape)
    return found.astype(found.dtype.newbyteorder("="))


def open_idx(path: Path) -> DataSource:
    """Open a folder of idx files, or a file of images beside its labels: columns "image" and "label".

    Raises:
        OnnxgenError: a file is missing or damaged, or the numbers of labels and images differ.
    """
    folder = path if path.is_dir() else path.parent
    files: dict[tuple[str, str, str], Path] = {}
    for file in sorted(folder.iterdir(), reverse=True):  # a file that is not gzipped replaces its gzipped copy
        if found := _NAME.fullmatch(file.name):
            files[found["set"], found["part"] or "", found["what"]] = file
    wanted = None if path.is_dir() else _NAME.fullmatch(path.name)
    sets = sorted({s for s, part, _ in files if wanted is None or (wanted["set"], wanted["part"] or "") == (s, part)})
    if len(sets) > 1:
        what = f"{folder} has idx files of several sets: {listed(sets)}"
        raise OnnxgenError(what, help="name one of the files of images")
    pairs = {
        part: (files.get((s, part, "images")), files.get((s, part, "labels")))
        for s, part, _ in sorted(files)
        if s == sets[0] and (wanted is None or part == (wanted["part"] or ""))
    }
    read = {part: _pair(folder, *both) for part, both in pairs.items()}
    classes = tuple(str(i) for i in range(1 + max(int(y.max()) for _, y in read.values() if y.size)))
    parts = {}
    for part, (x, y) in read.items():
        columns = {"image": torch.from_numpy(x), "label": torch.from_numpy(y.astype(np.int64))}
        name = part_called(part) if len(read) > 1 else None
        parts[name or "train"] = Columns(columns, {"label": classes})
    white = {"image": 255.0} if all(x.dtype == np.uint8 for x, _ in read.values()) else {}
    return DataSource(dict(parts), folder.name if path.is_dir() else path.name, "label", white, glyphs=True)


def _pair(folder: Path, images: Path | None, labels: Path | None) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    if images is None or labels is None:
        there, missing = (images or labels), "images" if images is None else "labels"
        raise OnnxgenError(f"the file of {missing} for {there} is missing", help=f"put it into {folder}")
    x, y = read_idx(images), read_idx(labels)
    if len(x) != len(y) or y.ndim != 1:
        what = f"{images.name} has {len(x):,} images, but {labels.name} has {len(y):,} labels"
        raise OnnxgenError(what, help="download both again")
    if len(x) == 0:
        raise OnnxgenError(f"{images} has no images")
    return x, y
