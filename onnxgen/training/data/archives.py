"""Named arrays of numpy: those of `.npz` and `.npy` files, their parts, what a column may hold. It imports no torch."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.data.layout import part_called


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


def divided(arrays: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the columns of each part, which names like `x_train` or `test_images` make; else all are "train"."""
    made = {key: _divided(key) for key in arrays}
    if not all(made.values()) or not any(found and found[0] == "train" for found in made.values()):
        return {"train": arrays}
    parts: dict[str, dict[str, Any]] = {}
    for key, array in arrays.items():
        part, column = made[key] or ("", "")
        parts.setdefault(part, {})[column] = array
    return {**parts}


def _divided(key: str) -> tuple[str, str] | None:
    """Return the part and the column in a key like `x_train` or `test_images`."""
    for before, after in (key.split("_", 1), key.rsplit("_", 1)) if "_" in key else ():
        if part := part_called(before):
            return part, after
        if part := part_called(after):
            return part, before
    return None


def decoded(name: str, column: str, values: Any) -> Any:
    """Return an array of bytes as one of text; anything else as it is. Raises `OnnxgenError` if it is not UTF-8."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "S":
        return values
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        what = f"{name}: column {legible(column)!r} holds bytes that are no text: {error}"
        raise OnnxgenError(what, help="store text, or numbers") from None


def array_of(values: Any, what: str) -> NDArray[Any]:
    """Return an array of numbers that torch has, or of text as objects. Raises `OnnxgenError` for anything else."""
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
    need_axis(array, what)
    return array


def need_axis(values: Any, what: str) -> None:
    """Raise `OnnxgenError` if a column is a single number."""
    if values.ndim == 0:
        raise OnnxgenError(f"{what} is a single number; its first axis must be the samples")


def need_one_length(columns: Mapping[str, Any], name: str) -> None:
    """Raise `OnnxgenError` if columns differ in their number of samples."""
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise OnnxgenError(
            f"{name}: columns are of different length: " + listed(f"{c} {n:,}" for c, n in lengths.items()),
            help="the first axis of each must be the samples",
        )
