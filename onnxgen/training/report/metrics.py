"""Writes the metrics of a run: `metrics.csv`, and Lightning's loggers.

`metrics.csv` has a row for each validation: each epoch, and the end of a run within an epoch. The
loggers write to the run's folder or to a server.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from onnxgen.common.paths import need
from onnxgen.training.runs.contract import BEST_SCORE, finds_nothing
from onnxgen.training.runs.metrics import Row, best_row, lower_is_better, write_rows
from onnxgen.training.settings import Settings
from onnxgen.training.task import Task, metrics

NOTHING = "no epoch was better than the model before training; best.safetensors has "
FAR = 2  # times as large a loss or error, or as small a score


class Metrics(lightning.Callback):
    """Keeps a row for every epoch, and writes `metrics.csv` again after each. Ends the run if epochs bring no new best.

    If the run ends within an epoch (`max_steps`), that part has a row too. The rows are saved in checkpoints. A resumed
    run has exactly the rows up to its checkpoint, even if the file has more. An epoch's metrics must be logged by a
    callback before this one: Lightning calls the module's hook last.

    Attributes:
        rows: the rows of all epochs so far.
        confusion: the task's `confusion` in the best epoch.
        keeps_start: the weights before training are the best ones until an epoch is better.
        before: the metrics of the validation before training; {} if there was none.
        earlier: the seconds of this epoch before the run was resumed.
    """

    def __init__(self, path: Path, monitor: str, patience: int | None = None, gentler: str = "") -> None:
        """
        Args:
            patience: end the run after that many epochs without a new best.
            gentler: " -> " and the settings to try if training makes the model worse; "" if that says nothing.
        """
        self.path, self.monitor, self.patience = path, monitor, patience
        self.rows: list[Row] = []
        self.confusion: Tensor | None = None
        self.before: Row = {}
        self._since = 0.0  # the epoch from which patience counts: a run that was stopped early may go on
        self.keeps_start = False
        self.gentler = gentler
        self._begun, self._gone = time.monotonic(), 0.0  # seconds of an epoch that goes on
        self.earlier = 0.0

    def state_dict(self) -> dict[str, Any]:
        rows = [dict(row) for row in self.rows]
        facts = {"before": dict(self.before), "since": self._since, "gone": time.monotonic() - self._begun}
        return {"rows": rows, "confusion": self.confusion, **facts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state_dict["rows"]]
        self.confusion = state_dict["confusion"]
        self.before = state_dict.get("before", {})
        self._since = state_dict.get("since", 0.0)
        self._gone = state_dict.get("gone", 0.0)

    @property
    def best(self) -> int:
        """The index of the best row; of the last row if none is best."""
        row = best_row(self.rows, self.monitor)
        return max(len(self.rows) - 1, 0) if row is None else self.rows.index(row)

    @property
    def brought_nothing(self) -> str:
        """A sentence if no epoch was better than the model before training; else ""."""
        row = best_row([self.before, *self.rows], self.monitor) if self.rows else None
        kept = "its weights" if self.keeps_start else "the best of the epochs"
        return f"{NOTHING}{kept}{self.gentler}" if row is not None and row is self.before else ""

    @property
    def finds_nothing(self) -> str:
        """A sentence if the best weights find no box that `predict` shows; else ""."""
        row = self.best_row() or {}
        return finds_nothing(row.get(f"{self.monitor.partition('_')[0]}_{BEST_SCORE}", 1.0))

    @property
    def fell(self) -> str:
        """A sentence if the first validation is far worse than that before training; else ""."""
        values = [row.get(self.monitor, math.nan) for row in (self.before, *self.rows[:1])]
        if len(values) < 2 or not self.gentler or not (values[0] > 0 and math.isfinite(values[1])):
            return ""
        before, now = values
        worse = now > FAR * before if lower_is_better(self.monitor) else now * FAR < before
        return f"after these steps the model is far worse than before training{self.gentler}" if worse else ""

    def on_sanity_check_end(self, trainer: lightning.Trainer, task: Any) -> None:
        self.before = metrics(trainer)
        if self.keeps_start:
            self.confusion = task.confusion

    def on_train_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self.rows = [row for row in self.rows if row["step"] <= trainer.global_step]
        self._begun = time.monotonic() - self._gone  # Lightning does not start an epoch again that goes on
        self.earlier = self._gone
        if self.rows and self._waited(self.rows[-1]):
            self._since = self.rows[-1]["epoch"]
        if trainer.is_global_zero:
            write_rows(self.path, self.rows)
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger) and trainer.global_step:
                    _forget(logger, trainer.global_step)

    def on_train_epoch_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self._begun, self.earlier = time.monotonic(), 0.0

    def on_train_epoch_end(self, trainer: lightning.Trainer, task: Any) -> None:
        assert isinstance(task, Task)
        values = dict(sorted(metrics(trainer).items(), key=lambda item: not item[0].startswith("train_")))
        values["lr"] = task.rate  # the logged value is a float32
        row: Row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **values}
        row["seconds"] = round(time.monotonic() - self._begun, 3)
        self.rows = [r for r in self.rows if r["step"] < row["step"]] + [row]
        if self.best_row() in (row, None):
            self.confusion = task.confusion
        if self._waited(row):
            trainer.should_stop = True
        if trainer.is_global_zero:
            write_rows(self.path, self.rows)

    def _waited(self, row: Row) -> bool:
        """Return True if the last epochs brought nothing, as many as patience asks for."""
        best = self.best_row() or {"epoch": 0.0}
        return self.patience is not None and row["epoch"] - max(best["epoch"], self._since) >= self.patience

    def best_row(self) -> Row | None:
        """Return the row of the weights that are kept as the best; epoch 0 is the model before training."""
        begun: list[Row] = [{**self.before, "epoch": 0.0}] if self.keeps_start else []
        return best_row([*self.rows, *begun], self.monitor)  # of equal ones an epoch


def _forget(logger: TensorBoardLogger, step: int) -> None:
    """Make TensorBoard ignore the events of this step and later: they are from before the run was resumed."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    start = Event(step=step, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
    logger.experiment._get_file_writer().add_event(start)


def whole_epoch(trainer: lightning.Trainer) -> bool:
    """Return True if all batches of the epoch were trained. `max_steps` may end a run within an epoch."""
    return trainer.fit_loop.epoch_loop.batch_progress.current.ready >= trainer.num_training_batches


TENSORBOARD, CSV, WANDB, MLFLOW = "tensorboard", "csv", "wandb", "mlruns"  # folders of a run
PACKAGES = ("tensorboard", "matplotlib")  # of every run
PROJECT = "onnxgen"  # of wandb, and the experiment of mlflow, unless the environment names another


def need_packages(settings: Settings) -> None:
    """Raise `OnnxgenError` if a package for the report or a logger is not installed."""
    need((*PACKAGES, *(name for name in settings.loggers if name in ("wandb", "mlflow"))))


def loggers(settings: Settings) -> list[Logger]:
    """Return the loggers that the settings name. A resumed run goes on in the folder's logs; a new one removes them.

    wandb and mlflow take project, server and mode from their own environment variables.
    """
    if not settings.resume:
        _remove(settings.out)
    return [_MADE[name](settings.out, settings.resume) for name in dict.fromkeys(settings.loggers) if name in _MADE]


@rank_zero_only
def _remove(out: Path) -> None:
    """Remove the logs of an earlier run, except TensorBoard's, which `report.begin` removes."""
    for folder in (CSV, WANDB, MLFLOW):
        shutil.rmtree(out / folder, ignore_errors=True)


def _wandb(out: Path, resume: bool) -> Logger:
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    names = sorted((out / WANDB).glob("*run-*-*"), key=lambda path: path.stat().st_mtime)
    before = names[-1].name.rpartition("-")[2] if resume and names else None
    return WandbLogger(out.name, out, project=project, id=before, resume="allow" if before else None)


def _mlflow(out: Path, resume: bool) -> Logger:
    """Without a server in the environment, the run is in the folder."""
    where = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not where:
        where = f"file:{(out / MLFLOW).resolve()}"
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow 3 asks for this
    before = [path.name for path in (out / MLFLOW).glob("*/*") if re.fullmatch(r"[0-9a-f]{32}", path.name)]
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    return MLFlowLogger(experiment, out.name, where, run_id=before[0] if resume and before else None)


_MADE: dict[str, Callable[[Path, bool], Logger]] = {
    "tensorboard": lambda out, _: TensorBoardLogger(out, name="", version=TENSORBOARD, default_hp_metric=False),
    # Each start of the run has its own `version_N`, since Lightning's logger begins an existing file again.
    "csv": lambda out, _: CSVLogger(out, name=CSV),
    "wandb": _wandb,
    "mlflow": _mlflow,
}
