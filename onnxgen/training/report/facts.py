"""What a report says of a run besides its numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from onnxgen.errors import counted
from onnxgen.training.settings import Settings

if TYPE_CHECKING:
    from onnxgen.training.devices import Device
    from onnxgen.training.prepare import Plan


@dataclass(frozen=True)
class Facts:
    """What is known before the first step.

    Attributes:
        model: the class's name.
        file: the generated module's file, where the model comes from one.
        parameters, trained: how many numbers the model learns with, and how many of them are trained now.
        data: what it is called.
        sizes: number of samples of each part there is ("train", "val", "test").
        notes: what a person should know.
        device: in words: "cpu", "cuda:0 (NVIDIA H100)", "2 x cpu".
        classes: names, of a classifier.
        monitor: the metric that decides which epoch is best.
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

    def line(self, out: Path) -> str:
        """The first line of a run."""
        few = "" if self.trained == self.parameters else f", {self.trained:,} trained"
        sizes = ", ".join(f"{size:,} {part}" for part, size in self.sizes.items())
        return (
            f"training {self.model} ({counted(self.parameters, 'parameter')}{few}) on {self.data} ({sizes}) "
            f"with {self.device}, to {out}"
        )


@dataclass(frozen=True)
class Ending:
    """What is known after the last step.

    Attributes:
        seconds: of the training, validation included.
        stopped: why, where it was before the last epoch.
        test: the test part's metrics, by name.
        confusion: how often a class (row) was taken for another (column): integers, [classes, classes].
        confused: what `confusion` counts: "test", or "validation, best epoch".
    """

    seconds: float
    stopped: str = ""
    test: Mapping[str, float] = field(default_factory=dict)
    confusion: Tensor | None = None
    confused: str = "validation, best epoch"


def facts_of(plan: Plan) -> Facts:
    """What a report says of what is about to be trained."""
    sizes = [(p.numel(), p.requires_grad) for p in plan.model.parameters()]
    parts = {name: getattr(plan.data, name) for name in ("train", "val", "test")}
    classifier = next((o for o in plan.objectives if o.classes), None)
    fields = parts["train"].fields
    return Facts(
        model=type(plan.model).__name__,
        file=file_of(plan.model),
        parameters=sum(number for number, _ in sizes),
        trained=sum(number for number, trained in sizes if trained),
        data=plan.data.name,
        sizes={name: len(samples) for name, samples in parts.items() if samples is not None},
        notes=tuple(plan.notes),
        device=_worded(plan.device, plan.settings),
        classes=fields[classifier.column].classes if classifier is not None else (),
        monitor=plan.monitor[0],
    )


def file_of(model: nn.Module) -> Path | None:
    """The file that the model's class stands in, relative to the working directory where it lies in it."""
    found: str | None = getattr(sys.modules.get(type(model).__module__), "__file__", None)
    if found is None:
        return None
    path, here = Path(found), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _worded(device: Device, settings: Settings) -> str:
    """`cpu`, `cuda:0 (NVIDIA H100), bf16-mixed`, `2 x 4 x cuda:0 (...)`."""
    several = [str(number) for number in (settings.nodes, settings.devices) if number > 1]
    name = f" ({device.name})" if device.name and device.name != device.text else ""
    precision = "" if settings.precision == "32-true" else f", {settings.precision}"
    return " x ".join([*several, device.text]) + name + precision
