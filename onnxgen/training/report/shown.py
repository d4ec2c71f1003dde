"""Shows a run: as a live panel on a terminal, or as plain lines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning

from onnxgen.common.names import visible
from onnxgen.common.still import EVERY, Still
from onnxgen.training.report.facts import Facts
from onnxgen.training.report.metrics import Metrics
from onnxgen.training.report.progress import Progress, size, speed
from onnxgen.training.runs.rows import duration, number

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
