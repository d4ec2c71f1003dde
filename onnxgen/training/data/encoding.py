"""Makes inputs of the columns of a table: fits a `Table` to the training part, and joins columns.

The encodings are those of scikit-learn. Columns of single numbers are joined into one column for an
input: `--inputs features=age+height+weight`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, filterfalse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.names import legible, listed
from onnxgen.common.paths import installing
from onnxgen.errors import OnnxgenError, Problems, counted
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import in_columns, stored
from onnxgen.training.data.matching import no_target
from onnxgen.training.data.preprocessing import Column, Table, fitted, values_of
from onnxgen.training.data.samples import Feeding, Samples
from onnxgen.training.data.source import DataSource, Gaps, target_called, text_input
from onnxgen.training.settings import Settings

MAX_EXACT = 2**53  # from here on, a double does not hold every whole number
FILLS = {"median": "median", "frequent": "most_frequent"}  # by word, the strategy of scikit-learn's SimpleImputer
ENCODINGS = ("scale", "onehot", "ordinal")
FORM = "none, auto, or COLUMN=HOW,... with HOW made of median or frequent, and scale, onehot, onehot+zeros or ordinal"


def encode(source: DataSource, ports: Signature, feeding: Feeding, settings: Settings) -> Table | None:
    """Replace each joined column by what a table makes of its members, and return that table.

    `settings.table` is a fitted table, or says what to fit to the training part; with "none", nothing is done. Raises
    `OnnxgenError` if the table can't be fitted, can't represent a value, or does not fit an input.
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
    encoded = {}
    for part in source.parts:
        columns, rows = _read(source, part)
        encoded[part] = table.transform(columns, part, rows)
    for column, port in inputs.items():
        _check_width(port, {member: table.columns[member].width for member in source.joined[column]})
        _put(source, column, port, {part: arrays[port.name] for part, arrays in encoded.items()})
    return table


def _put(source: DataSource, column: str, port: Port, arrays: Mapping[str, NDArray[np.float64]]) -> None:
    """Put the arrays of an input into the place of its column: as whole numbers if it takes and they are such."""
    whole = "int" in (port.dtype or "") and all(map(_is_whole, arrays.values()))
    for part, array in arrays.items():
        x = torch.from_numpy(array).to(torch.int64 if whole else torch.float64)
        x = x[:, 0] if x.shape[1] == 1 and source.joined[column] == [column] else x
        source.parts[part] = in_columns(source.parts[part]).with_column(column, x)


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
    train = {member: values_of(member, read[member]) for member in chain.from_iterable(made_of.values())}
    ways: dict[str, str] = {} if isinstance(asked, str) else dict(asked)
    for port in inputs.values() if asked == "auto" else ():
        ways |= _chosen({member: train[member] for member in made_of[port.name]}, port)
    problems, columns = Problems(), {}
    if isinstance(asked, str) and asked != "auto":
        problems.add(f"--table {legible(asked)} is no way to treat columns", help=FORM)
    for name in filterfalse(train.__contains__, ways):
        what = f"--table {legible(name)}={legible(ways[name])}: no input is made of such a column"
        problems.add(what, help=f"the inputs are made of {listed(train)}")
    for name, values in train.items() if not problems.found else ():
        with problems.gathered():
            columns[name] = fit_column(name, values, ways.get(name, ""))
    problems.raise_if_any()
    shown = listed(f"{name}={way}" for name, way in ways.items() if way)
    source.notes.append(f"table, fitted to the train part: {shown}")
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
    text, missing, shown = values.dtype == object, values != values, legible(name)
    words = _words(name, way, text)
    if missing.all() or (not text and np.isinf(values).any()):
        what = f"column {shown!r} of the train part has {'no value at all' if missing.all() else 'infinite numbers'}"
        raise OnnxgenError(what, help="leave it out: --inputs INPUT=COLUMN+COLUMN")
    try:
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OrdinalEncoder
    except ImportError:
        raise OnnxgenError("--table needs scikit-learn", help=installing("train")) from None
    plain: Any = str if text else float
    fill, known = None, values[~missing]
    for word in words & {*FILLS}:
        imputer = SimpleImputer(strategy=FILLS[word]).fit(values[:, None])
        fill = plain(imputer.statistics_[0])
        known = np.array([fill if v != v else v for v in values.tolist()], dtype=values.dtype)
    if "scale" in words:
        return Column(fill, *_scale(known, shown))
    if not words & {"onehot", "ordinal"}:
        return Column(fill)
    categories = tuple(plain(c) for c in OrdinalEncoder().fit(known[:, None]).categories_[0])
    if not text and max(map(abs, categories)) >= MAX_EXACT:
        raise OnnxgenError(f"the numbers of column {shown!r} are too large for categories", help="store them as text")
    return Column(fill, categories=categories, onehot="onehot" in words, zeros="zeros" in words)


def _scale(numbers: NDArray[Any], shown: str) -> tuple[float, float]:
    from sklearn.preprocessing import StandardScaler

    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(numbers[:, None])
    if not np.isfinite(scaler.var_[0]):
        raise OnnxgenError(f"the numbers of column {shown!r} are too large to be scaled", help="store smaller ones")
    return float(scaler.mean_[0]), float(scaler.scale_[0])


def stacked(source: DataSource, ports: Signature, settings: Settings, targets: bool) -> DataSource:
    """Return the data with a column [n, k] for each input or target that takes k columns, in their order.

    It takes several columns if the settings say so (`a+b`). The only input without a column of a table takes all that
    are no targets. Raises `OnnxgenError` if a column is text, has missing values, or has several numbers per sample; or
    no column of a table is known to be the target.
    """
    aims = aims_of(source, ports, settings, [*source.fields])
    singles = _singles(source) if settings.table != "none" else []
    joined = _joined(source, ports, settings, aims, singles, targets)
    problems = Problems()
    for name, members in joined.items():
        option = "--target" if name in aims else "--table" if singles else "--inputs"
        _check(source, [member for member in members if member not in singles], problems, option)
    problems.raise_if_any()
    return replace(
        source,
        parts={part: _with_columns(samples, joined, bool(singles)) for part, samples in source.parts.items()},
        joined={name: members for name, members in joined.items() if name not in aims},
        text=source.text - ({*joined} & {*singles}),
        notes=[*source.notes, *_notes(ports, settings, joined)],
    )


def _joined(
    source: DataSource, ports: Signature, settings: Settings, aims: list[str], singles: list[str], targets: bool
) -> dict[str, list[str]]:
    """Return the columns that make another one: as the settings say, and for the only open input all that are left."""
    columns, names = [*source.fields], [port.name for port in ports.inputs]
    fed = [*settings.inputs.values(), *names]
    _refuse_unfit(source, aims if targets else [], fed, {*aims, *singles})
    joined = _asked(ports, settings, columns, aims, singles, targets)
    open_inputs = [name for name in names if name not in (*settings.inputs, *columns, *joined)]
    if len(open_inputs) != 1 or not (source.table or singles):
        return joined
    if targets and not aims:
        raise OnnxgenError(no_target(ports, columns))
    used = {*aims, *fed, *chain.from_iterable(joined.values())}
    left = [c for c in dict.fromkeys((*singles, *columns, *source.unfit)) if c not in used]
    return {**joined, open_inputs[0]: left} if len(left) > 1 or {*left} & {*source.unfit, *singles} else joined


def _refuse_unfit(source: DataSource, aims: Sequence[str], inputs: Sequence[str], encoded: Collection[str]) -> None:
    """Refuse targets and inputs that can't be used. What is `encoded` is none as it is read."""
    problems = Problems()
    for name in (*(name for name in inputs if name not in encoded), *aims):
        if (problem := source.unfit.get(name)) is not None:
            problems.add(problem.of_target() if name in aims and isinstance(problem, Gaps) else problem)
    problems.raise_if_any()


def _asked(
    ports: Signature, settings: Settings, columns: list[str], aims: list[str], singles: list[str], targets: bool
) -> dict[str, list[str]]:
    """Return what the table of an earlier run and the settings join, and the inputs that are columns of a table."""
    table, inputs = fitted(settings.table), settings.inputs
    joined = {inputs.get(n, n): list(members) for n, members in table.inputs.items()} if table else {}
    joined |= {c: c.split("+") for c in (*inputs.values(), *(aims if targets else ())) if "+" in c and c not in columns}
    own = {inputs.get(p.name, p.name): p for p in ports.inputs}
    return joined | {c: [c] for c, p in own.items() if c in singles and c not in (*aims, *joined) and p.dtype != "bool"}


def _notes(ports: Signature, settings: Settings, joined: Mapping[str, list[str]]) -> Iterator[str]:
    for name, members in joined.items():
        inputs = [p.name for p in ports.inputs if settings.inputs.get(p.name, p.name) == name]
        if members != [name]:
            yield f"{', '.join(inputs) or 'the target'} gets {counted(len(members), 'column')}: {listed(members)}"


def aims_of(source: DataSource, ports: Signature, settings: Settings, columns: Sequence[str]) -> list[str]:
    """Return the columns that are targets."""
    if settings.target:
        return [settings.target] if isinstance(settings.target, str) else list(settings.target.values())
    named = [p.name for p in ports.outputs if p.name in columns or p.name in source.unfit]
    known = source.target or target_called([*columns, *source.unfit])
    return named or ([known] if known else [])


def _singles(source: DataSource) -> list[str]:
    """Return the columns with one number or text, or none, for each sample, in their order."""
    unusable = {n for n, problem in source.unfit.items() if not isinstance(problem, Gaps)}
    first = next(iter(source.raw.values()), {})
    return [name for name, values in first.items() if name not in unusable and np.ndim(values) == 1]


def _check(source: DataSource, members: Sequence[str], problems: Problems, option: str) -> None:
    fields = source.fields
    for member in members:
        if member in source.unfit:
            problems.add(source.unfit[member])
        elif member not in fields:
            problems.add(f"{option}: the data has no column {legible(member)!r} (it has {listed(fields)})")
        elif member in source.text:
            problems.add(text_input(member, fields[member].classes))
        elif fields[member].shape:
            has = f"column {legible(member)!r} has {list(fields[member].shape)} numbers per sample"
            problems.add(f"{has}, but only single numbers can be joined")


def _with_columns(samples: Samples, joined: Mapping[str, list[str]], is_table: bool) -> Samples:
    """Return samples with the new columns; for a table zeros, in whose place `encode` puts its numbers."""
    for name, members in joined.items():
        samples = stored(samples).with_joined(name, members, is_table)
    return samples
