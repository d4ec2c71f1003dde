"""How the settings ask for images: where they lie in the frame, and the order of their colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.letterbox import GRAY, Placing
from onnxgen.training.data.source import DataSource
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

BGR = "bgr"


def placing_of(settings: Settings, lines: bool = False) -> Placing:
    """Return how images get their size. `lines`: they are lines of text.

    Raises:
        OnnxgenError: what the settings ask for does not go together, or with the task.
    """
    card = card_of(settings.task)
    usual = "line" if lines else card.resize
    made = Placing(
        usual if settings.resize == "auto" else settings.resize, GRAY if settings.beside is None else settings.beside
    )
    if not made.moves and settings.beside is not None:
        what = f"--beside {settings.beside}: images are stretched, and nothing is beside them"
        raise OnnxgenError(what, help="--resize letterbox, corner or line; or leave --beside out")
    if made.moves and card.stays:
        raise OnnxgenError(f"--resize {made.how} would not move {card.stays}", help="--resize stretch")
    return made


def refuse_unmoved(source: DataSource, columns: Iterable[str], images: Iterable[ToInput], settings: Settings) -> None:
    """Refuse targets that have a place on the images, and would stay where they are while the images move."""
    how = next((step.placing.how for step in images if step.placing.moves), "")
    fields = next(iter(source.parts.values())).fields
    target = card_of(settings.task).target
    for column in columns if how and target != "moved" else ():
        if target == "image" or column in source.placed or len(fields[column].shape) >= 2:
            what = f"--resize {how} would not move {legible(column)!r}, which lies on the images"
            raise OnnxgenError(what, help="--resize stretch")


def refuse_order(settings: Settings, images: Mapping[str, ToInput]) -> None:
    """Refuse an order of colours that no image gets."""
    if settings.channel_order == BGR and not any(step.reversed for step in images.values()):
        what = "its images are gray" if images else "the data has no images whose colours onnxgen knows"
        raise OnnxgenError(f"--channel-order {BGR}: {what}", help="leave it out")


def order_told(steps: Sequence[ToInput], sizes: frozenset[tuple[int, ...]] | None = None) -> list[str]:
    """Return a note of the order in which colours are fed; none if all are gray.

    Args:
        sizes: channels, height and width of the files to train with, empty if they were not looked at; None if the
            order is that of a training, and there is nothing to choose.
    """
    coloured = [step for step in steps if step.frame.channels > 1]
    if not coloured or {size[0] for size in sizes or ()} == {1}:
        return []
    if coloured[0].reversed:
        return ["colours are fed in the order BGR, as OpenCV reads them"]
    way = "; a network that was trained on OpenCV's takes --channel-order bgr" if sizes is not None else ""
    return [f"colours are fed in the order RGB{way or ', as in the training'}"]
