"""Converts images to the channels, size, axes and scale of a model's input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.signature import Port
from onnxgen.training.config import parse_size
from onnxgen.training.data.advised import Chooser
from onnxgen.training.data.arrays import spread
from onnxgen.training.data.augment import Augment
from onnxgen.training.data.draw import normal
from onnxgen.training.data.letterbox import STRETCHED, Fit, Placing
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.scales import Scale

CHANNELS = (1, 3, 4)  # gray, RGB, RGBA
MAX_MEASURED = 10_000  # images from which mean and deviation are computed
_MEASURED_AT_ONCE = 500
MEASURED = "is normalised by the mean and deviation of the"  # in a note of what was measured
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as PIL converts to gray
_NOISE = 2  # the stream of random numbers of `ToInput.noise`; augmentation has 0 and 1
_SIZE = "--size HEIGHTxWIDTH"
_GIVE_ARRAYS = "give floating-point arrays of exactly that shape (.npz)"


@dataclass(frozen=True)
class Frame:
    """The image that a model takes.

    Attributes:
        axes: "CHW", "HWC", "HW" or "flat" (the elements of CHW in one axis).
        chosen: the size is neither the model's, the data's nor asked for.
    """

    channels: int
    height: int
    width: int
    axes: str
    chosen: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = {"C": self.channels, "H": self.height, "W": self.width}
        return (math.prod(sizes.values()),) if self.axes == "flat" else tuple(sizes[a] for a in self.axes)


def axes_of(shape: Sequence[int], port: Port | None = None) -> str | None:
    """Return the axes of a stored image: "HW", "CHW" or "HWC"; None if it is not an image.

    If a shape could be "CHW" or "HWC", the input decides.
    """
    if len(shape) == 2:
        return "HW"
    if len(shape) != 3:
        return None
    first, last = shape[0] in CHANNELS, shape[2] in CHANNELS
    if first and last:
        wanted = "CHW" if port is None else wanted_axes(port)
        if wanted in ("CHW", "HWC") and port is not None and port.dims is not None:
            channels = port.dims[wanted.index("C") + 1]
            if (shape[0] == channels) != (shape[2] == channels):  # [4, W, 3] is not RGBA if the input is RGB
                return "CHW" if shape[0] == channels else "HWC"
        return "HWC" if wanted == "HWC" else "CHW"
    return "CHW" if first else "HWC" if last else None


def wanted_axes(port: Port) -> str:
    """Return the axes of the images that a port has: "CHW", "HWC", "HW", "flat", or "" if it has none."""
    if port.dims is None:
        return "CHW"
    if len(port.dims) == 4:
        return "HWC" if port.dims[3] in CHANNELS and port.dims[1] not in CHANNELS else "CHW"
    return {3: "HW", 2: "flat"}.get(len(port.dims), "")


def frame(
    port: Port,
    stored: tuple[int, int, int] | None,
    size: str = "auto",
    files: frozenset[tuple[int, ...]] = frozenset(),
    chooser: Chooser | None = None,
) -> Frame:
    """Return the image that an input takes.

    Args:
        port: the input.
        stored: channels, height and width of the data's images; None if they differ.
        size: of an input that takes any size, "224x224"; "auto" takes that of the data.
        files: channels, height and width of the data's images; empty if they were not looked at.
        chooser: decides a size that is open, if the images differ or the model fails on them.

    Raises:
        OnnxgenError: the input takes no images, or it takes any size and runs at none that was tried.
    """
    axes = wanted_axes(port)
    dims = list(port.dims or ())[1:]
    if not axes:
        raise OnnxgenError(f"input {port.name!r} is {shown(port)}, which is not an image")
    if size != "auto":
        height, width = parse_size(size)
        flat = dims[0] if axes == "flat" else ""
        channels = max(flat // (height * width), 1) if isinstance(flat, int) else stored[0] if stored else 3
        stored = channels, height, width
        fixed = {axis: dim for axis, dim in zip(axes, dims) if isinstance(dim, int)}
        if (fixed.get("H", height), fixed.get("W", width)) != (height, width):
            raise OnnxgenError(f"size {size}: input {port.name!r} is {shown(port)}", help="leave --size out")
    if axes == "flat":
        return _flat(port, dims[0], stored)
    named = dict(zip(axes, dims, strict=False))
    sizes = {axis: dim for axis, dim in named.items() if isinstance(dim, int)}
    if axes == "HW":
        sizes["C"] = 1
    given: Mapping[str, int] | None = dict(zip("CHW", stored)) if stored is not None else None
    chooser, chosen = chooser or Chooser(), False
    if len(sizes) < 3 and (given is None or size == "auto") and chooser.must(axes, sizes, given, files):
        found = chooser.choose(axes, sizes, files)
        chosen = bool(found) and bool({*"HW"} - {*sizes})
        given = found or given  # what the model says of that is told later
        if not given:
            what = f"input {port.name!r} takes images of any size {shown(port)}, and it runs at none of those tried"
            raise OnnxgenError(what, help=f"name one at which it runs: {_SIZE}")
    sizes = {**(given or {}), **sizes}
    if sizes["C"] not in CHANNELS:
        what = f"input {port.name!r} is {shown(port)}: {sizes['C']} channels are not a gray, RGB or RGBA image"
        raise OnnxgenError(what, help=_GIVE_ARRAYS)
    return Frame(sizes["C"], sizes["H"], sizes["W"], axes, chosen)


def _flat(port: Port, size: int | str, stored: tuple[int, int, int] | None) -> Frame:
    """Return the frame for an input with flattened images: of the data's own size if that fits, else square."""
    if stored is not None and (not isinstance(size, int) or math.prod(stored) == size):
        return Frame(*stored, "flat")
    for channels in CHANNELS if isinstance(size, int) else ():
        side = math.isqrt(int(size) // channels)
        if channels * side * side == size:
            return Frame(channels, side, side, "flat")
    what = f"input {port.name!r} is {shown(port)}, which is not a square gray, RGB or RGBA image"
    raise OnnxgenError(what, help=_GIVE_ARRAYS)


def shown(port: Port) -> str:
    """Return an input's dims for a message: `[batch, 1, 28, 28]`."""
    return "of unknown shape" if port.dims is None else f"[{', '.join(map(str, port.dims))}]"


@dataclass(frozen=True)
class ToInput:
    """Converts stored images [n, ...] to the model's input [n, *shape].

    Attributes:
        axes: axes of a stored image: "HW", "CHW" or "HWC".
        white: the stored value of white.
        frame: the image that the model takes.
        scale: None leaves values as they are stored.
        augment: augmentation, before images are normalised.
        noise: the deviation of normal noise that is added, as a share of white.
        frozen: True to draw the same noise in each epoch (for a validation).
        dtype: of the result.
        placing: how images get the frame's size.
        reversed: colours are fed as BGR, as OpenCV reads them; stored are RGB. `scale` is of what is fed.
        width_step: a line that is longer than the frame may have a width that is a multiple of it; 0: it may not.
    """

    axes: str
    white: float
    frame: Frame
    scale: Scale | None = None
    augment: Augment | None = None
    dtype: torch.dtype = torch.float32
    noise: float = 0.0
    frozen: bool = False
    placing: Placing = STRETCHED
    reversed: bool = False
    width_step: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.frame.shape

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int) -> Tensor:
        x = self.pixels(x)
        if self.augment is not None:
            x = self.augment(x, indices, seed, self.white)
        if self.noise:
            drawn = normal(0 if self.frozen else seed, indices, x[0].numel(), _NOISE).reshape(tuple(x.shape))
            x = x + torch.from_numpy((drawn * self.noise * self.white).astype(np.float32))
        x = self.ordered(x)
        if self.scale is not None:
            mean, std = (torch.tensor(v, dtype=torch.float32).view(1, -1, 1, 1) for v in self.scale)
            x = x.div(self.white).sub_(mean).div_(std)
        if not self.dtype.is_floating_point:
            x = x.round().clamp_(0, self.white)
        x = x.permute(0, 2, 3, 1) if self.frame.axes == "HWC" else x
        return x.reshape(len(x), *self.shape).to(self.dtype)

    def pixels(self, x: Tensor) -> Tensor:
        """Return float32 images [n, C, H, W] in the frame's channels and size, with the stored values."""
        x = x.to(torch.float32)
        x = x.unsqueeze(1) if self.axes == "HW" else x.permute(0, 3, 1, 2) if self.axes == "HWC" else x
        x = _channels(x, self.frame.channels, self.white)
        fit = self.fit((x.shape[2], x.shape[3]))
        if x.shape[2:] != fit.inner:
            x = F.interpolate(x.contiguous(), fit.inner, mode="bilinear", align_corners=False, antialias=True)
        if fit.moves:
            whole = x.new_full((*x.shape[:2], *fit.frame), self.white * self.placing.byte / 255)
            whole[:, :, fit.top : fit.top + fit.inner[0], fit.left : fit.left + fit.inner[1]] = x
            x = whole
        return x

    def ordered(self, x: Tensor) -> Tensor:
        """Return images [n, C, H, W] with their colours in the order that the model takes, or back in that of RGB."""
        return torch.cat([x[:, :3].flip(1), x[:, 3:]], 1) if self.reversed else x

    def width_of(self, size: tuple[int, int]) -> int:
        """Return the width that an image of this height and width is fed in, if it is not fed with others."""
        return self.widened(self.placing.width_of(size, self.frame.height)) if self.width_step else self.frame.width

    def widened(self, needed: int) -> int:
        """Return the least width of the frame, or multiple of `width_step`, that is as wide as needed."""
        return max(self.frame.width, -(-needed // self.width_step) * self.width_step)

    def fit(self, size: tuple[int, int]) -> Fit:
        """Return where an image of this height and width lies in the frame."""
        return self.placing.fit(size, (self.frame.height, self.frame.width))


def _channels(x: Tensor, count: int, white: float) -> Tensor:
    """Return images [n, C, H, W] with `count` channels. Gray is repeated or computed, alpha is opaque or dropped."""
    if x.shape[1] == count:
        return x
    if count == 1:
        weights = torch.tensor(_LUMA).view(1, 3, 1, 1)
        return (x[:, :3] * weights).sum(1, keepdim=True)
    rgb = x[:, :3] if x.shape[1] > 1 else x.expand(-1, 3, -1, -1)
    return rgb if count == 3 else torch.cat([rgb, torch.full_like(rgb[:, :1], white)], 1)


def measured(samples: Samples, column: str, step: ToInput) -> Scale:
    """Return mean and standard deviation, to four digits, of at most `MAX_MEASURED` images."""
    indices = spread(samples, MAX_MEASURED)
    total = squares = np.zeros(step.frame.channels)
    for start in range(0, len(indices), _MEASURED_AT_ONCE):
        x = step.pixels(samples.take(indices[start : start + _MEASURED_AT_ONCE], 0)[column])
        x = step.ordered(x) / step.white
        wide = x.transpose(0, 1).flatten(1).numpy().astype(np.float64)
        total, squares = total + wide.sum(1), squares + np.square(wide).sum(1)
    count = len(indices) * step.frame.height * step.frame.width
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    # Images of one value have a deviation of 0, which can't be divided by.
    return tuple(round(float(m), 4) for m in mean), tuple(round(float(s), 4) or 1.0 for s in std)


def _told(step: ToInput) -> str:
    return f"{_TOLD[step.placing.how]} to {step.frame.height}x{step.frame.width}"


_TOLD = {
    "stretch": "stretched",
    "letterbox": "letterboxed",
    "corner": "put in the top left corner of gray, and shrunk or enlarged,",
    "line": "put at the left, and shrunk or enlarged,",
}


def converted(sizes: frozenset[tuple[int, ...]], kinds: Mapping[str, int], steps: Sequence[ToInput]) -> list[str]:
    """Return notes of how files become an input's images.

    Args:
        sizes: channels, height and width of the files; empty if they were not looked at.
        kinds: see `DataSource.kinds`.
    """
    way = f"the model takes any size: {_SIZE} names another one, and --resize another way"
    if not (sizes or kinds) or len(steps) != 1:
        return [f"images are {_told(step)}; {way}" for step in steps if step.frame.chosen]
    frame, said = steps[0].frame, []
    if others := sorted({size[1:] for size in sizes} - {(frame.height, frame.width)}):
        spans = [f"{min(sides)} to {max(sides)}" for sides in zip(*others)]
        few = " and ".join(f"{height}x{width}" for height, width in others)
        told = few if len(others) < 3 else "{} high and {} wide".format(*spans)
        said.append(f"images of {told} are {_told(steps[0])}" + (f"; {way}" if frame.chosen else ""))
    kinds = kinds or Counter("gray" if size[0] == 1 else "RGB" for size in sizes)
    coloured = any(count for kind, count in kinds.items() if kind != "gray")
    said += ["colours become gray"] if frame.channels == 1 and coloured else []
    said += [f"gray images get {frame.channels} equal channels"] if frame.channels > 1 and kinds.get("gray") else []
    if frame.channels < 4 and (count := kinds.get("alpha", 0)):
        said.append(f"{counted(count, 'image')} with an alpha channel: it is dropped, and the colours below it count")
    if count := kinds.get("CMYK", 0):
        said.append(f"{counted(count, 'image')} of CMYK: the colours become RGB, without a colour profile")
    return said
