"""Opens data that is streamed: tar shards, Parquet by row groups, files of tokens."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnxgen.common.built import json_object
from onnxgen.common.names import legible, listed
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problem, counted
from onnxgen.training.data.columns import MAX_NUMBERED_CLASSES, tensor_of
from onnxgen.training.data.faults import NAMED
from onnxgen.training.data.layout import SUFFIXES, files_in, folders, part_called
from onnxgen.training.data.looking import look_at, one_size
from onnxgen.training.data.samples import Field
from onnxgen.training.data.source import DataSource, target_called
from onnxgen.training.data.streaming.parquet import (
    PICTURES_AT_ONCE,
    ParquetReader,
    class_names,
    is_picture,
    picture_bytes,
    row_groups,
    values_of,
)
from onnxgen.training.data.streaming.stream import HEAD, Spans, Stream, spans_of
from onnxgen.training.data.streaming.tar import PICTURE, Fault, Member, Record, TarReader, records, sizes_of, stored
from onnxgen.training.data.streaming.tokens import TASK, TokenReader, file_of
from onnxgen.training.settings import Settings

LARGE = 1 << 30  # bytes; from this size on, a single Parquet file is streamed
CLASSES = "classes.txt"  # beside the shards: a name in each line, in the order of the model's outputs
_KINDS = (".tar", ".parquet", ".bin", ".npy")
_OTHERS = (*SUFFIXES, ".csv", ".tsv", ".jsonl", ".npz", ".safetensors", ".wav", ".flac", ".mp3", ".ogg")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MOST_BYTES = 1 << 28  # of samples that are read at once to decide types


def matching(text: str) -> list[Path]:
    """Return the files that a pattern names. Raises `OnnxgenError` if one of them is missing."""
    paths: list[Path] = []
    for name in _expanded(text):
        files = sorted(glob.glob(name)) if set("*?") & {*name} else [name] * Path(name).is_file()
        if not files:
            raise OnnxgenError(f"there is no file {name}", help="correct the pattern of --data")
        paths += map(Path, files)
    return list(dict.fromkeys(paths))


def _expanded(text: str) -> list[str]:
    """Return what braces stand for, as in a shell and in WebDataset: `{00..12}`, `{a,b}`."""
    choices = []
    for inner in _BRACES.findall(text):
        numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inner)
        width = len(numbers[1]) if numbers else 0
        words = inner.split(",")
        choices.append([f"{n:0{width}}" for n in range(int(numbers[1]), int(numbers[2]) + 1)] if numbers else words)
    between = _BRACES.split(text)[::2]
    combinations = itertools.product(*choices)
    return ["".join(a + b for a, b in itertools.zip_longest(between, chosen, fillvalue="")) for chosen in combinations]


def shards_of(path: Path) -> list[Path]:
    """Return the shards of a folder, of all its folders for parts, or of a single file; [] if there are none.

    Of Parquet, files that fit into memory are none: `train.parquet` beside `val.parquet`.
    """
    if path.is_file():
        large = path.suffix.lower() == ".parquet" and path.stat().st_size >= LARGE
        return [path] if large or path.suffix.lower() in (".tar", ".bin") or _is_run(path) else []
    inner = folders(path)
    if files_in(path, *_OTHERS) or not all(map(_is_part, inner)):
        return []  # data of another kind, beside which there may be archives
    for kind in _KINDS[:3]:
        files = [file for folder in (path, *inner) for file in files_in(folder, kind)]
        if files and not all(_is_small_part(file, path) for file in files):
            return files
    files = files_in(path, ".npy")
    return files if all(map(_is_run, files)) else []


def _is_small_part(file: Path, folder: Path) -> bool:
    """Return True for a Parquet file of a part in the folder itself that fits into memory."""
    if file.suffix.lower() != ".parquet" or file.stat().st_size >= LARGE:
        return False
    return part_called(file.stem) is not None and file.parent == folder


def _is_part(folder: Path) -> bool:
    return bool(part_called(folder.name)) and bool(files_in(folder, *_KINDS))


def _is_run(path: Path) -> bool:
    """Return True for an `.npy` with one run of whole numbers."""
    if path.suffix.lower() != ".npy":
        return False
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return False
    return array.ndim == 1 and array.dtype.kind in "iu"


def open_stream(paths: Sequence[Path], name: str, settings: Settings) -> DataSource:
    """Open shards. What the first samples are decides the columns and their types.

    Raises `OnnxgenError` if shards are of several kinds, damaged or empty, or class names are not known.
    """
    kinds = {path.suffix.lower() for path in paths}
    if len(kinds) > 1:
        raise OnnxgenError(f"{name} has files of several kinds: {listed(sorted(kinds))}", help="name one kind")
    if settings.sampler == "balanced" or settings.class_weights == "balanced" or settings.table != "none":
        what = "--sampler balanced, --class-weights balanced and --table need all samples at once"
        raise OnnxgenError(f"{what}, and {name} is streamed", help="leave them out, or give weights: CLASS=X,...")
    open_kind = {".tar": _open_tar, ".parquet": _open_parquet}.get(kinds.pop(), _open_tokens)
    source = open_kind(_parts(paths), name, settings)
    source.notes.append(
        f"{name} is streamed: types, sizes and scales are those of the first {HEAD} samples of each part, which alone "
        f"were checked; the order is drawn for shards, and within {settings.shuffle_window:,} samples in a row"
    )
    return source


def _parts(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the shards of each part, by a word of the file's name or by its folder; without such words "train"."""
    parts: dict[str, list[Path]] = {}
    named = [next(filter(None, map(part_called, re.split(r"[^a-zA-Z0-9]+", path.stem))), None) for path in paths]
    folders = len({path.parent for path in paths}) > 1  # else its name is that of the whole data
    for path, part in zip(paths, named):
        part = part or (part_called(path.parent.name) if folders else None) or "train"
        parts.setdefault(part, []).append(path)
    return parts


def _known_classes(paths: Sequence[Path], settings: Settings) -> tuple[str, ...]:
    file = paths[0].parent / CLASSES
    if settings.classes or not file.is_file():
        return settings.classes
    return tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())


def _classes(values: Sequence[Any], known: tuple[str, ...], where: Path, column: str) -> tuple[str, ...]:
    """Return the classes of a target with these first values: the known ones, or 0, 1, ... for whole numbers."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        whole = all(np.ndim(v) == 0 and np.asarray(v).dtype.kind in "iu" and v >= 0 for v in values)
        highest = max(map(int, values)) if whole and values else MAX_NUMBERED_CLASSES
        return known or (tuple(map(str, range(highest + 1))) if highest < MAX_NUMBERED_CLASSES else ())
    if not known:
        what = f"which classes are there? {legible(column)} of {where} holds names such as {texts[0][:40]!r}"
        raise OnnxgenError(what, help=f"--classes cat,dog, or a {CLASSES} beside the shards with a name in each line")
    return known


def _named_columns(settings: Settings) -> set[str]:
    target = settings.target
    targets = {target} if isinstance(target, str) else set((target or {}).values())
    return {*settings.inputs.values(), *targets}


def _open_tar(parts: Mapping[str, list[Path]], name: str, settings: Settings) -> DataSource:
    source = DataSource({}, name)
    made_of: dict[str, tuple[str, str]] = {}
    types: dict[str, Field] = {}
    for part, paths in sorted(parts.items(), key=lambda entry: entry[0] != "train"):
        counts, note = sizes_of(paths)
        source.notes += [note] if note else []
        spans = spans_of(range(len(paths)), [0] * len(paths), counts)
        first = _first(paths)
        if not first:
            raise OnnxgenError(f"{paths[0]} has no samples", help="a sample is 0001.jpg beside 0001.cls")
        if not made_of:
            made_of = _made_of(first, paths[0], settings)
            types = _types(first, made_of, paths[0], settings)
            texts = [n for n in types if any(isinstance(v, str) for v in _values(first, *made_of[n]))]
            source.text = frozenset(texts)
        reader = TarReader(tuple(paths), tuple(counts), made_of, types, source.text, _size(first))
        source.parts[part] = _with_head(Stream(reader, spans, settings.shuffle_window, settings.strict), source, part)
    source.target = target_called(made_of)
    pictures = [column for column, (ending, _) in made_of.items() if ending == PICTURE]
    source.whites = dict.fromkeys(pictures, 255.0)
    return source


def _first(paths: Sequence[Path]) -> list[Record]:
    head, size = list[Record](), 0
    for record in itertools.islice(itertools.chain.from_iterable(records(path, None) for path in paths), HEAD):
        head.append(record)
        size += sum(len(member.getbuffer()) for member in record.values())
        if size > _MOST_BYTES:
            break
    return head


def _made_of(first: Sequence[Record], path: Path, settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the columns of samples with these first ones; see `TarReader`."""
    endings = list(dict.fromkeys(ending for record in first for ending in record))
    columns = {"image": (PICTURE, "")} if PICTURE in endings else {}
    if pictures := _of_kind(endings, "png", "jpg", "jpeg"):
        what = f"{path} has several pictures for a sample ({listed(pictures)})"
        raise OnnxgenError(what, help="streamed samples have one, such as 0001.jpg")
    columns |= {ending.rpartition(".")[0] or "x": (ending, "") for ending in _of_kind(endings, "npy")}
    columns |= {entry: ("json", entry) for entry in (_entries(first, settings) if "json" in endings else ())}
    if not target_called(columns):
        columns |= next(({"label": (ending, "")} for ending in ("cls", "txt") if ending in endings), {})
    if not columns:
        what = f"{path}: sample files end in {listed(endings)}, and none of them can be read"
        raise OnnxgenError(what, help="a sample is a picture or .npy, beside .cls, .json, .txt or .npy")
    return columns


def _of_kind(endings: Sequence[str], *kinds: str) -> list[str]:
    """Return those of the endings, such as seg.npy, that end in one of these."""
    return [ending for ending in endings if ending.rpartition(".")[2] in kinds]


def _entries(first: Sequence[Record], settings: Settings) -> list[str]:
    """Return the entries of JSON that are columns: those that the settings name, and the one called as a target."""
    member = next(record["json"] for record in first if "json" in record)
    try:
        names = [*json_object(member.getvalue())]
    except ValueError:
        return []
    return [n for n in names if n in _named_columns(settings) or n == target_called(names)]


def _types(
    first: Sequence[Record], made_of: Mapping[str, tuple[str, str]], path: Path, settings: Settings
) -> dict[str, Field]:
    types = {}
    for column, (ending, entry) in made_of.items():
        if ending == PICTURE:
            continue
        values = _values(first, ending, entry)
        if not values:
            raise OnnxgenError(f"{path}: no .{ending} of the first samples can be read", help="repair the shard")
        aims = column in _named_columns(settings) - {*settings.inputs.values()} or column == target_called(made_of)
        classes = _classes(values, _known_classes([path], settings), path, f".{ending}") if aims else ()
        if any(isinstance(value, str) for value in values):
            if not aims:
                raise OnnxgenError(f"{path}: {column} is text, and an input takes numbers", help="store an .npy")
            types[column] = Field(torch.int64, (), classes)
            continue
        floats = next((v for v in map(np.asarray, values) if v.dtype.kind == "f"), np.asarray(values[0]))
        types[column] = _field(tensor_of(floats[None], f"{path}: {column}"), classes)
    return types


def _field(tensor: torch.Tensor, classes: tuple[str, ...]) -> Field:
    """Return the type of a column [n, ...]; floats have no classes."""
    return Field(tensor.dtype, tuple(tensor.shape[1:]), () if tensor.is_floating_point() else classes)


def _values(first: Sequence[Record], ending: str, entry: str) -> list[Any]:
    """Return a column of the first samples; those that can't be read are told when they are checked."""
    values = []
    for record in first if ending != PICTURE else ():
        with suppress(Fault):
            values += [stored(record[ending], ending, entry)] if ending in record else []
    return values


def _size(first: Sequence[Record]) -> tuple[int, int, int] | None:
    """Return the size of pictures, if the first ones have all the same."""
    need(["PIL"]) if any(PICTURE in record for record in first) else None
    return one_size({size for r in first if PICTURE in r and not isinstance(size := look_at(r[PICTURE]), str)})


def _open_parquet(parts: Mapping[str, list[Path]], name: str, settings: Settings) -> DataSource:
    source = DataSource({}, name, table=True)
    groups, whole, schema = row_groups([path for paths in parts.values() for path in paths])
    reader, source.unfit, source.text = _parquet_reader(groups, whole, schema, settings)
    source.whites = dict.fromkeys(reader.pictures, 255.0)
    for part, paths in parts.items():
        which = np.array([i for i, (path, _, _) in enumerate(groups) if path in paths])
        spans = whole.of_shards(which)
        if not len(spans):
            raise OnnxgenError(f"the {part} part of {name} has no rows")
        source.parts[part] = _with_head(Stream(reader, spans, settings.shuffle_window, settings.strict), source, part)
    source.target = target_called([*reader.types, *reader.pictures])
    return source


def _parquet_reader(
    groups: list[tuple[Path, int, int]], spans: Spans, schema: Any, settings: Settings
) -> tuple[ParquetReader, dict[str, Problem], frozenset[str]]:
    """Return the reader, why some columns can't be used, and the columns of class names."""
    if not len(spans):
        raise OnnxgenError(f"{groups[0][0] if groups else 'the data'} has no rows")
    path, group, _ = groups[int(spans.shards[0])]
    pictures = [field.name for field in schema if is_picture(field.type)][:1]
    table = _first_rows(path, group, PICTURES_AT_ONCE if pictures else HEAD)
    types: dict[str, Field] = {}
    unfit: dict[str, Problem] = {}
    named: set[str] = set()
    names = class_names(schema)
    aims = _named_columns(settings) - {*settings.inputs.values()} or {target_called(table.column_names)}
    for column in (name for name in table.column_names if name not in pictures):
        values = values_of(path, column, table.column(column))
        known = _known_classes([path], settings) or names.get(column, ())
        field = _streamed(path, column, values, column in aims, known)
        if isinstance(field, Problem):
            unfit[column] = field
        else:
            types[column] = field
            named |= {column} if values.dtype == object else set()
    sizes = {size for column in pictures for size in _sizes(table.column(column), column)}
    return ParquetReader(tuple(groups), types, tuple(pictures), {}, one_size(sizes)), unfit, frozenset(named)


def _streamed(path: Path, name: str, values: Any, aimed: bool, known: tuple[str, ...]) -> Field | Problem:
    """Return the type of a column with these first values, or why it can't be used. `aimed`: it is a target."""
    if isinstance(values, Problem):
        return values
    text = values.dtype == object
    if text and not aimed:
        return Problem(f"{path}: column {legible(name)!r} is text", help="streamed inputs are numbers")
    classes = _classes(values.tolist(), known, path, f"column {name}") if aimed else ()
    return _field(tensor_of([0] if text else values, f"{path}: column {legible(name)!r}"), classes)


def _first_rows(path: Path, group: int, count: int) -> Any:
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        return pyarrow.Table.from_batches([next(file.iter_batches(count, [group], use_threads=False))])


def _sizes(pictures: Any, name: str) -> list[tuple[int, ...]]:
    need(["PIL"])
    seen = [look_at(Member(content or b"", name)) for content in picture_bytes(pictures)]
    return [size for size in seen if not isinstance(size, str)]


def _open_tokens(parts: Mapping[str, list[Path]], name: str, settings: Settings) -> DataSource:
    source = DataSource({}, name, task=TASK)
    for part, paths in parts.items():
        reader = TokenReader(tuple(map(file_of, paths)))
        source.parts[part] = Stream(reader, spans_of([0], [0], [1]), settings.shuffle_window)
        shown = listed(dict.fromkeys(np.dtype(file.dtype).name for file in reader.files))
        source.notes.append(f"the tokens of the {part} part are {shown}, in {counted(len(paths), 'file')}")
    return source


def _with_head(stream: Stream, source: DataSource, part: str) -> Stream:
    """Return a stream that knows which of its first samples can be read; a note names the others."""
    stream = stream.of_spans(stream.spans)
    # Whatever size: they are only decoded.
    probe = stream if getattr(stream.reader, "size", None) is not None else stream.sized(3, 8, 8)
    faults = probe.faults(stream.head)
    if faults and stream.strict:
        raise OnnxgenError(*faults.values(), help="repair or remove them; without --strict they are skipped")
    head = tuple(index for index in stream.head if index not in faults)
    if not head:
        raise OnnxgenError(f"none of the first samples of the {part} part can be read: {_told(faults)}")
    if faults:
        count = counted(len(faults), "sample")
        source.notes.append(f"{count} of the first ones can't be read, skipped: {_told(faults)}")
    return replace(stream, head=head)


def _told(faults: Mapping[int, str]) -> str:
    return "; ".join(legible(fault, 240) for fault in [*faults.values()][:NAMED])
