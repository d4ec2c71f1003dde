"""What `onnxgen predict` prints and writes of boxes: a row for each box, and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from onnxgen.training.runs.answers import Answer, Box, Prediction

COLUMNS = ("source", "label", "score", "x1", "y1", "x2", "y2")
COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")


def found_boxes(one: Prediction, top: int = 0) -> tuple[Box, ...] | None:
    """Return the boxes of a prediction, the surest ones only if `top` is more than 1; None if it is of another kind."""
    boxes = one.answer.boxes
    return boxes[:top] if boxes is not None and top > 1 else boxes


def rows(found: Sequence[Prediction], top: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each box. An image without any has none."""
    for one in found:
        for box in found_boxes(one, top) or ():
            yield dict(zip(COLUMNS, (one.source, box.label, box.score, *box.corners)))


def cells(found: Sequence[Prediction], top: int) -> list[list[str]]:
    """Return the rows of a printed table: file, class, score, and corners in pixels."""
    made = []
    for one in found:
        boxes = found_boxes(one, top) or ()
        made += [[one.source, b.label, f"{b.score:.1%}", *(f"{number:.1f}" for number in b.corners)] for b in boxes]
        made += [] if boxes else [[one.source, "nothing", *[""] * 5]]
    return made


def plain(answer: Answer, top: int) -> list[dict[str, Any]]:
    """Return boxes for JSON."""
    boxes = answer.boxes or ()
    return [{"label": b.label, "score": b.score, "box": list(b.corners)} for b in (boxes[:top] if top > 1 else boxes)]


def draw(found: Sequence[Prediction], folder: Path, top: int) -> None:
    """Write each picture with its boxes into a folder, under its own name, as PNG.

    Raises:
        OnnxgenError: the predictions are of no image files, two files have one name, or a file can't be written.
    """
    from PIL import Image, ImageDraw, ImageOps

    names = [f"{Path(one.source).stem}.png" for one in found]
    if len({*names}) < len(names):
        raise OnnxgenError(f"two of the images have one name, so they can't be written to {folder}", help="-o FILE.csv")
    labels = sorted({box.label for one in found for box in one.answer.boxes or ()})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for one, name in zip(found, names):
            with Image.open(one.source) as image:
                picture = ImageOps.exif_transpose(image).convert("RGB")
            pen = ImageDraw.Draw(picture)
            for box in reversed(found_boxes(one, top) or ()):
                colour = COLOURS[labels.index(box.label) % len(COLOURS)]
                pen.rectangle(box.corners, outline=colour, width=max(1, min(picture.size) // 200))
                pen.text(box.corners[:2], f"{box.label} {box.score:.2f}", fill=colour)
            picture.save(folder / name)
    except OSError as error:
        raise OnnxgenError(f"can't draw boxes into {folder}: {error}") from None
