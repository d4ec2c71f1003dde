"""The images that `onnxgen predict -o FOLDER` writes: boxes in pictures, images, masks, probabilities."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.cli.boxes import COLOURS, drawn
from onnxgen.cli.files import refuse_overwriting
from onnxgen.common.atomic import replacing
from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError
from onnxgen.training.data.layout import SUFFIXES
from onnxgen.training.runs.record import Record

if TYPE_CHECKING:
    from PIL import Image

    from onnxgen.training.runs.answers import Answer, Prediction

    Maker = Callable[[], Image.Image]


def write_images(folder: Path, predictions: Sequence[Prediction], record: Record, top: int, force: bool) -> None:
    """Write PNG files under the names of the samples' files. Probabilities have one for each class, `NAME_CLASS.png`.

    Raises:
        OnnxgenError: the predictions are no images, several samples are called alike, or a file is there.
    """
    images = list(_images(predictions, record, top))
    if not images:
        raise OnnxgenError(f"the run makes no images for the folder {folder}", help="-o FILE.csv or FILE.npz")
    names = [Path(source).name.replace(":", "-") for source, _, _ in images]
    stems = [Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name for name in names]
    stems = [stem + end for stem, (_, end, _) in zip(stems, images)]
    if several := sorted({stem for stem in stems if stems.count(stem) > 1}):
        what = f"several files are called {legible(several[0])}, so their images would have one name in {folder}"
        raise OnnxgenError(what, help="predict for one folder at a time")
    targets = [folder / f"{stem}.png" for stem in stems]
    refuse_overwriting(targets, read_for(predictions), force)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing([folder]) as files:
        for target, (_, _, image) in zip(targets, images):
            with files.file(target) as file:
                image().save(file, format="PNG")


def read_for(predictions: Sequence[Prediction]) -> set[Path]:
    """Return the files that predictions are for; the source of a row is FILE:ROW."""
    return {Path(text) for one in predictions for text in (one.source, one.source.rpartition(":")[0]) if text}


def _images(predictions: Sequence[Prediction], record: Record, top: int) -> Iterator[tuple[str, str, Maker]]:
    """Yield the source of each image, the end of its name, and what makes it."""
    if predictions[0].answer.boxes is not None:
        labels = sorted({box.label for one in predictions for box in one.answer.boxes or ()})
        yield from ((one.source, "", partial(drawn, one, labels, top)) for one in predictions)
        return
    classes = {target.name: target.all_names for target in record.targets}
    for one in predictions:
        for name, answer in one.answers.items():
            yield from ((one.source, end, maker) for end, maker in _of_answer(answer, classes.get(name, ())))


def _of_answer(answer: Answer, names: Sequence[str]) -> Iterator[tuple[str, Maker]]:
    """Yield the images of one answer: itself; a mask of class indices; or a gray image for each of several classes."""
    from PIL import Image

    value = answer.value
    if answer.is_image:
        yield "", partial(Image.fromarray, value)
    elif answer.label is None and value.ndim == 2 and value.dtype.kind == "i":
        yield "", partial(_mask, value)
    elif answer.label is None and value.ndim == 3 and (answer.soft or value.dtype.kind == "i"):
        named = names if len(names) == len(value) else tuple(map(str, range(len(value))))
        for name, layer in zip(named, value):
            end = "" if len(value) == 1 else "_" + re.sub(r"[^\w.-]", "-", name)
            yield end, partial(Image.fromarray, (layer * 255).round().astype("uint8"))


def _mask(value: Any) -> Image.Image:
    """Return an image whose values are class indices: indexed, with a colour for each class but the first."""
    from PIL import Image, ImageColor

    if value.max() > 255:
        return Image.fromarray(value.astype("uint16"))
    image = Image.fromarray(value.astype("uint8"))
    palette = [channel for n in range(255) for channel in ImageColor.getrgb(COLOURS[n % len(COLOURS)])]
    image.putpalette([0, 0, 0, *palette])
    return image
