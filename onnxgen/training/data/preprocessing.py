"""Turns columns of a table into numbers, in the way that was fitted to the training data. Needs numpy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, typed


@dataclass(frozen=True)
class Column:
    """How the values of a column become numbers.

    Attributes:
        fill: the value that stands for a missing one; None: there is none.
        mean, scale: a number becomes `(number - mean) / scale`.
        categories: the known values, all numbers or all text; None: the column holds numbers, which are used as such.
        onehot: a category becomes a row with a 1 at the category's index and 0 elsewhere. False: it becomes its index.
        zeros: with `onehot`, a missing value, and one that is no category, becomes a row of zeros.
    """

    fill: float | str | None = None
    mean: float = 0.0
    scale: float = 1.0
    categories: tuple[Any, ...] | None = None
    onehot: bool = False
    zeros: bool = False

    def __post_init__(self) -> None:
        known = [0.0] if self.categories is None else [*self.categories]
        if {type(v) for v in [*known, *([] if self.fill is None else [self.fill])]} not in ({float}, {str}):
            raise TypeError("fill and categories must be all numbers or all text")
        if not (math.isfinite(self.mean) and math.isfinite(self.scale) and self.scale):
            raise TypeError("mean and scale must be finite, and scale not 0")

    @property
    def is_text(self) -> bool:
        """True if its values are text."""
        return any(isinstance(value, str) for value in (self.fill, *(self.categories or ())))

    @property
    def width(self) -> int:
        """How many numbers a value becomes."""
        return len(self.categories or ()) if self.onehot else 1

    def transform(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return [n, width] for what `values_of` returned: NaN for a value that this column can't represent."""
        filled = [self.fill if v != v and self.fill is not None else v for v in values.tolist()]
        if self.categories is None:
            numbers = np.array([math.nan if isinstance(v, str) else v for v in filled], dtype=np.float64)
            return np.asarray((numbers - self.mean) / self.scale)[:, None]
        places = {category: float(place) for place, category in enumerate(self.categories)}
        indices = np.array([places.get(v, math.nan) for v in filled], dtype=np.float64)[:, None]
        if not self.onehot:
            return indices
        rows = (indices == np.arange(self.width)).astype(np.float64)
        return rows if self.zeros else np.where(np.isnan(indices), math.nan, rows)


@dataclass(frozen=True)
class Table:
    """How columns of a table become inputs of a model.

    Attributes:
        inputs: by input, the columns that it is made of, in order.
        columns: how each of these becomes numbers.
    """

    inputs: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, Column]

    def transform(
        self, columns: Mapping[str, Any], part: str = "", rows: Sequence[int] | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return an array [n, width] for each input, computed in doubles. Cast it to the dtype of the input.

        Args:
            columns: by name, an array, a tensor or a list [n] of numbers or text. Others are ignored.
            part, rows: where the values were read, for messages. Default: rows are counted from 0.

        Raises:
            OnnxgenError: a column is missing, or has a value that it had not when this table was fitted.
        """
        encoded = {}
        for name, column in self.columns.items():
            if name not in columns:
                way = "give all columns of the training data, under the same names"
                raise OnnxgenError(f"the data has no column {legible(name)!r}", help=way)
            values = values_of(name, columns[name])
            encoded[name] = column.transform(values)
            for index in np.flatnonzero(~np.isfinite(encoded[name]).all(1))[:1]:
                value, of = values.tolist()[index], f" of {part}" if part else ""
                what = f"column {legible(name)!r}{of} has {'no value' if value != value else repr(value)} in row "
                way = "change it, remove the sample, or fit a table that takes it, as --table COLUMN=median, "
                way += "COLUMN=frequent, or COLUMN=onehot+zeros for categories that the training part does not have"
                raise OnnxgenError(f"{what}{index if rows is None else rows[index]}", help=way)
        return {name: np.concatenate([encoded[m] for m in members], 1) for name, members in self.inputs.items()}

    def to_json(self) -> dict[str, Any]:
        """Return this table as dicts, lists, text and numbers, from which `from_json` makes an equal one."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Table:
        """Make a table of what `to_json` returned. Raises `OnnxgenError` if it is anything else."""
        try:
            columns = {name: Column(**{k: _stored(v) for k, v in c.items()}) for name, c in data["columns"].items()}
            inputs = {name: tuple(members) for name, members in data["inputs"].items()}
            if {*columns} != {member for members in inputs.values() for member in members} or () in inputs.values():
                raise ValueError("inputs and columns have other names")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            way = "give what Data.table.to_json() returned, or `table` of a run's config.toml"
            raise OnnxgenError(f"this is not a fitted table: {typed(error)}", help=way) from None
        return cls(inputs, columns)


def _stored(value: Any) -> Any:
    """Return a value of JSON or TOML as `Column` has it."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_stored, value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def fitted(table: str | Mapping[str, Any]) -> Table | None:
    """Return the table if `Settings.table` holds a fitted one; None if it holds what to fit, or "none"."""
    if isinstance(table, str) or (table and all(isinstance(way, str) for way in table.values())):
        return None
    return Table.from_json(table)


def texts_of(table: str | Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns that hold text, of a fitted table; () of any other."""
    known = fitted(table)
    return tuple(name for name, column in known.columns.items() if column.is_text) if known is not None else ()


def values_of(name: str, values: Any) -> NDArray[Any]:
    """Return the values [n] of a column: doubles, or objects (text) if there is a text. NaN and None become NaN.

    Raises `OnnxgenError` if it has not one axis, or holds neither numbers nor text.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        array = np.array([math.nan if v is None else v for v in array.ravel().tolist()], dtype=object)
    if array.dtype != object or not any(isinstance(v, str) for v in array):
        with suppress(TypeError, ValueError):
            array = array.astype(np.float64)
    wrong = array.dtype == object and not all(isinstance(v, str) or v != v for v in array)
    if np.ndim(values) != 1 or wrong:
        raise OnnxgenError(f"column {legible(name)!r} must hold one number or one text for each sample")
    return array
