"""Digests of the samples that a run was trained on, by which other data is told that has some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from onnxgen.errors import counted
from onnxgen.training.data.arrays import decoder_of
from onnxgen.training.data.fitting import Plain
from onnxgen.training.data.folder import Images, Targets
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.prepared import Prepared, Tuples
from onnxgen.training.data.samples import Data, Samples
from onnxgen.training.data.sounds import Sounds
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.data.text.columns import Text
from onnxgen.training.data.text.masking import Masked

SAMPLES = "samples.bin"  # in the folder of a run
MOST = 1_000_000  # samples; of more, and of streamed ones, no digests are kept
_LENGTH, _BATCH = 8, 256


def digests(samples: Samples, inputs: Sequence[str], text: Text | None = None) -> bytes:
    """Return a digest of each sample, one behind the other; b"" if there would be too many, or reading takes long.

    Of files it is that of their contents, of texts that of their tokens, else that of what the inputs get, without what
    is drawn and without targets.

    Args:
        inputs: the columns of the inputs.
        text: how texts became token ids; None if they did not.
    """
    if len(samples) > MOST or stream_of(samples) is not None:
        return b""
    if (files := files_of_each(samples)) is not None:
        return b"".join(_digest(b"".join(path.read_bytes() for path in of_sample)) for of_sample in files)
    if not isinstance(samples, Prepared) or not samples.in_memory:
        return b""
    plain = replace(samples, steps={name: _undrawn(step) for name, step in samples.steps.items()})
    if text is not None and text.tokenizing is not None:
        return b"".join(map(_digest, _rows(plain, [text.ids], text.tokenizing.pad)))
    return b"".join(map(_digest, _rows(plain, sorted(samples.members if isinstance(samples, Tuples) else inputs))))


def files_of_each(samples: Samples) -> Sequence[tuple[Path, ...]] | None:
    """Return the files of each sample, one for each input; None if samples are of no files."""
    if isinstance(samples, Prepared):
        samples = samples.samples
    decoders = [decoder_of(samples, name) for name in samples.fields]
    paths = [d.paths for d in decoders if isinstance(d, (Images, Sounds)) and not isinstance(d, Targets)]
    return [*zip(*paths)] if paths and all(isinstance(path, Path) for path in sum(paths, ())) else None


def _undrawn(step: Any) -> Any:
    """Return a step that draws nothing: no augmentation, noise or masked tokens. It makes the same of equal samples."""
    if isinstance(step, ToInput):
        return replace(step, augment=None, noise=0.0)
    return Plain(step.dtype, step.shape) if isinstance(step, Masked) else step


def _rows(samples: Prepared, columns: Sequence[str], pad: int | None = None) -> Iterator[bytes]:
    """Yield what columns have of each sample; of a tuple, of all its members. `pad`: the token that fills texts up."""
    for start in range(0, len(samples), _BATCH):
        which = range(start, min(start + _BATCH, len(samples)))
        batch = samples.take(which, 0)
        arrays = [batch[name].reshape(len(which), -1, *batch[name].shape[1:]) for name in columns]
        for of_sample in zip(*arrays):
            yield b"".join(_bytes(member, pad) for members in of_sample for member in members)


def _bytes(member: Tensor, pad: int | None) -> bytes:
    if pad is None:
        return member.float().contiguous().numpy().tobytes()
    tokens = member.numpy()
    return np.append(tokens[: np.flatnonzero(tokens != pad).max(initial=-1) + 1], pad).tobytes()


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_LENGTH).digest()


def told_seen(run: Path, data: Data, part: str, inputs: Sequence[str]) -> list[str]:
    """Return a note of how many samples of a part of other data a run was trained on, as far as its digests tell."""
    samples = data.parts.get(part)
    if samples is None or not (run / SAMPLES).is_file():
        return []
    known = set(_each((run / SAMPLES).read_bytes()))
    seen = sum(one in known for one in _each(digests(samples, inputs, data.text)))
    what = f"{seen:,} of {counted(len(samples), 'sample')} were trained on"
    return [f"{what}: the numbers say little about new ones"] if seen else []


def _each(found: bytes) -> Iterator[bytes]:
    return (found[start : start + _LENGTH] for start in range(0, len(found), _LENGTH))
