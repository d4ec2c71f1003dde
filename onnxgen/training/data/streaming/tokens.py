"""Files of tokens: one long run of token ids, mapped into memory, and cut into blocks for a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.output.signature import Port, Signature
from onnxgen.training.data.samples import Batch, Field
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.streaming.spans import spans_of
from onnxgen.training.data.streaming.stream import Columns, Run, Stream
from onnxgen.training.data.text.roles import (
    DECODER,
    IDS,
    MASK,
    PAST,
    POSITIONS,
    TYPES,
    fixed_length,
    past_shape,
    roles_of,
)
from onnxgen.training.settings import Settings

TASK, LABELS = "language-model", "labels"
_SEEN = 1 << 16  # numbers at the beginning of a `.bin`, which tell its type
_MOST = 1 << 20  # no vocabulary is larger
_PIECE = 64  # blocks of a span: they are read together


@dataclass(frozen=True)
class TokenReader:
    """Attributes:
    paths, dtypes: the files, and the type of their numbers.
    length: tokens of a block; 0 before the model is known.
    roles: what each column is, as `roles_of` names it; of a past its shape.
    """

    paths: tuple[Path, ...]
    dtypes: tuple[str, ...]
    length: int = 0
    roles: Mapping[str, str | tuple[int, ...]] | None = None
    in_memory = True

    @property
    def fields(self) -> Mapping[str, Field]:
        made = {}
        for name, role in (self.roles or {LABELS: IDS}).items():
            past = isinstance(role, tuple)
            made[name] = Field(torch.float32 if past else torch.int64, role if past else (self.length,))
        return made

    def name(self, shard: int, place: int) -> str:
        return f"{self.paths[shard]}, tokens from {place * self.length:,}"

    def read(self, runs: Sequence[Run]) -> Columns:
        found = []
        for shard, start, stop in runs:
            tokens = mapped(self.paths[shard], self.dtypes[shard])[start * self.length : stop * self.length]
            found.append(tokens.reshape(stop - start, self.length).astype(np.int64))
        return {LABELS: torch.from_numpy(np.concatenate(found))}

    def batch(self, columns: Columns, places: Sequence[int]) -> tuple[Batch, dict[int, str]]:
        ids = columns[LABELS].index_select(0, torch.tensor(places))
        made = {MASK: torch.ones_like(ids), TYPES: torch.zeros_like(ids), IDS: ids}
        made[POSITIONS] = torch.arange(self.length).expand(len(ids), -1)
        roles = self.roles or {LABELS: IDS}
        return {
            name: torch.zeros(len(ids), *role) if isinstance(role, tuple) else made[role]
            for name, role in roles.items()
        }, {}


@lru_cache(64)
def mapped(path: Path, dtype: str) -> NDArray[np.integer]:
    """Return the numbers of a file, which are read when they are used. Raises `OnnxgenError`."""
    try:
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        return np.memmap(path, dtype, "r")
    except (ValueError, OSError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help="write it again") from None


def dtype_of(path: Path) -> str:
    """Return the type of the numbers in a file of tokens: of a `.bin` uint16, or uint32 if every second one is small.

    Raises:
        OnnxgenError: it is empty, or does not hold one run of whole numbers.
    """
    if path.suffix == ".npy":
        tokens = mapped(path, "")
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
            what = f"{path} is {tokens.dtype} {list(tokens.shape)}, and tokens are one run of whole numbers"
            raise OnnxgenError(what, help="save it flattened; for other arrays, use .npz")
        return str(tokens.dtype)
    size = path.stat().st_size
    if not size or size % 2:
        raise OnnxgenError(f"{path} has {size:,} bytes, which are no tokens of 16 or 32 bits", help="write it again")
    first = mapped(path, "<u2")[:_SEEN]
    if size % 4 or int(first[1::2].max(initial=0)) >= _MOST >> 16:
        return "<u2"
    return "<u4" if first[::2].any() else "<u2"


def fit_tokens(source: DataSource, ports: Signature, settings: Settings) -> None:
    """Cut the tokens to the network's length, and give each of its inputs its column.

    Raises:
        OnnxgenError: the length is open, or the network is no causal language model.
    """
    roles = roles_of(ports, [])
    if settings.task != TASK or not roles or DECODER in roles:
        what = f"{source.name} is a run of tokens, which trains a causal language model (--task {TASK})"
        raise OnnxgenError(what, help="other networks take texts (.jsonl, .csv) or arrays (.npz)")
    length = fixed_length(roles) or settings.max_length
    if length is None:
        way = "--max-length 128; the network must have as many positions"
        raise OnnxgenError(f"how long are the blocks that {source.name} is cut into?", help=way)
    columns = {port.name: _role(role, port) for role, port in roles.items()} | {LABELS: IDS}
    for part, samples in source.parts.items():
        assert isinstance(samples, Stream) and isinstance(samples.reader, TokenReader)
        reader = replace(samples.reader, length=length, roles=columns)
        counts = [len(mapped(*pair)) // length for pair in zip(reader.paths, reader.dtypes)]
        if not sum(counts):
            raise OnnxgenError(f"the {part} part of {source.name} has less than {counted(length, 'token')}")
        pieces = [(i, first, min(_PIECE, n - first)) for i, n in enumerate(counts) for first in range(0, n, _PIECE)]
        source.parts[part] = replace(samples, reader=reader).of_spans(spans_of(*zip(*pieces)))
    name = printable(roles[IDS].name)
    source.notes.append(f"{name} is blocks of {counted(length, 'token')}; what is left at a file's end is not used")


def _role(role: str, port: Port) -> str | tuple[int, ...]:
    return past_shape(port) if role.startswith(PAST) else role


def is_tokens(samples: object) -> bool:
    return isinstance(samples, Stream) and isinstance(samples.reader, TokenReader)
