"""The card of a task: what other files ask of it. Nothing here imports torch, since names are checked before it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxgen.record.signature import Port, Purpose, Signature
from onnxgen.training.data.source import DataSource, aim_of
from onnxgen.training.data.text.roles import roles_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from onnxgen.training.data.samples import Batch, Data, Feeding, Field, Samples
    from onnxgen.training.goals.goal import Goal, Outputs
    from onnxgen.training.runs.answers import Answer, Prediction
    from onnxgen.training.runs.contract import Finding
    from onnxgen.training.runs.record import Target
    from onnxgen.training.settings import Settings

# Settings that a task with a loss of its own does not read, and that only a loss of each output reads.
LOSS_SETTINGS = ("loss", "loss_weights", "class_weights", "label_smoothing", "metric", "teacher")
OF_SINGLE_OUTPUTS = (*LOSS_SETTINGS, "mixup", "cutmix", "sampler")
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


def later(place: str, folder: str = "goals") -> Callable[..., Any]:
    """Return a function of a folder of training, named like "ctc.make", that is imported when it is called."""
    module, _, function = place.rpartition(".")
    return lambda *arguments: getattr(import_module(f"onnxgen.training.{folder}.{module}"), function)(*arguments)


@dataclass(frozen=True)
class Given:
    """The data and the settings of a run, before columns are matched, and what the network is for."""

    source: DataSource
    ports: Signature
    settings: Settings
    purpose: Purpose

    @property
    def fields(self) -> Mapping[str, Field]:
        return self.source.fields

    def aim(self, *usual: str) -> str:
        """Return the column that is the target: the one that the settings name, or that has a `usual` name; or ""."""
        column = aim_of(self.settings.target, self.source.target, usual, self.fields)
        return column if column in self.fields else ""

    def aims(self) -> list[str]:
        """Return the columns that are targets."""
        from onnxgen.training.data.encoding import aims_of

        return aims_of(self.source, self.ports, self.settings, [*self.fields])

    def roles(self) -> dict[str, Port]:
        """Return what each input of a network that reads tokens is."""
        return roles_of(self.ports, [*self.fields])

    def classes(self) -> str:
        """Return that there is a class for each sample, as a sentence; "" if there is none."""
        name = self.aim()
        if not name or self.fields[name].shape or self.fields[name].dtype.is_floating_point:
            return ""
        return f"column {name!r} has a class for each sample"

    def has_a_score_of_each_class(self) -> bool:
        name, dims = self.aim(), self.ports.outputs[0].dims if len(self.ports.outputs) == 1 else None
        return bool(name and dims) and len(self.fields[name].classes) == dims[-1]  # type: ignore[index]

    def plain_text(self) -> str:
        """Return that there is text without a target, for a network with scores of each token; "" if there is none."""
        from onnxgen.training.data.text.choosing import text_columns

        if not text_columns(self.source) or not self.roles() or self.aims() or self.purpose.facts.get("axis", 2) != 2:
            return ""
        return "the data is text without a target"

    def speaks_against(self, losses: tuple[str, ...] = ()) -> str:
        """Return the option that only a loss of each output reads, or another task's loss; "" if there is none."""
        default = type(self.settings)()
        for name in OF_SINGLE_OUTPUTS:
            value = getattr(self.settings, name)
            if name == "loss" and isinstance(value, str) and value.lower() in losses:
                continue
            if value != getattr(default, name):
                return f"--{name.replace('_', '-')}"
        return ""


@dataclass(frozen=True)
class Parts:
    """How a task trains a part of a network that decodes what its weights compute.

    Attributes:
        is_there: True if the data at a path is for this task.
        refuse: refuses data and module before torch is loaded: data, module, settings.
        ready: returns the module to train of a module and a size, and notes.
        refit: gives a model a head for the classes of the data. Returns it, its file, new layers, and notes.
        top: returns the layers that settings train as the head.
        predicted: yields what the raw outputs say of each sample: samples, their names, target, outputs, and which
            boxes are found.
    """

    is_there: Callable[[Path], bool]
    refuse: Callable[[Path, Path, Settings], None]
    ready: Callable[[Path, str], tuple[Path | None, list[str]]]
    refit: Callable[[nn.Module, Path | None, Data, Settings], Refitted]
    top: Callable[[nn.Module], tuple[str, ...]]
    predicted: Callable[[Samples, Sequence[str], Target, Sequence[Tensor], Finding], Iterator[Prediction]]


@dataclass(frozen=True)
class Card:
    """What a network is trained for.

    Attributes:
        name: what `--task` calls it.
        make: returns the goals: loss, metrics, and what is shown of a sample. It raises `OnnxgenError` if model and
            data do not suit the task. None: a loss of each output.
        losses: the values of `--loss` beside "auto".
        metrics: the names of what an evaluation measures, beside the loss.
        answers: what reads an output as an answer, by the loss that a run records (`Target.loss`).
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
        freezes_norms: True if the recipe for fine-tuning freezes BatchNorms in small batches.
        new_head: True if the network is for the same also with a head of another number of classes.
    """

    name: str
    make: Callable[[Situation], Sequence[Goal]] | None = None
    losses: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    answers: Mapping[str, Callable[[Tensor, Target], Answer]] = field(default_factory=dict)
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
    has: Callable[[Given], str] = lambda context: ""
    needs: str = ""
    alone: tuple[str, ...] | bool = ()
    freezes_norms: bool = False
    new_head: bool = False

    def is_certain(self, context: Given) -> bool:
        """Return True if the data can't be meant for a loss of each output."""
        return self.alone if isinstance(self.alone, bool) else any(name in context.fields for name in self.alone)

    def is_named(self, context: Given) -> bool:
        """Return True if the target has a name that is for this task whatever else the network may be for."""
        return self.alone is True and context.aim(*self.columns) in self.columns
