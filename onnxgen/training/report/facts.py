"""Facts about a run for its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from onnxgen.errors import counted
from onnxgen.record.sidecar import space_of
from onnxgen.training.optimizers import batch_of_few, rate_of, steps_of
from onnxgen.training.settings import Settings

if TYPE_CHECKING:
    from onnxgen.training.devices import Device
    from onnxgen.training.prepare import Plan


@dataclass(frozen=True)
class Facts:
    """The facts that are known before the first step.

    Attributes:
        model: name of the model's class.
        file: the generated file, if the model comes from one.
        parameters, trained: number of all parameters, and of those that are trained.
        data: the data's name.
        sizes: number of samples by part ("train", "val", "test").
        notes: facts for the user.
        device: in words: "cpu", "cuda:0 (NVIDIA H100)", "2 x cpu".
        classes: class names of a classifier.
        monitor: the metric that decides which epoch is best.
        steps: in words, the optimizer, its rate and the steps of an epoch; "" if the plan says nothing of it.
        gentler: " -> " and the settings to try if training makes the model worse, or "".
    """

    model: str
    file: Path | None
    parameters: int
    trained: int
    data: str
    sizes: Mapping[str, int]
    notes: Sequence[str] = ()
    device: str = "cpu"
    classes: tuple[str, ...] = ()
    monitor: str = "val_loss"
    steps: str = ""
    gentler: str = ""

    def line(self, out: Path) -> str:
        """Return the first line that a run shows."""
        few = "" if self.trained == self.parameters else f", {self.trained:,} trained"
        sizes = ", ".join(f"{size:,} {part}" for part, size in self.sizes.items())
        model = f"{self.model} ({counted(self.parameters, 'parameter')}{few})"
        return f"training {model} on {self.data} ({sizes}) with {self.device}, to {out}"


@dataclass(frozen=True)
class Outcome:
    """The facts that are known after the last step.

    Attributes:
        seconds: duration of training and validation.
        stopped: why the run ended before the last epoch; else empty.
        test: the metrics of the test part, by name.
        confusion: the confusion matrix [classes, classes], integers; rows are the true classes.
        confused: the data of `confusion`: "test", or "validation, best epoch".
        note: a sentence for the user, or empty.
        examples: a picture of some samples of the part that was evaluated last, as PNG.
        texts: some of its texts, for a language model: the beginning, how it goes on, and what the model writes.
    """

    seconds: float
    stopped: str = ""
    test: Mapping[str, float] = field(default_factory=dict)
    confusion: Tensor | None = None
    confused: str = "validation, best epoch"
    note: str = ""
    examples: bytes | None = None
    texts: Sequence[tuple[str, str, str]] = ()


def facts_of(plan: Plan) -> Facts:
    """Return the facts about a planned run."""
    sizes = [(p.numel(), p.requires_grad) for p in plan.model.parameters()]
    parts = plan.data.parts
    classifier = next((o for o in plan.objectives if o.classes), None)
    return Facts(
        model=type(plan.model).__name__,
        file=file_of(plan.model),
        parameters=sum(number for number, _ in sizes),
        trained=sum(number for number, trained in sizes if trained),
        data=plan.data.name,
        sizes={name: len(samples) for name, samples in parts.items()},
        notes=tuple(plan.notes),
        device=_worded(plan.device, plan.settings),
        classes=parts["train"].fields[classifier.columns[0]].classes if classifier is not None else (),
        monitor=plan.monitor,
        steps=_steps(plan),
        gentler=_gentler(plan),
    )


def _steps(plan: Plan) -> str:
    """Return `adamw, lr 0.0003 after a rise over 20 steps; 20 steps of 8 samples an epoch`."""
    settings = plan.settings
    warmup = settings.warmup or 0
    rises = f"{warmup:.3g} of the steps" if isinstance(warmup, float) and warmup < 1 else counted(int(warmup), "step")
    rising = f" after a rise over {rises}" if warmup else ""
    schedule = f", {settings.schedule}" if settings.schedule else ""
    steps = steps_of(len(plan.train), settings)
    samples = min(settings.batch * settings.accumulate * settings.processes, len(plan.train))
    each = f"{counted(steps, 'step')} of {counted(samples, 'sample')} an epoch"
    return f"{settings.optimizer}, lr {rate_of(settings):g}{rising}{schedule}; {each}"


def file_of(model: nn.Module) -> Path | None:
    """Return the file of the model's class, relative to the current folder if it is in there."""
    if (file := space_of(model).get("__file__")) is None:
        return None
    path, here = Path(file), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _worded(device: Device, settings: Settings) -> str:
    """Return the device in words: `cpu`, `cuda:0 (NVIDIA H100), bf16-mixed`, `2 x 4 x cuda:0 (...)`."""
    several = [str(number) for number in (settings.nodes, settings.devices) if number > 1]
    name = f" ({device.name})" if device.name and device.name != device.text else ""
    precision = "" if settings.precision == "32-true" else f", {settings.precision}"
    return " x ".join([*several, device.text]) + name + precision


def _gentler(plan: Plan) -> str:
    """Return ` -> --lr 3e-05, or --batch-size 8 (20 steps an epoch), or --freeze the first layers`.

    It is "" for a new head: what it scored before training was chance.
    """
    settings = plan.settings
    if settings.replace_head is not None:
        return ""
    if head := max((goal.new_head for goal in plan.objectives), default=0):
        return f" -> --replace-head {head}: nothing says which characters the model's classes were trained for"
    rate, batch = rate_of(settings) / 10, batch_of_few(settings, len(plan.train))
    more = replace(settings, batch_size=batch)
    smaller = f", or --batch-size {batch} ({steps_of(len(plan.train), more)} steps an epoch)"
    return f" -> --lr {rate:.2g}{smaller if batch < settings.batch else ''}, or --freeze the first layers"
