"""Resize and Upsample: `F.interpolate` if it computes the same, else the helper `resize`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

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
    scales, sizes = _given(scales), _given(sizes)
    if scales is not None and sizes is not None and not isinstance((scales.shape or (None,))[0], int):
        scales = None  # only one of the two may have elements
    if (scales is None) == (sizes is None):
        raise b.error("Resize needs either scales or sizes", CHECK)
    cropped = coordinate_transformation_mode == "tf_crop_and_resize"
    is_nearest = mode == "nearest"
    policy = OMIT if sizes is None else unless(keep_aspect_ratio_policy, "stretch")
    special = {
        "cubic": OMIT if mode != "cubic" else unless(shortest(cubic_coeff_a), -0.75),
        "exclude_outside": OMIT if is_nearest else unless(bool(exclude_outside), False),
        "antialias": OMIT if is_nearest else unless(bool(antialias), False),
        "roi": _floats(roi) if cropped and roi is not None else OMIT,
        "outside": unless(shortest(extrapolation_value), 0.0) if cropped else OMIT,
        "policy": policy,
    }
    every = list(range(X.known_rank)) if axes is None else [a % X.known_rank for a in axes]
    request = Request(
        every, None if sizes is None else sizes.ints, None if scales is None else _scales(scales), mode,
        coordinate_transformation_mode, nearest_mode,
    )  # fmt: skip
    request.whole = scales is None or _between_whole_sizes(b, X, request)
    if not cropped and policy is OMIT:
        _drop_unchanged(request, X)
    if not request.axes or (not cropped and _keeps_its_size(request, X)):
        return X.expr
    if all(v is OMIT for v in special.values()):
        multiple = _multiple(request, X)
        y = None if multiple is None else _interpolate(b, X, multiple)
        y = _interpolate(b, X, request) if y is None else y
        y = _resize_floor(b, X, request) if y is None else y
        if y is not None:
            return y
    return _resize(b, X, request, scales, sizes, special)


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


def _given(arg: Arg | None) -> Arg | None:
    """Return an optional input, or None if it is empty."""
    return None if arg is None or arg.shape == (0,) else arg


def _scales(arg: Arg) -> list[float] | None:
    constant = arg.constant
    return None if constant is None else [float(np.float32(v)) for v in constant.reshape(-1)]


def _floats(arg: Arg) -> Any:
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


def _resize_floor(b: Builder, X: Arg, r: Request) -> ast.expr | None:
    """Return the helper for sizes of which one is known only at run time, where `F.interpolate` rounds otherwise."""
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
    rank = X.known_rank
    if rank not in SPATIAL or min(r.axes) < 2 or not X.is_float or not r.whole:
        return None
    if r.scales is None and r.sizes is None:
        return None
    shape = X.shape or ()
    if 0 in (b.out().shape or ()):  # torch refuses sizes of 0
        return None
    options: dict[str, Any]
    if r.scales is not None:
        by_axis = dict(zip(r.axes, r.scales))
        factors = [by_axis.get(a, 1.0) for a in range(2, rank)]
        if not all(_same_size(shape[a], s) for a, s in by_axis.items()) or _may_keep_its_size(r, shape):
            return None
        options = {"scale_factor": same([_factor(f) for f in factors])}
        ratios: list[float | None] = list(r.scales)
    else:
        new = dict(zip(r.axes, r.sizes or []))
        sizes = [new.get(a, shape[a]) for a in range(2, rank)]
        options = {"size": same(sizes)}
        ratios = [_ratio(shape[a], s) for a, s in new.items()]
        if None in ratios and r.mode == "nearest" and not all(_sizes_agree(shape[a], s) for a, s in new.items()):
            return None
    mode = _torch_mode(r, shape, ratios)
    if mode is None:
        return None
    aligned = r.mode != "nearest" and r.coordinates == "align_corners"
    return b.call("F.interpolate", X, **options, mode=unless(mode, "nearest"), align_corners=unless(aligned, False))


def _factor(scale: float) -> float | int:
    return int(scale) if scale == int(scale) else NiceFloat(shortest(scale))


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
    rounding = r.rounding
    if scale is None:
        return r.coordinates == "asymmetric" and rounding == "floor"
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
    if rounding == "simple":
        rounding = "ceil" if scale < 1 else "floor"
    half = np.float32(0.5)
    if "round" in rounding:
        between = np.floor(onnx) + half
        onnx = np.where(np.abs(onnx - between) <= 1e-6, between, onnx)
    if rounding == "round_prefer_floor":
        rounded = np.ceil(onnx - half)
    elif rounding == "round_prefer_ceil":
        rounded = np.floor(onnx + half)
    else:
        rounded = np.floor(onnx) if rounding == "floor" else np.ceil(onnx)
    return bool(np.array_equal(torch, np.clip(rounded, 0, before - 1)))


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


def _positions(
    i: NDArray[np.float32], scale: np.float32, before: int, after: int, mode: str
) -> NDArray[np.floating[Any]] | None:
    """Return the input coordinates of output points in float32 (Resize-19, coordinate_transformation_mode)."""
    half = np.float32(0.5)
    positions: NDArray[np.floating[Any]] | None = None
    if mode == "asymmetric":
        positions = i / scale
    elif mode == "half_pixel" or (mode == "pytorch_half_pixel" and after > 1):
        positions = (i + half) / scale - half
    elif mode == "tf_half_pixel_for_nn":
        positions = (i + half) / scale
    elif mode == "align_corners":
        positions = i * np.float32(before - 1) / np.float32(max(after - 1, 1))
    return positions
