"""Digests of the samples that a run was trained on, by which other data is told that has some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from onnxgen.training.data.folder import Files
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.prepared import Prepared
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.streaming.stream import stream_of

SAMPLES = "samples.bin"  # in the folder of a run
MOST = 1_000_000  # samples; of more, and of streamed ones, no digests are kept
_LENGTH, _BATCH = 8, 256


def digests(samples: Samples, inputs: Sequence[str]) -> bytes:
    """Return a digest of each sample, one behind the other; b"" if there would be too many, or reading takes long.

    Of files it is that of their contents, else that of what the inputs get, without augmentation and targets.
    """
    stored = samples.samples if isinstance(samples, Prepared) else samples
    if isinstance(stored, Files) and len(stored) <= MOST:
        paths = [path for path in stored.paths if isinstance(path, Path)]
        return b"".join(_digest(path.read_bytes()) for path in paths)
    fast = getattr(stored, "in_memory", False) and stream_of(samples) is None
    if not fast or len(samples) > MOST or type(samples) is not Prepared:
        return b""
    steps = {n: replace(s, augment=None, noise=0.0) if isinstance(s, ToInput) else s for n, s in samples.steps.items()}
    return b"".join(_rows(replace(samples, steps={name: steps[name] for name in inputs})))


def _rows(samples: Prepared) -> Iterator[bytes]:
    for start in range(0, len(samples), _BATCH):
        batch = samples.take(range(start, min(start + _BATCH, len(samples))), 0)
        arrays = [batch[name].float().contiguous().numpy() for name in sorted(batch)]
        yield from (_digest(b"".join(array[row].tobytes() for array in arrays)) for row in range(len(arrays[0])))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_LENGTH).digest()


def count_seen(run: Path, samples: Samples, inputs: Sequence[str]) -> int:
    """Return how many of these samples a run was trained on, as far as its digests tell."""
    if not (run / SAMPLES).is_file():
        return 0
    known = set(_each((run / SAMPLES).read_bytes()))
    return sum(one in known for one in _each(digests(samples, inputs)))


def _each(found: bytes) -> Iterator[bytes]:
    return (found[start : start + _LENGTH] for start in range(0, len(found), _LENGTH))
