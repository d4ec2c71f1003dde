"""What `onnxgen predict` prints and writes of boxes: a row for each box, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onnxgen.errors import OnnxgenError, counted

if TYPE_CHECKING:
    from PIL import Image

    from onnxgen.training.runs.answers import Answer, Box, Prediction

COLUMNS = ("source", "label", "score", "x1", "y1", "x2", "y2")
COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")


def found_boxes(one: Prediction, top: int = 0) -> tuple[Box, ...] | None:
    """Return the boxes of a prediction, the surest ones only if `top` is more than 1; None if it is of another kind."""
    boxes = one.answer.boxes
    return boxes[:top] if boxes is not None and top > 1 else boxes


def rows(predictions: Sequence[Prediction], top: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each box. An image without any has none."""
    for one in predictions:
        for box in found_boxes(one, top) or ():
            yield dict(zip(COLUMNS, (one.source, box.label, box.score, *box.corners)))


def cells(predictions: Sequence[Prediction], top: int) -> list[list[str]]:
    """Return the rows of a printed table: file, class, score, and corners in pixels."""
    lines = []
    for one in predictions:
        boxes = found_boxes(one, top) or ()
        lines += [[one.source, b.label, f"{b.score:.1%}", *(f"{number:.1f}" for number in b.corners)] for b in boxes]
        lines += [] if boxes else [[one.source, "nothing", *[""] * 5]]
    return lines


def summary(predictions: Sequence[Prediction], top: int, least: float) -> str:
    """Return how many objects there are; if there are none, also the best score, which is below `least`."""
    count = sum(len(found_boxes(one, top) or ()) for one in predictions)
    text = f"{counted(count, 'object')} in {counted(len(predictions), 'image')}"
    best = max((one.answer.best for one in predictions if one.answer.best is not None), default=None)
    return text if count or best is None else f"{text} (best score {best:.1%}, below --min-score {least:g})"


def plain(answer: Answer, top: int) -> list[dict[str, Any]]:
    """Return boxes for JSON."""
    boxes = answer.boxes or ()
    return [{"label": b.label, "score": b.score, "box": list(b.corners)} for b in (boxes[:top] if top > 1 else boxes)]


def drawn(one: Prediction, labels: Sequence[str], top: int) -> Image.Image:
    """Return the picture of a prediction with its boxes; the place of a label in `labels` decides its colour.

    Raises:
        OnnxgenError: the prediction is of no image file.
    """
    from PIL import Image, ImageDraw, ImageOps

    try:
        with Image.open(one.source) as image:
            picture = ImageOps.exif_transpose(image).convert("RGB")
    except OSError as error:
        raise OnnxgenError(f"can't draw boxes into {one.source}: {error}", help="-o FILE.csv") from None
    pen = ImageDraw.Draw(picture)
    for box in reversed(found_boxes(one, top) or ()):
        colour = COLOURS[labels.index(box.label) % len(COLOURS)]
        width, text = max(2, min(picture.size) // 200), f"{box.label} {box.score:.2f}"
        edges = (box.corners[0] - 1, box.corners[1] - 1, box.corners[2] + 1, box.corners[3] + 1)
        pen.rectangle(edges, outline="white", width=width + 2)  # so that it is visible on its own colour, too
        pen.rectangle(box.corners, outline=colour, width=width)
        pen.rectangle(pen.textbbox(box.corners[:2], text), fill="white")
        pen.text(box.corners[:2], text, fill=colour)
    return picture
