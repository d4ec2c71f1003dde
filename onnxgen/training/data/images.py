"""Converts images to the channels, size, axes and scale of a model's input, and augments them.

For a network that takes several sizes, the size is one at which it was seen to run (`advised`).
`Augment` mirrors, rotates, shifts, crops and erases images, and adds noise. Its random numbers for
an image depend only on the seed and its index. A whole batch is computed at once. All moves of
pixels are one affine map, so each image is interpolated once; pixels from outside the image repeat
its edge.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import undisturbed
from onnxgen.training.config import parse_size
from onnxgen.training.data.arrays import spread
from onnxgen.training.data.image_options import MOVING, Scale
from onnxgen.training.data.letterbox import STRETCHED, Fit, Placing
from onnxgen.training.data.samples import Samples, normal, uniform
from onnxgen.training.model import fixed_batch
from onnxgen.training.tasks import possible

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
        stored = _asked_size(port, axes, stored, size)
    if axes == "flat":
        return _flat(port, dims[0], stored)
    sizes = {axis: dim for axis, dim in zip(axes, dims, strict=False) if isinstance(dim, int)}
    if axes == "HW":
        sizes["C"] = 1
    known: Mapping[str, int] = dict(zip("CHW", stored or ()))
    chosen = False
    if len(sizes) < 3 and (not known or size == "auto"):
        known, chosen = (chooser or Chooser()).decided(axes, sizes, known, files)
        if not known:
            what = f"input {port.name!r} takes images of any size {shown(port)}, and it runs at none of those tried"
            raise OnnxgenError(what, help=f"name one at which it runs: {_SIZE}")
    sizes = {**known, **sizes}
    if sizes["C"] not in CHANNELS:
        what = f"input {port.name!r} is {shown(port)}: {sizes['C']} channels are not a gray, RGB or RGBA image"
        raise OnnxgenError(what, help=_GIVE_ARRAYS)
    return Frame(sizes["C"], sizes["H"], sizes["W"], axes, chosen)


def _asked_size(port: Port, axes: str, stored: tuple[int, int, int] | None, size: str) -> tuple[int, int, int]:
    """Return channels, height and width for a size that is asked for."""
    height, width = parse_size(size)
    dims = list(port.dims or ())[1:]
    flat = dims[0] if axes == "flat" else ""
    fixed = {axis: dim for axis, dim in zip(axes, dims) if isinstance(dim, int)}
    if (fixed.get("H", height), fixed.get("W", width)) != (height, width):
        raise OnnxgenError(f"size {size}: input {port.name!r} is {shown(port)}", help="leave --size out")
    channels = max(flat // (height * width), 1) if isinstance(flat, int) else stored[0] if stored else 3
    return channels, height, width


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
    frame, notes = steps[0].frame, []
    if others := sorted({size[1:] for size in sizes} - {(frame.height, frame.width)}):
        spans = [f"{min(sides)} to {max(sides)}" for sides in zip(*others)]
        few = " and ".join(f"{height}x{width}" for height, width in others)
        shown = few if len(others) < 3 else "{} high and {} wide".format(*spans)
        notes.append(f"images of {shown} are {_told(steps[0])}" + (f"; {way}" if frame.chosen else ""))
    return notes + _colours(kinds or Counter("gray" if size[0] == 1 else "RGB" for size in sizes), frame.channels)


def _colours(kinds: Mapping[str, int], channels: int) -> list[str]:
    """Return notes of how the colours of files become those of an input. `kinds`: see `DataSource.kinds`."""
    notes = []
    if channels == 1 and any(count for kind, count in kinds.items() if kind != "gray"):
        notes.append("colours become gray")
    if channels > 1 and kinds.get("gray"):
        notes.append(f"gray images get {channels} equal channels")
    if channels < 4 and (count := kinds.get("alpha", 0)):
        notes.append(f"{counted(count, 'image')} with an alpha channel: it is dropped, and the colours below it count")
    if count := kinds.get("CMYK", 0):
        notes.append(f"{counted(count, 'image')} of CMYK: the colours become RGB, without a colour profile")
    return notes


MAX_DEGREES, MAX_SHIFT, MAX_CROP, MAX_LIGHT, NOISE, MAX_ERASED = 10.0, 0.1, 0.3, 0.2, 0.02, 1 / 3
_NUMBERS_PER_IMAGE = 16


@dataclass(frozen=True)
class Augment:
    """Augments images, float32 [n, C, H, W]."""

    names: tuple[str, ...]

    @property
    def moves(self) -> bool:
        """True if pixels are moved, so that what lies on the image must move, too."""
        return bool(MOVING & {*self.names})

    def maps(self, indices: Sequence[int], seed: int, aspect: float) -> NDArray[np.float64]:
        """Return affine maps [n, 2, 3] from a place in the result to a place in the image, both from -1 to 1.

        Args:
            aspect: width of the image by its height.
        """
        return self._maps(uniform(seed, indices, _NUMBERS_PER_IMAGE), aspect)

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int, white: float) -> Tensor:
        drawn = uniform(seed, indices, _NUMBERS_PER_IMAGE)
        if self.moves:
            x = _moved(x, self._maps(drawn, x.shape[3] / x.shape[2]))
        if "light" in self.names:
            gain = _column(1 + MAX_LIGHT * _signed(drawn[:, 7]))
            lift = _column(white * MAX_LIGHT * _signed(drawn[:, 8]))
            x = ((x - white / 2) * gain + white / 2 + lift).clamp_(0, white)
        if "noise" in self.names:
            noise = normal(seed, indices, x[0].numel(), stream=1).reshape(tuple(x.shape)) * (NOISE * white)
            x = (x + torch.from_numpy(noise.astype(np.float32))).clamp_(0, white)
        return torch.where(self._erased(drawn, x), white / 2, x) if "erase" in self.names else x

    def _maps(self, drawn: NDArray[np.float64], aspect: float) -> NDArray[np.float64]:
        names, count = self.names, len(drawn)
        maps = np.zeros((count, 2, 3))
        angle = np.deg2rad(MAX_DEGREES * _signed(drawn[:, 0])) * ("rotate" in names)
        side = 1 - MAX_CROP * drawn[:, 1] * ("crop" in names)
        across = np.where((drawn[:, 2] < 0.5) & ("flip" in names), -1, 1)
        down = np.where((drawn[:, 3] < 0.5) & ("vflip" in names), -1, 1)
        maps[:, 0, 0], maps[:, 0, 1] = across * side * np.cos(angle), -down * side * np.sin(angle) / aspect
        maps[:, 1, 0], maps[:, 1, 1] = across * side * np.sin(angle) * aspect, down * side * np.cos(angle)
        for axis in range(2):
            shift = 2 * MAX_SHIFT * _signed(drawn[:, 4 + axis]) * ("shift" in names)
            maps[:, axis, 2] = shift + (1 - side) * _signed(drawn[:, 9 + axis])
        return maps

    def _erased(self, drawn: NDArray[np.float64], x: Tensor) -> Tensor:
        """Return a mask [n, 1, H, W] of the erased rectangles."""
        inside = []
        for axis, size in enumerate(x.shape[2:]):
            length = np.ceil(MAX_ERASED * drawn[:, 11 + axis] * size)
            start = np.floor((size - length + 1) * drawn[:, 13 + axis])
            places = np.arange(size)
            inside.append((places >= start[:, None]) & (places < (start + length)[:, None]))
        chosen = inside[0][:, :, None] & inside[1][:, None, :] & (drawn[:, 15] < 0.5)[:, None, None]
        return torch.from_numpy(chosen).unsqueeze(1)


def _signed(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2 * drawn - 1


def _column(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).view(-1, 1, 1, 1)


def grid(maps: NDArray[np.float64], height: int, width: int) -> list[Tensor]:
    """Return the places [n, H, W] across and down, from -1 to 1, that affine maps take the pixels' middles to."""
    ys = (torch.arange(height, dtype=torch.float32) * 2 + 1) / height - 1
    xs = (torch.arange(width, dtype=torch.float32) * 2 + 1) / width - 1
    m = torch.from_numpy(maps.astype(np.float32))[:, :, :, None, None]
    # Not F.affine_grid: it multiplies matrices, and the last digits may depend on the size of the batch.
    return [xs[None, None, :] * m[:, k, 0] + ys[None, :, None] * m[:, k, 1] + m[:, k, 2] for k in range(2)]


def _moved(x: Tensor, maps: NDArray[np.float64]) -> Tensor:
    places = torch.stack(grid(maps, *x.shape[2:]), -1)
    return F.grid_sample(x.contiguous(), places, mode="bilinear", padding_mode="border", align_corners=False)


Size: TypeAlias = tuple[int, int]  # height and width
Sizes: TypeAlias = Collection[tuple[int, ...]]  # channels, height and width of the data's images
Runs: TypeAlias = Callable[[tuple[int, ...]], bool]  # whether a network runs on an image of a shape

USUAL = 224  # height and width for images of unknown or large sizes
LARGEST = 320  # sides that are large: they cost much more time than they tell
STEP = 32  # most networks take its multiples
SIDES = (32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640)  # heights that networks have
HEIGHTS = (48, 32)  # of PaddleOCR since v3, and of CRNN and PaddleOCR before
TIMES = 4  # how many times wider than high a line of text is, say
SECONDS = 10.0  # for trying them


def usual(sizes: Sizes) -> Size:
    """Return about the size of the data's images; that of many networks if it is large or not known."""
    if not sizes:
        return USUAL, USUAL
    height, width = (_up(median(size[axis] for size in sizes)) for axis in (1, 2))
    return (height, width) if max(height, width) <= LARGEST else (USUAL, USUAL)


@dataclass(frozen=True)
class Chooser:
    """What is known of a network that decides the size of its images, where both it and the data leave it open.

    Attributes:
        runs: tells if it runs on an image; None: nothing is tried.
        lines: its images are lines of text.
        classifies: it tells classes of whole images apart, and most such networks are trained on images of one size.
        told: returns the size that its file tells.
    """

    runs: Runs | None = None
    lines: bool = False
    classifies: bool = False
    told: Callable[[], Size | None] = lambda: None

    def must(self, axes: str, fixed: Mapping[str, int], stored: Mapping[str, int], sizes: Sizes) -> bool:
        """Return True if the size of the data's images can't be taken: they differ, or the network fails on them.

        Files with lines of text get the height of their readers in any case.

        Args:
            axes: of the input's images, such as "CHW".
            fixed: the sizes that the input fixes, by axis.
            stored: those of all the data's images; {} if they differ.
            sizes: those of the data's files; empty if they were not looked at.
        """
        if not stored or (self.lines and sizes and {*"HW"} - {*fixed}):
            return True
        sides = {**stored, **fixed}
        return self.runs is not None and not self.runs(tuple(sides[axis] for axis in axes))

    def decided(
        self, axes: str, fixed: Mapping[str, int], stored: Mapping[str, int], sizes: Sizes
    ) -> tuple[Mapping[str, int], bool]:
        """Return the size to take, {} if none is known; and whether height or width was chosen. See `must`."""
        choice = self.choose(axes, fixed, sizes) if self.must(axes, fixed, stored, sizes) else {}
        return choice or stored, bool(choice) and not {*"HW"} <= {*fixed}  # if it fails at that, it is told later

    def choose(self, axes: str, fixed: Mapping[str, int], sizes: Sizes) -> Mapping[str, int]:
        """Return channels, height and width at which the network runs; {} if it does at none of those tried."""
        told = self.told()
        if self.lines and self.runs is not None:
            if choice := advised_for_lines(axes, fixed, sizes, self.runs, told):
                return choice
        height, width = told or usual(() if self.classifies else sizes)
        if "H" in fixed:
            width = max((size[2] for size in sizes), default=TIMES * fixed["H"])
        elif "W" in fixed:
            height = max((size[1] for size in sizes), default=fixed["W"])
        channels = max((size[0] for size in sizes), default=3)
        return advised(axes, {"C": channels, "H": height, "W": width, **fixed}, fixed, self.runs)


def runner(model: nn.Module, ports: Signature) -> Runs | None:
    """Return a function that runs a network of one input on an image; None if it has several."""
    if len(ports.inputs) != 1:
        return None
    dtype = getattr(torch, ports.inputs[0].dtype or "float32")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def runs(shape: tuple[int, ...]) -> bool:
        with undisturbed(model), suppress(Exception):  # a network's code may raise anything
            model(torch.zeros((fixed_batch(model) or 1, *shape), dtype=dtype, device=device))
            return True
        return False

    return runs


def advised(axes: str, sides: Mapping[str, int], fixed: Collection[str], runs: Runs | None) -> Mapping[str, int]:
    """Return channels, height and width at which a network runs, as near to `sides` as there are some.

    Args:
        axes: of the input's images, such as "CHW".
        sides: by axis.
        fixed: the axes of those that the input fixes.
        runs: None: nothing is tried.

    Returns:
        `sides` as they are if nothing was tried; {} if the network ran at no size.
    """
    if runs is None:
        return sides
    tried, begun = set[tuple[int, ...]](), time.monotonic()
    for height, width in _near(sides["H"], sides["W"]):
        candidate = {**sides, **{axis: size for axis, size in (("H", height), ("W", width)) if axis not in fixed}}
        shape = tuple(candidate[axis] for axis in axes)
        if shape not in tried and runs(shape):
            return candidate
        tried.add(shape)
        if time.monotonic() - begun > SECONDS:
            break
    return {}


def classifies(ports: Signature, asked: bool = False) -> bool:
    """Return True if a network tells classes of whole images apart, as far as is known.

    `asked`: it is trained to do so, which decides if its graph left that open.
    """
    purpose = ports.purpose
    known = () if purpose is None else (purpose.kind, *(purpose.candidates if asked else ()))
    return "classification" in known


def reads_lines(ports: Signature) -> bool:
    """Return True if a network may read lines of text: its scores are a sequence's."""
    return any(card.resize == "line" for card in possible(ports.purpose))


def advised_for_lines(
    axes: str, fixed: Mapping[str, int], sizes: Sizes, runs: Runs, told: Size | None = None
) -> Mapping[str, int]:
    """Return channels, height and width for lines of text; {} if the network ran at no height.

    The heights are those of published readers of lines, the more common one first. The width is that of the longest
    line in proportion.

    Args:
        fixed: sizes that the input fixes, by axis.
        sizes: those of the data's images.
        told: height and least width, if the file or its author's program tells them.
    """
    first, least = told or (HEIGHTS[0], 1)
    longest = max((width / height for _, height, width in sizes), default=TIMES)
    channels = max((size[0] for size in sizes), default=3)
    for height in [fixed["H"]] if "H" in fixed else (first, *HEIGHTS, *SIDES):
        candidate = {"C": channels, "H": height, "W": _up(max(height * longest, least)), **fixed}
        if runs(tuple(candidate[axis] for axis in axes)):
            return candidate
    return {}


def _near(height: int, width: int) -> Iterator[Size]:
    """Yield sizes: these, multiples of a step, then others in the same proportions."""
    yield height, width
    yield _up(height), _up(width)
    yield from ((side, _up(side * width / height)) for side in SIDES)


def _up(size: float) -> int:
    return max(-(-int(size) // STEP), 1) * STEP
