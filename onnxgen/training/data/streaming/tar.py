"""Tar shards, as WebDataset writes them: files in a row with one name are a sample (`0001.jpg`, `0001.cls`)."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from onnxgen.common.built import json_object
from onnxgen.common.cache import Cache
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.training.data.folder import decoded, stored_shape
from onnxgen.training.data.layout import SUFFIXES
from onnxgen.training.data.letterbox import STRETCHED, Placing
from onnxgen.training.data.samples import Batch, Field
from onnxgen.training.data.streaming.stream import Read, Run

SIZES = "sizes.json"  # beside the shards: {"train-000.tar": 1000, ...}, as WebDataset's tools write it
PICTURE = "picture"  # in place of the ending of a picture
_BUFFER = 1 << 16
_NPY_BEFORE = 10  # bytes of an `.npy` before its header, in format 1
_CUT = "download or write it again"


class Member(io.BytesIO):
    """The content of a file in a shard; in messages it has that file's name."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.called = name

    def __repr__(self) -> str:
        return repr(self.called)

    def __str__(self) -> str:
        return self.called


class Record(dict[str, Member]):
    """The files of a sample by ending ("cls", "seg.npy"; a picture is `PICTURE`), and the sample's place."""

    def __init__(self, where: str = "") -> None:
        super().__init__()
        self.where = where


def records(path: Path, wanted: Sequence[str] | None, skip: int = 0) -> Iterator[Record]:
    """Yield the samples of a shard after the first ones, which are not read.

    Args:
        wanted: endings; other files are not read. None reads all.

    Raises:
        OnnxgenError: the shard is cut or damaged, or can't be opened.
    """
    key, number, record = "", -1, Record()
    try:
        with open(path, "rb", buffering=_BUFFER) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
                name, ending = split_name(member.name)
                if not member.isreg() or not ending:
                    continue
                if name != key:
                    if number >= skip:
                        yield record
                    key, number, record = name, number + 1, Record(f"{path}, sample {name}")
                if number >= skip and (wanted is None or ending in wanted):
                    content = _content(file, member)
                    if ending in record:
                        raise tarfile.ReadError(f"it has two files {key}.{ending}")
                    record[ending] = content
            file.seek(tar.offset)
            if file.read(512).strip(b"\0") or file.tell() < tar.offset + 512:
                raise tarfile.ReadError("it has no end")
    except (tarfile.TarError, OSError) as error:
        after = f" after sample {key}" if key else ""
        raise OnnxgenError(f"{path} is cut or damaged{after}: {one_line(error, 100)}", help=_CUT) from None
    if number >= skip:
        yield record


def _content(file: BinaryIO, member: tarfile.TarInfo) -> Member:
    if member.issparse():
        raise tarfile.ReadError(f"{member.name} is stored as a sparse file")
    file.seek(member.offset_data)
    content = file.read(member.size)
    if len(content) < member.size:
        raise tarfile.ReadError("it ends within a file")
    return Member(content, member.name.rpartition("/")[2])


def split_name(name: str) -> tuple[str, str]:
    """Return what files of one sample have in common, and the ending; "" for files that are no part of a sample."""
    folder, _, last = name.rpartition("/")
    base, _, ending = last.partition(".")
    ending = ending.lower()
    if not base or base.startswith("__"):
        return "", ""
    return f"{folder}/{base}".lstrip("/"), PICTURE if f".{ending}" in SUFFIXES else ending


def sizes_of(paths: Sequence[Path]) -> tuple[list[int], str]:
    """Return the number of samples in each shard, and a note on how they were found; "" if `sizes.json` has them.

    Without that file the names of the members are read, past their contents. The numbers are remembered in the user's
    cache by path, size and time. Raises `OnnxgenError` if a shard is damaged, or `sizes.json` is.
    """
    known: dict[Path, int] = {}
    for folder in {path.parent for path in paths}:
        known |= _listed(folder / SIZES) if (folder / SIZES).is_file() else {}
    missing = [path for path in paths if path not in known]
    cache = Cache()
    for path in missing:
        stat = path.stat()
        name = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
        count = cache.get("tar", name)
        if not isinstance(count, int):
            cache.put("tar", name, count := sum(1 for _ in records(path, ())))
        known[path] = count
    note = f"{counted(len(missing), 'shard')} counted, since no {SIZES} beside them tells their samples"
    return [known[path] for path in paths], note if missing else ""


def _listed(path: Path) -> dict[Path, int]:
    try:
        content = json_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 100)}", help="correct or remove it") from None
    known = {path.parent / name: count for name, count in content.items() if "\0" not in name}
    for shard, count in known.items():
        if shard.is_file() and (type(count) is not int or not 0 <= count < 1 << 40):
            what = f"{path} says that {shard.name} has {str(count)[:40]} samples"
            raise OnnxgenError(what, help="correct or remove it: without it they are counted")
    return {shard: count for shard, count in known.items() if type(count) is int}


@dataclass
class _Open:
    """The shard that a process reads, and the place of its next sample."""

    pid: int = 0
    shard: int = -1
    place: int = 0
    rest: Iterator[Record] = field(default_factory=lambda: iter(()))


@dataclass(frozen=True)
class TarReader:
    """Attributes:
    paths, counts: the shards, and how many samples each has.
    made_of: by column, the ending that it is made of, and of JSON the entry.
    types: the columns that are no pictures.
    named: the columns that hold class names.
    size, placing: of pictures; see `Images`.
    """

    paths: tuple[Path, ...]
    counts: tuple[int, ...]
    made_of: Mapping[str, tuple[str, str]]
    types: Mapping[str, Field]
    named: frozenset[str] = frozenset()
    size: tuple[int, int, int] | None = None
    placing: Placing = STRETCHED
    in_memory = False
    _open: _Open = field(default_factory=_Open, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": _Open()}

    @property
    def fields(self) -> Mapping[str, Field]:
        shape = stored_shape(self.size)
        pictures = {name: Field(torch.uint8, shape) for name, (ending, _) in self.made_of.items() if ending == PICTURE}
        return {**self.types, **pictures}

    def name(self, shard: int, place: int) -> str:
        return f"{self.paths[shard]}, sample {place}"

    def read(self, runs: Sequence[Run]) -> Read:
        return {"records": [record for shard, start, stop in runs for record in self._read(shard, start, stop)]}

    def _read(self, shard: int, start: int, stop: int) -> Iterator[Record]:
        at = self._open
        if (at.pid, at.shard, at.place) != (os.getpid(), shard, start):
            endings = {ending for ending, _ in self.made_of.values()}
            at.pid, at.shard, at.rest = os.getpid(), shard, records(self.paths[shard], tuple(endings), start)
        at.place = stop
        for place in range(start, stop):
            if (record := next(at.rest, None)) is None:
                raise self._wrong_count(shard, f"{place}")
            yield record
        if stop == self.counts[shard] and next(at.rest, None) is not None:
            raise self._wrong_count(shard, "more")

    def _wrong_count(self, shard: int, has: str) -> OnnxgenError:
        at, self._open.shard = self.paths[shard], -1
        what = f"{at} has {has} samples, but {SIZES} tells {self.counts[shard]:,}"
        return OnnxgenError(what, help=f"correct {SIZES}, or remove it: then samples are counted")

    def batch(self, columns: Read, places: Sequence[int]) -> tuple[Batch, dict[int, str]]:
        rows: dict[str, list[Any]] = {name: [] for name in self.made_of}
        faults: dict[int, str] = {}
        for place in places:
            record = columns["records"][place]
            try:
                for name, values in rows.items():
                    values.append(self.value(record, name))
            except Fault as fault:
                faults[place] = f"{record.where}: {fault}"
        if faults:
            return {}, faults
        return {name: torch.from_numpy(np.stack(values)) for name, values in rows.items()}, {}

    def value(self, record: Record, name: str) -> NDArray[Any]:
        """Return a column of a sample. Raises `Fault` if it can't be read, `OnnxgenError` for an unknown class."""
        ending, entry = self.made_of[name]
        if (member := record.get(ending)) is None:
            raise Fault("it has no picture" if ending == PICTURE else f"it has no .{ending}")
        if ending == PICTURE:
            assert self.size is not None, "images of several sizes"
            try:
                return decoded(member, self.size, self.placing)
            except OnnxgenError as error:
                raise Fault(str(error)) from None
        value, wanted = stored(member, ending, entry), self.types[name]
        if name in self.named:
            value = str(value)
            if value not in wanted.classes:
                what = f"{record.where}: {value[:40]!r} is none of the {len(wanted.classes)} known classes"
                raise OnnxgenError(what, help="add it to --classes or classes.txt, or remove the sample")
            value = wanted.classes.index(value)
        if isinstance(value, str):
            raise Fault(f"{member} has {value[:40]!r}, and the first samples have numbers")
        array = np.asarray(value)
        kind = np.dtype(str(wanted.dtype).removeprefix("torch."))
        if array.shape != wanted.shape or not np.can_cast(array.dtype, kind, "same_kind"):
            raise Fault(
                f"{member} is {array.dtype} {list(array.shape)}, and the first samples are {kind} {list(wanted.shape)}"
            )
        return array.astype(kind)


class Fault(Exception):
    """Why a sample can't be read."""


def _array(content: bytes) -> NDArray[Any]:
    """Return the array of an `.npy`, without copying it. Raises `ValueError`."""
    begin = _NPY_BEFORE + int.from_bytes(content[8:10] if content[6:7] == b"\1" else content[8:12], "little")
    begin += 2 * (content[6:7] != b"\1")
    shape, by_columns, dtype = _header(content[:begin])
    array = np.frombuffer(content, dtype, offset=begin)
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)


@lru_cache(256)
def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type by the header of an `.npy`; those of a shard are mostly the same."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header = read(file)
    if header[2].hasobject:
        raise ValueError("it holds Python objects, and reading them would run code")
    return header


def stored(member: Member, ending: str, entry: str) -> Any:
    """Return what a file of a sample holds: a number, a text, or an array. Raises `Fault`."""
    member.seek(0)
    kind = ending.rpartition(".")[2]
    try:
        if kind == "npy":
            return _array(member.getvalue())
        text = member.read().decode("utf-8").strip()
        if kind == "json":
            content = json.loads(text)
            if not isinstance(content, dict) or entry not in content:
                raise Fault(f"{member} has no entry {entry!r}")
            content = content[entry]
            return content if isinstance(content, str) else np.asarray(content)
    except (ValueError, UnicodeDecodeError) as error:
        raise Fault(f"{member} can't be read: {one_line(error, 100)}") from None
    return int(text) if text.lstrip("-").isdecimal() else text
