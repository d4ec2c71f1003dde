"""Treats other data as a run treated its own.

Alike are the columns of a table, the value of white, and whether inputs are images or numbers.

Digests of the samples that a run was trained on tell if other data has some of them (`told_seen`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError, counted, typed
from onnxgen.record.tail import tail_of
from onnxgen.training.data.arrays import Prepared, Tuples, decoder_of, stored
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.fitting import Plain
from onnxgen.training.data.folder import Images, Targets
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Data, Feeding, Field, Samples
from onnxgen.training.data.scaling import order_told
from onnxgen.training.data.sounds import Sounds
from onnxgen.training.data.source import DataSource, target_called
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.data.text.columns import Text
from onnxgen.training.data.text.tokenizer import Masked
from onnxgen.training.goals.names import BINARY_LOSSES
from onnxgen.training.runs.contract import plain_scale
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.runs.record import BOXES, Image, Input, Part, Record, Target, read_record
from onnxgen.training.settings import Settings


def as_in_training(source: DataSource, record: Record) -> None:
    """Give a table the columns of the training, in their order, and images the white of the training.

    Raises:
        OnnxgenError: a column is missing, or images have values that can't be of the range of the training.
    """
    if source.table and not {"table", "tokenizer"} & record.settings.keys():  # these know their columns
        _order(source, record)
    source.whites = {**source.whites, **_whites(source, record)}


def with_its_target(source: DataSource | Data, settings: Settings) -> Settings:
    """Return settings whose target is that of other data, if it lacks the column of the training.

    Its classes need names, which tell that they are those of the training.
    """
    if isinstance(source, Data) or not isinstance(settings.target, str):
        return settings
    fields = next(iter(source.parts.values())).fields
    own = source.target or target_called(fields)
    if settings.target in fields or own not in fields or not fields[own].classes:
        return settings
    return replace(settings, target=own)


def with_its_images(source: DataSource, record: Record, settings: Settings) -> Settings:
    """Return settings with which images of files are the input of a model that was trained on arrays of images."""
    column = next((entry.column for entry in record.inputs if entry.image), "")
    fields = next(iter(source.parts.values())).fields
    return replace(settings, inputs={}) if column and column not in fields and len(fields) == 1 else settings


def need_one_part(source: DataSource) -> None:
    """Raise `OnnxgenError` if what a prediction is for has several parts."""
    if len(source.parts) > 1:
        what = f"{source.name} has the parts {', '.join(source.parts)}, and a prediction is for one"
        raise OnnxgenError(what, help="give the samples without parts: one array for each input")


def _order(source: DataSource, record: Record) -> None:
    """Leave out columns that the run did not use: without names for them, an input takes all columns by position."""
    fields = next(iter(source.parts.values())).fields
    wanted = [name for entry in record.inputs for name in entry.columns or (entry.column,)]
    missing = [name for name in wanted if name not in fields and name not in source.unfit]
    if missing:
        what = f"{source.name} lacks {listed(missing)}, which the run was trained with (it has {listed(fields)})"
        raise OnnxgenError(what, help="give the columns of the training, under the same names")
    kept = dict.fromkeys([*wanted, *(target.column for target in record.targets)])
    source.unfit = {name: problem for name, problem in source.unfit.items() if name in kept}
    for part, samples in source.parts.items():
        source.parts[part] = stored(samples).only(kept)


def _whites(source: DataSource, record: Record) -> dict[str, float]:
    """Return the value of white in each column of images. Bytes have 255, other numbers that of the run's data."""
    samples, whites = next(iter(source.parts.values())), {}
    for entry in record.inputs:
        column = entry.column if entry.column in samples.fields else _only_images(samples.fields, source.target)
        if entry.image is None or not column or column in source.whites:
            continue
        field = samples.fields[column]
        white = 255.0 if field.dtype == torch.uint8 else entry.image.white
        highest = float(samples.take(range(len(samples)), 0)[column].max())
        if highest > white or (white > 1 and 0 < highest <= 1 and field.dtype.is_floating_point):
            what = f"images have values up to {highest:g}, but white was {white:g} in training"
            raise OnnxgenError(what, help=f"scale them from 0 to {white:g}, or give bytes from 0 to 255 (uint8)")
        whites[column] = white
    return whites


def _only_images(fields: Mapping[str, Field], target: str) -> str:
    """Return the only column besides the target that has two axes or more for each sample; "" if there is none."""
    columns = [name for name, field in fields.items() if len(field.shape) >= 2 and name != target]
    return columns[0] if len(columns) == 1 else ""


def finished(data: Data, feeding: Feeding, record: Record) -> list[str]:
    """Check that data is like that of the training, and give it the same range of values. Returns notes.

    Raises:
        OnnxgenError: see `need_alike`.
    """
    need_alike(data, feeding, record)
    with_white_of_training(data, feeding, record)
    with_widths_of_training(data, feeding, record)
    steps = (getattr(samples, "steps", {}).get(column) for samples in data.parts.values() for column in feeding.inputs)
    return order_told([step for step in steps if isinstance(step, ToInput)])


def need_alike(data: Data, feeding: Feeding, record: Record) -> None:
    """Raise `OnnxgenError` if an input would get images that got numbers in training, or the other way round."""
    samples = next(iter(data.parts.values()))
    for entry, column in zip(record.inputs, feeding.inputs):
        step = samples.steps.get(column) if isinstance(samples, Prepared) else None
        if step is None or isinstance(step, ToInput) == (entry.image is not None):
            continue
        had, has = ("images", "numbers") if entry.image else ("numbers as they are stored", "images")
        what = f"input {entry.name!r} was trained on {had} {list(entry.shape)}, but this data is {has}"
        raise OnnxgenError(what, help="give data of the same kind as in training")


def with_white_of_training(data: Data, feeding: Feeding, record: Record) -> None:
    """Give images that are fed as stored the white of the training: bytes go from 0 to 16 if its numbers did."""

    def with_white(step: ToInput, image: Image) -> ToInput:
        if step.scale is not None or step.white == image.white:
            return step
        return replace(step, scale=plain_scale(image.channels, image.white))

    _change_images(data, feeding, record, with_white)


def with_widths_of_training(data: Data, feeding: Feeding, record: Record) -> None:
    """Give long lines the widths that the record allows, which an exported file has, too."""
    _change_images(data, feeding, record, lambda step, image: replace(step, width_step=image.width_step))


def _change_images(data: Data, feeding: Feeding, record: Record, change: Callable[[ToInput, Image], ToInput]) -> None:
    """Change how images become inputs, by what the record of a run says of them."""
    for entry, column in zip(record.inputs, feeding.inputs):
        for part, samples in data.parts.items():
            step = samples.steps.get(column) if isinstance(samples, Prepared) else None
            if entry.image is not None and isinstance(samples, Prepared) and isinstance(step, ToInput):
                steps = {**samples.steps, column: change(step, entry.image)}
                setattr(data, part, replace(samples, steps=steps))


def fits(record: Record, model: nn.Module, run: Path, constants: Mapping[str, float]) -> None:
    """Raise `OnnxgenError` if a record speaks of other inputs or outputs than the run's model has.

    `constants`: the numbers that fill some inputs, by their names.
    """
    ports = fed(model, constants)
    names, outputs = [port.name for port in ports.inputs], [port.name for port in ports.outputs]
    wrong = ""
    if names and [entry.name for entry in record.inputs] != names:
        wrong = f"inputs {listed([entry.name for entry in record.inputs])}, and its model takes {listed(names)}"
    for target in record.targets if outputs else ():
        places = [target.output, *target.head.get("places", ())]
        if not all(type(place) is int and 0 <= place < len(outputs) for place in places):
            wrong = f"a target for output {places[-1]}, and its model has {counted(len(outputs), 'output')}"
        if target.loss == BOXES:
            try:
                tail_of(target.head["tail"])
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                wrong = f"no maps that boxes can be made of: {typed(error)}"
    if wrong:
        raise OnnxgenError(f"{run / RECORD} has {wrong}", help="restore it: it is not the record of this model")


def need_classes(output: Tensor, target: Target) -> None:
    """Raise `OnnxgenError` if an output has not the axes and classes that the record of its run says."""
    sizes = list(output.shape)
    if max(target.axis if target.classes else 0, target.batch) >= len(sizes):
        wrong = f"axes {target.axis} and {target.batch}"
    elif target.classes and target.loss not in BINARY_LOSSES and sizes[target.axis] != target.classes:
        wrong = f"{counted(target.classes, 'class')} along axis {target.axis}"
    else:
        return
    what = f"output {target.name!r} is {sizes}, and the record of the run says {wrong}"
    raise OnnxgenError(what, help="restore run.json: it is not the record of this model")


def batched(array: Tensor, entry: Input) -> Tensor:
    """Return an array with a batch axis. One sample is recognised by its rank."""
    rank = len(entry.shape)
    if entry.image is not None:
        colours = array.ndim == 3 and {array.shape[0], array.shape[-1]} & {1, 3, 4}
        return array[None] if array.ndim == 2 or colours else array
    return array[None] if array.ndim == rank else array


def split_again(run: Path, data: Data) -> str:
    """Return a note: whether data is split as that of a run, so that what the run held back is held back again."""
    if parts_of(data) == read_record(run).parts:
        return f"the samples are those of {run}, split as before"
    return f"the samples or their split are not those of {run}: what it held back may be trained on now"


def parts_of(data: Data) -> dict[str, Part]:
    """Return the parts of data as a run records them."""
    from onnxgen.training.runs.keep import part as described  # which imports the trainer

    return {name: described(samples) for name, samples in data.parts.items()}


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


def _each(content: bytes) -> Iterator[bytes]:
    return (content[start : start + _LENGTH] for start in range(0, len(content), _LENGTH))
