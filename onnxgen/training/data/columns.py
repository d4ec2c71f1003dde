"""Reads named arrays: `.npz`, `.npy` and safetensors files, dicts of arrays and tensors, scikit-learn's digits."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxgen.common.names import legible
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problem, one_line
from onnxgen.training.data.arrays import Arrays
from onnxgen.training.data.layout import part_called
from onnxgen.training.data.source import DataSource, Gaps, Held, Rows, listed, one_table, target_called
from onnxgen.training.data.table import lists_of, missing

MAX_NUMBERED_CLASSES = 100_000  # a column with greater integers does not hold class indices


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an `.npz` by name, or the array of an `.npy` as column "x". Nothing is unpickled.

    Raises:
        OnnxgenError: the file is damaged or holds Python objects.
    """
    try:
        found = np.load(path, allow_pickle=False)
        return {"x": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        pickled = "pickle" in str(error).lower()
        way = "save arrays of numbers: reading pickled objects would run code" if pickled else "save it again"
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help=way) from None


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

    found = load_digits()
    columns = {"image": torch.from_numpy(found.images).float(), "label": torch.from_numpy(found.target).long()}
    classes = {"label": tuple(map(str, range(10)))}
    return DataSource({"train": Arrays(columns, classes)}, "digits", "label", {"image": 16.0}, glyphs=True)


def from_columns(arrays: Mapping[str, Any], name: str, table: bool = False) -> DataSource:
    """Return the data in named arrays, tensors or lists. Names like `x_train` or `test_images` make parts.

    Text becomes class indices, with the classes in sorted order.

    Raises:
        OnnxgenError: an array holds neither numbers nor text, or its length differs from the others.
    """
    if not arrays:
        raise OnnxgenError(f"{name} has no arrays")
    divided = {key: _divided(key) for key in arrays}
    whole = not all(divided.values()) or not any(d and d[0] == "train" for d in divided.values())
    if whole:
        return from_parts({"train": arrays}, name, table)
    parts: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        part, column = divided[key] or ("", "")
        parts.setdefault(part, {})[column] = array
    return from_parts(parts, name, table)


def _divided(key: str) -> tuple[str, str] | None:
    """Return the part and the column in a key like `x_train` or `test_images`."""
    for before, after in (key.split("_", 1), key.rsplit("_", 1)) if "_" in key else ():
        if part := part_called(before):
            return part, after
        if part := part_called(after):
            return part, before
    return None


def from_parts(parts: Mapping[str, Mapping[str, Any]], name: str, table: bool = False) -> DataSource:
    """Like `from_columns`, for arrays of each part. A `Problem` in place of a column says why it can't be used."""
    files = {part: columns for part, columns in parts.items() if isinstance(columns, Rows)}
    parts = {
        part: {n: _gaps_of(name, n, _decoded(name, n, c)) for n, c in columns.items()}
        for part, columns in parts.items()
    }
    raw = {
        part: {n: c.values if isinstance(c, Held) else c for n, c in columns.items()} for part, columns in parts.items()
    }
    problems = [(n, c) for columns in parts.values() for n, c in columns.items() if isinstance(c, Problem)]
    unfit = dict(sorted(problems, key=lambda found: not isinstance(found[1], Gaps)))  # a problem without values wins
    made = {
        part: _tensors({n: c for n, c in columns.items() if n not in unfit}, name) for part, columns in parts.items()
    }
    if not all(made.values()) and not any(isinstance(problem, Held) for problem in unfit.values()):
        raise OnnxgenError(*unfit.values())
    first = made["train"] if "train" in made else next(iter(made.values()))
    if first and not len(next(iter(first.values()))):
        raise OnnxgenError(f"{name} has no samples")
    text = frozenset(c for columns in made.values() for c, values in columns.items() if isinstance(values, np.ndarray))
    classes = {column: _classes(column, made, name) for column in text}
    for columns in made.values():
        for column in text & set(columns):
            place = {name: i for i, name in enumerate(classes[column])}
            columns[column] = torch.tensor([place[v] for v in columns[column].tolist()], dtype=torch.int64)
    target = target_called(first)
    if target and target not in classes:
        counted = _counted([columns[target] for columns in made.values() if target in columns])
        classes |= {target: counted} if counted else {}
    rows = {part: None if columns else torch.arange(_length(raw[part])) for part, columns in made.items()}
    samples = {part: Arrays(columns, classes, rows[part]) for part, columns in made.items()}
    one_table(samples, name)
    found = DataSource(dict(samples), name, target, text=text, table=table, unfit=unfit, raw=raw, files=files)
    found.notes += dict.fromkeys(note for of in files.values() for note in of.notes)
    return found


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
    found = {str(column): tensor_of(values, f"{name}: column {column!r}") for column, values in columns.items()}
    lengths = {column: len(values) for column, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise OnnxgenError(
            f"{name}: columns are of different length: " + listed(f"{c} {n:,}" for c, n in lengths.items()),
            help="the first axis of each must be the samples",
        )
    return found


def _decoded(name: str, column: str, values: Any) -> Any:
    """Return an array of bytes as one of text; anything else as it is. Raises `OnnxgenError` if it is not UTF-8."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "S":
        return values
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        what = f"{name}: column {legible(column)!r} holds bytes that are no text: {error}"
        raise OnnxgenError(what, help="store text, or numbers") from None


def tensor_of(values: Any, what: str) -> Any:
    """Return a tensor with at least one axis, or a numpy array of text. Raises `OnnxgenError` for anything else."""
    if isinstance(values, Tensor):
        found: Any = values.detach().cpu()
    else:
        try:
            array = np.asarray(values)
        except ValueError:  # nested lists of different length
            raise OnnxgenError(f"{what} has rows of different shapes", help="give numbers of one shape") from None
        if array.dtype.kind in "US" or (array.dtype == object and all(isinstance(v, str) for v in array.flat)):
            if array.ndim != 1:
                raise OnnxgenError(f"{what} is text of rank {array.ndim}; text must be one class name for each sample")
            return array.astype(object)
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:  # torch has no longdouble
            raise OnnxgenError(f"{what} has dtype {array.dtype}", help="give numbers or text, all of one shape")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype in (np.uint16, np.uint32, np.uint64):  # torch can't index these
            if array.size and int(array.max()) >= 1 << 63:
                raise OnnxgenError(f"{what} has {array.max()}, and torch's whole numbers end below 2**63")
            array = array.astype(np.int64)
        found = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if found.ndim == 0:
        raise OnnxgenError(f"{what} is a single number; its first axis must be the samples")
    return found


def _classes(column: str, parts: Mapping[str, Mapping[str, Any]], name: str) -> tuple[str, ...]:
    """Return the texts of a column in all parts, sorted."""
    found = [columns[column] for columns in parts.values() if column in columns]
    if not all(isinstance(values, np.ndarray) for values in found):
        raise OnnxgenError(f"{name}: column {legible(column)!r} is text in one part and numbers in another")
    return tuple(sorted({str(text) for values in found for text in values.tolist()}))


def _counted(targets: Sequence[Tensor]) -> tuple[str, ...]:
    """Return the classes "0", "1", ... if the targets are class indices, else ()."""
    if any(t.is_floating_point() or t.ndim != 1 for t in targets) or not sum(map(len, targets)):
        return ()
    filled = [t.long() for t in targets if len(t)]
    lowest, highest = min(int(t.min()) for t in filled), max(int(t.max()) for t in filled)
    return tuple(map(str, range(highest + 1))) if lowest >= 0 and highest < MAX_NUMBERED_CLASSES else ()
