"""Reads named arrays: `.npz`, `.npy` and safetensors files, dicts of arrays and tensors, scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxgen.common.names import legible
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problem, one_line
from onnxgen.training.data.archives import array_of, decoded, divided, need_axis, need_one_length
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.source import DataSource, Gaps, Held, Rows, one_table, target_called
from onnxgen.training.data.table import lists_of, missing

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

    found = load_digits()
    columns = {"image": torch.from_numpy(found.images).float(), "label": torch.from_numpy(found.target).long()}
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
    samples = {part: Columns(columns, classes, rows[part]) for part, columns in made.items()}
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
    need_one_length(found, name)
    return found


def tensor_of(values: Any, what: str) -> Any:
    """Return a tensor with at least one axis, or a numpy array of text. Raises `OnnxgenError` for anything else."""
    if isinstance(values, Tensor):
        found: Any = values.detach().cpu()
        need_axis(found, what)
        return found
    array = array_of(values, what)
    return array if array.dtype == object else torch.from_numpy(np.require(array, requirements=["C", "W"]))


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
