"""Lists of image files: tables with a column of paths, such as `labels.csv` or `metadata.csv`.

PaddleOCR's lists are of this kind, too. The other columns are as in any table. A second column of
paths has masks, or images as targets. A row of a list of images or sounds that lacks a value that
is needed is a fault, and is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.training.data import image_pairs
from onnxgen.training.data.arrays import in_columns, in_files
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import IMAGE, Images
from onnxgen.training.data.layout import PARTS, SOUNDS, SUFFIXES, files_in, folders, part_called
from onnxgen.training.data.looking import Seen, looked_at, one_size
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource, Gaps, Held, Rows, aim_of
from onnxgen.training.data.table import TEXT, lines_of, rows_of
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

TABLES = (".csv", ".tsv", ".jsonl")
_NAMED = ("metadata", "labels")  # the list of a folder
_WORDS = re.compile(r"[^a-z0-9]+")  # between the words of a name: rec_gt_train
_OF_LISTS = {"rec", "det", "gt", "list", "label", "labels"}  # words of such a name beside that of the part
_TARGETS = {name for pair in image_pairs.TARGET_FOLDERS for name in pair[1:]}
_TITLES = re.compile(r"[\w ]+[\t ][\w ]+")  # a first line that names the columns


def lists_in(folder: Path) -> dict[str, Path]:
    """Return the lists of a folder by part; {} if there are none, or if it is a file.

    They are `metadata.csv` or `labels.csv` in it or in the folders of its parts; or PaddleOCR's, in text files.
    """
    if not folder.is_dir():
        return {}
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

    Raises `OnnxgenError` if it is not UTF-8, or a line is none of a list.
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
    paths = {
        part: [source.paths(part, name, files.get(part, whole).parent, faults) for name in named]
        for part in source.parts
    }
    if len(named) == 1:
        return _single(source, named[0], {part: column for part, (column,) in paths.items()}, faults, strict)
    return _pairs(named, paths, faults, strict)


def _single(
    source: DataSource, name: str, paths: Mapping[str, list[tuple[Path, str]]], faults: Faults, strict: bool
) -> DataSource:
    """Return the table with the column "image" in place of a column of names."""
    seen = looked_at(faults.folder, [path for rows in paths.values() for path, _ in rows if path.is_file()])
    kept = {
        part: [i for i, (path, line) in enumerate(rows) if _is_sound(path, line, seen, faults)]
        for part, rows in paths.items()
    }
    skipped = sum(map(len, paths.values())) - sum(map(len, kept.values()))
    source.notes += faults.notes(kept, strict, skipped)
    files = {part: tuple(paths[part][i][0] for i in rows) for part, rows in kept.items()}
    sizes = seen.sizes(chain.from_iterable(files.values()))
    raw = dict(source.raw)
    for part, samples in source.parts.items():
        source.parts[part] = in_files(samples, {IMAGE: Images(files[part], one_size(sizes))}, name, kept[part])
        raw[part] = {n: rows_of(v, kept[part]) for n, v in raw[part].items() if n != name}
    source.raw, source.text, source.table = raw, source.text - {name}, False
    source.whites, source.kinds, source.sizes = {IMAGE: 255.0}, seen.kinds, sizes
    left = source.parts["train"].fields.keys() - {IMAGE}
    source.target = source.target or (left.pop() if len(left) == 1 else "")
    return source


def _is_sound(path: Path, line: str, seen: Mapping[Path, Seen], faults: Faults) -> bool:
    """Return False and add a fault if an image can't be used."""
    facts = seen.get(path, "")
    if isinstance(facts, str):
        faults.add(f"{line}{faults.place(path)}", f"can't be read: {facts}" if facts else "there is no such file")
    return not isinstance(facts, str)


def _pairs(
    named: Sequence[str], paths: Mapping[str, list[list[tuple[Path, str]]]], faults: Faults, strict: bool
) -> DataSource:
    """Return the images of one column with those of another: masks, or images as targets."""
    usual = [n for n in named if n.lower() in _TARGETS or n.lower().startswith(("mask", "label", "segment", "annot"))]
    target = usual[0] if len(usual) == 1 else named[1]
    parts: dict[str, dict[Path, Path]] = {}
    lost = 0
    for part, columns in paths.items():
        images, targets = columns if target == named[1] else reversed(columns)
        pairs = parts.setdefault(part, {})
        for (path, line), (other, _) in zip(images, targets):
            missing = next((p for p in (path, other) if not p.is_file()), None)
            if missing is not None or path in pairs:
                why = "is listed twice" if missing is None else "is no file"
                faults.add(f"{line}{faults.place(missing or path)}", why)
                lost += 1
            else:
                pairs[path] = other
    opened = image_pairs.with_targets if target.lower() in _TARGETS else image_pairs.with_masks
    return opened(faults.folder, parts, lost, faults, strict)


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
    complete = {part: _complete(columns, needed, faults) for part, columns in parts.items()}
    left = {part: _values(columns[named[0]]) for part, columns in complete.items() if named[0] in columns}
    if not all(map(len, left.values())):
        faults.notes(left, settings.strict, 0)
    return complete, faults


def _wanted(others: Sequence[str], settings: Settings) -> Sequence[str]:
    """Return the columns that settings name and the target; if nothing tells it, all others."""
    named = "+".join(settings.target.values()) if isinstance(settings.target, Mapping) else settings.target
    target = aim_of(named, "", card_of(settings.task).columns, others)
    asked = {name for text in (target, *settings.inputs.values()) for name in (text, *text.split("+"))}
    return [name for name in others if name in asked or not target]


def _complete(columns: Columns, names: Sequence[str], faults: Faults) -> Columns:
    there = filter(columns.__contains__, names)
    needed = [n for n in there if isinstance(columns[n], Gaps) or not isinstance(columns[n], Problem)]
    gaps = {name: _missing(columns[name]) for name in needed}
    bare = np.logical_or.reduce([*gaps.values()])
    rows = np.flatnonzero(~bare)
    if len(rows) == len(bare):
        return columns
    lines = columns.lines if isinstance(columns, Rows) else range(len(bare))
    where = f"{faults.place(columns.path)}, line" if isinstance(columns, Rows) else "row"
    for row in np.flatnonzero(bare).tolist():
        name = next(name for name in needed if gaps[name][row])
        faults.add(f"{where} {lines[row]}", f"column {legible(name)!r} has no value")
        faults.lost += 1
    left = {name: _rows(values, rows, name in needed) for name, values in columns.items()}
    if not isinstance(columns, Rows):
        return left
    complete = Rows(left, columns.path, [lines[row] for row in rows.tolist()])
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
    left = rows_of(column, rows)
    return left.values.astype(left.stored) if whole and isinstance(left, Gaps) and left.values is not None else left
