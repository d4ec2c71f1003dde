"""Shows a run as HTML: `report.html`, and a table and a curve in a notebook.

`report.html` is a single file with pictures included. In a notebook, table and curve follow the run in their place.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning

from onnxgen._version import __version__
from onnxgen.common.names import visible
from onnxgen.training.report.facts import Facts, Outcome
from onnxgen.training.report.plots import DPI, curves
from onnxgen.training.report.progress import Progress
from onnxgen.training.runs.metrics import FIRST_COLUMNS, Row, best_row, duration, number
from onnxgen.training.settings import Settings

if TYPE_CHECKING:
    from jinja2 import Template
    from torch import Tensor


def page(settings: Settings, facts: Facts, outcome: Outcome, rows: Sequence[Row], pictures: Mapping[str, bytes]) -> str:
    """Return the page as text. All names are escaped, and nothing is loaded from elsewhere."""
    import torch

    best = best_row(rows, facts.monitor)
    default, values = Settings(), {field.name: getattr(settings, field.name) for field in fields(settings)}
    return _template().render(
        facts=facts,
        outcome=outcome,
        out=settings.out,
        settings=[
            (n.replace("_", "-"), text, value != getattr(default, n))
            for n, value in values.items()
            if (text := _text(value))
        ],
        classes=[] if outcome.confusion is None else by_class(outcome.confusion, facts.classes),
        columns=list(dict.fromkeys(name for row in rows for name in row)),
        rows=[{name: cell(name, v) for name, v in row.items()} for row in rows],
        best=None if best is None else f"{best['epoch']:.0f}",
        best_value=None if best is None else number(facts.monitor, best[facts.monitor]),
        test={name.removeprefix("test_"): number(name, value) for name, value in outcome.test.items()},
        duration=duration(max(outcome.seconds, sum(row.get("seconds", 0.0) for row in rows))),  # with resumed epochs
        pictures={name: base64.b64encode(png).decode() for name, png in pictures.items()},
        widths={name: int(int.from_bytes(png[16:20], "big") / DPI * 90) for name, png in pictures.items()},
        versions=f"onnxgen {__version__}, torch {torch.__version__}",
    )


def by_class(counts: Tensor, names: Sequence[str]) -> list[tuple[str, int, str, str, str]]:
    """Return name, number of samples, precision, recall and F1 of each class that occurs, that with the least F1 first.

    Args:
        counts: the confusion matrix [classes, classes], whose rows are the true classes.
    """
    known = names if len(names) == len(counts) else list(map(str, range(len(counts))))
    right, true, predicted = (x.tolist() for x in (counts.diagonal(), counts.sum(1), counts.sum(0)))
    ranked = []
    for name, hits, of, answers in zip(known, right, true, predicted):
        shares = [hits / whole if whole else 0.0 for whole in (answers, of, (of + answers) / 2)]
        if of or answers:
            ranked.append((shares[2], (name, int(of), *(f"{share:.1%}" for share in shares))))
    return [row for _, row in sorted(ranked, key=lambda pair: pair[0])]  # type: ignore[misc]


@cache
def _template() -> Template:
    """Compile the template once a process: it takes as long as a small training."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.jinja")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


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
