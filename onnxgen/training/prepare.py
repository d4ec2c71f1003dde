"""Opens and checks everything before the first step, so that errors come before training.

`look_up` tells all names of the settings that torch and the model lack at once. `put_head` replaces
the head and keeps classes (`--replace-head 12 --keep`). `quiet` silences Lightning, and
`seed_everything` seeds the generators as Lightning does, without its import, which takes seconds.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.surgery.head import find_head
from onnxgen.surgery.ports import check_patterns, evaluating, set_classes, signature_of
from onnxgen.training.byname import check_arguments
from onnxgen.training.checkpoint.identity import compare_model, peek
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.arrays import Values, column_of
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.fitting import classes_used
from onnxgen.training.data.glance import parts_for
from onnxgen.training.data.samples import Batch, Data, Feeding, Field, Samples
from onnxgen.training.data.streaming.stream import limit
from onnxgen.training.devices import Device, choose
from onnxgen.training.endings import Look
from onnxgen.training.finetune.freezing import freeze
from onnxgen.training.finetune.kept import put_head
from onnxgen.training.goals.distil import with_teacher
from onnxgen.training.goals.goal import IGNORED_CLASS, Goal, suffixed
from onnxgen.training.goals.names import loss_name, losses_asked, refuse_for_task
from onnxgen.training.goals.outputs import output_names
from onnxgen.training.goals.pooling import AUTO as POOLED
from onnxgen.training.launch import launched
from onnxgen.training.loader import classes_of
from onnxgen.training.losses import Objective, objective, stressed
from onnxgen.training.model import as_trained, as_tuple, begun, fixed_batch, has_learned, set_known, trial_batch
from onnxgen.training.optimizers import optimizer_class, schedule_class, settled
from onnxgen.training.runs.alike import files_of_each
from onnxgen.training.runs.folder import CHECKPOINTS
from onnxgen.training.settings import Settings
from onnxgen.training.smaller import try_smaller
from onnxgen.training.stepwise import check_steps, notes_of, settled_steps
from onnxgen.training.tasks import CARDS, card_of, with_task
from onnxgen.training.tasks.card import Situation

if TYPE_CHECKING:
    from onnxgen.training.finetune.adapters import Adapter


@dataclass
class Plan:
    """The parts of a run, checked to fit together.

    Attributes:
        notes: choices made for the user, and other facts that they should know.
        adapter: what is trained in place of the weights; None if the weights are.
        has_learned: True if the weights that training begins with are of a trained network, with its own head.
        classes: of each training sample [n], if each is to be drawn equally often.
        head: the paths of the layers that are the head of a detector, where a setting asks for them; () if it is found.
        file: of the module that is trained (of a detector that of its raw maps), or the folder of a run to go on from;
            None if neither was named.
    """

    model: nn.Module
    data: Data
    feeding: Feeding
    objectives: list[Goal]
    device: Device
    settings: Settings
    notes: list[str] = field(default_factory=list)
    adapter: Adapter | None = None
    classes: np.ndarray | None = None
    has_learned: bool = False
    head: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def train(self) -> Samples:
        """The training samples, which `prepare` needs."""
        assert self.data.train is not None
        return self.data.train

    @property
    def monitor(self) -> str:
        """The metric that decides which weights are best."""
        if self.settings.monitor != "auto":
            return self.settings.monitor
        if self.data.val is None:  # only loss and accuracy are counted while training
            return "train_accuracy" if any(o.monitor == "accuracy" for o in self.objectives) else "train_loss"
        goal = next((o for o in self.objectives if o.monitor != "loss"), self.objectives[0])
        own = goal.monitor not in ("loss", "accuracy")  # several goals have one loss and one accuracy together
        name = suffixed(self.objectives, goal, goal.monitor) if own else goal.monitor
        return f"val_{name}"


def prepare(model: nn.Module | Path | str, data: Any, settings: Settings) -> Plan:
    """Open model and data, change the model as the settings say, and check that everything fits together.

    Raises:
        OnnxgenError: the device, the data, a pattern, the loss or anything else does not fit. Nothing was trained.
    """
    model, file, opened, device, settings, notes = _opened(model, data, launched(settings))
    assert opened.train is not None
    trained = has_learned(model) and not settings.from_scratch
    settings = with_task(settings, opened)
    card = card_of(settings.task)
    if settings.pooling != POOLED and not card.compares:
        others = [f"--task {other.name}" for other in CARDS.values() if other.compares]
        raise OnnxgenError(f"--pooling makes vectors, and the task is {card.name}", help=" or ".join(others))
    settings = settled(settings, len(opened.train), trained, _any_batch(model, settings))
    notes += _classes_of_parts(opened, settings)
    head: tuple[str, ...] = ()
    if card.parts is not None:
        model, file, head, more = card.parts.refit(model, file, opened, settings)
        notes += more
    elif settings.replace_head is not None:
        put_head(model, opened, settings)
        head = (find_head(model).path,) if settings.lora else ()
    adapter, more = _changed(model, file, head, settings)
    notes += more
    feeding = feed(opened, model, settings)
    check(model, opened, feeding, settings)
    check_steps(model, opened, feeding.inputs, feeding.aims)
    objectives = objectives_of(model, opened.train, feeding, settings)
    for samples in opened.parts.values():
        refuse_outside(samples, objectives)
    set_known(model, opened.normalize, opened.table, settings)
    settings = settled_steps(model, _settled(settings, opened, feeding, objectives))
    set_classes(model, settings.classes)
    objectives = stressed(objectives, opened.train, settings)
    objectives = with_teacher(objectives, model, opened.train, feeding, settings, opened.normalize)
    notes += opened.notes + notes_of(model) + _told(objectives, settings)
    notes += try_smaller(model, opened.train, feeding, objectives, settings)
    notes += _untrained(model, feeding) if card.make is None else []
    drawn = classes_of(opened.train, objectives) if settings.sampler == "balanced" else None
    shaped = settings.head_first or settings.head_lr != 1
    top = head or card.parts.top(model) if card.parts is not None and shaped else ()
    learned = trained and settings.replace_head is None and not head
    return Plan(model, opened, feeding, objectives, device, settings, notes, adapter, drawn, learned, top, file)


def _opened(
    model: nn.Module | Path | str, data: Any, settings: Settings
) -> tuple[nn.Module, Path | None, Data, Device, Settings, list[str]]:
    """Return the model with its first weights, its file, its data, the device, the settings as trained, and notes.

    Raises:
        OnnxgenError: the model can't be opened; or all that is wrong with the device, the data, and names.
    """
    problems, device, opened = Problems(), None, None
    with problems.gathered():
        device = choose(settings.device, settings.imports)
    file = None if isinstance(model, nn.Module) else Path(model)
    notes: list[str] = []
    if file is not None and not file.is_dir() and (parts := parts_for(data, settings)) is not None:
        file, notes = parts.ready(file, settings.size)  # perhaps a part of the module is trained
    model, warning = begun(model if file is None else file, settings)
    settings = as_trained(settings, model)
    look_up(model, settings, problems)
    with problems.gathered():
        opened = open_data(data, model, settings)
        if opened.train is None:
            raise OnnxgenError(f"{opened.name} has no samples to train with")
    problems.raise_if_any()
    assert device is not None and opened is not None
    return model, file, opened, device, settings, notes + ([warning] if warning else [])


def _any_batch(model: nn.Module, settings: Settings) -> bool:
    """Return True if a batch may have any number of samples, and its loss does not compare them with each other."""
    return fixed_batch(model) is None and not card_of(settings.task).compares


def _told(objectives: Sequence[Goal], settings: Settings) -> list[str]:
    notes = [note for goal in objectives for note in goal.said]
    for goal in objectives if settings.loss == "auto" else ():
        if isinstance(goal, Objective):
            where = f"output {goal.name}" if goal.name else "the model"
            ends = "holds" if goal.ending.seen else "ends in"
            notes.append(f"{where} {ends} {goal.ending}: trained with {goal.loss}")
    if any(goal.factor != 1 for goal in objectives):
        parts = ", ".join(f"{goal.factor:g} {goal.name or 'labels'}" for goal in objectives)
        notes.append(f"the loss is the sum of {parts}; the loss of each is shown before its weight")
    return notes


def _classes_of_parts(opened: Data, settings: Settings) -> list[str]:
    """Return a note of the classes, in their order, and how many samples each part has of each.

    Raises:
        OnnxgenError: the data has one class alone, so nothing can be learnt.
    """
    if opened.train is None or opened.target not in opened.named or card_of(settings.task).classes == "characters":
        return []
    names = opened.train.fields[opened.target].classes
    if len(names) == 1 and not settings.classes[1:]:
        what = f"{opened.name} has one class alone, {legible(names[0])!r}: there is nothing to tell apart"
        way = "lay it out as folder/class_name/*, with a folder for each class, and name that folder"
        if files_of_each(opened.train) is None:
            way = f"name another column than {legible(opened.target)}: --target COLUMN"
        raise OnnxgenError(what, help=way)
    counts: dict[str, list[int]] = {}
    for part, samples in opened.parts.items():
        values = column_of(samples, opened.target)
        if values is None or values.ndim != 1:
            return []
        counts[part] = torch.bincount(values.long(), minlength=len(names)).tolist()
    texts = (f"{name} {' + '.join(str(of[n]) for of in counts.values())}" for n, name in enumerate(names))
    return [f"classes in their order, samples of {' + '.join(counts)}: {listed(texts, 20)}"]


def _changed(
    model: nn.Module, file: Path | None, head: tuple[str, ...], settings: Settings
) -> tuple[Adapter | None, list[str]]:
    """Put an adapter on a model, and freeze layers, as the settings say. Returns the adapter, and notes.

    `head`: paths of layers that are new.
    """
    adapter, notes = _adapted(model, file, head, settings) if settings.lora else (None, [])
    notes += _of_integers(model, "get no adapter" if settings.lora else "their weights are not trained")
    if settings.resume and (checkpoint := peek(settings.out / CHECKPOINTS)):
        compare_model(checkpoint["identity"], model)
    if settings.freeze:
        freeze(model, *settings.freeze)
    if not any(p.requires_grad for p in model.parameters()):
        raise OnnxgenError("the model has no parameter to train", help="unfreeze some, or train another model")
    return adapter, notes


def _settled(settings: Settings, opened: Data, feeding: Feeding, objectives: Sequence[Goal]) -> Settings:
    """Return the settings with what the data decided: `config.toml` must tell how to treat other data."""
    settings = replace(settings, **{k: v for goal in objectives for k, v in goal.settled.items()})
    classes = settings.classes or classes_used(opened, feeding)
    table = opened.table.to_json() if opened.table else settings.table
    normalize, size = opened.normalize or settings.normalize, opened.size or settings.size
    settings = replace(settings, normalize=normalize, size=size, classes=classes, table=table)
    settings = replace(settings, sample_rate=opened.rate or settings.sample_rate)
    return opened.text.kept(settings) if opened.text is not None else settings


def _adapted(
    model: nn.Module, file: Path | None, head: tuple[str, ...], settings: Settings
) -> tuple[Adapter, list[str]]:
    """Put the adapter that the settings ask for on a model. A new head is trained as a whole.

    Weights that the file of a generated module stores as integers become these integers. Returns also notes of that.
    """
    from onnxgen.training.finetune.adapters import add_adapter  # it loads torch's compiler, which takes a second
    from onnxgen.training.finetune.packed import pack, packed_layers

    assert settings.lora is not None
    if settings.strategy == "fsdp":
        raise OnnxgenError("lora and the strategy fsdp exclude each other", help="--strategy ddp: the base is frozen")
    notes = pack(model, file, head) if file is not None and file.is_file() else []
    if settings.dora and any(packed_layers(model)):
        notes.append("DoRA beside integers can't be exported as an adapter: train with --lora alone for that")
    if bare := next(model.parameters(), None) is None:  # peft would ask the first parameter for its device
        model.hf_device_map = {"": next(model.buffers()).device}  # type: ignore[assignment]
    adapter = add_adapter(model, settings.lora, *settings.lora_target, dora=settings.dora, whole=head)
    if bare:
        del model.hf_device_map
    return adapter, notes


def _of_integers(model: nn.Module, what: str) -> list[str]:
    """Return a note of the layers whose weights are integers; `what`: what these layers miss."""
    integers = (torch.int8, torch.uint8)
    left = [p for p, m in model.named_modules() if any(b.ndim > 1 and b.dtype in integers for b in m.buffers(False))]
    shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if left[3:] else "")
    return [f"{shown} hold integers and {what}: generate again with --quantized float"] if left else []


def objectives_of(
    model: nn.Module, samples: Samples, feeding: Feeding, settings: Settings, training: bool = True
) -> list[Goal]:
    """Return the goals of the task, or the objective of each output with a target.

    The model runs on a few samples to find its last operation, and on more if that leaves open what its outputs are.
    """
    batch = trial_batch(model, samples, settings.seed)
    outputs = trial(model, batch, feeding)
    names = output_names(model, len(outputs))
    if (make := card_of(settings.task).make) is not None:
        refuse_for_task(settings)
        return list(make(Situation(model, batch, outputs, samples, feeding, names, settings, training)))
    goals: list[Goal] = []
    look, ports = Look(model, samples, feeding, batch, settings.seed), fed(model).outputs
    for index, column in feeding.targets.items():
        name = names[index] if index < len(names) else f"output{index}"
        if index >= len(outputs):
            raise OnnxgenError(f"the model has {len(outputs)} outputs, so {column!r} can't be the target of {name}")
        asked = settings.loss_of(name)
        shown = name if len(feeding.targets) > 1 else ""
        field = _field(samples, column)
        dims = ports[index].dims if index < len(ports) else None
        goal = objective(index, shown, outputs[index], column, field, batch[column], asked, look, dims)
        if asked == "auto" and goal.ending.kind in ("", "softmax"):
            _refuse_one_hot(samples, column)
        goal = replace(goal, metrics=(*goal.metrics, *settings.metric))
        goal.scores()  # a metric that there isn't is told before training
        goals.append(goal)
    _refuse_unknown(settings.loss, names, feeding)
    return goals


def _field(samples: Samples, column: str) -> Field:
    """Return the `Field` of a target. If all values are 0 or 1, it has two classes. Some of several may be none."""
    field, values = samples.fields[column], column_of(samples, column)
    if field.classes[2:] or values is None:
        return field
    none = values == IGNORED_CLASS if values.ndim > 1 else torch.zeros_like(values, dtype=torch.bool)
    if not bool((none | (values == 0) | (values == 1)).all()):
        return field
    return replace(field, classes=field.classes if len(field.classes) == 2 else ("0", "1"), ignored=bool(none.any()))


def _refuse_one_hot(samples: Samples, column: str) -> None:
    """Refuse one-hot rows: they could mean one class of several, or several yes/no labels."""
    values = column_of(samples, column)
    if values is None or values.ndim != 2 or values.shape[1] < 2:
        return
    if bool(((values == 0) | (values == 1)).all()) and bool((values.sum(1) == 1).all()):
        count = values.shape[1]
        what = f"each row of target {column!r} has a single 1: one class of {count}, or {count} yes/no labels?"
        way = "give class indices (y.argmax(1)), or name the loss: --loss cross_entropy, bce, mse, ..."
        raise OnnxgenError(what, help=way)


def refuse_outside(samples: Samples, objectives: Sequence[Goal]) -> None:
    """Refuse targets of a binary loss that are not from 0 to 1: torch fails on some, and learns nothing of others."""
    for goal in objectives:
        if not isinstance(goal, Objective) or not goal.is_binary:
            continue
        limit(samples, goal.column, 1, f"{goal.loss} needs targets from 0 to 1")
        for _, values in Values(samples, [goal.column])[goal.column]:
            outside = (values < 0) | (values > 1)
            wrong = values[outside & (values != IGNORED_CLASS)] if goal.masked else values[outside]
            if len(wrong):
                what = f"{goal.loss} needs targets from 0 to 1, but column {goal.column!r} has {wrong[0].item():g}"
                way = "give the model an output for each class, or name another loss with --loss"
                raise OnnxgenError(what, help=way)


def trial(model: nn.Module, batch: Batch, feeding: Feeding) -> tuple[Tensor, ...]:
    """Return the outputs for a batch in evaluation mode, with autograd's history. The model is not changed."""
    device = next(model.parameters()).device
    inputs = feeding.arguments(batch, device)
    inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with evaluating(model), torch.enable_grad():
        return as_tuple(model(*inputs))


def _untrained(model: nn.Module, feeding: Feeding) -> list[str]:
    """Return a note of the outputs that were added by hand, and that nothing trains."""
    ports = signature_of(model).outputs
    added = [(n, port.name) for n, port in enumerate(ports) if port.dtype is None and port.dims is None]
    left = [name for n, name in added if n not in feeding.targets]
    way = ",".join(f"{name}=COLUMN" for name in left)
    return [f"not trained, since no column is its target: output {', '.join(left)} -> --target {way}"] if left else []


def _refuse_unknown(losses: str | Mapping[str, str], names: Sequence[str], feeding: Feeding) -> None:
    for name, loss in ({} if isinstance(losses, str) else losses).items():
        if name not in names:
            raise OnnxgenError(f"the model has no output {name!r} (it has {', '.join(names)})")
        if names.index(name) not in feeding.targets and feeding.targets:
            what = f"output {name} has the loss {loss}, but no target"
            raise OnnxgenError(what, help=f"--target {name}=COLUMN")


def look_up(model: nn.Module, settings: Settings, problems: Problems) -> None:
    """Add each name of the settings that stands for nothing: a task, optimizer, schedule, loss or part of the model."""
    with problems.gathered():
        card_of(settings.task)
    with problems.gathered():
        check_arguments(optimizer_class(settings.optimizer), settings.optimizer_args, preset=("params",))
    if settings.schedule is not None:
        with problems.gathered():
            schedule_class(settings.schedule)
    for name in losses_asked(settings):
        with problems.gathered():
            loss_name(name)
    if settings.replace_head is None and settings.freeze:  # a new head has its own names
        with problems.gathered():
            check_patterns(model, settings.freeze)


_SEED, _OF_WORKERS = "PL_GLOBAL_SEED", "PL_SEED_WORKERS"  # Lightning tells the processes that it starts


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    os.environ |= {_SEED: str(seed), _OF_WORKERS: "0"}
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's messages on devices, tips and workers."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            # `Divided` draws the numbers of whole tensors there.
            warnings.filterwarnings("ignore", message="DTensor random operators may not have complete support")
            # Generated code changes no tensor in place.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
