"""Shows a run while it trains: as a live panel on a terminal, or as plain lines.

`Progress` follows the run, for these and other subclasses that show it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch

from onnxgen.common.names import visible
from onnxgen.common.timing import EVERY, Still
from onnxgen.errors import counted
from onnxgen.training.data.samples import Batch
from onnxgen.training.report.facts import Facts
from onnxgen.training.report.metrics import Metrics, whole_epoch
from onnxgen.training.runs.metrics import Row, duration, number
from onnxgen.training.settings import spoken
from onnxgen.training.task import metrics as values_of

SPARKLINE_LOSSES = 60


class Progress(lightning.Callback):
    """Follows a run on the first process; a subclass shows it.

    At most every `every` seconds a value is read from the device, which waits for it. Other steps only read the clock.
    """

    every = 0.5

    def __init__(self, facts: Facts, out: Path, metrics: Metrics) -> None:
        self.facts, self.out, self.metrics = facts, out, metrics
        self.epoch = self.epochs = self.batch = self.batches = 0
        self.doing = "preparing"
        self.ended = False  # the results of the epoch are said
        self.validated = 0  # batches of the current validation; 0 during training
        self.loss = float("nan")
        self.accuracy: float | None = None
        self.losses: deque[float] = deque(maxlen=SPARKLINE_LOSSES)
        self.rate = 0.0  # samples per second, of late
        self.gone, self.left = 0.0, float("nan")  # seconds
        self.memory = 0  # bytes
        self._said: deque[str] = deque()
        self._printing = False
        self._samples = self._steps = self._in_epoch = 0  # samples since the last reading; steps; samples of the epoch
        self._begun = self._read = self._due = 0.0

    # ---- for subclasses

    def write(self, text: str) -> None:
        """Print a line."""

    def show(self) -> None:
        """Show the current state."""

    def tell_epoch(self, trainer: lightning.Trainer) -> None:
        """Say the results of the epoch that has ended."""
        row = self.metrics.rows[-1]
        best = self.metrics.best_row()
        of = f"{self.epochs}" if whole_epoch(trainer) else f"{self.epochs}, batch {self.batch} of {self.batches}"
        rate = self._in_epoch / max(row["seconds"] - self.metrics.earlier, 1e-9)  # of this run, if it was resumed
        self.say(epoch_line(row, of, best is row, rate, worse=bool(self.metrics.brought_nothing)))

    def close(self) -> None:
        """End the display."""

    # ---- for everyone

    def say(self, text: str) -> None:
        """Print a line. If the handler of a signal calls this while something is printed, the line follows that."""
        self._said.append(spoken.get()(text))
        self._print()

    def _print(self, show: bool = False) -> None:
        if self._printing:
            return
        self._printing = True
        try:
            if show:
                self.show()
            while self._said:
                self.write(self._said.popleft())
        finally:
            self._printing = False

    # ---- Lightning's hooks

    def setup(self, trainer: lightning.Trainer, task: Any, stage: str) -> None:
        self.doing = "preparing" if stage == "fit" else "testing"

    def on_sanity_check_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self.doing = "validating before training"

    def on_validation_start(self, trainer: lightning.Trainer, task: Any) -> None:
        if not trainer.sanity_checking:
            self.doing = f"epoch {self.epoch} of {self.epochs}: validating"

    def on_test_batch_end(
        self, trainer: lightning.Trainer, task: Any, outputs: Any, batch: Any, index: int, dataloader_idx: int = 0
    ) -> None:
        self.validated = index + 1

    def on_sanity_check_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if trainer.is_global_zero and (shown := scores(values_of(trainer))):
            self.say(f"epoch 0, before training: {shown}")

    def on_fit_start(self, trainer: lightning.Trainer, task: Any) -> None:
        if trainer.is_global_zero:
            self.say(self.facts.line(self.out))
            if self.facts.steps:
                self.say(self.facts.steps)
            for note in self.facts.notes:
                self.say(f"note: {note}")

    def on_train_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self.epochs, self.batches = trainer.max_epochs or 0, int(trainer.num_training_batches)
        self._begun = self._read = time.monotonic()
        self._due = self._read + self.every
        if trainer.is_global_zero and trainer.global_step:
            self.epoch = trainer.current_epoch + 1  # Lightning does not start an epoch again that goes on
            self.say(f"continuing after step {trainer.global_step}, in epoch {self.epoch} of {self.epochs}")

    def on_train_epoch_start(self, trainer: lightning.Trainer, task: Any) -> None:
        self.epoch, self.batch, self._in_epoch = trainer.current_epoch + 1, 0, 0
        self.doing, self.ended = "", False

    def on_train_batch_end(self, trainer: lightning.Trainer, task: Any, outputs: Any, batch: Batch, index: int) -> None:
        self.batch = index + 1
        samples = len(next(iter(batch.values()))) * trainer.world_size
        self._samples, self._in_epoch = self._samples + samples, self._in_epoch + samples
        self._steps += 1
        if time.monotonic() >= self._due and trainer.is_global_zero:
            self._read_values(trainer, task, outputs)
            self._show()

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, task: Any, outputs: Any, batch: Any, index: int, dataloader_idx: int = 0
    ) -> None:
        self.validated = index + 1
        if time.monotonic() >= self._due and trainer.is_global_zero and not trainer.sanity_checking:
            self._show()

    def on_validation_end(self, trainer: lightning.Trainer, task: Any) -> None:
        self.validated = 0
        self.doing = ""

    @property
    def now(self) -> str:
        """What goes on: `epoch 1 of 10: in batch 3 of 20`, `validating before training, 2 batches done`."""
        if not self.doing and self.epoch:
            batch = f"{min(self.batch + 1, self.batches)} of {self.batches}"
            return f"epoch {self.epoch} of {self.epochs}: in batch {batch}"
        return (self.doing or "preparing") + (f", {counted(self.validated, 'batch')} done" if self.validated else "")

    def on_train_epoch_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if not trainer.is_global_zero or not self.metrics.rows:
            return
        self.tell_epoch(trainer)
        self.ended = True
        if len(self.metrics.rows) == 1 and (warning := self.metrics.fell):
            self.say(f"note: {warning}")
        if time.monotonic() >= self._due:  # epochs may be shorter than `every`
            self._show()

    def on_fit_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if trainer.is_global_zero and not self._begun:
            self.say("nothing is left to train: all epochs or steps are done; raise --epochs or --max-steps for more")
        if trainer.is_global_zero:
            warnings = (self.metrics.brought_nothing, self.metrics.finds_nothing if self._begun else "")
            for warning in filter(None, warnings):
                self.say(f"note: {warning}")
        self.close()

    def on_exception(self, trainer: lightning.Trainer, task: Any, exception: BaseException) -> None:
        self.close()

    def _show(self) -> None:
        self._print(show=True)
        self._due = time.monotonic() + self.every

    def _read_values(self, trainer: lightning.Trainer, task: Any, outputs: Any) -> None:
        self.loss = float(outputs["loss"].detach()) * trainer.accumulate_grad_batches
        self.losses.append(self.loss)
        self.accuracy = task.so_far().get("train_accuracy")
        now = time.monotonic()  # after the device has done the counted steps
        rate = self._samples / max(now - self._read, 1e-9)
        self.rate = rate if not self.rate else 0.5 * self.rate + 0.5 * rate
        self._samples, self._read = 0, now
        gone = (self.epoch - 1) * self.batches + self.batch
        wanted = self.epochs * self.batches
        if trainer.max_steps >= 0:
            wanted = min(wanted, trainer.max_steps * trainer.accumulate_grad_batches)
        self.gone = now - self._begun
        self.left = max(wanted - gone, 0) * self.gone / self._steps
        self.memory = memory(trainer.strategy.root_device)


def memory(device: torch.device) -> int:
    """Return the bytes in use on the device, or on the CPU this process's peak; 0 if they are unknown."""
    module = getattr(torch, device.type, None)
    if device.type != "cpu":
        allocated = getattr(module, "memory_allocated", None) or getattr(module, "current_allocated_memory", None)
        return int(allocated()) if allocated is not None else 0
    if sys.platform == "win32":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def epoch_line(row: Row, of: str, best: bool, rate: float, worse: bool = False) -> str:
    """Return `epoch 3 of 10: train loss 0.1234, accuracy 96.3%; val loss 0.1, accuracy 97.1% (best); 12 s`.

    `worse`: also the best epoch is worse than the model before training.
    """
    text = scores(row) + (f" (best{', but worse than before training' if worse else ''})" if best else "")
    return f"epoch {row['epoch']:.0f} of {of}: {text}; {duration(row['seconds'])}{f'; {speed(rate)}' if rate else ''}"


def speed(rate: float) -> str:
    """Return `0.3 samples/s` or `1,234 samples/s`."""
    return f"{rate:,.{1 if rate < 10 else 0}f} samples/s"


def scores(row: Row, of: Sequence[str] = ("train", "val")) -> str:
    """Return the metrics of parts of the data: `train loss 0.1234, accuracy 96.3%; val loss 0.1`."""
    parts = []
    for part in of:
        values = {name[len(part) + 1 :]: value for name, value in row.items() if name.startswith(f"{part}_")}
        if values:
            parts.append(f"{part} " + ", ".join(f"{name} {number(name, value)}" for name, value in values.items()))
    return "; ".join(parts)


def size(count: int) -> str:
    """Return `512 MB` or `1.2 GB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


BARS = "▁▂▃▄▅▆▇█"


class Lines(Progress):
    """Prints a line for each epoch, and one about every ten seconds, also in a long batch or validation."""

    every = EVERY

    def __init__(self, facts: Facts, out: Path, metrics: Metrics) -> None:
        super().__init__(facts, out, metrics)
        self._still: Still | None = None

    def setup(self, trainer: lightning.Trainer, task: Any, stage: str) -> None:
        super().setup(trainer, task, stage)
        if trainer.is_global_zero and self._still is None and self.every:
            self._still = Still(lambda: self.now, self.write, self.every).__enter__()

    def teardown(self, trainer: lightning.Trainer, task: Any, stage: str) -> None:
        self.close()

    def close(self) -> None:
        still, self._still = self._still, None
        if still is not None:
            still.__exit__()

    def write(self, text: str) -> None:
        if self._still is not None:
            self._still.told()
        try:
            print(f"{visible(text)}\n", end="", flush=True)  # at once: another thread prints, too
        except BrokenPipeError:  # the reader has ended, but the run should not
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def show(self) -> None:
        if self.validated or self.ended or self.batch == self.batches:
            return
        accuracy = "" if self.accuracy is None else f", accuracy {number('accuracy', self.accuracy)}"
        self.say(
            f"epoch {self.epoch} of {self.epochs}, batch {self.batch} of {self.batches}: "
            f"loss {number('loss', self.loss)}{accuracy}; {speed(self.rate)}, {duration(self.left)} left"
        )


class Dashboard(Progress):
    """Draws a panel twice a second, below the printed lines."""

    def __init__(self, facts: Facts, out: Path, metrics: Metrics) -> None:
        super().__init__(facts, out, metrics)
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=False)
        self._live: Any = None

    def write(self, text: str) -> None:
        from rich.text import Text

        # A plain string could contain markup. The terminal wraps it, and wraps it anew when it is resized.
        self.console.print(Text(visible(text)), soft_wrap=True)

    def show(self) -> None:
        from rich.live import Live

        if self._live is None:
            # Refreshed only from this thread: another one would read values while they change.
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self.panel(), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def panel(self) -> Any:
        """Return the panel for the current state."""
        from rich import box
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        what = "validating" if self.validated else f"batch {self.batch} of {self.batches}"
        done = (self.epoch - 1) * self.batches + self.batch
        bar = ProgressBar(total=max(self.epochs * self.batches, 1), completed=done, width=40)
        grid.add_row("epoch", Text(f"{self.epoch} of {self.epochs}, {what}"))
        grid.add_row("", bar)
        grid.add_row("loss", Text(f"{number('loss', self.loss)}  {sparkline(list(self.losses))}"))
        if self.accuracy is not None:
            grid.add_row("accuracy", Text(f"{number('accuracy', self.accuracy)} in this epoch"))
        if self.metrics.rows:
            last = {k: v for k, v in self.metrics.rows[-1].items() if k.startswith(("train_", "val_"))}
            text = ", ".join(f"{name.replace('_', ' ')} {number(name, value)}" for name, value in last.items())
            grid.add_row("last epoch", Text(text))
        memory = f", {size(self.memory)}" if self.memory else ""
        grid.add_row("speed", Text(f"{speed(self.rate)}{memory}"))
        grid.add_row("time", Text(f"{duration(self.gone)}, {duration(self.left)} left"))
        title = f"{self.facts.model} on {self.facts.device}"
        return Panel(grid, title=Text(visible(title)), title_align="left", box=box.ROUNDED, expand=False)


def sparkline(values: list[float]) -> str:
    """Draw the finite values, a character each."""
    values = [v for v in values if v - v == 0]
    if not values:
        return ""
    low, high = min(values), max(values)
    step = (high - low) / (len(BARS) - 1) or 1.0
    return "".join(BARS[round((v - low) / step)] for v in values)
