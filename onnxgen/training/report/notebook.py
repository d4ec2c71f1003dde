"""Shows a run in a notebook: a table and the curve of the loss, which follow the run in their place."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from html import escape
from typing import Any

import lightning

from onnxgen.common.names import visible
from onnxgen.training.report.plots import curves
from onnxgen.training.report.progress import Progress
from onnxgen.training.runs.rows import FIRST_COLUMNS, Row, best_row, number


def in_notebook() -> bool:
    """Return True in a Jupyter kernel, whose cells show HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class Notebook(Progress):
    """Prints the first lines and messages. Epochs are rows of a table, drawn at most every two seconds."""

    every = 2.0
    _handle: Any = None

    def write(self, text: str) -> None:
        print(visible(text), flush=True)

    def show(self) -> None:
        from IPython.display import HTML, display

        rows, monitor = self.metrics.rows, self.facts.monitor
        where = f"epoch {self.epoch} of {self.epochs}, batch {self.batch} of {self.batches}"
        text = f"<p>{where}</p>" + table(rows, best_row(rows, monitor))
        if (png := curves(rows, "loss", monitor)) is not None:
            text += f'<img width="480" alt="loss" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))

    def tell_epoch(self, trainer: lightning.Trainer) -> None:
        """Say nothing: the table has the epoch."""

    def close(self) -> None:
        if self.metrics.rows:
            self._print(show=True)


def table(rows: Sequence[Row], best: Row | None) -> str:
    """Return rows of metrics as an HTML table; the best one is bold."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)]
    for row in rows:
        texts = (cell(name, row[name]) if name in row else "" for name in columns)
        lines.append("".join(f"<td><b>{text}</b></td>" if row is best else f"<td>{text}</td>" for text in texts))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def cell(name: str, value: float) -> str:
    """Return a value of a row as text."""
    return f"{value:.0f}" if name in FIRST_COLUMNS else number(name, value)
