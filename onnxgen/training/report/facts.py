"""What a report says of a run besides its numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn


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
            f"training {self.model} ({self.parameters:,} parameters{few}) on {self.data} ({sizes}) "
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
        confused: the part of the data that `confusion` counts.
    """

    seconds: float
    stopped: str = ""
    test: Mapping[str, float] = field(default_factory=dict)
    confusion: Tensor | None = None
    confused: str = "val"


def parameters(model: nn.Module) -> tuple[int, int]:
    """How many numbers the parameters have, and how many of them are trained."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trained in sizes if trained)


def file_of(model: nn.Module) -> Path | None:
    """The file that the model's class stands in."""
    found: Any = getattr(sys.modules.get(type(model).__module__), "__file__", None)
    return Path(found) if found else None
