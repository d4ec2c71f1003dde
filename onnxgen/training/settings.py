"""What a training run can be asked for: one frozen dataclass, read alike by `fit`, the command line and a TOML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxgen.errors import OnnxgenError

STRATEGIES = ("auto", "ddp", "fsdp")
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true")


@dataclass(frozen=True)
class Settings:
    """Settings of one run; the names are those of the command's options.

    Attributes:
        epochs: passes over the training data.
        max_steps: stop after so many optimizer steps, if that comes first.
        batch_size: samples a step and process.
        accumulate: batches whose gradients are summed to one optimizer step.
        optimizer, optimizer_args: a class of `torch.optim` by its name, whatever its case, and its arguments.
        lr: learning rate; None: the optimizer's own default.
        weight_decay: of what has more than one dim (norms and biases have none); None: the optimizer's default.
        schedule, schedule_args: a class of `torch.optim.lr_scheduler` by its name, and its arguments.
        head_lr: the classifier's rate as a multiple of `lr`.
        clip: largest norm of all gradients together.
        loss: by its torch name ("nll_loss", "cross_entropy", "mse_loss", ...), or one for each output; "auto" takes the
            one that fits what the model ends in.
        inputs: the data's column for each input of the model; unnamed ones match by name, or as the only.
        target: the data's column for each output; a text alone is for the only output.
        classes: names of the classes in the order of the model's outputs; default: sorted names of those in the data.
        device: "auto", "cpu", "cuda:1", "mps", "xpu", "directml", or what a plug-in calls its own.
        imports: modules to import first, which bring devices of their own.
        devices, nodes, strategy: processes a node, nodes, and how they share the work ("ddp", "fsdp").
        precision: as Lightning's `Trainer` calls it ("32-true", "bf16-mixed", ...).
        workers: processes that prepare batches; "auto" takes as many as help.
        freeze: patterns of module paths that are not trained.
        replace_head: number of classes of a new last layer.
        weights: start from a checkpoint of one's own, under the model's keys.
        from_scratch: forget the weights that the file came with.
        early_stop: epochs without a new best after which to stop; the best weights are kept either way.
        monitor: the metric that decides which weights are best; "auto" takes validation accuracy of a classifier,
            else validation loss.
        val, test: shares of the data held back for validation and test, where the data has no such parts itself.
        normalize: "auto", "none", or `mean,std` (numbers, or one a channel joined by `/`); of several inputs each by
            its name ("left=0.1,0.3;right=none").
        augment: "none", or a recipe of the data's kind ("flip", "crop", "rotate", joined by commas; "auto").
        strict: a sample that can't be read is an error, not skipped.
        compile: `torch.compile` the model.
        seed: for everything that is drawn.
        checkpoint_minutes: a checkpoint is written at least so often, besides one an epoch.
        resume: go on from the last checkpoint in `out`.
        out: the folder of the run.
    """

    epochs: int = 10
    max_steps: int | None = None
    batch_size: int = 64
    accumulate: int = 1
    optimizer: str = "adamw"
    optimizer_args: Mapping[str, Any] = field(default_factory=dict)
    lr: float | None = None
    weight_decay: float | None = None
    schedule: str | None = None
    schedule_args: Mapping[str, Any] = field(default_factory=dict)
    head_lr: float = 1.0
    clip: float | None = None
    loss: str | Mapping[str, str] = "auto"
    inputs: Mapping[str, str] = field(default_factory=dict)
    target: str | Mapping[str, str] | None = None
    classes: tuple[str, ...] = ()
    device: str = "auto"
    imports: tuple[str, ...] = ()
    devices: int = 1
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    workers: int | str = "auto"
    freeze: tuple[str, ...] = ()
    replace_head: int | None = None
    weights: Path | None = None
    from_scratch: bool = False
    early_stop: int | None = None
    monitor: str = "auto"
    val: float = 0.1
    test: float = 0.0
    normalize: str = "auto"
    augment: str = "none"
    strict: bool = False
    compile: bool = False
    seed: int = 0
    checkpoint_minutes: float = 10.0
    resume: bool = False
    out: Path = Path("runs/last")

    def __post_init__(self) -> None:
        for name in ("weights", "out"):  # text will do, as for every path
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, Path(getattr(self, name)))
        for name in ("freeze", "imports"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        object.__setattr__(self, "classes", _names(self.classes))
        for name in ("epochs", "batch_size", "accumulate", "devices", "nodes"):
            if getattr(self, name) < 1:
                raise OnnxgenError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_steps", "replace_head", "early_stop"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OnnxgenError(f"{name} must be at least 1, not {value}")
        if self.weights is not None and self.from_scratch:
            raise OnnxgenError("weights and from_scratch exclude each other: give one of them")
        for name, known in (("strategy", STRATEGIES), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise OnnxgenError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not (0 <= self.val < 1 and 0 <= self.test < 1 and self.val + self.test < 1):
            raise OnnxgenError("val and test must be shares of the data: each at least 0, together less than 1")
        if self.workers != "auto" and (not isinstance(self.workers, int) or self.workers < 0):
            raise OnnxgenError(f"workers must be a number or 'auto', not {self.workers!r}")


def _names(classes: Iterable[str]) -> tuple[str, ...]:
    if isinstance(classes, str):
        raise OnnxgenError(
            f"classes must be a list of names, not the text {classes!r}", help="give it like classes=('cat', 'dog')"
        )
    found = tuple(map(str, classes))
    for place, name in enumerate(found):
        if not name.strip() or name in found[:place]:
            raise OnnxgenError(f"classes has {name!r} twice" if name.strip() else "classes has an empty name")
    return found
