"""`metrics.csv`: a row an epoch, whatever happens between."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from onnxgen.common.atomic import replacing
from onnxgen.training.best import goodness

Row = dict[str, float]
FIRST = ("epoch", "step")  # epochs count from 1; steps are the optimizer's


class Metrics(lightning.Callback):
    """Keeps a row of every finished epoch, and writes `metrics.csv` anew after each.

    The rows travel in the checkpoints: a run that goes on from one has exactly the rows up to there, whatever the file
    had. What belongs to an epoch must be logged by a callback before this one, since Lightning asks the module last.

    Attributes:
        rows: of all epochs so far.
        confusion: what the module's `confusion` was in the best of them by `monitor`.
    """

    def __init__(self, path: Path, monitor: str) -> None:
        self.path, self.monitor = path, monitor
        self.rows: list[Row] = []
        self.confusion: Tensor | None = None
        self._begun = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows], "confusion": self.confusion}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state_dict["rows"]]
        self.confusion = state_dict["confusion"]

    @property
    def best(self) -> int:
        """Which of the rows is the best, from 0; the last where none is."""
        row = best_row(self.rows, self.monitor)
        return max(len(self.rows) - 1, 0) if row is None else self.rows.index(row)

    def on_train_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self.rows = [row for row in self.rows if row["epoch"] <= trainer.current_epoch]
        if trainer.is_global_zero:
            write_rows(self.path, self.rows)
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger) and trainer.global_step:
                    _forget(logger, trainer.global_step)

    def on_train_epoch_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self._begun = time.monotonic()

    def on_train_epoch_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if not whole_epoch(trainer):
            return
        found = {
            name: float(value)
            for name, value in sorted(trainer.callback_metrics.items(), key=lambda m: m[0][:6] != "train_")
        }
        if "lr" in found:  # what is logged is a float32
            found["lr"] = getattr(task, "rate", found["lr"])
        row: Row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **found}
        row["seconds"] = round(time.monotonic() - self._begun, 3)
        self.rows = [r for r in self.rows if r["epoch"] < row["epoch"]] + [row]
        if best_row(self.rows, self.monitor) in (row, None):
            self.confusion = getattr(task, "confusion", None)
        if trainer.is_global_zero:
            write_rows(self.path, self.rows)


def _forget(logger: TensorBoardLogger, step: int) -> None:
    """Tell TensorBoard that what it has of this step and later was of a run that did not go on from there."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    start = Event(step=step, wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
    logger.experiment._get_file_writer().add_event(start)


def whole_epoch(trainer: lightning.Trainer) -> bool:
    """Whether all batches of the epoch were taken: a run that is stopped ends its epoch early."""
    return trainer.fit_loop.epoch_loop.batch_progress.current.ready >= trainer.num_training_batches


def write_rows(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Replace a CSV file as a whole; columns in the order of their first use. Raises `OSError` as the system does."""
    columns = list(dict.fromkeys([*FIRST, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with replacing([path.parent]) as files, files.file(path) as file:
        file.write(text.getvalue().encode())


def read_rows(path: Path) -> list[Row]:
    """The rows of a `metrics.csv`; a value that a row lacks has no key. no rows if there is no such file."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def best_row(rows: Sequence[Row], monitor: str) -> Row | None:
    """The first row that is as good as any by a metric (see `goodness`); None if none has a finite value of it."""
    found = [(good, row) for row in rows if (good := goodness(row, monitor)) is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None
