"""Reads arrays: `.npz`, `.npy`, safetensors and idx files, dicts of arrays and tensors, the digits.

idx is the format of MNIST and of similar data sets (http://yann.lecun.com/exdb/mnist). The digits
are those of scikit-learn.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
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

    Text becomes class indices, with the classes in sorted order. Raises `OnnxgenError` if an array holds neither
    numbers nor text, or its length differs from the others.
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
    unfit = _unfit(parts)
    usable, first = _usable(parts, unfit, name)
    classes = _number_texts(usable, name)
    text, target = frozenset(classes), target_called(first)
    if target and target not in classes:
        classes |= _counted(target, usable)
    rows = {part: None if columns else torch.arange(_length(raw[part])) for part, columns in usable.items()}
    samples = {part: Columns(columns, classes, rows[part]) for part, columns in usable.items()}
    one_table(samples, name)
    source = DataSource(dict(samples), name, target, text=text, table=table, unfit=unfit, raw=raw, files=files)
    source.notes += dict.fromkeys(note for of in files.values() for note in of.notes)
    return source


def _unfit(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Problem]:
    """Return why some columns can't be used; a problem without values wins."""
    problems = [(n, c) for columns in parts.values() for n, c in columns.items() if isinstance(c, Problem)]
    return dict(sorted(problems, key=lambda pair: not isinstance(pair[1], Gaps)))


def _usable(
    parts: Mapping[str, Mapping[str, Any]], unfit: Mapping[str, Problem], name: str
) -> tuple[dict[str, dict[str, Any]], Mapping[str, Any]]:
    """Return the columns that can be used: tensors, and numpy arrays of text; and those of the first part."""
    usable = {}
    for part, columns in parts.items():
        fit = {n: values for n, values in columns.items() if n not in unfit}
        usable[part] = {str(n): tensor_of(values, f"{name}: column {n!r}") for n, values in fit.items()}
        need_one_length(usable[part], name)
    if not all(usable.values()) and not any(isinstance(problem, Held) for problem in unfit.values()):
        raise OnnxgenError(*unfit.values())
    first = usable["train"] if "train" in usable else next(iter(usable.values()))
    if first and not len(next(iter(first.values()))):
        raise OnnxgenError(f"{name} has no samples")
    return usable, first


def _length(columns: Mapping[str, Any]) -> int:
    return max(len(values) for values in columns.values() if not isinstance(values, Problem))


def _gaps_of(source: str, name: str, values: Any) -> Any:
    """Return a column, a `Gaps` if it is text in which None or NaN stand for missing values, or `Lists` of text."""
    is_array = isinstance(values, np.ndarray) and values.dtype == object
    first = values[0] if (is_array or isinstance(values, (list, tuple))) and len(values) else None
    if isinstance(first, (list, tuple)) and any(isinstance(value, str) for value in first):
        what = f"{source}: column {legible(name)!r} holds lists of text"
        return lists_of(values, what, "an input takes numbers of one shape") or values
    return _gaps_of_texts(source, name, values) if is_array and values.ndim == 1 else values


def _gaps_of_texts(source: str, name: str, values: NDArray[Any]) -> Any:
    gaps = [i for i, v in enumerate(values.tolist()) if v is None or (isinstance(v, float) and v != v)]
    kept = np.delete(values, gaps)
    texts = gaps and all(isinstance(value, str) for value in kept)
    return missing(f"{source}, row {gaps[0]}", name, gaps, kept) if texts else values


def _number_texts(parts: Mapping[str, dict[str, Any]], name: str) -> dict[str, tuple[str, ...]]:
    """Make class indices of the columns of text, and return the classes of each."""
    text = {n for columns in parts.values() for n, values in columns.items() if isinstance(values, np.ndarray)}
    classes = {column: _classes(column, parts, name) for column in text}
    for columns in parts.values():
        for column in text & set(columns):
            place = {value: i for i, value in enumerate(classes[column])}
            columns[column] = torch.tensor([place[value] for value in columns[column].tolist()], dtype=torch.int64)
    return classes


def _classes(column: str, parts: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, ...]:
    """Return the texts of a column in all parts, sorted."""
    by_part = [columns[column] for columns in parts.values() if column in columns]
    if not all(isinstance(values, np.ndarray) for values in by_part):
        raise OnnxgenError(f"{name}: column {legible(column)!r} is text in one part and numbers in another")
    return tuple(sorted({str(text) for values in by_part for text in values.tolist()}))


def tensor_of(values: Any, what: str) -> Any:
    """Return a tensor with at least one axis, or a numpy array of text. Raises `OnnxgenError` for anything else."""
    if isinstance(values, Tensor):
        tensor: Any = values.detach().cpu()
        need_axis(tensor, what)
        return tensor
    array = array_of(values, what)
    return array if array.dtype == object else torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _counted(column: str, parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, tuple[str, ...]]:
    """Return the classes "0", "1", ... of a column if it holds class indices, else {}."""
    targets = [columns[column] for columns in parts.values() if column in columns]
    if any(t.is_floating_point() or t.ndim != 1 for t in targets) or not sum(map(len, targets)):
        return {}
    filled = [t.long() for t in targets if len(t)]
    lowest, highest = min(int(t.min()) for t in filled), max(int(t.max()) for t in filled)
    is_index = lowest >= 0 and highest < MAX_NUMBERED_CLASSES
    return {column: tuple(map(str, range(highest + 1)))} if is_index else {}


_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAME = re.compile(r"(?P<set>.*?)(?P<part>train|t10k|test|val)?[-_.](?P<what>images|labels)[-_.]idx\d(-ubyte)?(\.gz)?")


def is_idx(path: Path) -> bool:
    """Return True if the file has the name of an idx file with images or labels, or the folder has such a file."""
    if path.is_dir():
        return any(_NAME.fullmatch(p.name) for p in path.iterdir())
    return _NAME.fullmatch(path.name) is not None


def read_idx(path: Path) -> NDArray[np.generic]:
    """Return the array of one file, which may be gzipped, in the file's dtype and native byte order.

    Raises `OnnxgenError` if it is not an idx file, or it has more or fewer bytes than its header says.
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

    Raises `OnnxgenError` if a file is missing or damaged, or the numbers of labels and images differ.
    """
    folder = path if path.is_dir() else path.parent
    read = {part: _pair(folder, *files) for part, files in _idx_files(folder, path).items()}
    classes = tuple(str(i) for i in range(1 + max(int(y.max()) for _, y in read.values() if y.size)))
    parts = {}
    for part, (x, y) in read.items():
        columns = {"image": torch.from_numpy(x), "label": torch.from_numpy(y.astype(np.int64))}
        name = part_called(part) if len(read) > 1 else None
        parts[name or "train"] = Columns(columns, {"label": classes})
    white = {"image": 255.0} if all(x.dtype == np.uint8 for x, _ in read.values()) else {}
    return DataSource(dict(parts), folder.name if path.is_dir() else path.name, "label", white, glyphs=True)


def _idx_files(folder: Path, path: Path) -> dict[str, tuple[Path | None, Path | None]]:
    """Return the files of images and labels by the word for the part in their names; of a file those of its part."""
    named = [(match, file) for file in folder.iterdir() if (match := _NAME.fullmatch(file.name))]
    named.sort(key=lambda pair: pair[1], reverse=True)  # a file that is not gzipped replaces its gzipped copy
    files = {(match["set"], match["part"] or "", match["what"]): file for match, file in named}
    own = None if path.is_dir() else _NAME.fullmatch(path.name)
    keys = sorted({key[:2] for key in files if own is None or key[:2] == (own["set"], own["part"] or "")})
    sets = sorted({name for name, _ in keys})
    if len(sets) > 1:
        what = f"{folder} has idx files of several sets: {listed(sets)}"
        raise OnnxgenError(what, help="name one of the files of images")
    return {part: (files.get((name, part, "images")), files.get((name, part, "labels"))) for name, part in keys}


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
