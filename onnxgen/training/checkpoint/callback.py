"""Saves a run, and resumes it with the same result, bit for bit, as without the interruption.

Lightning saves its loop counters as they are within a hook, and when it resumes it guesses from them where that was.
Some guesses skip a scheduler's step or a validation. Here (`between_batches`) the counters are those of a run that has
finished a batch, or an epoch with everything that belongs to it, and has not begun the next.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import files_there
from onnxgen.training.checkpoint import identity as generators
from onnxgen.training.checkpoint.identity import KEY, Identity, compare, own_part
from onnxgen.training.checkpoint.store import Store, reason
from onnxgen.training.checkpoint.weights import COMPILED, finite, plain, save_weights, tied_names, write, write_rows
from onnxgen.training.launch import Stopped, Stopping
from onnxgen.training.loader import Loader
from onnxgen.training.runs.folder import BEST, GOAL, LAST, holds_a_run, need_run
from onnxgen.training.runs.metrics import goodness
from onnxgen.training.sharded.strategy import is_sharded
from onnxgen.training.task import GOALS, Task, ends_epoch, ends_run, metrics, stepped

BATCHES_PER_LOSS_CHECK = 64
BATCHES_PER_AGREEMENT = 16  # between two questions of several processes to each other whether to save or stop
CONTINUE, SAVE, STOP = 0, 1, 2


class Checkpoints(lightning.Callback):
    """Saves checkpoints and weights.

    After each epoch, including its validation, callbacks and schedules: `last.safetensors`, `best.safetensors` if it is
    the best so far, and a checkpoint. Within an epoch: a checkpoint every `minutes`, and on a signal to stop. Values
    that are not finite are never saved. It must be the last callback, so that it saves the state of all others.

    Attributes:
        averaged: in this context the model has the weights to keep, if these are not the latest ones.
        keeps_start: the weights before training are the best ones until an epoch is better.
        best, best_epoch: the best value of `monitor`, and its epoch (from 0); None before there is one. The weights
            before training have no epoch.
    """

    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        out: Path,
        minutes: float,
        monitor: str,
        say: Callable[[str], None],
        constants: Mapping[str, Tensor] | None = None,
        metadata: Mapping[str, str] | None = None,
        only: Collection[str] | None = None,
        shard_size: int = 0,
        dtypes: Mapping[str, torch.dtype] | None = None,
        patience: int | None = None,
    ) -> None:
        """`monitor` is the logged metric that decides which epoch is best. `say` prints a line. Each file of weights
        also has `constants` and `metadata`. With `only`, all files have these names of the state dict alone. Weights of
        a sharded run are divided into files of at most `shard_size` bytes (0: they are not), and have these `dtypes`.
        A run that was stopped early goes on if it is to have more epochs now, or more `patience`.
        """
        self.store, self.identity, self.out, self.minutes = store, identity, out, minutes
        self.monitor, self.say = monitor, say
        self.constants, self.metadata, self.only, self.shard_size = constants or {}, metadata, only, shard_size
        self.dtypes, self.patience = dtypes, patience
        self.keeps_start = False
        self.averaged: Callable[[], AbstractContextManager[None]] = nullcontext
        self.best: float | None = None
        self.best_epoch: int | None = None
        self._goodness: tuple[float, ...] | None = None  # of the best epoch
        self._losses: list[tuple[int, Tensor]] = []  # of the latest steps, on the device
        self._resumed: list[dict[str, Any]] | None = None  # the state of each rank
        self._metrics: dict[str, Tensor] = {}
        self._position: dict[str, int] = {}  # of the loader
        self._failed: OSError | None = None
        self.stopping = Stopping(say)
        self._trained = self._cut = False
        self._saved = time.monotonic()

    def start(self, resume: bool, epochs: int | None = None, strategy: str = "auto") -> Path | None:
        """Return the `ckpt_path` for `Trainer.fit`; None for a new run.

        A run that was stopped before its first checkpoint starts again. A new run removes the checkpoints and weights
        of an earlier run in its folder. `epochs` are those that the run is to have, `strategy` how it divides work.

        Raises:
            OnnxgenError: there is no run to resume, its model, data or settings differ, it has more epochs already, it
                is sharded and this one is not, or all checkpoints are damaged.
        """
        checkpoint = self.store.read() if resume else None
        if checkpoint is None:
            if resume:
                need_run(self.out)
                self.say(f"the run in {self.out} has no checkpoint yet: it starts again")
            elif holds_a_run(self.out):
                way = "to keep a run, give the next one another --out FOLDER"
                rank_zero_only(self.say)(f"the earlier run in {self.out} is replaced; {way}")
            self.store.clear()
            for path in (file for name in (BEST, LAST, GOAL) for file in files_there(self.out / name)):
                path.unlink(missing_ok=True)
            return None
        compare(own_part(checkpoint)["identity"], self.identity)
        if self.store.found is not None and self.store.found.is_dir() and strategy != "fsdp":
            what = f"the run in {self.out} is sharded, and --strategy is {strategy}"
            raise OnnxgenError(what, help="--strategy fsdp, also with one process")
        done = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        if epochs is not None and done > epochs:
            what = f"the run in {self.out} has {done} whole epochs already, and --epochs is {epochs}"
            raise OnnxgenError(what, help=f"leave --epochs out, or give {done} or more")
        return self.store.found

    # Lightning's hooks, in the order in which they are called.

    def on_load_checkpoint(self, trainer: lightning.Trainer, task: Any, checkpoint: dict[str, Any]) -> None:
        state = checkpoint[KEY]
        self._resumed = state["ranks"]
        self.best, self.best_epoch, self._goodness = state["best"], state["best_epoch"], state["goodness"]
        self._metrics = state["metrics"]
        self._position = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]
        epochs, patience = state.get("length", (None, None))
        longer = epochs is not None and (trainer.max_epochs or 0) > epochs
        longer |= patience is not None and (self.patience or math.inf) > patience
        trainer.should_stop = state["stopped"] and not longer

    def on_fit_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self._tied_names = tied_names(task.model)

    def on_sanity_check_end(self, trainer: lightning.Trainer, task: Any) -> None:
        values = metrics(trainer)
        good = goodness(values, self.monitor)
        if self.keeps_start and good is not None:
            self.best, self._goodness = values[self.monitor], good
            self._write_weights(trainer, BEST)

    def on_train_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self._stop_before(trainer)
        self.stopping.ends = "after this step"
        self.stopping.listen()  # Lightning restores the former handlers
        self._saved = time.monotonic()
        if self._resumed is not None:
            _put_sums(trainer, task, [state["sums"] for state in self._resumed])
            trainer.callback_metrics.update(self._metrics)  # monitored by other callbacks
            if resume_loops(trainer, self._position):
                self._put_generators(trainer, task)

    def on_train_epoch_start(self, trainer: lightning.Trainer, task: Any) -> None:
        if self._trained:
            self._save_epoch(trainer, task)
            if _most(trainer, self.stopping.signum):
                raise Stopped(self.stopping.signum or signal.SIGTERM)
        self._put_generators(trainer, task)

    def on_train_batch_end(self, trainer: lightning.Trainer, task: Any, outputs: Any, batch: Any, index: int) -> None:
        self._trained = True
        if outputs:
            self._losses.append((trainer.global_step, outputs["loss"].detach()))
        is_last, is_over = ends_epoch(trainer), ends_run(trainer)
        if is_last or is_over:  # before the validation, which could call such weights best
            self._check_finite(trainer, task)
            # If `max_steps` ends the run within the epoch, Lightning validates only before an early stop.
            self._cut = not is_last and not trainer.should_stop and sum(trainer.num_val_batches) > 0
            trainer.should_stop |= self._cut
        elif len(self._losses) >= BATCHES_PER_LOSS_CHECK:
            self._check_finite(trainer)
        if (wish := self._agreed(trainer, index)) == CONTINUE:
            return
        if is_last or is_over or not stepped(trainer):
            return  # the end of an epoch is saved later; a half accumulated step can't be saved
        if wish == STOP and is_sharded(trainer):  # no process can do it alone when the others have ended
            self._write_weights(trainer, LAST)
        self._save(trainer, task)
        if wish == STOP:
            raise Stopped(self.stopping.signum or signal.SIGTERM)

    def on_validation_start(self, trainer: lightning.Trainer, task: Any) -> None:
        if not trainer.sanity_checking:
            self.stopping.ends = "after this validation"
        if self._cut:  # more steps may follow when the run is resumed
            trainer.should_stop = self._cut = False

    def on_validation_batch_start(self, trainer: lightning.Trainer, task: Any, *batch: Any) -> None:
        if trainer.sanity_checking and trainer.world_size == 1:  # several processes have to decide it together
            self._stop_before(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if not trainer.sanity_checking:
            self.stopping.ends = "after this step"

    def on_test_batch_start(self, trainer: lightning.Trainer, task: Any, *batch: Any) -> None:
        if self.stopping.signum and trainer.world_size == 1:
            raise Stopped(self.stopping.signum)

    def on_train_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if self._trained:
            self._save_epoch(trainer, task)
            if self._failed is not None:
                raise OnnxgenError(f"the trained weights could not be written: {reason(self._failed)}")

    def on_save_checkpoint(self, trainer: lightning.Trainer, task: Any, checkpoint: dict[str, Any]) -> None:
        own = {"generators": generators.capture(task.device), "sums": _sums(task)}
        checkpoint["state_dict"] = self._kept(checkpoint["state_dict"], "model.")
        checkpoint["loops"] = {"fit_loop": between_batches(trainer, checkpoint["loops"]["fit_loop"])}
        checkpoint[KEY] = {
            "identity": self.identity,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "goodness": self._goodness,
            "stopped": trainer.should_stop,
            "length": (trainer.max_epochs, self.patience),
            "metrics": {name: value.cpu() for name, value in trainer.callback_metrics.items()},
            "ranks": _gathered(trainer, own),
        }

    # Saving.

    def save_last(self, model: nn.Module) -> None:
        """Write the weights of a model as the latest ones. Raises `OSError`."""
        if self.only is None:
            save_weights(model, self.out / LAST, self.constants, self.metadata)
        else:
            write(plain(self._kept(model.state_dict())), self.out / LAST, self.metadata)

    def _is_better(self, good: tuple[float, ...] | None) -> bool:
        """True for the best epoch so far, also if the model before training was as good, or if nothing can be told."""
        if good is None or self._goodness is None:
            return self._goodness is None
        return good > self._goodness or (good == self._goodness and self.best_epoch is None)

    def _save_epoch(self, trainer: lightning.Trainer, task: Task) -> None:
        self._check_finite(trainer, task)
        values = self._monitored(trainer)
        good = goodness(values, self.monitor)
        better = self._is_better(good)
        if better:
            self.best_epoch = trainer.current_epoch - 1
        if better and good is not None:
            self.best, self._goodness = values[self.monitor], good
        with self.averaged():
            self._write_weights(trainer, LAST, *([BEST] if better else []))
        self._save(trainer, task)

    def _write_weights(self, trainer: lightning.Trainer, *names: str) -> None:
        """Write the weights under each name. All processes call this."""
        state = trainer.strategy.lightning_module_state_dict()
        of_model = {n.removeprefix("model."): t for n, t in state.items() if n.startswith("model.")}
        if is_sharded(trainer):
            self._write_rows(of_model, names)
        elif trainer.is_global_zero:
            weights = plain(self._kept(of_model), self._tied_names)
            for name in names:
                self._write(weights, name)
        of_goals = {n.removeprefix(GOALS): t for n, t in state.items() if n.startswith(GOALS)}
        if of_goals and BEST in names and trainer.is_global_zero:
            self._write(plain(of_goals), GOAL, {})

    def _write_rows(self, of_model: Mapping[str, Tensor], names: Sequence[str]) -> None:
        """Write the weights of a sharded model, each process its rows."""
        of_model = {n.replace(COMPILED, ""): t for n, t in of_model.items()}
        weights = {**{n: t for n, t in of_model.items() if n not in self._tied_names}, **self.constants}
        self._failed = None
        for name in names:
            try:
                write_rows(weights, self.out / name, self.metadata or {}, self.shard_size, self.dtypes)
            except OSError as error:
                self._not_written(name, error)

    def _kept(self, state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return what is saved of a state dict whose names have a prefix."""
        if self.only is None:
            return dict(state)
        names = {f"{prefix}{name}" for name in self.only}
        return {n: value for n, value in state.items() if n.replace(COMPILED, "") in names or n.startswith(GOALS)}

    def _monitored(self, trainer: lightning.Trainer) -> dict[str, float]:
        """Return the logged metrics. Raises `OnnxgenError` if `monitor` is missing or the validation loss is NaN."""
        values = metrics(trainer)
        if math.isnan(values.get("val_loss", 0.0)):
            self._refuse(f"the validation loss is NaN after step {trainer.global_step}")
        if self.monitor not in values:
            there = ", ".join(sorted(values))
            raise OnnxgenError(f"no logged value is called {self.monitor!r}", help=f"--monitor takes one of {there}")
        return values

    def _save(self, trainer: lightning.Trainer, task: Task) -> None:
        self._check_finite(trainer, task)
        trainer.save_checkpoint(self.store.last)
        self._saved, self._trained = time.monotonic(), False

    def _write(self, tensors: dict[str, Tensor], name: str, constants: Mapping[str, Tensor] | None = None) -> None:
        self._failed = None
        constants = self.constants if constants is None else constants
        try:
            write({**tensors, **constants}, self.out / name, self.metadata)
        except OSError as error:
            self._not_written(name, error)

    def _not_written(self, name: str, error: OSError) -> None:
        self._failed = error
        rank_zero_only(self.say)(f"{name} was not written: {reason(error)}; the one before it is kept")

    def _check_finite(self, trainer: lightning.Trainer, task: Task | None = None) -> None:
        """Raise `OnnxgenError` if a loss was not finite or, with `task`, a weight is not."""
        losses, self._losses = self._losses, []
        finite_ones = torch.stack([loss for _, loss in losses]).isfinite().tolist() if losses else []
        step = next((step for (step, _), good in zip(losses, finite_ones, strict=True) if not good), None)
        if step is None and task is not None and not (finite(task.model) and finite(task.goals)):
            step = trainer.global_step
        if not _most(trainer, step is not None):
            return
        self._refuse(f"the loss became infinite or NaN at step {trainer.global_step if step is None else step}")

    def _refuse(self, what: str) -> NoReturn:
        earlier = self.store.last.exists()
        kept = f"the earlier weights are kept in {self.out}" if earlier else "there are no good weights"
        raise OnnxgenError(f"{what}; {kept}", help="train with a smaller --lr, or with --clip 1")

    # Stopping and resuming.

    def _stop_before(self, trainer: lightning.Trainer) -> None:
        if _most(trainer, self.stopping.signum):
            raise Stopped(self.stopping.signum or signal.SIGTERM, begun=False)

    def _agreed(self, trainer: lightning.Trainer, index: int) -> int:
        """Return what to do after this batch: `STOP` or `SAVE` if any process asks for it."""
        if trainer.world_size > 1 and index % BATCHES_PER_AGREEMENT:
            return CONTINUE
        due = time.monotonic() - self._saved >= self.minutes * 60
        return _most(trainer, STOP if self.stopping.signum else SAVE if due else CONTINUE)

    def _put_generators(self, trainer: lightning.Trainer, task: Task) -> None:
        """Restore the generators right before the first batch, so that the start of the run has no effect on them."""
        states, self._resumed = self._resumed, None
        if states is not None and len(states) == trainer.world_size:  # else they can't continue
            generators.restore(states[trainer.global_rank]["generators"], task.device)


def _sums(task: Task) -> Tensor:
    meter = task._meters["train"]
    meter.flush()
    return meter.sums.clone()


def _put_sums(trainer: lightning.Trainer, task: Task, sums: list[Tensor]) -> None:
    """Restore the training metrics of an unfinished epoch. With another number of processes, the first gets all."""
    if len(sums) == trainer.world_size:
        task._meters["train"].sums = sums[trainer.global_rank]
    elif trainer.global_rank == 0:
        task._meters["train"].sums = torch.stack(sums).sum(0)


def _most(trainer: lightning.Trainer, value: int) -> int:
    """Return the largest value of all processes."""
    if trainer.world_size == 1:
        return int(value)
    largest = torch.tensor(int(value), device=trainer.strategy.root_device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def _gathered(trainer: lightning.Trainer, own: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the values of all processes, by rank."""
    if trainer.world_size == 1:
        return [own]
    gathered: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(gathered, own)
    return gathered


Counters = dict[str, Any]


def between_batches(trainer: lightning.Trainer, saved: Counters) -> Counters:
    """Change the saved state of the fit loop to the state between this batch or epoch and the next."""
    batches = saved["epoch_loop.batch_progress"]
    done = batches["current"]["processed"]
    within = done < trainer.num_training_batches
    for side in ("total", "current"):
        epochs = saved["epoch_progress"][side]
        finished = epochs["started"] - within  # if max_steps ended the run within an epoch, that counts as unfinished
        epochs.update(ready=epochs["started"], processed=finished, completed=finished)
        count = batches[side]["processed"] if side == "total" else done * within
        batches[side] = dict.fromkeys(batches[side], count)
    batches["is_last_batch"] = False
    # Lightning counts this after the hooks at a batch's end.
    steps = saved["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"]
    saved["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    return saved


def resume_loops(trainer: lightning.Trainer, position: dict[str, int]) -> bool:
    """Correct the loops at the start of a resumed training. Return True if it resumes within an epoch.

    `position`: the state of the loader, which Lightning puts back only if the number of steps was not asked for before.
    """
    loop = trainer.fit_loop
    within = loop.epoch_loop.batch_progress.current.ready > 0
    if within:
        assert isinstance(trainer.train_dataloader, Loader)
        trainer.train_dataloader.load_state_dict(position)
    else:
        loop.epoch_loop.restarting = False
    # Else schedules that watch a metric miss this epoch's end. With `max_steps` the public setter makes True of False.
    loop._restarting = False
    return within
