"""What is wrong with a column of boxes, before the first step."""

from __future__ import annotations

from torch import Tensor

from onnxgen.errors import OnnxgenError

COLUMN = "boxes"  # the column of the targets


def refuse_wrong(boxes: Tensor, classes: int, column: str = COLUMN) -> None:
    """Refuse targets that can't be learned.

    Args:
        boxes: [images, most, 5], rows of (class, x1, y1, x2, y2); see the package.
        classes: the number of classes of the head.

    Raises:
        OnnxgenError: the shape is another, a class is unknown, or a corner is not a share of the image's size.
    """
    if boxes.ndim != 3 or boxes.shape[2] != 5 or not boxes.is_floating_point():
        what = f"column {column!r} is {boxes.dtype} {list(boxes.shape)}, not float32 [images, most, 5]"
        raise OnnxgenError(what, help="a row is (class, x1, y1, x2, y2); rows of -1 fill up an image")
    labels, corners = boxes[..., 0], boxes[..., 1:]
    is_box = ~(boxes == -1).all(-1)
    wrong = {
        f"is of a class that is none of 0 to {classes - 1}": (labels < 0) | (labels >= classes) | (labels % 1 != 0),
        "has a corner that is no share from 0 to 1": ~((corners >= 0) & (corners <= 1)).all(-1),
        "ends before it begins": (corners[..., 2:] <= corners[..., :2]).any(-1),
    }
    for told, found in wrong.items():
        places = (found & is_box).nonzero()
        if len(places):
            image, row = places[0].tolist()
            shown = ", ".join(f"{number:g}" for number in boxes[image, row].tolist())
            more = f" ({len(places)} such boxes)" if len(places) > 1 else ""
            more_classes = labels[(labels >= classes) & (labels % 1 == 0)]
            way = (
                f"--replace-head {int(more_classes.max()) + 1} makes a head of more classes"
                if len(more_classes)
                else ""
            )
            raise OnnxgenError(f"column {column!r}: box ({shown}) of image {image} {told}{more}", help=way)
