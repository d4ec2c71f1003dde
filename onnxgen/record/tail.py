"""The record of a detector's head: plain numbers and names, which JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

KINDS = {
    "distances": "distances from the point to the four sides, in strides",
    "offsets": "an offset from the corner of the cell and the logarithm of the size, in strides (YOLOX, YuNet)",
    "yolov3": "a sigmoid for the place in the cell, and the logarithm of the size by that of the anchor",
    "yolov5": "twice a sigmoid for the place, and its square for the size by that of the anchor (YOLOv5, YOLOv7)",
    "priors": "an offset from the anchor's centre in sizes of the anchor, and the logarithm of the size (SSD)",
}


@dataclass(frozen=True)
class Channels:
    """Channels of a raw map: those of anchor a begin at a * step + first.

    Attributes:
        map: index of the map in `Tail.maps`.
        first: the first channel of the first anchor.
        count: channels of an anchor.
        step: channels from one anchor to the next.
    """

    map: int
    first: int
    count: int
    step: int


@dataclass(frozen=True)
class Level:
    """The maps of one size.

    Attributes:
        height, width: of the maps.
        stride: pixels between two points of the map.
        anchors: width and height of each anchor in pixels; a head without anchors has one of (stride, stride).
        boxes, classes: their channels.
        objectness: the channel that says if there is an object, or None.
    """

    height: int
    width: int
    stride: float
    anchors: tuple[tuple[float, float], ...]
    boxes: Channels
    classes: Channels
    objectness: Channels | None = None


@dataclass(frozen=True)
class Tail:
    """What a detector's raw maps mean.

    Attributes:
        kind: how boxes are decoded (`KINDS`).
        maps: names of the raw maps, float [batch, channels, height, width]: the outputs of the cut graph.
        levels: in the order in which the graph joins them.
        height, width: of the image in pixels.
        bins: classes of a distance, whose expectation it is (2006.04388); 1 if it is the number itself.
        classes: number of classes, without a background.
        background: True if a softmax decides among the classes and a background, which comes first; False if each
            class has a sigmoid.
        distance: how a distance is made of its number: "identity", "relu" or "exp".
        variances: factors of offsets and of the logarithms of sizes, of the kind "priors".
        decoded: name of the value of the graph that holds decoded boxes; "" if the graph does not decode them.
        layout: how that value has boxes: "corners", "centres", or "corner" (with width and height).
        shares: True if that value has shares of the image's size, False for pixels.
        assumed: what the file does not say and a published head does; "" if the file says everything.
        others: names of raw maps that are none of these, such as landmarks.
    """

    kind: str
    maps: tuple[str, ...]
    levels: tuple[Level, ...]
    height: int
    width: int
    classes: int
    bins: int = 1
    background: bool = False
    distance: str = "identity"
    variances: tuple[float, float] = (1.0, 1.0)
    decoded: str = ""
    layout: str = "corners"
    shares: bool = False
    assumed: str = ""
    others: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Return the number of points of an image of the recorded size."""
        return sum(level.height * level.width * len(level.anchors) for level in self.levels)

    def of_classes(self, classes: int) -> Tail:
        """Return the tail of a head that has another number of classes, and is the same otherwise."""
        levels, more = [], classes - self.classes
        for level in self.levels:
            step, count = level.classes.step + more, level.classes.count + more
            channels = {"classes": replace(level.classes, count=count, step=step)}
            for name in ("boxes", "objectness"):
                part: Channels | None = getattr(level, name)
                if part is not None and part.map == level.classes.map:
                    first = part.first + (more if part.first > level.classes.first else 0)
                    channels[name] = replace(part, step=step, first=first)
            levels.append(replace(level, **channels))  # type: ignore[arg-type]
        return replace(self, levels=tuple(levels), classes=classes)

    def of_size(self, old: int, new: int) -> int:
        """Return the classes of a head whose maps of classes have `new` channels where they have `old`; 0 for none."""
        for level in self.levels:
            more, rest = divmod(new, len(level.anchors))
            if old == level.classes.step * len(level.anchors) and not rest:
                return max(0, self.classes + more - level.classes.step)
        return 0

    def record(self) -> dict[str, Any]:
        """Return what `json.dumps` takes and `tail_of` reads."""
        return asdict(self)


def tail_of(record: Mapping[str, Any]) -> Tail:
    """Return the tail of a record. Raises KeyError or TypeError for a record that `Tail.record` did not make."""
    fields = dict(record)
    fields["levels"] = tuple(_level(level) for level in fields["levels"])
    for name in ("maps", "variances", "others"):
        fields[name] = tuple(fields.get(name, Tail.__dataclass_fields__[name].default))
    return Tail(**fields)


def _level(record: Mapping[str, Any]) -> Level:
    fields = dict(record)
    fields["anchors"] = tuple((float(width), float(height)) for width, height in fields["anchors"])
    for name in ("boxes", "classes", "objectness"):
        channels = fields.get(name)
        fields[name] = None if channels is None else Channels(**channels)
    return Level(**fields)
