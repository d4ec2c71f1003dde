"""Lists runs and compares them: the settings that differ, the best metrics, the time. It imports no torch."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgen.common.names import visible
from onnxgen.errors import OnnxgenError
from onnxgen.training.runs.folder import METRICS, RECORD, runs_in
from onnxgen.training.runs.record import Record, read_record
from onnxgen.training.runs.rows import Row, duration, number, read_rows

_SHOWN = ("val_accuracy", "test_accuracy", "val_loss", "test_loss", "train_loss")
_CURVES = ("val_loss", "val_accuracy", "train_loss")
GENERATOR = '<meta name="generator" content="onnxgen runs">'
_WIDEST = 40  # letters of a setting in the list


@dataclass(frozen=True)
class Run:
    """One run of a list: its folder, its record and the rows of `metrics.csv`."""

    path: Path
    record: Record
    rows: Sequence[Row]

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the best epoch (of the last one, while the run goes on), and those of the test."""
        result = self.record.result
        return {**(result.get("best") or (self.rows[-1] if self.rows else {})), **(result.get("test") or {})}

    @property
    def state(self) -> str:
        """How the run ended, or how far it is."""
        return str(self.record.result.get("stopped") or f"epoch {len(self.rows)}, not ended")

    @property
    def seconds(self) -> float:
        return float(self.record.result.get("seconds") or sum(row.get("seconds", 0.0) for row in self.rows))

    def as_json(self) -> dict[str, Any]:
        found = {"run": str(self.path), "model": self.record.model, "data": self.record.data, "state": self.state}
        return {**found, "settings": dict(self.record.settings), "metrics": self.metrics, "seconds": self.seconds}


def listed(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in a folder and below it, the oldest first, and why others are left out: they are damaged."""
    found, damaged = [], []
    for path in runs_in(folder):
        if not (path / RECORD).exists():  # a folder of settings, or of a version that wrote no record
            continue
        try:
            found.append(Run(path, read_record(path), read_rows(path / METRICS)))
        except OnnxgenError as error:
            damaged.append(str(error))
    return found, damaged


def compared(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return column titles, and a row of texts for each run."""
    differing = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.record.settings)
        if len({repr(run.record.settings.get(name)) for run in runs}) > 1
    ]
    deciding = _deciding(runs)
    tested = [f"test_{name.removeprefix('val_')}" for name in deciding if name.startswith("val_")]
    metrics = [name for name in (*deciding, *tested, *_SHOWN) if any(name in run.metrics for run in runs)]
    titles = ["run", "model", "data", *(name.replace("_", "-") for name in differing)]
    titles += [name.replace("_", " ") for name in metrics] + ["time", "ended by"]
    return titles, [_cells(run, differing, metrics) for run in runs]


def _deciding(runs: Sequence[Run]) -> list[str]:
    """Return the metrics that decide which weights are best, each once, without those that are shown of every run."""
    return [name for name in dict.fromkeys(run.record.monitor for run in runs) if name and name not in _SHOWN]


def _cells(run: Run, differing: Sequence[str], metrics: Sequence[str]) -> list[str]:
    settings: Mapping[str, Any] = run.record.settings
    data = Path(run.record.data).name or "objects"
    chosen = [_text(settings.get(name, "")) for name in differing]
    values = [number(name, run.metrics[name]) if name in run.metrics else "" for name in metrics]
    return [str(run.path), run.record.model, data, *chosen, *values, duration(run.seconds), run.state]


def _text(value: Any) -> str:
    """Return a setting as text of at most `_WIDEST` letters: a fitted table or a thousand classes would fill pages."""
    pairs = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
    text = ",".join(map(str, pairs)) if isinstance(pairs, list) else str(pairs)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def page(folder: Path, runs: Sequence[Run]) -> str:
    """Return one HTML page: the table, and the curves over each other. Names are escaped; nothing is loaded."""
    import jinja2

    from onnxgen.training.report.plots import overlaid

    rows = {str(run.path): run.rows for run in runs}
    drawn = {metric: overlaid(rows, metric) for metric in (*_deciding(runs), *_CURVES)}
    pictures = {name: base64.b64encode(png).decode() for name, png in drawn.items() if png is not None}
    titles, texts = compared(runs)
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.get_template("runs.html.jinja")
    return visible(template.render(folder=folder, titles=titles, rows=texts, pictures=pictures))
