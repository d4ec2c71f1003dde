"""`fit`: train a model with Lightning's Trainer."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.profilers import SimpleProfiler
from torch import nn

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training import report
from onnxgen.training.checkpoint.callback import Checkpoints, Stopped
from onnxgen.training.checkpoint.identity import identity
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.config import DIGITS
from onnxgen.training.deadline import Deadline
from onnxgen.training.devices import prepare_for, trainer_options
from onnxgen.training.finetune.adapters import trained_names
from onnxgen.training.finetune.batchnorm import norms_before
from onnxgen.training.finetune.groups import param_groups
from onnxgen.training.goals.goal import suffixed
from onnxgen.training.goals.own import own_modules
from onnxgen.training.launch import Lost, restarted
from onnxgen.training.loaders import Loaders
from onnxgen.training.meter import Meter
from onnxgen.training.model import trial_batch
from onnxgen.training.optimizers import check_half, make_optimizer, optimizer_class
from onnxgen.training.prepare import Plan, prepare
from onnxgen.training.recipes.choose import resolved
from onnxgen.training.recipes.find_lr import Found, with_rate
from onnxgen.training.recipes.mixing import MixedTask
from onnxgen.training.recipes.used import Used, recipes
from onnxgen.training.recompute import recompute
from onnxgen.training.report.examples import examples, texts
from onnxgen.training.report.facts import Facts, Outcome, file_of
from onnxgen.training.report.notebook import table
from onnxgen.training.report.progress import scores
from onnxgen.training.returned import give_back, without_values
from onnxgen.training.runs.alone import alone_in
from onnxgen.training.runs.code import refuse_code
from onnxgen.training.runs.folder import CHECKPOINTS, RUNS, latest
from onnxgen.training.runs.keep import Kept, kept, placed
from onnxgen.training.runs.learner import going_on_with, split_again
from onnxgen.training.runs.record import read_record
from onnxgen.training.schedules import make_schedule, make_warmup
from onnxgen.training.settings import Settings
from onnxgen.training.sharded.refused import refuse_sharded
from onnxgen.training.task import LogEpoch, Task
from onnxgen.training.trainer import QUIET, Unmeasured, lean, metrics, quiet
from onnxgen.training.words import python_words

if TYPE_CHECKING:
    from onnxgen.training.sharded.tensor import TensorPlan


@dataclass(repr=False)
class Result:
    """The result of a training run. A notebook shows it as a table of the epochs.

    Attributes:
        model: with the best weights, in eval mode, on the CPU, in its original dtypes. FSDP leaves the given model
            sharded; then this is another object, whose weights are mapped from the run's files.
        out: the folder of the run.
        history: the metrics of each epoch, as in `metrics.csv`.
        best_epoch: index of the best epoch in `history`, from 0.
        test: the metrics of the test part, if there is one.
        stopped: why the run ended ("epochs", "max_steps", "max_hours", "early stop", "interrupted").
    """

    model: nn.Module
    out: Path
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    test: dict[str, float] | None = None
    stopped: str = "epochs"

    def __repr__(self) -> str:
        rows = "".join(f"\n  epoch {row['epoch']:.0f}: {scores(row)}" for row in self.history)
        return f"<{self._facts()}>{rows}"

    def _repr_html_(self) -> str:
        best = self.history[self.best_epoch] if self.history else None
        return f"<p>{escape(self._facts())}</p>{table(self.history, best)}"

    def _facts(self) -> str:
        best = f"the best is epoch {self.history[self.best_epoch]['epoch']:.0f}, " if self.history else ""
        test = f", {scores(self.test, ('test',))}" if self.test else ""
        return f"{type(self.model).__name__}; stopped: {self.stopped}, {best}files in {self.out}{test}"


@python_words()
def fit(
    model: nn.Module | Path | str,
    data: Any = None,
    *,
    settings: Settings | None = None,
    callbacks: Sequence[lightning.Callback] = (),
    show: str = "auto",
    **overrides: Any,
) -> Result:
    """Train a model.

    The global generators of Python, numpy and torch are seeded with `seed`.

    Args:
        model: an `nn.Module`, trained in place, or the path of a generated file, or of a run to go on from.
        data: what `onnxgen.training.data.open_data` takes: a path, "digits", "module:function", arrays, datasets.
            Default: the digits; of a run its own data.
        settings, overrides: see `Settings`; `fit(model, data, epochs=3, lr=1e-3)`.
        callbacks: Lightning callbacks, in addition to those of every run.
        show: "live" (a panel that needs a terminal), "notebook" (a table and a curve), "lines", "nothing", or "auto":
            what suits the place.

    Raises:
        OnnxgenError: model, data and settings do not fit together (nothing was trained), or the loss became NaN.
    """
    before = Path(model) if isinstance(model, (str, Path)) and Path(model).is_dir() else None
    if settings is None and before is not None:
        own = going_on_with(before, data)
        refuse_code(own, overrides, before)
        settings = Settings(**own)
    settings, chosen = resolved(settings, overrides)
    settings = restarted(settings)
    if settings.resume and settings.out == RUNS:
        settings = replace(settings, out=latest(settings.name))
    if data is None:
        data = read_record(before).data_for(before) if before is not None else DIGITS
        refuse_code({"data": data}, (), before or Path())
    with quiet():
        lightning.seed_everything(settings.seed, verbose=False)
        plan = prepare(model, data, settings)
        plan.notes += chosen
        _ready_norms(plan, bool(chosen))
        plan.notes += [] if before is None else [split_again(before, plan.data)]
        file = file_of(model) if isinstance(model, nn.Module) else model
        named = {"model": file, "data": data if isinstance(data, (str, Path)) else None}
        return run(plan, callbacks, show, {name: str(value) for name, value in named.items() if value is not None})


def run(
    plan: Plan, callbacks: Sequence[lightning.Callback], show: str = "auto", named: Mapping[str, str] | None = None
) -> Result:
    """Train as `plan` says. `named` is written to `config.toml` with the settings."""
    settings = plan.settings
    _check_monitor(plan, callbacks)
    network = prepare_for(plan.model, plan.device).train()
    dtypes = {name: tensor.dtype for name, tensor in _tensors(network)}
    _check_optimization(plan, network)
    used = recipes(plan)
    plan, tested = with_rate(plan, _task, Loaders, used.mixing) if settings.find_lr else (plan, None)
    plan = placed(plan)
    with alone_in(plan.settings.out, plan.settings.resume):
        return _run(plan, used, tested, network, dtypes, callbacks, show, named or {})


def _run(
    plan: Plan,
    used: Used,
    tested: Found | None,
    network: nn.Module,
    dtypes: Mapping[str, torch.dtype],
    callbacks: Sequence[lightning.Callback],
    show: str,
    named: Mapping[str, str],
) -> Result:
    settings, keeps = plan.settings, kept(plan, named)
    whole = without_values(network) if settings.strategy == "fsdp" else plan.model
    task = _task(plan, network)
    history, progress = report.callbacks(settings, facts := report.facts_of(plan), show)
    keep = checkpoints(plan, progress.say, keeps)
    keep.averaged = used.averaged
    deadline = Deadline(settings.max_hours)
    first, rest = LogEpoch(), [*used.callbacks, deadline, history, progress, keep]
    lean(task, first, *rest)
    trainer = _trainer(plan, [first, *callbacks, *rest], keep.store)
    go_on_from = keep.start(settings.resume, settings.epochs, settings.strategy)  # it may raise: old files stay
    report.begin(settings, facts, named)
    keeps.write(settings.out)
    if tested is not None and trainer.is_global_zero:
        tested.write(settings.out)
    loaders, begun = Loaders(plan, progress.say), time.monotonic()
    stopped = _train(trainer, task, loaders, go_on_from, deadline)
    seconds = time.monotonic() - begun
    used.end()
    give_back(network, whole, trainer, keep, stopped)
    result = Result(whole, settings.out, history.rows, history.best, stopped=stopped)
    outcome = Outcome(seconds, "" if stopped == "epochs" else stopped, {}, history.confusion)
    if plan.data.test is not None and stopped != "interrupted":
        trainer.test(task, datamodule=loaders, verbose=False)
        result.test = metrics(trainer)
        outcome = replace(outcome, test=result.test, confusion=task.confusion, confused="test")
    keeps.write(settings.out, {**_outcome(result, outcome.seconds), "before": history.before})
    _as_before(whole.cpu().eval(), dtypes)
    _finish(plan, facts, replace(outcome, note=history.brought_nothing), whole, trainer)
    return result


def _ready_norms(plan: Plan, recipe: bool) -> None:
    """Measure or freeze the BatchNorms of a model that is fine-tuned."""
    samples, settings = plan.data.train, plan.settings
    if settings.from_scratch or samples is None:
        return
    notes, frozen = norms_before(plan.model, samples, plan.feeding, settings, recipe)
    plan.notes += notes
    plan.settings = replace(settings, freeze=(*settings.freeze, *frozen))


def _finish(plan: Plan, facts: Facts, outcome: Outcome, whole: nn.Module, trainer: lightning.Trainer) -> None:
    """Write the report, with examples of what the model says."""
    if trainer.is_global_zero:
        with suppress(RuntimeError):  # the CPU may lack an operator for the model's type: no reason to lose the report
            outcome = replace(outcome, examples=examples(plan, whole))
        with suppress(RuntimeError, OnnxgenError):  # also a network that can be trained, but can't generate
            outcome = replace(outcome, texts=texts(plan, whole))
        report.finish(plan.settings, facts, outcome)


def _task(plan: Plan, network: nn.Module) -> Task:
    split = _split(plan, network)
    if plan.settings.gradient_checkpointing:
        recompute(network, None if split is None else split.mode)
    if plan.settings.compile:
        network.compile()
    kind = MixedTask if plan.settings.mixup or plan.settings.cutmix else Task
    task = kind(network, plan.objectives, plan.feeding, partial(_optimization, plan))
    task.split = split
    task.strict_loading = plan.adapter is None  # a checkpoint has the adapter alone
    return task


def _split(plan: Plan, network: nn.Module) -> TensorPlan | None:
    """Return how several processes divide each layer, and note it; None without --tensor-parallel."""
    settings, samples = plan.settings, plan.data.train
    if settings.tensor_parallel == 1 or samples is None:
        return None
    from onnxgen.training.sharded.trial import tensor_plan

    batch = trial_batch(network, samples, settings.seed)
    found = tensor_plan(network, plan.feeding.arguments(batch), settings.tensor_parallel)
    plan.notes += found.said()
    return found


def _check_monitor(plan: Plan, callbacks: Sequence[lightning.Callback]) -> None:
    if callbacks:  # they may log other metrics
        return
    parts = [part for part in plan.data.parts if part != "test"]
    known = [name for part in parts for name in _metrics_of(part, plan)]
    if plan.monitor not in known:
        raise OnnxgenError(f"no metric is called {plan.monitor!r}", help=f"there are {', '.join(known)}")


def _metrics_of(part: str, plan: Plan) -> Iterator[str]:
    """Yield the names of the metrics of a part."""
    yield from Meter(plan.objectives).means(part, lambda sums: sums)
    for goal in plan.objectives if part != "train" else ():
        if (scores := goal.scores()) is not None:
            yield from (f"{part}_{suffixed(plan.objectives, goal, name)}" for name in scores.names)


def _as_before(network: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Give tensors their dtypes again, which "bf16-true" and the like have changed."""
    for name, tensor in _tensors(network):
        if name in dtypes and tensor.dtype != dtypes[name]:
            tensor.data, tensor.grad = tensor.data.to(dtypes[name]), None


def _tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


def _trainer(plan: Plan, callbacks: list[lightning.Callback], store: Store) -> lightning.Trainer:
    settings = plan.settings
    options = trainer_options(plan.device, settings)
    return lightning.Trainer(
        max_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        accumulate_grad_batches=settings.accumulate,
        gradient_clip_val=settings.clip,
        callbacks=callbacks,
        profiler=SimpleProfiler(settings.out, "profile") if settings.profile else Unmeasured(),
        plugins=[*options.pop("plugins", ()), store],
        **{**QUIET, "logger": report.loggers(settings), "num_sanity_val_steps": -1},  # all, before the first step
        **options,
    )


def checkpoints(plan: Plan, say: Callable[[str], None], keeps: Kept) -> Checkpoints:
    """Return the callback that saves checkpoints; `say` prints its messages."""
    settings = plan.settings
    assert plan.data.train is not None
    return Checkpoints(
        Store(settings.out / CHECKPOINTS, say),
        identity(plan.model, plan.data.train, settings, keeps.record.teacher_sha256),
        out=settings.out,
        minutes=settings.checkpoint_minutes,
        monitor=plan.monitor,
        say=say,
        constants=keeps.constants,
        metadata=keeps.metadata,
        only=trained_names(plan.model) if plan.adapter is not None else None,
        shard_size=keeps.shard_size,
        dtypes={name: tensor.dtype for name, tensor in _tensors(plan.model)},
        patience=settings.early_stop,
    )


def _outcome(result: Result, seconds: float) -> dict[str, Any]:
    """Return the `result` of `run.json`."""
    rows = result.history
    best = rows[result.best_epoch] if rows else {}
    seconds = round(max(seconds, sum(row.get("seconds", 0.0) for row in rows)), 3)
    found = {"stopped": result.stopped, "seconds": seconds, "epochs": len(rows), "best": best, "test": result.test}
    return found | {"best_epoch": best.get("epoch")}


def _train(
    trainer: lightning.Trainer, task: Task, loaders: Loaders, go_on_from: Path | None, deadline: Deadline
) -> str:
    """Run the trainer, and return the reason why it ended: a value of `Result.stopped`."""
    if go_on_from is not None:
        trainer.num_sanity_val_steps = 0  # the score before training is in the checkpoint
    try:
        with closing(loaders):
            trainer.fit(task, datamodule=loaders, ckpt_path=go_on_from)
    except Stopped:
        return "interrupted"
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        way = "--batch-size 2 or more, or freeze the norms"
        raise OnnxgenError("a batch of one sample gives BatchNorm no statistics", help=way) from error
    except RuntimeError as error:
        if trainer.world_size == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        way = "see what the others say; --restartable, or --resume, goes on from the last checkpoint"
        raise Lost(f"another process of the run has ended, or can't be reached: {one_line(error)}", help=way) from error
    if deadline.reached:
        return "max_hours"
    if trainer.max_steps >= 0 and trainer.global_step >= trainer.max_steps:
        return "max_steps"
    return "early stop" if trainer.current_epoch < (trainer.max_epochs or 0) else "epochs"


def _optimization(plan: Plan, network: nn.Module, total: int) -> Any:
    """Return the optimizer and the schedule for a number of steps, in the form that Lightning takes."""
    settings = plan.settings
    default = inspect.signature(optimizer_class(settings.optimizer)).parameters["lr"].default
    rate = float(default if settings.lr is None else settings.lr)
    groups = param_groups(
        network,
        lr=rate,
        head_lr=settings.head_lr,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
    )
    if own := [p for module in own_modules(plan.objectives) for p in module.parameters()]:
        decay = {} if settings.weight_decay is None else {"weight_decay": settings.weight_decay}
        groups.append({"name": "goal", "params": own, "lr": rate, **decay})
    optimizer = make_optimizer(groups, settings, plan.device)
    steps = max(1, math.ceil(total / settings.epochs))
    watched = "train_loss" if plan.data.val is None else "val_loss"
    warmup, schedule = (
        make_warmup(optimizer, settings, total),
        make_schedule(optimizer, settings, total, steps, watched),
    )
    return [optimizer], [made for made in (warmup, schedule) if made is not None]


def _check_optimization(plan: Plan, network: nn.Module) -> None:
    """Raise an error of the optimizer or the schedule now, before files of an older run are replaced."""
    settings = plan.settings
    assert plan.data.train is not None
    refuse_sharded(plan)
    a_step = settings.batch_size * settings.accumulate * settings.shares
    _optimization(plan, network, settings.epochs * math.ceil(len(plan.data.train) / a_step))
    kept = "-mixed" in settings.precision or settings.precision == "32-true"  # Lightning leaves the weights' dtypes
    own = kept and any(p.dtype == torch.float16 and p.requires_grad for p in network.parameters())
    if own or settings.precision == "16-true":
        check_half(settings, plan.device, own)


callable_module(__name__, fit)
