"""Lists of image files: tables with a column of paths, such as `labels.csv` or `metadata.csv`.

PaddleOCR's lists are of this kind, too. The other columns are as in any table. A second column of
paths has masks, or images as targets. A row of a list of images or sounds that lacks a value that
is needed is a fault, and is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.training.data import image_pairs
from onnxgen.training.data.arrays import in_columns, in_files
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import IMAGE, Images
from onnxgen.training.data.layout import PARTS, SOUNDS, SUFFIXES, files_in, folders, part_called, root_of
from onnxgen.training.data.looking import Seen, looked_at
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource, Gaps, Held, Rows, target_called
from onnxgen.training.data.table import TEXT, lines_of, rows_of
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

TABLES = (".csv", ".tsv", ".jsonl")
_NAMED = ("metadata", "labels")  # the list of a folder
_WORDS = re.compile(r"[^a-z0-9]+")  # between the words of a name: rec_gt_train
_OF_LISTS = {"rec", "det", "gt", "list", "label", "labels"}  # words of such a name beside that of the part
_TARGETS = {name for pair in image_pairs.TARGET_FOLDERS for name in pair[1:]}
_TITLES = re.compile(r"[\w ]+[\t ][\w ]+")  # a first line that names the columns


# ---- which files are lists -------------------------------------------------------------------------------------------


def lists_in(folder: Path) -> dict[str, Path]:
    """Return the lists of a folder by part; {} if there are none.

    They are `metadata.csv` or `labels.csv` in it or in the folders of its parts; or PaddleOCR's, in text files.
    """
    lists = {"train": file} if (file := _table_in(folder)) is not None else {}
    for inner in folders(folder) if not lists else []:
        if (part := part_called(inner.name)) and (file := _table_in(inner)) is not None:
            lists[part] = file
    return lists if "train" in lists else _texts_in(folder)


def _table_in(folder: Path) -> Path | None:
    files = [folder / f"{name}{suffix}" for name in _NAMED for suffix in TABLES]
    there = [file for file in files if file.is_file()]
    if len(there) > 1:
        raise OnnxgenError(f"{folder} has several lists: {listed(f.name for f in there)}", help="name one of them")
    return there[0] if there else None


def _texts_in(folder: Path) -> dict[str, Path]:
    lists: dict[str, Path] = {}
    for file in files_in(folder, ".txt"):
        part = _part_of(file.stem)
        if part is None or not is_list(file):
            continue
        if part in lists:
            raise OnnxgenError(f"{folder} has two lists of {part}: {lists[part].name} and {file.name}")
        lists[part] = file
    return lists if "train" in lists else {}


def _part_of(stem: str) -> str | None:
    """Return the part of a list's name: `train_list`, `rec_gt_test`, `train`; of `gt` and `labels` train."""
    rest = [word for word in _WORDS.split(stem.lower()) if word and word not in _OF_LISTS]
    part = "val" if rest == ["eval"] else part_called(rest[0] if len(rest) == 1 else "")
    return part or (None if rest else PARTS[0])


def is_list(file: Path) -> bool:
    """Return True for a text file whose first line is the path of an image, a tab or space, and something else.

    A line that names these two columns may be before it.
    """
    if file.suffix.lower() != ".txt" or not file.is_file():
        return False
    try:
        with file.open(encoding="utf-8-sig") as lines:
            first = [*islice((line for line in islice(lines, 100) if line.strip()), 2)]
    except (UnicodeDecodeError, OSError):
        return False
    return any(_divided(line) is not None for line in first[_titled(first) :][:1])


def _titled(lines: Sequence[str]) -> int:
    """Return 1 if the first line names the columns, else 0."""
    return int(bool(lines) and _divided(lines[0]) is None and bool(_TITLES.fullmatch(lines[0].rstrip("\r\n"))))


def _divided(line: str) -> tuple[str, str] | None:
    """Return the path of a line, and what stands behind it; None if it is no line of a list."""
    line = line.rstrip("\r\n")
    path, tab, rest = line.partition("\t") if "\t" in line else line.partition(" ")
    return (path.strip(), rest.strip()) if tab and is_image(path.strip()) else None


def is_image(text: Any) -> bool:
    """Return True for the name of an image."""
    return isinstance(text, str) and text.lower().endswith(SUFFIXES)


def read_list(file: Path) -> Rows:
    """Return the columns "image", and "text" or "mask", of a text file with a path and something else in each line.

    Raises:
        OnnxgenError: it is not UTF-8, or a line is none of a list.
    """
    rows, lines = [], []
    numbered = [(number, line) for number, line in enumerate(lines_of(file), 1) if line.strip()]
    for number, line in numbered[_titled([line for _, line in numbered[:1]]) :]:
        entry = _divided(line)
        if entry is None:
            what = f"{file}, line {number} is not the path of an image, a tab and a text"
            raise OnnxgenError(what, help="images/1.png<TAB>what is on it")
        rows.append(entry)
        lines.append(number)
    images, texts = (np.array(column, dtype=object) for column in zip(*rows))
    return Rows({IMAGE: images, image_pairs.MASK if all(map(is_image, texts)) else TEXT: texts}, file, lines)


# ---- opening ---------------------------------------------------------------------------------------------------------


def with_images(source: DataSource, files: Mapping[str, Path], faults: Faults, strict: bool) -> DataSource | None:
    """Return a table with images in place of the names of image files; None if it has no such names.

    Args:
        files: by part, the file of the table, from whose folder names are seen.
        faults: of its rows; those of its images are added.

    Raises:
        OnnxgenError: there are more than two columns of names, or no image can be used.
    """
    first = next(iter(source.raw.values()), {})
    named = [name for name in first if name in source.text and all(map(is_image, first[name]))]
    if not named:
        return None
    if len(named) > 2:
        raise OnnxgenError(f"{source.name} has several columns of images: {listed(named)}", help="leave two of them")
    whole = files.get("", faults.folder)
    paths = {part: {n: _paths(source, part, n, files.get(part, whole), faults) for n in named} for part in source.parts}
    return _single(source, named[0], paths, faults, strict) if len(named) == 1 else _pairs(named, paths, faults, strict)


_Paths = Mapping[str, Mapping[str, list[tuple[Path, str]]]]  # by part and column: each file, and the place of its name


def _paths(source: DataSource, part: str, name: str, file: Path, faults: Faults) -> list[tuple[Path, str]]:
    """Return the file of each row, and the line for messages."""
    rows, texts = source.files.get(part), source.raw[part][name]
    where = faults.place(rows.path) if rows is not None else ""
    lines = [f"{where}, line {line}: " for line in rows.lines] if rows is not None else [""] * len(texts)
    root = root_of(file.parent, list(texts))
    return [(root / text, line) for text, line in zip(texts, lines)]


def _single(source: DataSource, name: str, paths: _Paths, faults: Faults, strict: bool) -> DataSource:
    """Return the table with the column "image" in place of a column of names."""
    seen = looked_at(faults.folder, [p for by_column in paths.values() for p, _ in by_column[name] if p.is_file()])
    kept, skipped = dict[str, list[int]](), 0
    for part, by_column in paths.items():
        kept[part] = [i for i, (path, line) in enumerate(by_column[name]) if _is_sound(path, line, seen, faults)]
        skipped += len(by_column[name]) - len(kept[part])
    source.notes += faults.notes({part: len(rows) for part, rows in kept.items()}, strict, skipped)
    sizes = {seen[paths[part][name][i][0]] for part, rows in kept.items() for i in rows}
    size: Any = next(iter(sizes)) if len(sizes) == 1 else None
    raw = dict(source.raw)
    for part, samples in source.parts.items():
        rows = kept[part]
        images = Images(tuple(paths[part][name][i][0] for i in rows), size)
        source.parts[part] = in_files(samples, {IMAGE: images}, name, rows)
        raw[part] = {n: rows_of(v, rows) for n, v in raw[part].items() if n != name}
    source.raw, source.text, source.table = raw, source.text - {name}, False
    source.whites, source.kinds = {IMAGE: 255.0}, seen.kinds
    source.sizes = frozenset(s for s in sizes if not isinstance(s, str))
    left = [n for n in source.parts["train"].fields if n != IMAGE]
    source.target = source.target or (left[0] if len(left) == 1 else "")
    return source


def _is_sound(path: Path, line: str, seen: Mapping[Path, Seen], faults: Faults) -> bool:
    """Return False and add a fault if an image can't be used."""
    facts = seen.get(path, "")
    if isinstance(facts, str):
        faults.add(f"{line}{faults.place(path)}", f"can't be read: {facts}" if facts else "there is no such file")
    return not isinstance(facts, str)


def _pairs(named: Sequence[str], paths: _Paths, faults: Faults, strict: bool) -> DataSource:
    """Return the images of one column with those of another: masks, or images as targets."""
    usual = [n for n in named if n.lower() in _TARGETS or n.lower().startswith(("mask", "label", "segment", "annot"))]
    target = usual[0] if len(usual) == 1 else named[1]
    image = next(name for name in named if name != target)
    parts: dict[str, dict[Path, Path]] = {}
    lost = 0
    for part, columns in paths.items():
        pairs = parts.setdefault(part, {})
        for (path, line), (other, _) in zip(columns[image], columns[target]):
            missing = next((p for p in (path, other) if not p.is_file()), None)
            if missing is not None or path in pairs:
                why = "is listed twice" if missing is None else "is no file"
                faults.add(f"{line}{faults.place(missing or path)}", why)
                lost += 1
            else:
                pairs[path] = other
    opened = image_pairs.with_targets if target.lower() in _TARGETS else image_pairs.with_masks
    return opened(faults.folder, parts, faults, strict, lost)


def without_targets(source: DataSource) -> DataSource:
    """Return the images of a list alone, to predict."""
    parts: dict[str, Samples] = {part: in_columns(samples).only([IMAGE]) for part, samples in source.parts.items()}
    return replace(source, parts=parts, target="", text=frozenset(), raw={}, placed=frozenset())


Columns = Mapping[str, Any]


def without_gaps(
    parts: Mapping[str, Columns], root: Path, settings: Settings, labelled: bool
) -> tuple[dict[str, Columns], Faults]:
    """Return the columns of each part of a table without the rows that lack a file or the target, and these as faults.

    Only lists of files are changed. In a table of numbers a missing value may be filled in.

    Args:
        root: the folder of all parts, for messages.
        labelled: False if no target is needed.

    Raises:
        OnnxgenError: a part has no row left.
    """
    first = next(iter(parts.values()))
    images, sounds = ([n for n, values in first.items() if _are_names(values, ends)] for ends in (SUFFIXES, SOUNDS))
    named = images or (sounds if len(sounds) == 1 else [])
    faults = Faults(root, "image" if images else "sound")
    if not named:
        return dict(parts), faults
    needed = [*named, *(_wanted([name for name in first if name not in named], settings) if labelled else ())]
    complete, left = {}, {}
    for part, columns in parts.items():
        complete[part] = _complete(columns, [name for name in needed if name in columns], faults)
        left[part] = len(_values(complete[part][named[0]])) if named[0] in columns else 1
    if not all(left.values()):
        faults.notes(left, settings.strict, 0)
    return complete, faults


def _wanted(others: Sequence[str], settings: Settings) -> Sequence[str]:
    """Return the columns that settings name and the target; if nothing tells it, all others."""
    named = settings.target if isinstance(settings.target, str) else "+".join((settings.target or {}).values())
    usual = next((name for name in card_of(settings.task).columns if name in others), "")
    target = named or usual or target_called(others)
    asked = {name for text in (target, *settings.inputs.values()) for name in (text, *text.split("+"))}
    return [name for name in others if name in asked or not target]


def _complete(columns: Columns, needed: Sequence[str], faults: Faults) -> Columns:
    needed = [name for name in needed if isinstance(columns[name], Gaps) or not isinstance(columns[name], Problem)]
    gaps = {name: _missing(columns[name]) for name in needed}
    bare = np.logical_or.reduce([*gaps.values()])
    rows = np.flatnonzero(~bare)
    if len(rows) == len(bare):
        return columns
    for row in np.flatnonzero(bare).tolist():
        where = (
            f"{faults.place(columns.path)}, line {columns.lines[row]}" if isinstance(columns, Rows) else f"row {row}"
        )
        faults.add(where, f"column {legible(next(name for name in needed if gaps[name][row]))!r} has no value")
        faults.lost += 1
    left = {name: _rows(values, rows, name in needed) for name, values in columns.items()}
    if not isinstance(columns, Rows):
        return left
    complete = Rows(left, columns.path, [columns.lines[row] for row in rows.tolist()])
    complete.notes = columns.notes
    return complete


def _values(column: Any) -> Any:
    return column.values if isinstance(column, Held) else column


def _are_names(column: Any, endings: tuple[str, ...]) -> bool:
    """Return True for a column of text that names files with these endings; some rows may have none."""
    values = _values(column)
    if isinstance(values, Problem) or values is None or np.asarray(values).dtype != object or np.ndim(values) != 1:
        return False
    there = [value for value in values if isinstance(value, str) and value]
    return bool(there) and all(value.lower().endswith(endings) for value in there)


def _missing(column: Any) -> Any:
    """Return True for each row [n] without a value."""
    values = _values(column)
    if values is None or isinstance(values, Problem):
        return np.False_
    if np.ndim(values) != 1:
        return np.zeros(len(values), bool)
    return np.array([value is None or value == "" or value != value for value in values], bool)


def _rows(column: Any, rows: Any, whole: bool) -> Any:
    """Return some rows of a column; if all of them have a value, in the type that it has without gaps."""
    if not isinstance(column, Problem):
        return np.asarray(column)[rows]
    if not isinstance(column, Held) or column.values is None:
        return column
    left = column.values[rows]
    return left.astype(column.stored) if whole and isinstance(column, Gaps) else replace(column, values=left)
