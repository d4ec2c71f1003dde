"""Runs a plan with Lightning's Trainer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.profilers import SimpleProfiler
from torch import nn

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training import report
from onnxgen.training.checkpoint.callback import Checkpoints
from onnxgen.training.checkpoint.identity import identity
from onnxgen.training.checkpoint.stopping import Stopped, Stopping
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.deadline import Deadline
from onnxgen.training.devices import prepare_for, trainer_options
from onnxgen.training.finetune.adapters import trained_names
from onnxgen.training.finetune.groups import param_groups
from onnxgen.training.fit import Result
from onnxgen.training.goals.goal import suffixed
from onnxgen.training.goals.own import own_modules
from onnxgen.training.launch import Lost
from onnxgen.training.loaders import Loaders
from onnxgen.training.meter import Meter
from onnxgen.training.optimizers import check_half, make_optimizer, own_rate
from onnxgen.training.prepare import Plan
from onnxgen.training.recipes.find_lr import Found, with_rate
from onnxgen.training.recipes.mixing import MixedTask
from onnxgen.training.recipes.trained import steps_of
from onnxgen.training.recipes.used import Used, recipes
from onnxgen.training.recompute import recompute
from onnxgen.training.report.examples import examples, texts
from onnxgen.training.report.facts import Facts, Outcome
from onnxgen.training.returned import give_back, without_values
from onnxgen.training.runs.alone import alone_in
from onnxgen.training.runs.folder import CHECKPOINTS
from onnxgen.training.runs.keep import Kept, kept, placed
from onnxgen.training.schedules import make_schedule, make_warmup
from onnxgen.training.sharded.refused import refuse_sharded
from onnxgen.training.task import LogEpoch, Task
from onnxgen.training.trainer import QUIET, Unmeasured, ends_run, lean, metrics


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
    keep.averaged, keep.keeps_start, history.keeps_start = used.averaged, plan.has_learned, plan.has_learned
    deadline = Deadline(settings.max_hours)
    first, rest = LogEpoch(), [*used.callbacks, deadline, history, progress, keep]
    lean(task, first, *rest)
    trainer = _trainer(plan, [first, *callbacks, *rest], keep.store)
    go_on_from = keep.start(settings.resume, settings.epochs, settings.strategy)  # it may raise: old files stay
    with keep.stopping.heard():
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
            outcome = _tested(result, outcome, trainer, task, loaders, keep.stopping)
        keep.stopping.ends = "after the report"
        keeps.write(settings.out, {**_outcome(result, outcome.seconds), "before": history.before})
        _as_before(whole.cpu().eval(), dtypes)
        _finish(plan, facts, replace(outcome, note=history.brought_nothing), whole, trainer)
    return result


def _tested(
    result: Result, outcome: Outcome, trainer: lightning.Trainer, task: Task, loaders: Loaders, stopping: Stopping
) -> Outcome:
    """Measure the test part, and return the outcome with it. A run that is to stop leaves it out."""
    stopping.ends = "without the test part"
    try:
        with closing(loaders):
            trainer.test(task, datamodule=loaders, verbose=False)
    except Stopped:
        result.stopped = "interrupted"
        return replace(outcome, stopped="interrupted")
    result.test = metrics(trainer)
    return replace(outcome, test=result.test, confusion=task.confusion, confused="test")


def _finish(plan: Plan, facts: Facts, outcome: Outcome, whole: nn.Module, trainer: lightning.Trainer) -> None:
    """Write the report, with examples of what the model says."""
    if trainer.is_global_zero:
        with suppress(RuntimeError):  # the CPU may lack an operator for the model's type: no reason to lose the report
            outcome = replace(outcome, examples=examples(plan, whole))
        with suppress(RuntimeError, OnnxgenError):  # also a network that can be trained, but can't generate
            outcome = replace(outcome, texts=texts(plan, whole))
        report.finish(plan.settings, facts, outcome)


def _task(plan: Plan, network: nn.Module) -> Task:
    if plan.settings.gradient_checkpointing:
        recompute(network)
    if plan.settings.compile:
        network.compile()
    kind = MixedTask if plan.settings.mixup or plan.settings.cutmix else Task
    task = kind(network, plan.objectives, plan.feeding, partial(_optimization, plan))
    task.strict_loading = plan.adapter is None  # a checkpoint has the adapter alone
    return task


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
    except Stopped as stop:
        if not stop.begun:
            raise KeyboardInterrupt from None
        return "interrupted"
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        way = "--batch-size 2 or more, or freeze the norms"
        raise OnnxgenError("a batch of one sample gives BatchNorm no statistics", help=way) from error
    except RuntimeError as error:
        if "does not require grad" in str(error):
            what = "no gradient reaches a parameter from the loss"
            raise OnnxgenError(
                what, help="name another --target, or mend `forward` if it cuts off its results"
            ) from error
        if trainer.world_size == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        way = "see what the others say; --restartable, or --resume, goes on from the last checkpoint"
        raise Lost(f"another process of the run has ended, or can't be reached: {one_line(error)}", help=way) from error
    if deadline.reached:
        return "max_hours"
    if ends_run(trainer):
        return "max_steps"
    return "early stop" if trainer.current_epoch < (trainer.max_epochs or 0) else "epochs"


def _optimization(plan: Plan, network: nn.Module, total: int) -> Any:
    """Return the optimizer and the schedule for a number of steps, in the form that Lightning takes."""
    settings = plan.settings
    rate = own_rate(settings.optimizer) if settings.lr is None else float(settings.lr)
    groups = param_groups(
        network,
        lr=rate,
        head_lr=settings.head_lr,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
        head=plan.head or None,
    )
    if own := [p for module in own_modules(plan.objectives) for p in module.parameters()]:
        decay = {} if settings.weight_decay is None else {"weight_decay": settings.weight_decay}
        groups.append({"name": "goal", "params": own, "lr": rate, **decay})
    optimizer = make_optimizer(groups, settings, plan.device)
    watched = "train_loss" if plan.data.val is None else "val_loss"
    made = make_warmup(optimizer, settings, total), make_schedule(optimizer, settings, total, watched)
    return [optimizer], [one for one in made if one is not None]


def _check_optimization(plan: Plan, network: nn.Module) -> None:
    """Raise an error of the optimizer or the schedule now, before files of an older run are replaced."""
    settings = plan.settings
    assert plan.data.train is not None
    refuse_sharded(plan)
    _optimization(plan, network, settings.epochs * steps_of(len(plan.data.train), settings))
    kept = "-mixed" in settings.precision or settings.precision == "32-true"  # Lightning leaves the weights' dtypes
    own = kept and any(p.dtype == torch.float16 and p.requires_grad for p in network.parameters())
    if own or settings.precision == "16-true":
        check_half(settings, plan.device, own)
