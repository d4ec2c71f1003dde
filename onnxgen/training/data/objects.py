"""Opens data given as Python objects, or by a function that returns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from onnxgen.errors import OnnxgenError, typed
from onnxgen.training.byname import imported
from onnxgen.training.data.columns import from_columns, from_parts
from onnxgen.training.data.items import by_position, items
from onnxgen.training.data.layout import PARTS, part_called
from onnxgen.training.data.samples import Data, Samples
from onnxgen.training.data.source import DataSource, one_table, target_called


def call(spec: str) -> Any:
    """Return the result of "module:function". The module may also be in the current folder.

    Raises:
        OnnxgenError: there is no such module or function, or it fails.
    """
    name, function = spec.split(":")
    way = f"a function {function}() of {name}.py is called without arguments"
    made = imported(spec, "data", way)
    try:
        return made() if callable(made) else made
    except OnnxgenError:
        raise
    except Exception as error:
        raise OnnxgenError(f"data {spec}: {typed(error)}", help=way) from error


def from_object(given: Any, name: str) -> DataSource | Data:
    """Open a Dataset, arrays (x, y), parts (train, val[, test]), a dict of columns or of parts. Return `Data` as it is.

    Raises:
        OnnxgenError: it is none of these.
    """
    if isinstance(given, Data):
        return given
    if isinstance(given, Mapping):
        parts = {part_called(str(key)): value for key, value in given.items()}
        if given and None not in parts:
            return _parts({str(part): value for part, value in parts.items()}, name)
        return from_columns(given, name)
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):  # a pandas DataFrame, or similar
        return from_columns({str(column): np.asarray(given[column]) for column in given.columns}, name, table=True)
    if isinstance(given, (tuple, list)) and 1 < len(given) <= 3 and not any(map(_is_array, given)):
        return _parts(dict(zip(PARTS, given)), name)
    return _parts({"train": given}, name)


def _parts(given: Mapping[str, Any], name: str) -> DataSource:
    if "train" not in given and len(given) > 1:
        raise OnnxgenError(f"{name} has parts {', '.join(given)}, but no train")
    columns = {part: _columns(value) for part, value in given.items()}
    if all(value is not None for value in columns.values()):
        return from_parts({part: value for part, value in columns.items() if value is not None}, name)
    samples = {part: _samples(value, f"{name}, {part}") for part, value in given.items() if value is not None}
    one_table(samples, name)
    return DataSource(samples, name, target_called(samples[next(iter(samples))].fields))


def _columns(given: Any) -> Mapping[str, Any] | None:
    """Return the columns of arrays in memory; None for any other object."""
    if isinstance(given, Mapping):
        return given
    if isinstance(given, TensorDataset):
        given = given.tensors
    if isinstance(given, (tuple, list)) and given and all(map(_is_array, given)):
        return by_position(given)
    return {"0": given} if _is_array(given) else None


def _samples(given: Any, what: str) -> Samples:
    if isinstance(given, DataLoader):
        raise OnnxgenError(f"{what} is a DataLoader", help="give its dataset: the trainer makes the batches")
    return given if isinstance(given, Samples) else items(given, what)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, Tensor)) and value.ndim > 0
