"""The card of a task: what other files ask of it. Nothing here imports torch, since names are checked before it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

    from onnxgen.record.purpose import Purpose
    from onnxgen.training.data.samples import Batch, Data, Feeding, Samples
    from onnxgen.training.goals.deciding import Given
    from onnxgen.training.goals.goal import Goal, Outputs
    from onnxgen.training.runs.answers import Prediction
    from onnxgen.training.runs.record import Target
    from onnxgen.training.settings import Settings

# of numbers, with all names that they have
PLACE_LOSSES = ("l1", "mse", "smooth_l1", "huber", "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "mae")
Refitted: TypeAlias = "tuple[nn.Module, Path | None, tuple[str, ...], list[str]]"


@dataclass(frozen=True)
class Situation:
    """What a goal is made for.

    Attributes:
        model: in evaluation mode.
        batch, outputs: a few samples, and the model's outputs for them, with autograd's history.
        samples: of the training part, or those that are evaluated.
        feeding: the columns; `feeding.others` are those of the task.
        names: of the outputs.
    """

    model: nn.Module
    batch: Batch
    outputs: Outputs
    samples: Samples
    feeding: Feeding
    names: tuple[str, ...]
    settings: Settings
    training: bool = True


def later(place: str) -> Callable[[Situation], Sequence[Goal]]:
    """Return a function of `goals/`, named like "ctc.make", that is imported when it is called."""

    def make(found: Situation) -> Sequence[Goal]:
        module, _, function = place.rpartition(".")
        made: Sequence[Goal] = getattr(import_module(f"onnxgen.training.goals.{module}"), function)(found)
        return made

    return make


@dataclass(frozen=True)
class Parts:
    """How a task trains a part of a network that decodes what its weights compute.

    Attributes:
        is_there: True if the data at a path is for this task.
        refuse: refuses data and module before torch is loaded: data, module, settings.
        ready: returns the module to train of a module and a size, and notes.
        refit: gives a model a head for the classes of the data. Returns it, its file, new layers, and notes.
        top: returns the layers that settings train as the head.
        predicted: yields what the raw outputs say of each sample: samples, their names, target, outputs, least score.
    """

    is_there: Callable[[Path], bool]
    refuse: Callable[[Path, Path, Settings], None]
    ready: Callable[[Path, str], tuple[Path | None, list[str]]]
    refit: Callable[[nn.Module, Path | None, Data, Settings], Refitted]
    top: Callable[[nn.Module], tuple[str, ...]]
    predicted: Callable[[Samples, Sequence[str], Target, Sequence[Tensor], float], Iterator[Prediction]]


@dataclass(frozen=True)
class Card:
    """What a network is trained for.

    Attributes:
        name: what `--task` calls it.
        make: returns the goals: loss, metrics, and what is shown of a sample. It raises `OnnxgenError` if model and
            data do not suit the task. None: a loss of each output.
        losses: the values of `--loss` beside "auto".
        metrics: the names of what an evaluation measures, beside the loss.
        reads: the columns beside the inputs that the task reads: "target" (the one that is the target), "rest" (all
            columns that no input takes), "labels" (the column that is made of the texts), or "" (none).
        columns: names that the target usually has.
        classes: what `--classes` names: "all" classes of the target, "some" of them (there may be others in other
            data), or "characters" of its texts.
        labels: the tokens that are predicted of texts: "next", "masked", "other" (those of another text), or "".
        data: the kind of data that is for this task alone, as readers name it; "" if there is none.
        compares: samples are compared with each other: one may be a pair or a triplet, and the loss depends on a batch.
        resize: how images get their size, unless the settings say it.
        older: settings that "auto" meant in runs of older versions.
        target: what the target is to an image: "image" (one itself), "moved" (it moves with the image), or "".
        stays: what of the target would stay where it is while the image moves; "" if nothing would.
        divides: returns True if `--normalize auto` divides images by white; it may add a note.
        refused: settings that do not go with the task, with what is wrong and what to do.
        parts: how a part of the network is trained; None if it is the whole one.
        kinds: the purposes of networks that are for this task (see `record.purpose.KINDS`).
        has: returns what the data has for it, as a sentence; "" if it lacks that.
        needs: what that is.
        alone: the names of a column that can't be meant for a loss of each output; `True` for any column.
        new_head: True if the network is for the same also with a head of another number of classes.
    """

    name: str
    make: Callable[[Situation], Sequence[Goal]] | None = None
    losses: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    reads: str = ""
    columns: tuple[str, ...] = ()
    classes: str = "all"
    labels: str = ""
    data: str = ""
    compares: bool = False
    resize: str = "stretch"
    older: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    stays: str = ""
    divides: Callable[[nn.Module, list[str]], bool] = lambda model, notes: False
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    parts: Parts | None = None
    kinds: tuple[str, ...] = ()
    has: Callable[[Given, Purpose], str] = lambda given, purpose: ""
    needs: str = ""
    alone: tuple[str, ...] | bool = ()
    new_head: bool = False

    def is_certain(self, given: Given) -> bool:
        """Return True if the data can't be meant for a loss of each output."""
        return self.alone if isinstance(self.alone, bool) else any(name in given.fields for name in self.alone)

    def is_named(self, given: Given) -> bool:
        """Return True if the target has a name that is for this task whatever else the network may be for."""
        return self.alone is True and given.aim(*self.columns) in self.columns
