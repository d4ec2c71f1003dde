"""Fits a `Table` to the training part with scikit-learn, and makes inputs of columns with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.names import legible, listed
from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import in_columns
from onnxgen.training.data.preprocessing import Column, Table, fitted, values_of
from onnxgen.training.data.samples import Feeding
from onnxgen.training.data.source import DataSource, text_input
from onnxgen.training.settings import Settings

MAX_EXACT = 2**53  # from here on, a double does not hold every whole number
FILLS = {"median": "median", "frequent": "most_frequent"}  # by word, the strategy of scikit-learn's SimpleImputer
ENCODINGS = ("scale", "onehot", "ordinal")
FORM = "none, auto, or COLUMN=HOW,... with HOW made of median or frequent, and scale, onehot, onehot+zeros or ordinal"


def encode(source: DataSource, ports: Signature, feeding: Feeding, settings: Settings) -> Table | None:
    """Replace each joined column by what a table makes of its members, and return that table.

    `settings.table` is a fitted table, or says what to fit to the training part; with "none", nothing is done.

    Raises:
        OnnxgenError: the table can't be fitted, can't represent a value, or does not fit an input.
    """
    if settings.table == "none":
        return None
    inputs = {column: port for port, column in zip(ports.inputs, feeding.inputs) if column in source.joined}
    made_of = {port.name: tuple(source.joined[column]) for column, port in inputs.items()}
    if not inputs:
        raise OnnxgenError("--table: no input is made of columns with one number or text each", help="--table none")
    table = fitted(settings.table) or _fit(source, inputs, made_of, settings.table)
    for name, members in made_of.items():
        if members != table.inputs.get(name):
            was = listed(table.inputs.get(name, ["no column"]))
            what = f"input {name!r} is made of {listed(members)}, but the table was fitted to {was}"
            raise OnnxgenError(what, help="give the columns and inputs of the training")
    made = {}
    for part in source.parts:
        columns, rows = _read(source, part)
        made[part] = table.transform(columns, part, rows)
    for column, port in inputs.items():
        _check_width(port, {member: table.columns[member].width for member in source.joined[column]})
        whole = "int" in (port.dtype or "") and all(_is_whole(by_input[port.name]) for by_input in made.values())
        for part, samples in source.parts.items():
            x = torch.from_numpy(made[part][port.name]).to(torch.int64 if whole else torch.float64)
            x = x[:, 0] if x.shape[1] == 1 and source.joined[column] == [column] else x
            source.parts[part] = in_columns(samples).with_column(column, x)
    return table


def _read(source: DataSource, part: str) -> tuple[dict[str, Any], list[int]]:
    """Return the columns of a part as they were read, and the row of each sample."""
    samples = in_columns(source.parts[part])
    rows = list(range(len(samples))) if samples.rows is None else samples.rows.tolist()
    raw = source.raw[part if part in source.raw else "train"]  # a part that was split off has rows of "train"
    members = {member for column in source.joined.values() for member in column}
    whole = {n: x.double().numpy() if isinstance(x, Tensor) else np.asarray(x) for n, x in raw.items() if n in members}
    return {name: x[rows] for name, x in whole.items()}, rows


def _is_whole(array: NDArray[np.float64]) -> bool:
    return bool((array == np.rint(array)).all() and (np.abs(array) < MAX_EXACT).all())


def _wanted(port: Port) -> int | None:
    """Return how many numbers of each sample the input takes; None if that is open."""
    sizes = [size for size in (port.dims or ())[1:] if isinstance(size, int)]
    return math.prod(sizes) if port.dims and len(sizes) == len(port.dims) - 1 else None


def _check_width(port: Port, widths: Mapping[str, int]) -> None:
    wanted, width = _wanted(port), sum(widths.values())
    if wanted not in (None, width):
        each = listed(f"{name} {count}" for name, count in widths.items())
        what = f"input {port.name!r} takes {wanted} numbers for each sample, but the columns become {width}: {each}"
        way = "say how with --table COLUMN=HOW,... or which with --inputs INPUT=COLUMN+COLUMN"
        raise OnnxgenError(what, help=f"{way}, or generate the model for this width with --input-shape")


def _fit(source: DataSource, inputs: Mapping[str, Port], made_of: Mapping[str, tuple[str, ...]], asked: Any) -> Table:
    """Return the table that `asked` (`Settings.table`) describes, fitted to the training part. A note says how."""
    if "train" not in source.parts:
        raise OnnxgenError(f"{source.name} has no train part, to which a table is fitted")
    read, _ = _read(source, "train")
    train = {member: values_of(member, read[member]) for members in made_of.values() for member in members}
    ways: dict[str, str] = {} if isinstance(asked, str) else dict(asked)
    for port in inputs.values() if asked == "auto" else ():
        ways |= _chosen({member: train[member] for member in made_of[port.name]}, port)
    problems, columns = Problems(), {}
    if isinstance(asked, str) and asked != "auto":
        problems.add(f"--table {legible(asked)} is no way to treat columns", help=FORM)
    for name in [name for name in ways if name not in train]:
        what = f"--table {legible(name)}={legible(ways[name])}: no input is made of such a column"
        problems.add(what, help=f"the inputs are made of {listed(train)}")
    for name, values in train.items() if not problems.found else ():
        try:
            columns[name] = fit_column(name, values, ways.get(name, ""))
        except OnnxgenError as error:
            problems.found.extend(error.problems)
    problems.raise_if_any()
    source.notes.append(
        "table, fitted to the train part: " + listed(f"{name}={way}" for name, way in ways.items() if way)
    )
    return Table(made_of, columns)


def _chosen(columns: Mapping[str, NDArray[Any]], port: Port) -> dict[str, str]:
    """Return the words for each column of an input. Whole numbers for an input of whole numbers stay as they are."""
    whole = "int" in (port.dtype or "")
    texts = {name: len({v for v in x.tolist() if v == v}) for name, x in columns.items() if x.dtype == object}
    width = len(columns) - len(texts) + sum(texts.values())
    ordinal = whole or (_wanted(port) == len(columns) != width)
    text, number = "frequent+ordinal" if ordinal else "frequent+onehot", "" if whole else "median+scale"
    return {name: text if name in texts else number for name in columns}


def _words(name: str, way: str, text: bool) -> set[str]:
    """Return the words of a way to treat a column. Raises `OnnxgenError` if they have no meaning."""
    words = {*way.split("+")} - {""}
    encodings = words & {*ENCODINGS}
    exclusive = len(words & {*FILLS}) > 1 or len(encodings) > 1 or ("zeros" in words and "onehot" not in words)
    if exclusive or not words <= {*FILLS, *ENCODINGS, "zeros"}:
        raise OnnxgenError(f"--table {legible(name)}={legible(way)} is no way to treat a column", help=FORM)
    if text and (words & {"median", "scale"} or not encodings):
        raise OnnxgenError(text_input(name))
    return words


def fit_column(name: str, values: NDArray[Any], way: str) -> Column:
    """Fit scikit-learn's preprocessing to the values of a column (as of `values_of`), and return what it found.

    `way` is made of words, joined by "+"; docs/DATA.md says what each does. Raises `OnnxgenError` if the words have no
    meaning for these values, or if scikit-learn is not installed.
    """
    text, missing, said = values.dtype == object, values != values, legible(name)
    words = _words(name, way, text)
    if missing.all() or (not text and np.isinf(values).any()):
        what = "has no value at all" if missing.all() else "has infinite numbers"
        raise OnnxgenError(
            f"column {said!r} of the train part {what}", help="leave it out: --inputs INPUT=COLUMN+COLUMN"
        )
    try:
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OrdinalEncoder, StandardScaler
    except ImportError:
        raise OnnxgenError("--table needs scikit-learn", help=installing("train")) from None
    plain: Any = str if text else float
    fill, known = None, values[~missing]
    for word in words & {*FILLS}:
        imputer = SimpleImputer(strategy=FILLS[word]).fit(values[:, None])
        fill = plain(imputer.statistics_[0])
        known = np.array([fill if v != v else v for v in values.tolist()], dtype=values.dtype)
    if "scale" in words:
        with np.errstate(over="ignore", invalid="ignore"):
            scaler = StandardScaler().fit(known[:, None])
        if not np.isfinite(scaler.var_[0]):
            raise OnnxgenError(f"the numbers of column {said!r} are too large to be scaled", help="store smaller ones")
        return Column(fill, float(scaler.mean_[0]), float(scaler.scale_[0]))
    if words & {"onehot", "ordinal"}:
        categories = tuple(plain(c) for c in OrdinalEncoder().fit(known[:, None]).categories_[0])
        if not text and max(map(abs, categories)) >= MAX_EXACT:
            raise OnnxgenError(
                f"the numbers of column {said!r} are too large for categories", help="store them as text"
            )
        return Column(fill, categories=categories, onehot="onehot" in words, zeros="zeros" in words)
    return Column(fill)
