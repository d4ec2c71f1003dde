"""Files of tokens: one long run of token ids, which is cut into blocks for a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.record.signature import Signature
from onnxgen.training.data.samples import Batch, Field
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.streaming.stream import Read, Run, spans_of, stream_of
from onnxgen.training.data.text.roles import DECODER, IDS, MASK, PAST, POSITIONS, fixed_length, past_shape, roles_of
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import task_for

TASK, LABELS = task_for("tokens"), "labels"
_SEEN = 1 << 16  # numbers at the beginning of a `.bin`, which tell its type
_MOST = 1 << 20  # no vocabulary is larger
_PIECE = 64  # blocks of a span: they are read together


@dataclass(frozen=True)
class TokenFile:
    """A file, the type and number of its tokens, and the bytes before them."""

    path: Path
    dtype: str
    count: int
    offset: int = 0


@dataclass(frozen=True)
class TokenReader:
    """Attributes:
    files: the shards.
    length: tokens of a block; 0 before the model is known.
    roles: what each column is, as `roles_of` names it; of a past its shape.
    """

    files: tuple[TokenFile, ...]
    length: int = 0
    roles: Mapping[str, str | tuple[int, ...]] | None = None
    in_memory = True

    @property
    def fields(self) -> Mapping[str, Field]:
        fields = {}
        for name, role in (self.roles or {LABELS: IDS}).items():
            past = role if isinstance(role, tuple) else None
            fields[name] = Field(torch.int64, (self.length,)) if past is None else Field(torch.float32, past)
        return fields

    def name(self, shard: int, place: int) -> str:
        return f"{self.files[shard].path}, tokens from {place * self.length:,}"

    def read(self, runs: Sequence[Run]) -> Read:
        blocks = []
        for shard, start, stop in runs:
            file, count = self.files[shard], (stop - start) * self.length
            place = file.offset + start * self.length * np.dtype(file.dtype).itemsize
            tokens = np.fromfile(file.path, file.dtype, count, offset=place)
            if len(tokens) < count:
                raise OnnxgenError(f"{file.path} has become shorter", help="write it again, and leave it unchanged")
            blocks.append(tokens.reshape(stop - start, self.length))
        return {LABELS: np.concatenate(blocks)}

    def batch(self, columns: Read, places: Sequence[int]) -> tuple[Batch, dict[int, str]]:
        ids, batch = torch.from_numpy(columns[LABELS][places].astype(np.int64)), {}
        for name, role in (self.roles or {LABELS: IDS}).items():
            if isinstance(role, tuple):
                batch[name] = torch.zeros(len(ids), *role)
            elif role == POSITIONS:
                batch[name] = torch.arange(self.length).expand(len(ids), -1)
            else:
                batch[name] = ids if role == IDS else torch.full_like(ids, role == MASK)
        return batch, {}


def file_of(path: Path) -> TokenFile:
    """Return what is in a file: of a `.bin` uint16, or uint32 if every second number of 16 bits is small.

    Raises `OnnxgenError` if it is empty, or does not hold one run of whole numbers.
    """
    if path.suffix == ".npy":
        try:
            tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help="write it again") from None
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
            what = f"{path} is {tokens.dtype} {list(tokens.shape)}, and tokens are one run of whole numbers"
            raise OnnxgenError(what, help="save it flattened; for other arrays, use .npz")
        return TokenFile(path, tokens.dtype.str, len(tokens), tokens.offset)
    size = path.stat().st_size
    if not size or size % 2:
        raise OnnxgenError(f"{path} has {size:,} bytes, which are no tokens of 16 or 32 bits", help="write it again")
    first = np.fromfile(path, "<u2", _SEEN)
    wide = not size % 4 and int(first[1::2].max(initial=0)) < _MOST >> 16 and bool(first[::2].any())
    return TokenFile(path, "<u4" if wide else "<u2", size // (4 if wide else 2))


def fit_tokens(source: DataSource, ports: Signature, settings: Settings) -> None:
    """Cut the tokens to the network's length, and give each of its inputs its column.

    Raises `OnnxgenError` if the length is open, or the network is no causal language model.
    """
    roles = roles_of(ports, [])
    if settings.task != TASK or not roles or DECODER in roles:
        what = f"{source.name} is a run of tokens, which trains a causal language model (--task {TASK})"
        raise OnnxgenError(what, help="other networks take texts (.jsonl, .csv) or arrays (.npz)")
    length = fixed_length(roles) or settings.max_length
    if length is None:
        way = "--max-length 128; the network must have as many positions"
        raise OnnxgenError(f"how long are the blocks that {source.name} is cut into?", help=way)
    columns: dict[str, str | tuple[int, ...]]
    columns = {port.name: past_shape(port) if role.startswith(PAST) else role for role, port in roles.items()}
    columns[LABELS] = IDS
    for part, samples in source.parts.items():
        stream = stream_of(samples)
        assert stream is not None and isinstance(stream.reader, TokenReader)
        reader = replace(stream.reader, length=length, roles=columns)
        counts = [file.count // length for file in reader.files]
        if not sum(counts):
            raise OnnxgenError(f"the {part} part of {source.name} has less than {counted(length, 'token')}")
        pieces = [(i, first, min(_PIECE, n - first)) for i, n in enumerate(counts) for first in range(0, n, _PIECE)]
        source.parts[part] = replace(stream, reader=reader).of_spans(spans_of(*zip(*pieces)))
    name = legible(roles[IDS].name)
    source.notes.append(f"{name} is blocks of {counted(length, 'token')}; what is left at a file's end is not used")


def is_tokens(samples: object) -> bool:
    return isinstance(getattr(samples, "reader", None), TokenReader)
