"""Outputs of a network: which task and which output is trained, and how outputs are read.

`decide` says what `--task auto` means, by what the network is for and by what the data has.
`trained_output` finds the output that a task trains; `refuse_augment` refuses augmentation that
would move what the target tells the place of. An alphabet is the characters that a model reads
already, those of its file or of its own training. Class scores over time are read as text, and
heatmaps as the places of keypoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.labels import PREFIX, SPACE, Alphabet, recorded_alphabet
from onnxgen.record.sidecar import metadata_of, shapes_of, space_of
from onnxgen.record.signature import Purpose
from onnxgen.surgery.ports import signature_of, told_classes
from onnxgen.training.byname import by_name
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.image_options import FOR_PHOTOS, recipes
from onnxgen.training.data.source import DataSource
from onnxgen.training.runs.record import has_code
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import CARDS, OUTPUTS, card_of, possible
from onnxgen.training.tasks.card import Given

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation


_ALPHABETS: WeakKeyDictionary[nn.Module, Alphabet] = WeakKeyDictionary()  # what a user says of a model
_EACH = "for a loss of each output, --task outputs"


def decide(source: DataSource, model: nn.Module, settings: Settings) -> str:
    """Return the task of `--task auto`: that of the data if it is certain, else the one that the network is for, if the
    data has what it reads; else "outputs". A note of the source says why, or what else was possible.

    Raises `OnnxgenError` if the network is for one task alone, and the data for another.
    """
    purpose = recorded_purpose(model)
    if source.task or purpose is None:
        return source.task or OUTPUTS
    context = Given(source, fed(model), settings, purpose)
    if not purpose.kind:
        return _of_candidates(context)
    cards = [card for card in possible(purpose) if settings.replace_head is None or card.new_head]
    if not cards:
        return OUTPUTS
    card, has = next(((card, has) for card in cards if (has := card.has(context))), (cards[0], ""))
    if not card.needs:
        return OUTPUTS
    against = context.speaks_against(card.losses)
    if has and not against:
        source.notes.append(f"trained with --task {card.name}: {purpose.evidence[0]}, and {has}; {_EACH}")
        return card.name
    why = f"{against} is for a loss of each output" if against else f"the data has no {card.needs}"
    what = f"the network seems to be for {purpose.kind} ({purpose.evidence[0]}), but {why}"
    source.notes.append(f"{what}: trained with a loss of each output, unless --task names another way")
    return OUTPUTS


def _of_candidates(context: Given) -> str:
    """Return the task for a network whose purpose is unsure. If the data leaves several, a note names them."""
    cards = [card for card in possible(context.purpose) if card.new_head or context.settings.replace_head is None]
    suited = {c.name: has for c in cards if (has := c.has(context)) and not context.speaks_against(c.losses)}
    tasks = [name for name in suited if CARDS[name].is_named(context)] or [*suited]
    if not tasks:
        return OUTPUTS
    maybe = f"the network may be for {' or '.join(context.purpose.candidates)}"
    if len(tasks) == 1 and CARDS[tasks[0]].is_certain(context):
        context.source.notes.append(f"trained with --task {tasks[0]}: {maybe}, and {suited[tasks[0]]}; {_EACH}")
        return tasks[0]
    what = f"{maybe}: trained with a loss of each output; the data also suits --task {' or '.join(tasks)}"
    context.source.notes.append(what)
    return OUTPUTS


def recorded_purpose(model: nn.Module) -> Purpose | None:
    """Return what the sidecar of a generated module says about its network.

    None if it says nothing, or if the module was edited or its layers have other sizes: then it may be for something
    else by now.
    """
    space, purpose = space_of(model), signature_of(model).purpose
    if purpose is None or (file := space.get("__file__")) is None:
        return purpose
    if not has_code(Path(file), str(space.get("FINGERPRINT", ""))):
        return None
    known, own = shapes_of(space), {key: tuple(tensor.shape) for key, tensor in model.named_parameters()}
    return purpose if all(known.get(key, shape) == shape for key, shape in own.items()) else None


# Losses of places and of images, by all their names.
_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "l1": F.l1_loss,
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
}
# of places and of images, by all names
PLACES = _NUMBERS | {f"{name}_loss": loss for name, loss in _NUMBERS.items()} | {"mae": F.l1_loss}


def trained_output(situation: Situation, fits: Callable[[Tensor], bool], wanted: str) -> int:
    """Return the index of the output that the task trains: the one that `--target OUTPUT=COLUMN` names, else the only
    one that fits.

    Raises:
        OnnxgenError: there is none, or there are several. `wanted` says in words what fits.
    """
    task, names = situation.settings.task, situation.names
    shapes = listed(f"{name} {list(output.shape)}" for name, output in zip(names, situation.outputs))
    asked = situation.settings.target
    if isinstance(asked, Mapping) and asked:
        name = next(iter(asked))
        if len(asked) > 1 or name not in names:
            raise OnnxgenError(f"--task {task} trains one output (there are {shapes})", help="--target OUTPUT=COLUMN")
        if not fits(situation.outputs[names.index(name)]):
            raise OnnxgenError(f"--task {task} needs {wanted}, but the outputs are {shapes}")
        return names.index(name)
    fitting = [index for index, output in enumerate(situation.outputs) if fits(output)]
    if len(fitting) == 1:
        return fitting[0]
    what = f"--task {task} needs {wanted}, and the outputs are {shapes} for a batch of {_count(situation)}"
    raise OnnxgenError(what, help="--target OUTPUT=COLUMN" if fitting else "train another output or task")


def asked_loss(situation: Situation, usual: str, way: str) -> str:
    """Return the loss that the settings name, of those of the task; `usual` for "auto".

    Raises:
        OnnxgenError: there is no such loss, or one is named for each output. `way` is an example of what to do.
    """
    task, asked = situation.settings.task, situation.settings.loss
    if not isinstance(asked, str):
        raise OnnxgenError(f"--task {task} trains one output, so --loss is a name", help=way)
    if asked == "auto":
        return usual
    by_name(asked, dict.fromkeys(card_of(task).losses), f"loss of --task {task}")
    return asked.strip().lower()


def batch_axis(situation: Situation, output: int) -> int:
    """Return the axis of an output that is the batch: the first or the second one.

    Raises `OnnxgenError` if neither is, or both may be.
    """
    ports, tensor, count = fed(situation.model), situation.outputs[output], _count(situation)
    dims = (ports.outputs[output].dims if output < len(ports.outputs) else None) or ()
    batch = {port.dims[0] for port in ports.inputs if port.dims and isinstance(port.dims[0], str)}
    named = [axis for axis in (0, 1) if len(dims) == tensor.ndim and dims[axis] in batch]
    fits = [axis for axis in (0, 1) if tensor.shape[axis] == count and named in ([], [0, 1], [axis])]
    if len(fits) == 1:
        return fits[0]
    which = "both of its first axes may be" if fits else "none of its first axes is"
    what = f"output {situation.names[output]} is {list(tensor.shape)} for a batch of {count}: {which} the batch"
    raise OnnxgenError(what, help="generate the model again with --dynamic-batch")


def refuse_augment(situation: Situation, moving: Sequence[str], why: str) -> None:
    """Refuse augmentation that moves the image, but not the target. Raises `OnnxgenError`."""
    asked = situation.settings.augment
    names = FOR_PHOTOS if asked == "auto" else recipes(asked, False)
    if wrong := [name for name in names if name in moving]:
        rest = ",".join(name for name in names if name not in moving)
        raise OnnxgenError(f"--augment {','.join(wrong)} {why}", help=f"--augment {rest or 'none'}")


def _count(situation: Situation) -> int:
    return len(next(iter(situation.batch.values())))


def output_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of a model's outputs: those of the graph, else `output0` and so on."""
    names = [port.name for port in signature_of(model).outputs]
    return tuple(names[i] if i < len(names) else f"output{i}" for i in range(count))


def own_alphabet(model: nn.Module, classes: int) -> Alphabet | None:
    """Return the alphabet of a model whose output has so many classes; None if nothing says what they are.

    It is what was trained or chosen in this process (`set_classes`), else what the weights of its module record.
    """
    alphabet = _recorded(model)
    alphabet = None if alphabet is None else alphabet.of(classes)
    chosen = told_classes(model)
    if chosen is None or (alphabet is not None and alphabet.characters == chosen):
        return alphabet
    return Alphabet(PREFIX + "classes", chosen) if 0 < len(chosen) < classes else None


def added(model: nn.Module, characters: Sequence[str]) -> list[str]:
    """Return those of the characters that the file of a model does not list; [] if it lists none."""
    listed = _recorded(model)
    return [] if listed is None else [c for c in characters if c not in {*listed.characters, SPACE}]


def extended(known: Sequence[str], used: Sequence[str], classes: int) -> tuple[str, ...]:
    """Return the alphabet of a new head of so many classes in which characters of an old one stay.

    With room for all of them, the old ones keep their places, and those that only the data uses are behind them. With
    less, it is the characters that the data uses.
    """
    every = (*known, *(c for c in used if c not in {*known}))
    return every if len(every) < classes else tuple(used)


def set_alphabet(model: nn.Module, alphabet: Alphabet) -> None:
    """Remember which characters a model was trained to read, if its module does not record that."""
    _ALPHABETS[model] = alphabet


def _recorded(model: nn.Module) -> Alphabet | None:
    return _ALPHABETS.get(model) or recorded_alphabet(recorded_metadata(model))


def recorded_metadata(model: nn.Module) -> Mapping[str, str]:
    """Return the metadata of a model's sidecar; {} if its weights can't be read."""
    try:
        return metadata_of(space_of(model))
    except OnnxgenError:  # damaged weights, which the model does not need any more
        return {}


def greedy(best: Tensor, blank: int) -> list[list[int]]:
    """Return the classes that are read along time: repeats count once, and the blank is left out.

    Args:
        best: int64 [n, T], the most probable class at each time.
    """
    rows = (torch.unique_consecutive(row) for row in best)
    return [row[row != blank].tolist() for row in rows]


def spelled(ids: Sequence[int], blank: int, characters: Sequence[str]) -> str:
    """Return the text of class indices. `characters` are the classes in order, without the blank.

    A class without a character is its number. Without characters the numbers are parted by spaces.
    """
    places = [number - (number > blank) for number in ids]
    if not characters:
        return " ".join(map(str, ids))
    return "".join(characters[p] if p < len(characters) else f"<{i}>" for p, i in zip(places, ids, strict=True))


def peaks(maps: Tensor) -> Tensor:
    """Return the highest place of each heatmap [n, K, H, W], and its value: x, y, value [n, K, 3].

    x and y are shares of width and height. As in Xiao et al. (1804.06208), a place is moved by a quarter of a pixel
    towards the higher one of its two neighbours.
    """
    height, width = maps.shape[-2:]
    flat = maps.float().flatten(2)
    value, index = flat.max(2)
    places = []
    for size, at, stride in ((width, index % width, 1), (height, index // width, width)):
        before, after = ((index + step).clamp(0, flat.shape[2] - 1) for step in (-stride, stride))
        slope = flat.gather(2, after[..., None]) - flat.gather(2, before[..., None])
        inside = (at > 0) & (at < size - 1)
        places.append((at + 0.5 + 0.25 * slope[..., 0].sign() * inside) / size)
    return torch.stack([*places, value], 2)
