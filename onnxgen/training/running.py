"""Runs a plan with Lightning's Trainer.

`Loaders` makes its loaders, and `Deadline` ends it after a given time.

The model that a run returns is the trained one with its best weights or, if that is sharded, another object.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.profilers import SimpleProfiler
from safetensors.torch import load_file
from torch import nn

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.surgery.ports import classes_of, set_classes
from onnxgen.training import report
from onnxgen.training.checkpoint.callback import Checkpoints
from onnxgen.training.checkpoint.identity import identity
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.checkpoint.weights import load_weights, map_rows
from onnxgen.training.data.samples import Samples
from onnxgen.training.devices import prepare_for, trainer_options
from onnxgen.training.finetune.adapters import load_adapter, merge, trained_names
from onnxgen.training.finetune.freezing import param_groups
from onnxgen.training.finetune.packed import packed_layers
from onnxgen.training.fit import Result
from onnxgen.training.goals.goal import keep_state, own_modules, restore, suffixed
from onnxgen.training.launch import Lost, Stopped, Stopping, alone_in
from onnxgen.training.loader import Loader
from onnxgen.training.memory import keep_all, recompute
from onnxgen.training.model import fixed_batch, known_of, note_known, note_learned
from onnxgen.training.optimizers import check_half, make_optimizer, make_schedule, make_warmup, rate_of, steps_of
from onnxgen.training.prepare import Plan
from onnxgen.training.recipes.callbacks import MixedTask, recipes
from onnxgen.training.recipes.find_lr import with_rate
from onnxgen.training.report.facts import Facts, Outcome
from onnxgen.training.report.plots import examples, texts
from onnxgen.training.runs.folder import BEST, CHECKPOINTS, GOAL, LAST, there
from onnxgen.training.runs.keep import Kept, kept, placed
from onnxgen.training.sharded.strategy import refuse_sharded
from onnxgen.training.smaller import smaller_of
from onnxgen.training.task import QUIET, LogEpoch, Meter, Task, Unmeasured, ends_run, lean, metrics, stepped


def run(
    plan: Plan, callbacks: Sequence[lightning.Callback], show: str = "auto", named: Mapping[str, str] | None = None
) -> Result:
    """Train as `plan` says. `named` is written to `config.toml` with the settings."""
    named = named or {}
    _check_monitor(plan, callbacks)
    network = prepare_for(plan.model, plan.device).train()
    dtypes = {name: tensor.dtype for name, tensor in _tensors(network)}
    _check_optimization(plan, network)
    used = recipes(plan)
    plan, tested = with_rate(plan, _task, Loaders, used.mixing) if plan.settings.find_lr else (plan, None)
    plan = placed(plan)
    settings = plan.settings
    with ExitStack() as stack:
        stack.enter_context(alone_in(settings.out, settings.resume))
        keeps = kept(plan, named)
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
        stack.enter_context(keep.stopping.heard())
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
    task.smaller = smaller_of(plan.train, plan.feeding, plan.settings)
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
    return Checkpoints(
        Store(settings.out / CHECKPOINTS, say),
        identity(plan.model, plan.train, settings, keeps.record.teacher_sha256),
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
    outcome = {"stopped": result.stopped, "seconds": seconds, "epochs": len(rows), "best": best, "test": result.test}
    return outcome | {"best_epoch": best.get("epoch")}


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
            way = "name another --target, or mend `forward` if it cuts off its results"
            raise OnnxgenError("no gradient reaches a parameter from the loss", help=way) from error
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
    rate = rate_of(settings)
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
    schedules = make_warmup(optimizer, settings, total), make_schedule(optimizer, settings, total, watched)
    return [optimizer], [one for one in schedules if one is not None]


def _check_optimization(plan: Plan, network: nn.Module) -> None:
    """Raise an error of the optimizer or the schedule now, before files of an older run are replaced."""
    settings = plan.settings
    refuse_sharded(plan)
    _optimization(plan, network, settings.epochs * steps_of(len(plan.train), settings))
    kept = "-mixed" in settings.precision or settings.precision == "32-true"  # Lightning leaves the weights' dtypes
    own = kept and any(p.dtype == torch.float16 and p.requires_grad for p in network.parameters())
    if own or settings.precision == "16-true":
        check_half(settings, plan.device, own)


class Loaders(lightning.LightningDataModule):
    """Makes the loaders of a run. Lightning asks for them once it knows the rank of this process."""

    def __init__(self, plan: Plan, say: Callable[[str], None] = warnings.warn) -> None:
        """`say` tells which samples were skipped."""
        super().__init__()
        self.plan, self.say = plan, say
        self._loaders: list[Loader] = []

    def teardown(self, stage: str) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. A run that is interrupted has no `teardown`."""
        for loader in self._loaders:
            loader.close()

    def train_dataloader(self) -> Loader:
        return self._loader(self.plan.train, shuffle=True)

    def val_dataloader(self) -> Loader | list[Loader]:
        return [] if self.plan.data.val is None else self._loader(self.plan.data.val)

    def test_dataloader(self) -> Loader | list[Loader]:
        return [] if self.plan.data.test is None else self._loader(self.plan.data.test)

    def _loader(self, samples: Samples, shuffle: bool = False) -> Loader:
        settings, trainer = self.plan.settings, self.trainer
        assert trainer is not None
        rank, world = trainer.global_rank, trainer.world_size
        # BatchNorm can't train on one sample: it has no variance.
        norms = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.plan.model.modules())
        several = settings.accumulate * world > 1
        loader = Loader(
            samples,
            settings.batch,
            shuffle=shuffle,
            seed=settings.seed,
            workers=settings.workers,
            rank=rank,
            world=world,
            accumulate=settings.accumulate,
            smallest=2 if shuffle and norms else 1,
            drop_last=shuffle and fixed_batch(self.plan.model) is not None,
            pin_memory=self.plan.device.torch_device.type == "cuda",
            say=self.say,
            ahead=shuffle and several and any(goal.counts for goal in self.plan.objectives),
            classes=self.plan.classes if shuffle else None,
        )
        self._loaders.append(loader)
        return loader


STEPS_PER_AGREEMENT = 16  # between two questions of several processes to each other whether the time is up


class Deadline(lightning.Callback):
    """Ends the training after some hours. The weights of that moment are validated and saved like those of an epoch.

    It must come before the callback that saves checkpoints.

    Attributes:
        reached: True once the time was up.
    """

    def __init__(self, hours: float | None) -> None:
        self.hours, self.reached = hours, False
        self._begun = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._begun = time.monotonic()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        if self.hours is None or not stepped(trainer):
            return
        if trainer.world_size > 1 and trainer.global_step % STEPS_PER_AGREEMENT:
            return
        over = time.monotonic() - self._begun >= self.hours * 3600
        self.reached = trainer.strategy.reduce_boolean_decision(over, all=False)
        if self.reached:
            trainer.fit_loop.epoch_loop.max_steps = trainer.global_step


def without_values(network: nn.Module) -> nn.Module:
    """Return a copy of a model whose parameters and buffers are empty: `map_rows` gives it those of files.

    Buffers that no file has are shared. The scales and class names that were noted for the model are noted for the
    copy.
    """
    stored = {id(tensor) for tensor in network.state_dict(keep_vars=True).values()}
    memo: dict[int, object] = {
        id(p): nn.Parameter(torch.empty(0, dtype=p.dtype), p.requires_grad) for p in network.parameters()
    }
    memo |= {id(b): torch.empty(0, dtype=b.dtype) if id(b) in stored else b for b in network.buffers()}
    empty = copy.deepcopy(network, memo)
    note_known(empty, known_of(network))
    set_classes(empty, classes_of(network))
    return empty


def give_back(
    network: nn.Module, whole: nn.Module, trainer: lightning.Trainer, keep: Checkpoints, stopped: str
) -> None:
    """Load the best weights into the models. If the run was interrupted, save the latest weights first.

    Every process reads the files.

    Args:
        network: the trained model.
        whole: the model to return: `network`, or its copy `without_values` if it is sharded. It gets the latest weights
            if none are best.
    """
    keep_all(network)
    note_learned(whole)
    interrupted, sharded = stopped == "interrupted", whole is not network
    if not interrupted:
        trainer.strategy.barrier()
    elif not sharded and trainer.is_global_zero:  # a sharded run has done it
        keep.save_last(whole)
    best, last = there(keep.out / BEST), there(keep.out / LAST)
    if sharded and (weights := best or last) is not None:
        map_rows(whole, weights)
    goes_on = interrupted and (sharded or keep.best_epoch is None)  # with the latest weights, which it has
    if best is not None and not goes_on:
        (load_weights if keep.only is None else load_adapter)(network, best)
    if keep.only is not None and not any(packed_layers(network)):
        merge(network)
    _give_goals_back((network, whole), keep.out / GOAL, None if interrupted else trainer.lightning_module)


def _give_goals_back(models: Sequence[nn.Module], file: Path, task: Any) -> None:
    """Keep the goals' own parameters, if there are any, with the models, and give them to a task that has ended."""
    if not file.is_file():
        return
    state = load_file(file)
    for model in models:
        keep_state(model, state)
    if isinstance(task, Task):
        restore(models[-1], task.objectives)
