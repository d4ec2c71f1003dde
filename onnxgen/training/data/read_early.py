"""Reads a table or arrays, and compares them with options and the network's input. Nothing here imports torch.

It refuses only what is certain. All of it is checked again, and more, where the data is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from onnxgen.common.names import legible, listed
from onnxgen.errors import Problem, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.archives import array_of, decoded, divided, need_one_length, read_npz
from onnxgen.training.data.layout import SOUNDS, SUFFIXES
from onnxgen.training.data.preprocessing import texts_of
from onnxgen.training.data.source import Gaps, target_called, text_input
from onnxgen.training.data.table import read_csv, read_parquet
from onnxgen.training.settings import Settings

_TEXTS, _ARRAYS = (".csv", ".tsv"), (".npy", ".npz", ".parquet")
_PLAIN = ("classification", "multilabel", "regression")  # networks that are trained with a loss of each output
# bytes of a file that is read here, twice in all: text takes a tenth of a second for each MiB
_MOST = {**dict.fromkeys(_TEXTS, 4 << 20), **dict.fromkeys(_ARRAYS, 32 << 20)}


def check_file(
    path: Path,
    network: Signature | None,
    settings: Settings,
    problems: Problems,
    refuse_classes: Callable[[Sequence[str]], None],
    count: int,
) -> None:
    """Add what is wrong with a table or arrays: what can't be read, columns that options name and it lacks, and gaps.

    Args:
        network: its inputs and outputs, if they are known.
        refuse_classes: gets the names of the target's classes, if these are text.
        count: of the network's classes; 0 if more may fit.
    """
    if not path.is_file() or path.stat().st_size > _MOST.get(path.suffix.lower(), -1):
        return
    before = len(problems.found)
    with problems.gathered():
        columns = _read(path, settings, problems)
    if len(problems.found) > before or any(map(_are_files, columns.values())):
        return  # a list of images or sounds has columns of other names
    for option, name in _asked(settings, columns):
        if name not in columns:
            problems.add(f"{option}: the data has no such column (it has {listed(columns)})")
    target = settings.target if isinstance(settings.target, str) else target_called(columns)
    used = [name for _, name in _asked(settings, columns)]
    targets = {target, *(c for whole in _targets(settings) for c in _parts(whole, columns))}
    plain = settings.task in ("auto", "classification", "outputs") and settings.teacher is None
    for name in (*used, *([target] if plain and settings.target is None else ())):
        if settings.table == "none" and isinstance(gap := columns.get(name), Problem):
            problems.add(gap.of_target() if isinstance(gap, Gaps) and name in targets else gap)
    plain &= not isinstance(settings.target, Mapping)  # which names other columns
    values: Any = columns.get(target)
    if plain and target and _is_text(values):
        with problems.gathered():
            refuse_classes(sorted({str(value) for value in values}))
    elif plain and count and not settings.classes and _are_labels(values):
        _check_labels(target, sorted({*values.tolist()}), count, problems)
    if plain and target in columns and settings.table == "none" and settings.tokenizer is None:
        _check_input(network, {n: c for n, c in columns.items() if n not in targets}, settings, problems)
    if plain and path.suffix.lower() in (".npy", ".npz") and len(problems.found) == before:
        _check_open(network, columns, settings, problems)


def _check_open(network: Signature | None, columns: Mapping[str, Any], settings: Settings, problems: Problems) -> None:
    """Add that it is open which column feeds an input, or is the target, of a network with a loss of each output."""
    known = network is not None and network.purpose is not None and network.purpose.kind in _PLAIN
    if network is None or not known or settings.noise is not None or any(map(_is_text, columns.values())):
        return
    from onnxgen.training.data.matching import named_columns  # imported here: it imports onnx

    fed = tuple(port for port in network.inputs if port.name not in settings.const)
    with problems.gathered():
        named_columns([*columns], "", replace(network, inputs=fed), settings, True)


def _read(path: Path, settings: Settings, problems: Problems) -> Mapping[str, Any]:
    """Return the columns of the training part."""
    if path.suffix.lower() in _TEXTS:
        return read_csv(path, texts_of(settings.table))
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    parts: dict[str, dict[str, Any]] = {}
    for part, columns in divided(read_npz(path)).items():
        parts[part] = {}
        for name, values in columns.items():
            with problems.gathered():
                parts[part][name] = array_of(decoded(path.name, name, values), f"{path.name}: column {name!r}")
        with problems.gathered():
            need_one_length(parts[part], path.name)
    return parts["train"]


def _check_labels(column: str, there: Sequence[int], count: int, problems: Problems) -> None:
    """Add that some labels are none of the network's classes."""
    if not there or there[-1] < count or there[0] < 0 or (there[0], there[-1]) == (1, count):
        return
    some = listed(map(str, there)) if len(there) <= there[-1] else f"0 to {there[-1]}"
    ways = f"number them 0 to {len(there) - 1}; " if len(there) <= min(there[-1], count) else ""
    what = f"column {legible(column)!r} has the labels {some}, but the model's {count} are 0 to {count - 1}"
    problems.add(what, help=f"{ways}--replace-head {there[-1] + 1}{' keeps their numbers' if ways else ''}")


def _check_input(network: Signature | None, columns: Mapping[str, Any], settings: Settings, problems: Problems) -> None:
    """Add what the only input can't take, if that takes floats: text, or numbers of another size."""
    fed = [port for port in network.inputs if port.name not in settings.const] if network is not None else []
    if len(fed) != 1 or "float" not in (fed[0].dtype or ""):
        return
    named = settings.inputs.get(fed[0].name, fed[0].name if fed[0].name in columns else "")
    given = {n: columns[n] for n in (_parts(named, columns) if named else columns) if n in columns}
    texts = [name for name, values in given.items() if _is_text(values)]
    for name in texts:
        problems.add(text_input(name, sorted({*map(str, given[name])})))
    usual = settings.normalize == "auto" and settings.augment == "none" and settings.noise is None
    if not texts and given and usual and not any(isinstance(values, Problem) for values in given.values()):
        _check_numbers(fed[0], given, problems)


def _check_numbers(port: Port, given: Mapping[str, Any], problems: Problems) -> None:
    """Add that columns have values that are none, or another size than the input that they feed."""
    joined, first = all(values.ndim == 1 for values in given.values()), next(iter(given.values()))
    if not joined and (len(given) > 1 or first.dtype.kind != "f"):
        return  # which of them feeds it is not known, or they are images
    for name, values in given.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = tuple(np.argwhere(~np.isfinite(values))[0])
            what = f"column {legible(name)!r} has {values[place]:g} in row {place[0]}"
            problems.add(what, help="remove the sample, or fill in the value")
    shape, dims = (len(given),) if joined else first.shape[1:], port.dims or ()
    fits = [prod(map(int, d)) for d in (dims[1:], dims) if all(isinstance(size, int) for size in d)]
    if port.dims is not None and fits and prod(shape) not in fits:
        column = port.name if joined else next(iter(given))
        way = "change the data, or generate the model for this shape with --input-shape"
        if len(dims) == 4 and len(shape) in (2, 3):
            way = "images as uint8 are resized and converted; or generate the model with --input-shape"
        gives = ", ".join(map(str, ("n", *shape)))
        what = f"input {port.name!r} takes [{', '.join(map(str, dims))}], but column {column!r} gives [{gives}]"
        problems.add(what, help=way)


def _asked(settings: Settings, columns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is given, and each column that it names."""
    given = [(f"--inputs {name}={legible(whole)}", whole) for name, whole in settings.inputs.items()]
    for option, whole in given + [(f"--target {legible(whole)}", whole) for whole in _targets(settings)]:
        for column in _parts(whole, columns):
            yield option, column


def _parts(whole: str, columns: Mapping[str, Any]) -> list[str]:
    """Return the columns that a text names: `a+b` names two, unless a column is called so."""
    return [column.strip() for column in ([whole] if whole in columns else whole.split("+"))]


def _targets(settings: Settings) -> list[str]:
    said: Mapping[str, str] = settings.target if isinstance(settings.target, Mapping) else {}
    return [settings.target] if isinstance(settings.target, str) else [*said.values()]


def _are_labels(values: Any) -> bool:
    return hasattr(values, "dtype") and values.dtype.kind in "iu" and values.ndim == 1


def _is_text(values: Any) -> bool:
    return hasattr(values, "dtype") and values.dtype.kind == "O"


def _are_files(values: Any) -> bool:
    """Return True if a column may hold paths of images or sounds."""
    return _is_text(values) and any(str(value).lower().endswith((*SUFFIXES, *SOUNDS)) for value in values.tolist())
