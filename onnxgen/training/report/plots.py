"""The pictures of a report: curves, the confusion matrix, and samples with what the model says.

They are PNG, drawn without a screen and without pyplot's global state.
"""

from __future__ import annotations

import colorsys
import io
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.common.names import visible
from onnxgen.surgery.ports import evaluating
from onnxgen.training.data.arrays import Prepared, spread, unaugmented
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.samples import Batch, Samples
from onnxgen.training.goals.goal import IGNORED_CLASS, Goal, Shown
from onnxgen.training.goals.language import LABELS, Tokens
from onnxgen.training.model import as_tuple, fixed_batch
from onnxgen.training.runs.metrics import Row, best_row

if TYPE_CHECKING:
    from onnxgen.training.prepare import Plan


COLORS = {"train": "#4c72b0", "val": "#dd8452"}
PART_LABELS = {"train": "training", "val": "validation"}
DPI = 130  # of the files
WIDTH = 9.3  # inches: as wide as the page
MAX_CLASSES_WITH_COUNTS = 20  # in the cells of the confusion matrix
MAX_CLASSES_WITH_NAMES = 60  # at its axes


def curves(rows: Sequence[Row], metric: str, monitor: str) -> bytes | None:
    """Draw `loss` or `accuracy` of training and validation over the epochs; None if no row has it.

    The epoch that is best by `monitor` is marked.
    """
    by_part = {part: [row for row in rows if f"{part}_{metric}" in row] for part in PART_LABELS}
    if not any(by_part.values()):
        return None
    figure, axes = _figure(WIDTH, 4.0)
    percent = 100.0 if metric == "accuracy" else 1.0
    for part, of_part in by_part.items():
        if of_part:
            xs, ys = [r["epoch"] for r in of_part], [percent * r[f"{part}_{metric}"] for r in of_part]
            marker = "o" if len(xs) <= 30 else ""
            axes.plot(xs, ys, color=COLORS[part], label=PART_LABELS[part], marker=marker, markersize=4)
    best = best_row(rows, monitor)
    if best is not None:
        _mark(axes, best, metric, monitor, percent)
    _label(axes, metric)
    return _png(figure)


def overlaid(runs: Mapping[str, Sequence[Row]], metric: str) -> bytes | None:
    """Draw one metric of several runs over the epochs; None if no run has it."""
    by_run = {name: [row for row in rows if metric in row] for name, rows in runs.items()}
    if not any(by_run.values()):
        return None
    figure, axes = _figure(WIDTH, 4.0)
    for name, rows in by_run.items():
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
    text = "" if value is None else f": {percent * value:.2f} %" if percent > 1 else f": {value:.4g}"
    axes.axvline(best["epoch"], color="0.6", linestyle=":", linewidth=1.2, zorder=0)
    if value is not None:
        label = f"best epoch ({best['epoch']:.0f}){text}"
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


MOST, COLUMNS = 16, 4  # samples, and those in a row
POOL, SECONDS = 240, 5.0  # samples among which the largest losses are looked for, and how long
TEXTS, NEW = 3, 20  # texts, and tokens that a model writes
SIDE, LINE, GAP = 150, 16, 10  # pixels: of an image, of a line of text, between samples
RIGHT, WRONG, PLAIN, TRUTH = "#1a7f37", "#c4372c", "#222222", "#2b6cb0"


def examples(plan: Plan, model: nn.Module) -> bytes | None:
    """Return a PNG; None if the model takes no images, or its goals show nothing.

    Of a few hundred samples, those with the largest losses come first, and others below them: right ones, if the goal
    tells right from wrong.

    Args:
        model: on the CPU.
    """
    samples = plan.data.test or plan.data.val or unaugmented(plan.train)
    column = next((c for c in plan.feeding.inputs if isinstance(_step(samples, c), ToInput)), None)
    if column is None:
        return None
    asked = list(_asked(plan, model, samples, column))
    if not asked:
        return None
    groups = {"": _few(asked, MOST)} if len({one.loss for one in asked}) == 1 else _by_loss(asked)
    return _grid([(title, [_tile(one.image, one.shown) for one in some]) for title, some in groups.items()])


@dataclass(frozen=True)
class _Asked:
    """A sample: uint8 [H, W, 1, 3 or 4], what is shown of it, and its loss."""

    image: np.ndarray
    shown: Shown
    loss: float


def _by_loss(asked: Sequence[_Asked]) -> dict[str, Sequence[_Asked]]:
    """Return the samples to show, by title."""
    ordered = sorted(asked, key=lambda one: -one.loss)
    half = min(MOST // 2, len(ordered) // 2)
    rest = ordered[half:][::-1]
    right = [one for one in rest if one.shown.right]
    largest = f"the largest losses of {len(asked)} samples"
    return {largest: ordered[:half], "right ones" if right else "others": _few(right or rest, MOST - half)}


def _asked(plan: Plan, model: nn.Module, samples: Samples, column: str) -> Iterator[_Asked]:
    """Yield samples that are spread over a part, as many as are asked within some seconds; none if nothing is shown."""
    goal, names = plan.objectives[0], plan.settings.classes or _classes(samples, plan)
    count, begun = fixed_batch(model) or MOST, time.monotonic()
    indices = spread(samples, max(count, min(POOL, len(samples))))
    whole = len(indices) // count * count if fixed_batch(model) else len(indices)
    for start in range(0, whole, count):
        if start >= MOST and time.monotonic() - begun > SECONDS:
            return
        batch = samples.take(indices[start : start + count], plan.settings.seed)
        with evaluating(model), torch.inference_mode():
            outputs = as_tuple(model(*plan.feeding.arguments(batch)))
            for place, image in enumerate(pixels(batch[column], _step(samples, column))):
                shown = goal.shown(outputs, batch, place, names)
                if shown is None:
                    return
                yield _Asked(image, shown, _loss(goal, outputs, batch, place))


def _loss(goal: Goal, outputs: Sequence[Any], batch: Batch, place: int) -> float:
    """Return the loss of one sample of a batch; 0 if it can't be told alone."""
    count = len(next(iter(batch.values())))
    if not goal.splits or any(not isinstance(y, Tensor) or y.ndim == 0 or len(y) != count for y in outputs):
        return 0.0
    one = slice(place, place + 1)
    try:
        loss = float(goal.compute(tuple(y[one] for y in outputs), {name: x[one] for name, x in batch.items()})[0])
    except RuntimeError:  # a loss with parameters of its own is still where it was trained
        return 0.0
    return loss if math.isfinite(loss) else 0.0


def _few(samples: Sequence[_Asked], most: int) -> list[_Asked]:
    """Return at most so many, spread over all."""
    return [samples[n] for n in np.linspace(0, len(samples) - 1, min(most, len(samples))).round().astype(int)]


def texts(plan: Plan, model: nn.Module) -> list[tuple[str, str, str]]:
    """Return for some texts the first half, how it goes on, and what the model writes; [] for no language model.

    Args:
        model: on the CPU.
    """
    text, goal = plan.data.text, plan.objectives[0]
    if not isinstance(goal, Tokens) or not goal.shift or text is None or text.tokenizing is None:
        return []
    if find_spec("transformers") is None:
        return []
    from onnxgen.training.generation import causal_lm
    from onnxgen.training.generation.continuing import generated

    samples, decode = plan.data.test or plan.data.val or plan.train, text.tokenizing.tokenizer.decode
    assert plan.settings.tokenizer is not None
    batch, rows = samples.take(spread(samples, TEXTS), plan.settings.seed), []
    with evaluating(model):
        lm = causal_lm(model, plan.settings.tokenizer)
        for ids, labels in zip(batch[text.ids], batch[LABELS]):
            whole = ids[labels != IGNORED_CLASS].tolist()
            half = (len(whole) + 1) // 2
            if new := min(len(whole) - half, NEW):
                written = generated(lm, [whole[:half]], new)[0]
                rows.append((decode(whole[:half]), decode(whole[half : half + new]), decode(written)))
    return rows


def _step(samples: Samples | None, column: str) -> Any:
    return samples.steps.get(column) if isinstance(samples, Prepared) else None


def _classes(samples: Samples, plan: Plan) -> tuple[str, ...]:
    return next((names for c in plan.objectives[0].columns if (names := samples.fields[c].classes)), ())


def pixels(x: Tensor, step: ToInput) -> np.ndarray:
    """Return inputs [n, ...] of a model as uint8 [n, H, W, 1, 3 or 4]: what `step` made of images, undone."""
    frame = step.frame
    if frame.axes != "HWC":
        x = x.reshape(len(x), frame.channels, frame.height, frame.width).permute(0, 2, 3, 1)
    x = x.float()
    if step.scale is None:
        x = x / step.white
    else:
        mean, std = map(torch.tensor, step.scale)
        x = x * std + mean
    x = step.ordered(x.movedim(-1, 1)).movedim(1, -1)
    return np.asarray(x.clamp(0, 1).mul(255).round().to(torch.uint8))


def _tile(image: np.ndarray, shown: Shown) -> Any:
    """Return a PIL image of one sample: its panels, and two lines of text."""
    from PIL import Image, ImageDraw

    panels = _panels(image, shown)
    width, height = panels[0].size
    lines = [text for text in (shown.truth, shown.said) if text]
    tile = Image.new("RGB", (len(panels) * (width + 2), height + LINE * len(lines) + 2), "white")
    for number, panel in enumerate(panels):
        tile.paste(panel, (number * (width + 2), 0))
    verdict = PLAIN if shown.right is None else RIGHT if shown.right else WRONG
    for number, (text, colour) in enumerate(zip(lines, (PLAIN, verdict))):
        most = tile.width // 7
        short = visible(text if len(text) <= most else text[: most - 3] + "...")
        text = short.encode("latin-1", "replace").decode("latin-1")  # Pillow's own font has no other letters
        ImageDraw.Draw(tile).text((1, height + 2 + number * LINE), text, fill=colour)
    return tile


def _panels(image: np.ndarray, shown: Shown) -> list[Any]:
    """Return PIL images of one size: the picture with boxes and points, further ones, the target's map, the model's."""
    from PIL import Image, ImageDraw

    height, width = image.shape[:2]
    scale = SIDE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    filter = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    pictures = [_picture(pixels).resize(size, filter) for pixels in (image, *map(np.asarray, shown.pictures or ()))]
    for boxes, colour in zip(shown.boxes or (), (TRUTH, WRONG)):
        for x1, y1, x2, y2 in (boxes.clamp(0, 1) * torch.tensor([*size, *size])).tolist():
            _outlined(pictures[0], (x1, y1, x2, y2), colour)
    for points, colour in zip(shown.points or (), (TRUTH, WRONG)):
        for x, y in (points.clamp(0, 1) * torch.tensor(size)).tolist():
            ImageDraw.Draw(pictures[0]).ellipse((x - 3, y - 3, x + 3, y + 3), outline=colour, width=2)
    return pictures + [coloured(classes).resize(size, Image.Resampling.NEAREST) for classes in shown.maps or ()]


def _outlined(panel: Any, box: tuple[float, ...], colour: str) -> None:
    """Draw a box with a light and a dark edge beside its line, so that it is visible on any picture."""
    from PIL import ImageDraw

    x1, y1, x2, y2 = box
    for wider, width, line in ((2, 1, "black"), (1, 4, "white"), (0, 2, colour)):
        ImageDraw.Draw(panel).rectangle((x1 - wider, y1 - wider, x2 + wider, y2 + wider), outline=line, width=width)


def _picture(image: np.ndarray) -> Any:
    """Return a PIL image of bytes [H, W, 1, 3 or 4]."""
    from PIL import Image

    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image[..., :3]).convert("RGB")


def coloured(classes: Tensor) -> Any:
    """Return a PIL image of a map of classes [H, W]: a colour for each class, gray where nothing counts."""
    from PIL import Image

    steps = torch.arange(int(classes.max().clamp_min(0)) + 1).tolist()  # class 0, mostly the background, is dark
    palette = np.array([colorsys.hsv_to_rgb(0.618 * n % 1, 0.7, 0.2 if n == 0 else 0.95) for n in steps])
    indices = np.asarray(classes)
    picture = (palette[indices.clip(0)] * 255).astype(np.uint8)
    picture[indices == IGNORED_CLASS] = 128
    return Image.fromarray(picture)


def _grid(groups: Sequence[tuple[str, Sequence[Any]]]) -> bytes:
    """Return tiles in rows, as PNG; each group of them below its title."""
    from PIL import Image, ImageDraw

    tiles = [tile for _, some in groups for tile in some]
    width, height = max(tile.width for tile in tiles) + GAP, max(tile.height for tile in tiles) + GAP
    columns = min(COLUMNS, max(len(some) for _, some in groups))
    titled = [LINE + GAP if title else 0 for title, _ in groups]
    rows = [-(-len(some) // columns) for _, some in groups]
    whole = Image.new("RGB", (columns * width + GAP, sum(titled) + sum(rows) * height + GAP), "white")
    top = GAP
    for (title, some), above, count in zip(groups, titled, rows):
        ImageDraw.Draw(whole).text((GAP, top), title, fill=PLAIN)
        for number, tile in enumerate(some):
            whole.paste(tile, (GAP + number % columns * width, top + above + number // columns * height))
        top += above + count * height
    file = io.BytesIO()
    whole.save(file, format="PNG")
    return file.getvalue()
