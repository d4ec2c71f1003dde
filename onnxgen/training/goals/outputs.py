"""Finds the output that a task trains, and refuses augmentation that would move what the target tells the place of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import signature_of
from onnxgen.training.byname import by_name
from onnxgen.training.data.fed import fed
from onnxgen.training.data.recipes import FOR_PHOTOS, recipes
from onnxgen.training.tasks import card_of

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation

# Losses of places and of images, by all their names.
_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "l1": F.l1_loss,
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
}
# of places and of images, by all names
PLACES = _NUMBERS | {f"{name}_loss": loss for name, loss in _NUMBERS.items()} | {"mae": F.l1_loss}


def trained_output(found: Situation, fits: Callable[[Tensor], bool], wanted: str) -> int:
    """Return the index of the output that the task trains: the one that `--target OUTPUT=COLUMN` names, else the only
    one that fits.

    Raises:
        OnnxgenError: there is none, or there are several. `wanted` says in words what fits.
    """
    task, names = found.settings.task, found.names
    shapes = listed(f"{name} {list(made.shape)}" for name, made in zip(names, found.outputs))
    said = found.settings.target
    if isinstance(said, Mapping) and said:
        name = next(iter(said))
        if len(said) > 1 or name not in names:
            raise OnnxgenError(f"--task {task} trains one output (there are {shapes})", help="--target OUTPUT=COLUMN")
        if not fits(found.outputs[names.index(name)]):
            raise OnnxgenError(f"--task {task} needs {wanted}, but the outputs are {shapes}")
        return names.index(name)
    fitting = [index for index, made in enumerate(found.outputs) if fits(made)]
    if len(fitting) == 1:
        return fitting[0]
    what = f"--task {task} needs {wanted}, and the outputs are {shapes} for a batch of {_count(found)}"
    raise OnnxgenError(what, help="--target OUTPUT=COLUMN" if fitting else "train another output or task")


def asked_loss(found: Situation, usual: str, way: str) -> str:
    """Return the loss that the settings name, of those of the task; `usual` for "auto".

    Raises:
        OnnxgenError: there is no such loss, or one is named for each output. `way` is an example of what to do.
    """
    task, asked = found.settings.task, found.settings.loss
    if not isinstance(asked, str):
        raise OnnxgenError(f"--task {task} trains one output, so --loss is a name", help=way)
    if asked == "auto":
        return usual
    by_name(asked, dict.fromkeys(card_of(task).losses), f"loss of --task {task}")
    return asked.strip().lower()


def batch_axis(found: Situation, output: int) -> int:
    """Return the axis of an output that is the batch: the first or the second one.

    Raises:
        OnnxgenError: neither is, or both may be.
    """
    ports, made = fed(found.model), found.outputs[output]
    dims = (ports.outputs[output].dims if output < len(ports.outputs) else None) or ()
    batch = {port.dims[0] for port in ports.inputs if port.dims and isinstance(port.dims[0], str)}
    named = [axis for axis in (0, 1) if len(dims) == made.ndim and dims[axis] in batch]
    sized = [axis for axis in (0, 1) if made.shape[axis] == _count(found)]
    fits = [axis for axis in sized if axis in named] if len(named) == 1 else sized
    if len(fits) == 1:
        return fits[0]
    which = "both of its first axes may be" if fits else "none of its first axes is"
    what = f"output {found.names[output]} is {list(made.shape)} for a batch of {_count(found)}: {which} the batch"
    raise OnnxgenError(what, help="generate the model again with --dynamic-batch")


def refuse_augment(found: Situation, moving: Sequence[str], why: str) -> None:
    """Refuse augmentation that moves the image, but not the target. Raises `OnnxgenError`."""
    asked = found.settings.augment
    names = FOR_PHOTOS if asked == "auto" else recipes(asked, False)
    if wrong := [name for name in names if name in moving]:
        rest = ",".join(name for name in names if name not in moving)
        raise OnnxgenError(f"--augment {','.join(wrong)} {why}", help=f"--augment {rest or 'none'}")


def _count(found: Situation) -> int:
    return len(next(iter(found.batch.values())))


def output_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of a model's outputs: those of the graph, else `output0` and so on."""
    names = [port.name for port in signature_of(model).outputs]
    return tuple(names[i] if i < len(names) else f"output{i}" for i in range(count))
