"""Parquet files that are read by row groups."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problem, one_line
from onnxgen.training.data.columns import tensor_of
from onnxgen.training.data.folder import decoded, stored_shape
from onnxgen.training.data.letterbox import STRETCHED, Placing
from onnxgen.training.data.samples import Batch, Field
from onnxgen.training.data.streaming.stream import Read, Run, Spans, spans_of
from onnxgen.training.data.streaming.tar import Member
from onnxgen.training.data.table import arrow_column

_AT_ONCE, PICTURES_AT_ONCE = 1024, 64  # rows
_PLACE = "\0place"  # beside the columns of what was read: (shard, row of the file) of each sample


@dataclass
class _Open:
    """The row group that a process reads, and the place of its next row."""

    pid: int = 0
    shard: int = -1
    place: int = 0
    rest: Iterator[Any] = field(default_factory=lambda: iter(()))
    left: Any = None  # rows that were read, and are the next


@dataclass(frozen=True)
class ParquetReader:
    """Attributes:
    groups: for each shard, which is a row group, its file, its number there, and the first row.
    types: the columns, without the shape of pictures.
    pictures: the columns of pictures as files, of which there is at most one.
    joined: columns that are made of columns of single numbers.
    size, placing: of pictures; see `Images`.
    """

    groups: tuple[tuple[Path, int, int], ...]
    types: Mapping[str, Field]
    pictures: tuple[str, ...] = ()
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    size: tuple[int, int, int] | None = None
    placing: Placing = STRETCHED
    _open: _Open = field(default_factory=_Open, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": _Open()}

    @property
    def in_memory(self) -> bool:
        return not self.pictures

    @property
    def fields(self) -> Mapping[str, Field]:
        shape = stored_shape(self.size)
        joined = {}
        for name, members in self.joined.items():
            whole = not any(self.types[member].dtype.is_floating_point for member in members)
            joined[name] = Field(torch.int64 if whole else torch.float32, (len(members),))
        return {**self.types, **{name: Field(torch.uint8, shape) for name in self.pictures}, **joined}

    def only(self, names: Sequence[str]) -> ParquetReader:
        """Return a reader of these columns, and of those that they are made of."""
        joined = {name: members for name, members in self.joined.items() if name in names}
        needed = dict.fromkeys([*names, *(member for members in joined.values() for member in members)])
        types = {name: self.types[name] for name in needed if name in self.types}
        return replace(self, types=types, joined=joined, pictures=tuple(n for n in self.pictures if n in names))

    def name(self, shard: int, place: int) -> str:
        path, _, first = self.groups[shard]
        return f"{path}, row {first + place}"

    def read(self, runs: Sequence[Run]) -> Read:
        import pyarrow

        tables = [table for run in runs for table in self._read(*run)]
        table = pyarrow.concat_tables(tables)
        places = [(shard, place) for shard, start, stop in runs for place in range(start, stop)]
        columns = {name: self._column(name, table.column(name), places) for name in self.types}
        pictures = {name: picture_bytes(table.column(name)) for name in self.pictures}
        return {**columns, **pictures, _PLACE: places}

    def _read(self, shard: int, start: int, stop: int) -> Iterator[Any]:
        at, (path, group, _) = self._open, self.groups[shard]
        if (at.pid, at.shard, at.place) != (os.getpid(), shard, start):
            at.pid, at.shard, at.rest, at.left = os.getpid(), shard, self._tables(path, group, start), None
        at.place = stop
        left = stop - start
        while left:
            table = next(at.rest, None) if at.left is None else at.left
            if table is None:
                at.shard = -1
                raise OnnxgenError(f"{path} has fewer rows than its footer says", help="write it again")
            at.left = table.slice(left) if len(table) > left else None
            yield table.slice(0, left)
            left -= min(left, len(table))

    def _tables(self, path: Path, group: int, skip: int) -> Iterator[Any]:
        import pyarrow
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(path, pre_buffer=False) as file:
                names = [*self.types, *self.pictures]
                for batch in file.iter_batches(
                    PICTURES_AT_ONCE if self.pictures else _AT_ONCE, [group], names, use_threads=False
                ):
                    left = batch.slice(min(skip, len(batch)))
                    skip -= len(batch) - len(left)
                    if len(left):
                        yield pyarrow.Table.from_batches([left])
        except (pyarrow.ArrowException, OSError) as error:
            where = f"{path}, row group {group}"
            raise OnnxgenError(f"{where} can't be read: {one_line(error, 200)}", help="write it again") from None

    def _column(self, name: str, column: Any, places: Sequence[tuple[int, int]]) -> Any:
        path, field = self.groups[places[0][0]][0], self.types[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            what = f"{self.name(*places[row])}: column {legible(name)!r} has no value"
            raise OnnxgenError(what, help="fill it in, or remove the row")
        values = values_of(path, name, column)
        if isinstance(values, Problem):
            raise OnnxgenError(values)
        if field.classes and values.dtype == object:
            return torch.tensor([self._class(name, text, places[i]) for i, text in enumerate(values.tolist())])
        tensor = tensor_of(values, f"{path}: column {legible(name)!r}")
        if tensor.shape[1:] != field.shape:
            what = f"{self.name(*places[0])}: column {legible(name)!r} is {list(tensor.shape[1:])}"
            raise OnnxgenError(f"{what}, and in the first rows {list(field.shape)}", help="store lists of one length")
        return tensor.to(field.dtype)

    def _class(self, name: str, text: str, place: tuple[int, int]) -> int:
        classes = self.types[name].classes
        if text not in classes:
            what = f"{self.name(*place)}: {text[:40]!r} is none of the {len(classes)} known classes"
            raise OnnxgenError(what, help="add it to --classes or classes.txt, or remove the row")
        return classes.index(text)

    def batch(self, columns: Read, places: Sequence[int]) -> tuple[Batch, dict[int, str]]:
        which, faults = torch.tensor(places), {}
        batch = {name: columns[name].index_select(0, which) for name in self.types}
        for name, members in self.joined.items():
            batch[name] = torch.stack([batch[member] for member in members], 1).to(self.fields[name].dtype)
        for name in self.pictures:
            assert self.size is not None, "images of several sizes"
            images = np.zeros((len(places), *self.fields[name].shape), np.uint8)
            for i, place in enumerate(places):
                try:
                    member = Member(columns[name][place] or b"", f"column {name!r}")
                    images[i] = decoded(member, self.size, self.placing)
                except OnnxgenError as error:
                    faults[place] = f"{self.name(*columns[_PLACE][place])}: {error}"
            batch[name] = torch.from_numpy(images)
        return batch, faults


def values_of(path: Path, name: str, column: Any) -> Any:
    """Like `arrow_column`, without a Python object for each number of a list."""
    from pyarrow import compute, types

    kind = column.type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if lists and not column.null_count and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        lengths, flat = compute.list_value_length(column).unique().to_pylist(), compute.list_flatten(column)
        if len(lengths) == 1 and not flat.null_count:
            return flat.to_numpy().reshape(len(column), lengths[0])
    return arrow_column(path, name, column)


def picture_bytes(column: Any) -> list[bytes | None]:
    """Return the pictures of a column: files as bytes, or in the form of Hugging Face, `{bytes, path}`."""
    values = column.to_pylist()
    return [value.get("bytes") if isinstance(value, dict) else value for value in values]


def is_picture(kind: Any) -> bool:
    """Return True for a column of bytes, or of `{bytes, path}`."""
    from pyarrow import types

    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def row_groups(paths: Sequence[Path]) -> tuple[list[tuple[Path, int, int]], Spans, Any]:
    """Return the row groups of files, a span for each, and their schema.

    Raises `OnnxgenError` if a file is damaged, or has other columns than the first.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise OnnxgenError(f"{paths[0]}: Parquet needs pyarrow", help="pip install pyarrow") from None
    groups: list[tuple[Path, int, int]] = []
    counts: list[int] = []
    schema = None
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                footer, own = file.metadata, file.schema_arrow
        except (pyarrow.ArrowException, OSError) as error:
            raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help="write it again") from None
        schema = own if schema is None else schema
        _compare(paths[0], schema, path, own)
        row = 0
        for group in range(footer.num_row_groups):
            groups.append((path, group, row))
            counts.append(footer.row_group(group).num_rows)
            row += counts[-1]
    return groups, spans_of(range(len(groups)), [0] * len(groups), counts), schema


def _compare(first: Path, schema: Any, path: Path, own: Any) -> None:
    then, now = ({field.name: field.type for field in columns} for columns in (schema, own))
    differing = sorted(name for name in {**then, **now} if then.get(name) != now.get(name))
    if differing:
        shown = (f"{name} ({now.get(name, 'none')}, there {then.get(name, 'none')})" for name in differing)
        raise OnnxgenError(f"{path} has other columns than {first}: {listed(shown, 5)}", help="write it again")


def class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the class names that Hugging Face's `datasets` wrote into a file, by column."""
    try:
        facts = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = facts.get("info", {}).get("features", {})
        return {n: tuple(map(str, f["names"])) for n, f in features.items() if isinstance(f, dict) and f.get("names")}
    except (ValueError, AttributeError, TypeError):
        return {}
