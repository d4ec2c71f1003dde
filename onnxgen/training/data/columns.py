"""Reads arrays: `.npz`, `.npy`, safetensors and idx files, dicts of arrays and tensors, the digits.

idx is the format of MNIST and of similar data sets (http://yann.lecun.com/exdb/mnist). The digits
are those of scikit-learn.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.names import legible, listed
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problem, one_line
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.layout import part_called
from onnxgen.training.data.source import DataSource, Gaps, Held, Rows, one_table, target_called
from onnxgen.training.data.table import array_of, decoded, divided, lists_of, missing, need_axis, need_one_length

MAX_NUMBERED_CLASSES = 100_000  # a column with greater integers does not hold class indices


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file. Raises `OnnxgenError` if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help="save it again") from None


def open_digits() -> DataSource:
    """Return the 1,797 handwritten digits of scikit-learn, 8x8 with values from 0 to 16: "image" and "label"."""
    need(["sklearn"])
    from sklearn.datasets import load_digits

    digits = load_digits()
    columns = {"image": torch.from_numpy(digits.images).float(), "label": torch.from_numpy(digits.target).long()}
    classes = {"label": tuple(map(str, range(10)))}
    return DataSource({"train": Columns(columns, classes)}, "digits", "label", {"image": 16.0}, glyphs=True)


def from_columns(arrays: Mapping[str, Any], name: str, table: bool = False) -> DataSource:
    """Return the data in named arrays, tensors or lists. Names like `x_train` or `test_images` make parts.

    Text becomes class indices, with the classes in sorted order.

    Raises:
        OnnxgenError: an array holds neither numbers nor text, or its length differs from the others.
    """
    if not arrays:
        raise OnnxgenError(f"{name} has no arrays")
    return from_parts(divided(arrays), name, table)


def from_parts(parts: Mapping[str, Mapping[str, Any]], name: str, table: bool = False) -> DataSource:
    """Like `from_columns`, for arrays of each part. A `Problem` in place of a column says why it can't be used."""
    files = {part: columns for part, columns in parts.items() if isinstance(columns, Rows)}
    parts = {
        part: {n: _gaps_of(name, n, decoded(name, n, c)) for n, c in columns.items()} for part, columns in parts.items()
    }
    raw = {
        part: {n: c.values if isinstance(c, Held) else c for n, c in columns.items()} for part, columns in parts.items()
    }
    problems = [(n, c) for columns in parts.values() for n, c in columns.items() if isinstance(c, Problem)]
    unfit = dict(sorted(problems, key=lambda source: not isinstance(source[1], Gaps)))  # a problem without values wins
    tensors = {
        part: _tensors({n: c for n, c in columns.items() if n not in unfit}, name) for part, columns in parts.items()
    }
    if not all(tensors.values()) and not any(isinstance(problem, Held) for problem in unfit.values()):
        raise OnnxgenError(*unfit.values())
    first = tensors["train"] if "train" in tensors else next(iter(tensors.values()))
    if first and not len(next(iter(first.values()))):
        raise OnnxgenError(f"{name} has no samples")
    text = frozenset(
        c for columns in tensors.values() for c, values in columns.items() if isinstance(values, np.ndarray)
    )
    classes = {column: _classes(column, tensors, name) for column in text}
    for columns in tensors.values():
        for column in text & set(columns):
            place = {name: i for i, name in enumerate(classes[column])}
            columns[column] = torch.tensor([place[v] for v in columns[column].tolist()], dtype=torch.int64)
    target = target_called(first)
    if target and target not in classes:
        counted = _counted([columns[target] for columns in tensors.values() if target in columns])
        classes |= {target: counted} if counted else {}
    rows = {part: None if columns else torch.arange(_length(raw[part])) for part, columns in tensors.items()}
    samples = {part: Columns(columns, classes, rows[part]) for part, columns in tensors.items()}
    one_table(samples, name)
    source = DataSource(dict(samples), name, target, text=text, table=table, unfit=unfit, raw=raw, files=files)
    source.notes += dict.fromkeys(note for of in files.values() for note in of.notes)
    return source


def _length(columns: Mapping[str, Any]) -> int:
    return max(len(values) for values in columns.values() if not isinstance(values, Problem))


def _gaps_of(source: str, name: str, values: Any) -> Any:
    """Return a column, a `Gaps` if it is text in which None or NaN stand for missing values, or `Lists` of text."""
    listed = isinstance(values, (list, tuple)) or (isinstance(values, np.ndarray) and values.dtype == object)
    if listed and len(values) and isinstance(values[0], (list, tuple)) and any(isinstance(v, str) for v in values[0]):
        what = f"{source}: column {legible(name)!r} holds lists of text"
        return lists_of(values, what, "an input takes numbers of one shape") or values
    if not isinstance(values, np.ndarray) or values.dtype != object or values.ndim != 1:
        return values
    gaps = [i for i, v in enumerate(values.tolist()) if v is None or (isinstance(v, float) and v != v)]
    kept = np.delete(values, gaps)
    texts = gaps and all(isinstance(value, str) for value in kept)
    return missing(f"{source}, row {gaps[0]}", name, gaps, kept) if texts else values


def _tensors(columns: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Convert columns to tensors, and columns of text to numpy arrays."""
    tensors = {str(column): tensor_of(values, f"{name}: column {column!r}") for column, values in columns.items()}
    need_one_length(tensors, name)
    return tensors


def tensor_of(values: Any, what: str) -> Any:
    """Return a tensor with at least one axis, or a numpy array of text. Raises `OnnxgenError` for anything else."""
    if isinstance(values, Tensor):
        tensor: Any = values.detach().cpu()
        need_axis(tensor, what)
        return tensor
    array = array_of(values, what)
    return array if array.dtype == object else torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _classes(column: str, parts: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, ...]:
    """Return the texts of a column in all parts, sorted."""
    by_part = [columns[column] for columns in parts.values() if column in columns]
    if not all(isinstance(values, np.ndarray) for values in by_part):
        raise OnnxgenError(f"{name}: column {legible(column)!r} is text in one part and numbers in another")
    return tuple(sorted({str(text) for values in by_part for text in values.tolist()}))


def _counted(targets: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the classes "0", "1", ... if the targets are class indices, else ()."""
    if any(t.is_floating_point() or t.ndim != 1 for t in targets) or not sum(map(len, targets)):
        return ()
    filled = [t.long() for t in targets if len(t)]
    lowest, highest = min(int(t.min()) for t in filled), max(int(t.max()) for t in filled)
    return tuple(map(str, range(highest + 1))) if lowest >= 0 and highest < MAX_NUMBERED_CLASSES else ()


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
    array = np.frombuffer(data, kind, offset=4 + 4 * axes).reshape(shape)
    return array.astype(array.dtype.newbyteorder("="))


def open_idx(path: Path) -> DataSource:
    """Open a folder of idx files, or a file of images beside its labels: columns "image" and "label".

    Raises:
        OnnxgenError: a file is missing or damaged, or the numbers of labels and images differ.
    """
    folder = path if path.is_dir() else path.parent
    files: dict[tuple[str, str, str], Path] = {}
    for file in sorted(folder.iterdir(), reverse=True):  # a file that is not gzipped replaces its gzipped copy
        if match := _NAME.fullmatch(file.name):
            files[match["set"], match["part"] or "", match["what"]] = file
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
