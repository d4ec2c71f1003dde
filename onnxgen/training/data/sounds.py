"""Sounds in files: a folder for each class, or a table with a column of paths. They are decoded when they are taken."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.names import legible
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.record.signature import Signature
from onnxgen.training.data.arrays import Columns, decoder_of, in_columns, in_files
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import SOUNDS as SUFFIXES
from onnxgen.training.data.layout import SUFFIXES as IMAGES
from onnxgen.training.data.layout import class_folders, files_below, refuse_nested
from onnxgen.training.data.looking import Seen, looked
from onnxgen.training.data.samples import Feeding, Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.table import rows_of
from onnxgen.training.settings import Settings

SOUND = "sound"  # the column of a folder


@dataclass(frozen=True)
class Sounds:
    """A column of sound files, mono: float32 [n, length], filled up with zeros at the end, or cut.

    Attributes:
        frames: the samples of each file at `rate`.
        rate: of the result, in Hz.
        length: samples that every sound gets; None until `fit_sounds`.
    """

    paths: tuple[Path, ...]
    frames: tuple[int, ...]
    rate: int
    length: int | None = None
    dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *([] if self.length is None else [self.length]))

    def index_select(self, axis: int, which: Tensor) -> Sounds:
        paths, frames = (tuple(values[i] for i in which.tolist()) for values in (self.paths, self.frames))
        return replace(self, paths=paths, frames=frames)

    def decoded(self, indices: Sequence[int]) -> Tensor:
        assert self.length is not None, "sounds of several lengths"
        batch = np.zeros((len(indices), self.length), np.float32)
        for row, index in zip(batch, indices):
            sound = heard(self.paths[index], self.rate)[: self.length]
            row[: len(sound)] = sound
        return torch.from_numpy(batch)


def heard(path: Path, rate: int) -> NDArray[np.float32]:
    """Return the mean of a file's channels, from -1 to 1, at a rate in Hz (`scipy.signal.resample_poly`).

    Raises `OnnxgenError` if it can't be read.
    """
    import soundfile
    from scipy.signal import resample_poly

    try:
        channels, own = soundfile.read(_named(path), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 100)}") from None
    mono: NDArray[np.float32] = channels.mean(1, dtype=np.float32)
    if own == rate:
        return mono
    divisor = math.gcd(own, rate)
    return np.asarray(resample_poly(mono, rate // divisor, own // divisor), dtype=np.float32)


def _named(path: Path) -> str | bytes:
    """Return a name as soundfile takes it: a text that is not in UTF-8 is none to it."""
    return str(path) if os.name == "nt" else os.fsencode(path)


def look_at_sound(path: Path) -> Seen:
    """Return rate and number of samples of a file, or why it can't be used. The whole file is decoded."""
    import soundfile

    try:
        channels, rate = soundfile.read(_named(path), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        return one_line(error, 100).removeprefix(f"Error opening '{path}': ")
    if not len(channels):
        return "it has no samples"
    return (int(rate), len(channels)) if np.isfinite(channels).all() else "it has numbers that are not finite"


def is_sounds(path: Path) -> bool:
    """Return True for a sound file, and for a folder whose first image or sound is a sound."""
    if not path.is_dir():
        return path.suffix.lower() in SUFFIXES
    known = (*SUFFIXES, *IMAGES)
    first = next((file for file in files_below(path, *known) if file.is_file()), None)
    return first is not None and first.suffix.lower() in SUFFIXES


def _sounds_in(root: Path, classified: bool) -> list[Path]:
    """Return the sounds of a folder; of those in `classified` folders not what lies beside these."""
    if not root.is_dir():
        return [root]
    return sorted(p for p in files_below(root, *SUFFIXES) if p.is_file() and not (classified and p.parent == root))


def _labels(root: Path, files: Sequence[Path], classes: tuple[str, ...]) -> dict[str, Tensor]:
    if not classes:
        return {}
    return {"label": torch.tensor([classes.index(file.relative_to(root).parts[0]) for file in files])}


def open_sounds(path: Path, settings: Settings, labelled: bool) -> DataSource:
    """Open `folder/class/*.wav`, or `folder/train/class/*.wav` beside `val` and `test`; or one file, or files without
    classes.

    Raises `OnnxgenError` if no sound can be used, or soundfile is missing.
    """
    parts, classes = class_folders(path)
    if labelled and not classes:
        what = f"{path} has sounds, but no folder for each class"
        raise OnnxgenError(what, help="lay it out as folder/class_name/*.wav, or give a table with a column of paths")
    refuse_nested(path, parts, SUFFIXES)
    files = {part: _sounds_in(root, bool(classes)) for part, root in parts.items()}
    labels = {"label": classes} if classes else {}
    samples: dict[str, Samples] = {part: Columns(_labels(parts[part], files[part], classes), labels) for part in parts}
    faults = Faults(path if path.is_dir() else path.parent, "sound")
    source = DataSource(samples, path.name, "label" if classes else "", text=frozenset(labels))
    _fill(source, {part: [(file, "") for file in of_part] for part, of_part in files.items()}, SOUND, faults, settings)
    return source


def with_sounds(source: DataSource, folder: Path, settings: Settings, faults: Faults) -> None:
    """Replace the column of a table whose texts are names of sound files, seen from `folder`; if there is one."""
    first = next(iter(source.raw.values()), {})
    named = [name for name in first if name in source.text and all(map(_is_name, first[name]))]
    if len(named) != 1:
        return
    (name,) = named
    paths = {part: source.paths(part, name, folder, faults) for part in source.parts}
    source.raw = {part: {n: c for n, c in columns.items() if n != name} for part, columns in source.raw.items()}
    source.text, source.table = source.text - {name}, False
    _fill(source, paths, name, faults, settings)


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and text.lower().endswith(SUFFIXES)


def _fill(
    source: DataSource, paths: Mapping[str, list[tuple[Path, str]]], name: str, faults: Faults, settings: Settings
) -> None:
    """Give the source the sounds that can be used, of one rate, with a note of all others."""
    need(["soundfile"])
    files = [path for rows in paths.values() for path, _ in rows]
    seen = looked(faults.folder, [path for path in files if path.is_file()], look_at_sound, "sounds")
    rate, resampled = _rate([facts for path in files if not isinstance(facts := seen.get(path, ""), str)], settings)
    raw, kept = dict(source.raw), dict[str, list[int]]()
    for part, rows in paths.items():
        kept[part] = [i for i, (p, line) in enumerate(rows) if _is_sound(p, line, seen, rate, settings, faults)]
        sounds = _sounds([rows[i][0] for i in kept[part]], seen, rate)
        source.parts[part] = in_files(source.parts[part], {name: sounds}, name, kept[part])
        if part in raw:
            raw[part] = {column: rows_of(values, kept[part]) for column, values in raw[part].items()}
    source.notes += faults.notes(kept, settings.strict, len(files) - sum(map(len, kept.values()))) + resampled
    source.raw, source.rate = raw, rate


def _rate(sounds: Sequence[tuple[int, ...]], settings: Settings) -> tuple[int, list[str]]:
    """Return the rate in Hz that all sounds get: what is asked for, else that of most. A note counts the others."""
    rates = Counter(own for own, _ in sounds)
    rate = settings.sample_rate or (rates.most_common(1)[0][0] if rates else 0)
    other = len(sounds) - rates[rate]
    why = "" if settings.sample_rate else f", which {rates[rate]} have; --sample-rate names another"
    return rate, [f"{counted(other, 'sound')} of another rate: resampled to {rate} Hz{why}"] * bool(other)


def _sounds(paths: Sequence[Path], seen: Mapping[Path, Seen], rate: int) -> Sounds:
    sizes = [facts for path in paths if not isinstance(facts := seen[path], str)]
    return Sounds(tuple(paths), tuple(math.ceil(count * rate / own) for own, count in sizes), rate)


def _is_sound(path: Path, line: str, seen: Mapping[Path, Seen], rate: int, settings: Settings, faults: Faults) -> bool:
    """Return False and add a fault if a file can't be used."""
    facts, place = seen.get(path), f"{line}{faults.place(path)}"
    if facts is None:
        faults.add(place, "there is no such file")
    elif isinstance(facts, str):
        faults.add(place, f"can't be read: {facts}")
    elif facts[0] != rate and settings.strict and settings.sample_rate is None:
        faults.add(place, f"it has {facts[0]} Hz, but most files {rate} Hz; --sample-rate {rate} would resample it")
    else:
        return True
    return False


def fit_sounds(source: DataSource, ports: Signature, feeding: Feeding) -> None:
    """Give all sounds the length of their input; if that is open, the length of the longest one. A note counts."""
    first = source.first
    name = next((name for name in first.fields if isinstance(decoder_of(first, name), Sounds)), "")
    if not name:
        return
    dims = next((port.dims for port, column in zip(ports.inputs, feeding.inputs) if column == name), None)
    frames = [count for samples in source.parts.values() for count in decoder_of(samples, name).frames]
    fixed = dims[-1] if dims is not None and len(dims) > 1 else None
    length = fixed if isinstance(fixed, int) else max(frames)
    source.parts |= {part: in_columns(samples).fitted(name, length=length) for part, samples in source.parts.items()}
    cut, filled = sum(count > length for count in frames), sum(count < length for count in frames)
    changes = [f"{cut} of {len(frames)} are longer and are cut"] * bool(cut)
    changes += [f"{filled} of {len(frames)} are shorter and end in zeros"] * bool(filled)
    what = f"{legible(name)} has {length} samples at {source.rate} Hz, mono"
    source.notes.append("; ".join([what, *changes]))
