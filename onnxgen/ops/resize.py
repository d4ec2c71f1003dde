"""Resize and Upsample: `F.interpolate` if it computes the same, else the helper `resize`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import OMIT, NiceFloat, shortest, unless
from onnxgen.errors import CHECK
from onnxgen.graph.operators import SETS_SIZE, op
from onnxgen.graph.traits import RESAMPLES
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.conv import same
from onnxgen.ops.rules import rules
from onnxgen.shapes.dims import Dim, evaluate, exact_div, scale_size, symbols
from onnxgen.shapes.info import Info

SPATIAL = {3: "linear", 4: "bilinear", 5: "trilinear"}
WHOLE_SIZE_PRODUCERS = ("pytorch", "tf2onnx")  # their frameworks align corners between whole sizes
LONGEST = 2048  # the sizes up to which a ratio that is no single number is tried
HALF = np.float32(0.5)
Coordinates: TypeAlias = Any  # an array of float32; numpy says no more of most results
COMPARED_SIZE = 1024  # the input size for which two roundings are compared if the size is dynamic


@dataclass
class Request:
    """What to resize, without the axes that do not change.

    Attributes:
        axes: counted from the front.
        sizes, scales: one per axis; None if not given.
        mode, coordinates, rounding: as in the schema; rounding "simple" is that of opset 10.
        whole: "align_corners" is between whole sizes.
    """

    axes: list[int]
    sizes: list[Dim] | None
    scales: list[float] | None
    mode: str
    coordinates: str
    rounding: str
    whole: bool = True


@op("Resize", since=11, traits=[RESAMPLES], still="roi scales sizes", **rules("resize"), flat={"scales": SETS_SIZE})
def resize(
    b: Builder,
    X: Arg,
    roi: Arg | None = None,
    scales: Arg | None = None,
    sizes: Arg | None = None,
    *,
    antialias: int = 0,
    axes: list[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> ast.expr:
    scales, sizes = _either(b, scales, sizes)
    cropped = coordinate_transformation_mode == "tf_crop_and_resize"
    is_nearest = mode == "nearest"
    special = {
        "cubic": _only(mode == "cubic", shortest(cubic_coeff_a), -0.75),
        "exclude_outside": _only(not is_nearest, bool(exclude_outside), False),
        "antialias": _only(not is_nearest, bool(antialias), False),
        "roi": _only(cropped, _floats(roi), None),
        "outside": _only(cropped, shortest(extrapolation_value), 0.0),
        "policy": _only(sizes is not None, keep_aspect_ratio_policy, "stretch"),
    }
    every = list(range(X.known_rank)) if axes is None else [a % X.known_rank for a in axes]
    request = Request(
        every, None if sizes is None else sizes.ints, _scales(scales), mode,
        coordinate_transformation_mode, nearest_mode,
    )  # fmt: skip
    request.whole = scales is None or _between_whole_sizes(b, X, request)
    if not cropped and special["policy"] is OMIT:
        _drop_unchanged(request, X)
    if not request.axes or (not cropped and _keeps_its_size(request, X)):
        return X.expr
    is_special = any(option is not OMIT for option in special.values())
    y = None if is_special else _at_nice_sizes(b, X, request)
    return _resize(b, X, request, scales, sizes, special) if y is None else y


def _either(b: Builder, scales: Arg | None, sizes: Arg | None) -> tuple[Arg | None, Arg | None]:
    """Return scales and sizes, of which one is None. Raises a problem if none or both are given."""
    scales, sizes = (None if arg is None or arg.shape == (0,) else arg for arg in (scales, sizes))
    if scales is not None and sizes is not None and not isinstance((scales.shape or (None,))[0], int):
        scales = None  # only one of the two may have elements
    if (scales is None) == (sizes is None):
        raise b.error("Resize needs either scales or sizes", CHECK)
    return scales, sizes


def _only(applies: bool, value: Any, default: Any) -> Any:
    """Return an option; OMIT where it does not apply."""
    return unless(value, default) if applies else OMIT


@op("Resize", "Upsample", since=7, traits=[RESAMPLES], **rules("resize"), flat={"scales": SETS_SIZE})
def resize_simply(b: Builder, X: Arg, scales: Arg, *, mode: str = "nearest") -> ast.expr:
    """Before opset 11, output point i is at i / scale, and the rounding is not defined."""
    known = _scales(scales)
    mode = {"bilinear": "linear"}.get(mode, mode)
    request = Request(list(range(X.known_rank)), None, known, mode, "asymmetric", "simple")
    _drop_unchanged(request, X)
    if not request.axes:
        return X.expr
    y = _interpolate(b, X, request)
    return y if y is not None else _resize(b, X, request, scales, None, {})


@op("Upsample", since=1, traits=[RESAMPLES])
def upsample_1(b: Builder, X: Arg, *, height_scale: float, width_scale: float, mode: str = "nearest") -> ast.expr:
    scales = Arg(b, Info(ir.DataType.FLOAT, (4,), np.array([1, 1, height_scale, width_scale], np.float32)))
    y: ast.expr = resize_simply(b, X, scales, mode=mode)
    return y


def _between_whole_sizes(b: Builder, X: Arg, r: Request) -> bool:
    """Return True if corners are aligned between whole sizes, rounded down if necessary.

    So do the standard's text, onnxruntime and the exporters' frameworks. The standard's tests and reference use the
    unrounded size that the scale gives (`output_width` of Resize-19).
    """
    if r.coordinates != "align_corners" or b.producer in WHOLE_SIZE_PRODUCERS:
        return True
    shape = X.shape
    if r.scales is not None and shape is not None and all(_is_whole(shape[a], s) for a, s in zip(r.axes, r.scales)):
        return True
    b.note("a Resize with align_corners to a fraction of a pixel follows ONNX's reference; onnxruntime rounds it down")
    return False


def _is_whole(dim: Dim, scale: float) -> bool:
    width = scale if not isinstance(dim, int) else float(np.float32(dim) * np.float32(scale))
    return width == int(width)


def _scales(arg: Arg | None) -> list[float] | None:
    constant = None if arg is None else arg.constant
    return None if constant is None else [float(np.float32(v)) for v in constant.reshape(-1)]


def _floats(arg: Arg | None) -> Any:
    known = _scales(arg)
    return arg if known is None else tuple(shortest(v) for v in known)


def _keeps_its_size(request: Request, X: Arg) -> bool:
    """Return True if the scales round to the size that X has: onnxruntime copies it, in every mode."""
    shape, scales = X.shape, request.scales
    if shape is None or scales is None:
        return False
    dims = [shape[axis] for axis in request.axes]
    return all(isinstance(d, int) and scale_size(d, s) == d for d, s in zip(dims, scales))


def _may_keep_its_size(r: Request, shape: tuple[Dim, ...]) -> bool:
    """Return True if some sizes of the run are kept by scales that move points: from 3 by 1.25, but not from 1."""
    dims = [(shape[axis], scale) for axis, scale in zip(r.axes, r.scales or [])]
    kept = all(1 < s < 2 and (not isinstance(d, int) or scale_size(d, s) == d) for d, s in dims)
    return kept and any(s < 1.5 and d != 1 for d, s in dims)


def _drop_unchanged(request: Request, X: Arg) -> None:
    shape = X.shape or ()
    if request.scales is not None:
        kept = [i for i, s in enumerate(request.scales) if s != 1]
        request.scales = [request.scales[i] for i in kept]
    elif request.sizes is not None:
        kept = [i for i, s in enumerate(request.sizes) if s != shape[request.axes[i]]]
        request.sizes = [request.sizes[i] for i in kept]
    else:
        return
    request.axes = [request.axes[i] for i in kept]


def _multiple(request: Request, X: Arg) -> Request | None:
    """Return the same request by scales, if all sizes are the same whole multiple of the input's, at least 2."""
    if request.sizes is None or X.shape is None:
        return None
    times = {exact_div(size, X.shape[axis]) for axis, size in zip(request.axes, request.sizes) if X.shape[axis] != 0}
    factor = times.pop() if len(times) == 1 else None
    if not isinstance(factor, int) or factor < 2 or len(request.axes) != X.known_rank - 2:
        return None
    return replace(request, sizes=None, scales=[float(factor)] * len(request.axes))


def _at_nice_sizes(b: Builder, X: Arg, r: Request) -> ast.expr | None:
    """Return `F.interpolate`, by scales if these are whole numbers, or the helper that rounds down, else None.

    The helper is for sizes of which one is known only at run time, where `F.interpolate` rounds otherwise.
    """
    for request in (_multiple(r, X), r):
        if request is not None and (y := _interpolate(b, X, request)) is not None:
            return y
    is_floor = (r.mode, r.coordinates, r.rounding) == ("nearest", "asymmetric", "floor")
    if not is_floor or r.sizes is None or all(isinstance(s, int) for s in r.sizes) or 0 in (b.out().shape or ()):
        return None
    by_axis = dict(zip(r.axes, r.sizes))
    sizes = tuple(by_axis.get(a, d) for a, d in enumerate(X.shape or ()))
    return b.call("resize_floor", X, size=sizes[min(r.axes) :])


def _resize(b: Builder, X: Arg, r: Request, scales: Arg | None, sizes: Arg | None, special: dict[str, Any]) -> ast.expr:
    size: Any = OMIT
    scale: Any = OMIT
    if scales is not None:
        scale = tuple(shortest(s) for s in r.scales) if r.scales is not None else b("x.tolist()", x=scales)
    elif sizes is not None:
        size = tuple(r.sizes) if r.sizes is not None else sizes.as_ints()
    return b.call(
        "resize", X, tuple(r.axes), sizes=size, scales=scale, mode=unless(r.mode, "nearest"),
        coordinates=unless(r.coordinates, "half_pixel"),
        rounding=OMIT if r.mode != "nearest" else unless(r.rounding, "round_prefer_floor"),
        whole=unless(r.whole and r.coordinates == "align_corners" and scales is not None, False),
        **special,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- F.interpolate


def _interpolate(b: Builder, X: Arg, r: Request) -> ast.expr | None:
    """Return `F.interpolate`, or None if it does not compute exactly this."""
    if X.known_rank not in SPATIAL or min(r.axes) < 2 or not X.is_float or not r.whole:
        return None
    if (r.scales is None and r.sizes is None) or 0 in (b.out().shape or ()):  # torch refuses sizes of 0
        return None
    shape = X.shape or ()
    if (target := _target(r, shape)) is None:
        return None
    options, ratios = target
    if (mode := _torch_mode(r, shape, ratios)) is None:
        return None
    aligned = r.mode != "nearest" and r.coordinates == "align_corners"
    return b.call("F.interpolate", X, **options, mode=unless(mode, "nearest"), align_corners=unless(aligned, False))


def _target(r: Request, shape: tuple[Dim, ...]) -> tuple[dict[str, Any], list[float | None]] | None:
    """Return torch's `scale_factor` or `size`, and the ratio of each axis, if known; None if torch rounds otherwise."""
    if r.scales is not None:
        scales = dict(zip(r.axes, r.scales))
        if not all(_same_size(shape[a], s) for a, s in scales.items()) or _may_keep_its_size(r, shape):
            return None
        factors = [scales.get(a, 1.0) for a in range(2, len(shape))]
        return {"scale_factor": same([int(f) if f == int(f) else NiceFloat(shortest(f)) for f in factors])}, [*r.scales]
    sizes = dict(zip(r.axes, r.sizes or []))
    ratios = [_ratio(shape[a], s) for a, s in sizes.items()]
    if None in ratios and r.mode == "nearest" and not all(_sizes_agree(shape[a], s) for a, s in sizes.items()):
        return None
    return {"size": same([sizes.get(a, shape[a]) for a in range(2, len(shape))])}, ratios


def _same_size(dim: Dim, scale: float) -> bool:
    """Return True if torch computes the same size in float64, from the shortest decimal, as ONNX in float32."""
    if isinstance(dim, int):
        return int(np.floor(dim * shortest(scale))) == scale_size(dim, scale)
    return scale * 1024 == int(scale * 1024)  # exact in both


def _ratio(before: Dim, after: Dim) -> float | None:
    """The scale between two sizes, if it is one number."""
    if isinstance(before, int) and isinstance(after, int):
        return float(np.float32(after / before)) if before else None
    times = exact_div(after, before)
    return float(times) if isinstance(times, int) else None


def _torch_mode(r: Request, shape: tuple[Dim, ...], ratios: list[float | None]) -> str | None:
    if r.mode == "nearest":
        return "nearest" if all(_nearest_agrees(r, shape[a], s) for a, s in zip(r.axes, ratios)) else None
    if r.coordinates not in ("half_pixel", "align_corners", "pytorch_half_pixel"):
        return None
    if r.coordinates == "pytorch_half_pixel":
        # unlike this mode, torch does not place the only point of an output of size 1 at 0 (any more)
        for axis, scale in zip(r.axes, ratios):
            dim = shape[axis]
            if not isinstance(dim, int) or scale is None or scale >= 1:
                continue
            after = round(dim * scale) if r.scales is None else scale_size(dim, scale)
            if isinstance(after, int) and after <= 1:
                return None
    if r.mode == "linear":
        return SPATIAL[len(shape)]
    return "bicubic" if len(shape) == 4 else None


def _nearest_agrees(r: Request, dim: Dim, scale: float | None) -> bool:
    """Return True if torch picks the same elements along an axis, which is tried for every output point.

    If the ratio of the sizes is known only at run time, see `_sizes_agree`.
    """
    if scale is None:
        return r.coordinates == "asymmetric" and r.rounding == "floor"
    before = dim if isinstance(dim, int) else COMPARED_SIZE
    after = scale_size(before, scale) if r.scales is not None else round(before * scale)
    if not isinstance(after, int) or after > 1 << 20:
        return False
    i = np.arange(after, dtype=np.float32)
    ratio = np.float32(1 / shortest(scale)) if r.scales is not None else np.float32(before) / np.float32(after or 1)
    torch = np.minimum(np.floor(i * ratio), before - 1)
    onnx = _positions(i, np.float32(scale), before, after, r.coordinates)
    if onnx is None:
        return False
    simple = "ceil" if scale < 1 else "floor"
    rounded = _rounded(onnx, simple if r.rounding == "simple" else r.rounding)
    return bool(np.array_equal(torch, np.clip(rounded, 0, before - 1)))


def _rounded(points: Coordinates, rounding: str) -> Coordinates:
    """Round input coordinates (Resize-19, nearest_mode); what is nearly between two counts as between them."""
    if "round" in rounding:
        between = np.floor(points) + HALF
        points = np.where(np.abs(points - between) <= 1e-6, between, points)
    match rounding:
        case "round_prefer_floor":
            return np.ceil(points - HALF)
        case "round_prefer_ceil":
            return np.floor(points + HALF)
        case "floor":
            return np.floor(points)
    return np.ceil(points)


@lru_cache(maxsize=256)
def _sizes_agree(before: Dim, after: Dim) -> bool:
    """Return True if torch's floor(i * (1 / scale)) is floor(i / scale) between two sizes.

    It is if one size is the other's double or half, also rounded up. Whether it is for sizes that depend on one symbol
    is tried; between unrelated sizes it is not, for four pairs in a hundred.
    """
    names = [*symbols(before), *(name for name in symbols(after) if name not in symbols(before))]
    if len(names) > 1:
        return False
    values = (dict.fromkeys(names, n) for n in range(1, LONGEST + 1 if names else 2))
    try:
        pairs = {(evaluate(before, v), evaluate(after, v)) for v in values}
    except ArithmeticError:  # some sizes are refused
        return False
    return all(_picks_the_same(np.float32(a), np.float32(b)) for a, b in pairs if a > 0 and 0 < b <= 4 * LONGEST)


def _picks_the_same(before: np.float32, after: np.float32) -> bool:
    i = np.arange(after, dtype=np.float32)
    return bool(np.array_equal(np.floor(i * (before / after)), np.floor(i / (after / before))))


def _positions(i: NDArray[np.float32], scale: np.float32, before: int, after: int, mode: str) -> Coordinates | None:
    """Return the input coordinates of output points in float32 (Resize-19, coordinate_transformation_mode)."""
    if mode == "asymmetric":
        return i / scale
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and after > 1):
        return (i + HALF) / scale - HALF
    if mode == "tf_half_pixel_for_nn":
        return (i + HALF) / scale
    return i * np.float32(before - 1) / np.float32(max(after - 1, 1)) if mode == "align_corners" else None
