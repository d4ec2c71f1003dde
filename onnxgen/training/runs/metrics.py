"""The metrics of runs: rows of `metrics.csv`, the rule for the best epoch, lists of runs.

Runs are listed and compared. The kept weights, early stopping and the reports all follow the rule
for the best epoch. Nothing here imports torch.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgen.common.atomic import replacing
from onnxgen.common.names import visible
from onnxgen.errors import OnnxgenError
from onnxgen.training.runs.folder import METRICS, RECORD, runs_in
from onnxgen.training.runs.record import Record, read_record

# Metrics of single outputs, whose name may follow: any word, as in val_auroc_distance.
HIGHER = """accuracy agreement auroc average_precision cohen_kappa concordance_corr_coef cosine_similarity
    critical_success_index exact_match explained_variance f1_score f_beta_score log_auc matthews_corr_coef mean_iou
    precision r2_score ranking_average_precision recall recall_at_1 spearman_corr_coef""".split()
# Parts of the names of all others.
LOWER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity", "distance", "divergence", "ranked_probability")


def lower_is_better(metric: str) -> bool:
    """Return True if a smaller value of the metric is better, as for losses and errors."""
    kind = re.sub("^(train|val|test)_", "", metric)
    if any(kind == name or kind.startswith(f"{name}_") for name in HIGHER):
        return False
    return any(word in kind for word in LOWER_IS_BETTER)


def points_lost(metric: str, before: float, after: float) -> float:
    """Return by how much a metric is worse: below 0 if it is better.

    Metrics with a best value of 1 (accuracy, recall, mean average precision) and rates of wrong characters count in
    hundredths. All others, such as losses, count in percent of what they were.
    """
    worse = after - before if lower_is_better(metric) else before - after
    if worse == 0 or math.isnan(before) and math.isnan(after):
        return 0.0
    if not math.isfinite(worse):
        return math.inf
    if "character_error" in metric or (not lower_is_better(metric) and abs(before) <= 1):
        return 100 * worse
    return 100 * worse / abs(before) if before else math.copysign(math.inf, worse)


def goodness(metrics: Mapping[str, float], monitor: str) -> tuple[float, float] | None:
    """Return a sort key for an epoch: the greater one is better, and of two equal epochs the earlier one.

    The monitored metric decides. If two epochs are equal in it (accuracies on few samples often are), the loss on the
    same part of the data decides.

    Returns:
        None if the metric is missing or not finite, or if the loss is NaN: then the accuracy means nothing.
    """
    value = metrics.get(monitor, math.nan)
    loss = metrics.get("train_loss" if monitor.startswith("train_") else "val_loss", math.inf)
    if not math.isfinite(value) or math.isnan(loss):
        return None
    return -value if lower_is_better(monitor) else value, -loss if math.isfinite(loss) else -math.inf


Row = dict[str, float]
FIRST_COLUMNS = ("epoch", "step")  # epochs from 1; optimizer steps


def write_rows(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Replace a CSV file atomically. Columns are in the order of their first use. Raises `OSError`."""
    columns = list(dict.fromkeys([*FIRST_COLUMNS, *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with replacing([path.parent]) as files, files.file(path) as file:
        file.write(text.getvalue().encode())


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a `metrics.csv`, without keys for missing values; [] if there is no such file.

    Raises:
        OnnxgenError: it is damaged.
    """
    if not path.is_file():
        return []
    rows: list[Row] = []
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file, strict=True):
                if None in row or None in row.values():
                    raise ValueError("it has more or fewer values than columns")
                rows.append({name: float(text) for name, text in row.items() if text})
                counts = [rows[-1].get(name, math.nan) for name in FIRST_COLUMNS] + [rows[-1].get("seconds", 0.0)]
                if not all(0 <= count < math.inf for count in counts):
                    raise ValueError("epoch, step and seconds must be numbers from 0")
    except OSError as error:
        raise OnnxgenError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise OnnxgenError(f"{path} can't be read, row {len(rows)}: {error}") from None
    return rows


def best_row(rows: Sequence[Row], monitor: str) -> Row | None:
    """Return the first row that is best by a metric (see `goodness`); None if no row has a finite value of it."""
    ranked = [(good, row) for row in rows if (good := goodness(row, monitor)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def number(name: str, value: float) -> str:
    """Return a metric's value as text; accuracies are in percent."""
    return f"{value:.2%}" if "accuracy" in name else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `3:05 min` or `2:03:05 h`; `?` for NaN."""
    if seconds != seconds:
        return "?"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"


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
        facts = {"run": str(self.path), "model": self.record.model, "data": self.record.data, "state": self.state}
        return {**facts, "settings": dict(self.record.settings), "metrics": self.metrics, "seconds": self.seconds}


def listed(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in a folder and below it, the oldest first, and why others are left out: they are damaged."""
    runs, damaged = [], []
    for path in runs_in(folder):
        if not (path / RECORD).exists():  # a folder of settings, or of a version that wrote no record
            continue
        try:
            runs.append(Run(path, read_record(path), read_rows(path / METRICS)))
        except OnnxgenError as error:
            damaged.append(str(error))
    return runs, damaged


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
