"""Draws curves and the confusion matrix as PNG, without a screen and without pyplot's global state."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from onnxgen.common.names import visible
from onnxgen.training.runs.rows import Row, best_row

COLORS = {"train": "#4c72b0", "val": "#dd8452"}
LABELS = {"train": "training", "val": "validation"}
DPI = 130  # of the files
WIDTH = 9.3  # inches: as wide as the page
MAX_CLASSES_WITH_COUNTS = 20  # in the cells of the confusion matrix
MAX_CLASSES_WITH_NAMES = 60  # at its axes


def curves(rows: Sequence[Row], metric: str, monitor: str) -> bytes | None:
    """Draw `loss` or `accuracy` of training and validation over the epochs; None if no row has it.

    The epoch that is best by `monitor` is marked.
    """
    found = {part: [row for row in rows if f"{part}_{metric}" in row] for part in LABELS}
    if not any(found.values()):
        return None
    figure, axes = _figure(WIDTH, 4.0)
    percent = 100.0 if metric == "accuracy" else 1.0
    for part, of_part in found.items():
        if of_part:
            xs, ys = [r["epoch"] for r in of_part], [percent * r[f"{part}_{metric}"] for r in of_part]
            marker = "o" if len(xs) <= 30 else ""
            axes.plot(xs, ys, color=COLORS[part], label=LABELS[part], marker=marker, markersize=4)
    best = best_row(rows, monitor)
    if best is not None:
        _mark(axes, best, metric, monitor, percent)
    _label(axes, metric)
    return _png(figure)


def overlaid(runs: Mapping[str, Sequence[Row]], metric: str) -> bytes | None:
    """Draw one metric of several runs over the epochs; None if no run has it."""
    found = {name: [row for row in rows if metric in row] for name, rows in runs.items()}
    if not any(found.values()):
        return None
    figure, axes = _figure(WIDTH, 4.0)
    for name, rows in found.items():
        if rows:
            axes.plot([row["epoch"] for row in rows], [row[metric] for row in rows], marker=".", label=name)
    _label(axes, metric.replace("_", " "))
    return _png(figure)


def rates_tried(rates: Sequence[float], losses: Sequence[float], chosen: float | None) -> bytes:
    """Draw the mean losses of a learning-rate range test over the rates; the chosen rate is marked."""
    figure, axes = _figure(WIDTH, 4.0)
    axes.plot(rates, losses, color=COLORS["train"])
    axes.set_xscale("log")
    if chosen is not None:
        axes.axvline(chosen, color="#c44e52", linestyle=":", label=f"chosen: {chosen:.3g}")
        axes.legend(loc="best", frameon=True)
    axes.set_title("Range test")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("mean training loss")
    axes.grid(alpha=0.3)
    return _png(figure)


def _mark(axes: Any, best: Row, metric: str, monitor: str, percent: float) -> None:
    part = monitor.partition("_")[0]
    value = best.get(f"{part}_{metric}")
    said = "" if value is None else f": {percent * value:.2f} %" if percent > 1 else f": {value:.4g}"
    axes.axvline(best["epoch"], color="0.6", linestyle=":", linewidth=1.2, zorder=0)
    if value is not None:
        label = f"best epoch ({best['epoch']:.0f}){said}"
        axes.plot([best["epoch"]], [percent * value], "*", color="#c44e52", markersize=13, label=label, zorder=5)


def _label(axes: Any, metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(metric.capitalize())
    axes.set_xlabel("epoch")
    axes.set_ylabel("accuracy (%)" if metric == "accuracy" else metric)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def confusion_matrix(counts: Tensor, classes: Sequence[str], of: str) -> bytes:
    """Draw a confusion matrix [classes, classes]: rows are true classes, columns are predicted ones.

    Colours are shares of a row, so that rare classes are visible too. Classes that are neither true nor predicted for
    any sample are left out.
    """
    names = list(classes) if len(classes) == len(counts) else list(map(str, range(len(counts))))
    there = (counts.sum(0) + counts.sum(1)).nonzero().flatten().tolist()
    if 0 < len(there) < len(names):
        of = f"{of}: {len(there)} of {len(names):,} classes occur"
        counts, names = counts[there][:, there], [names[i] for i in there]
    table = counts.double().cpu()
    shares = (table / table.sum(1, keepdim=True).clamp(min=1)).numpy()
    number = len(shares)
    side = min(max(0.42 * number + 2.2, 4.2), 14.0)
    figure, axes = _figure(side + 0.8, side)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046, pad=0.04)
    axes.set_title(f"Confusion matrix ({of})")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    names = [visible(name if len(name) <= 20 else name[:19] + "…") for name in names]
    if number <= MAX_CLASSES_WITH_NAMES:
        turned = 90 if any(len(name) > 3 for name in names) else 0
        axes.set_xticks(range(number), names, rotation=turned, fontsize=8, parse_math=False)
        axes.set_yticks(range(number), names, fontsize=8, parse_math=False)
    if number <= MAX_CLASSES_WITH_COUNTS:
        _write(axes, table.long().tolist(), shares)
    return _png(figure)


def _write(axes: Any, table: list[list[int]], shares: Any) -> None:
    for row, counts in enumerate(table):
        for column, count in enumerate(counts):
            if count:
                color = "white" if shares[row][column] > 0.5 else "black"
                axes.text(column, row, f"{count}", ha="center", va="center", color=color, fontsize=7)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()
