"""Operators on images: decoding, sampling grids, blocks and depth, tiling, columns, regions of interest, boxes."""

from __future__ import annotations

import ast
from typing import Any

from onnxgen.code.quote import OMIT, call, shortest, unless
from onnxgen.errors import CHECK
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT, TEXT, op
from onnxgen.graph.traits import CONVOLUTION, MOVES, NORMALISES, PRODUCT, SAMPLES, SELECTS, SHUFFLES
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.cast import moved
from onnxgen.ops.conv import same
from onnxgen.ops.rules import rules
from onnxgen.shapes.info import MAX_RANK

# GridSample has other names before opset 20.
SAMPLING_MODES = {"linear": "bilinear", "cubic": "bicubic"} | {m: m for m in ("bilinear", "bicubic", "nearest")}


@op("GridSample", **rules("grid_sample"))
def grid_sample(
    b: Builder, X: Arg, grid: Arg, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> ast.expr:
    """`F.grid_sample`, in which "bilinear" is also the linear mode of three dimensions."""
    rank = X.known_rank
    _needs_floats(b, X)
    if rank not in (4, 5) or (rank == 5 and SAMPLING_MODES.get(mode) == "bicubic"):
        raise b.error(f"mode {mode!r} over {rank - 2} spatial axes has no PyTorch function", "use 2 axes, or linear")
    if mode not in SAMPLING_MODES:
        raise b.error(f"attribute 'mode' must be linear, nearest or cubic, not {mode!r}", CHECK)
    return b.call(
        "F.grid_sample", X, grid, mode=unless(SAMPLING_MODES[mode], "bilinear"),
        padding_mode=unless(padding_mode, "zeros"), align_corners=bool(align_corners),
    )  # fmt: skip


def _needs_floats(b: Builder, x: Arg) -> None:
    if x.dtype is not None and not x.is_float:
        raise b.error(f"torch has this operator for floats only, not for {x.dtype.name.lower()}", "cast the input")


@op("AffineGrid")
def affine_grid(b: Builder, theta: Arg, size: Arg, *, align_corners: int = 0) -> ast.expr:
    return b("F.affine_grid(t, size, align_corners=a)", t=theta, size=size.as_ints(), a=bool(align_corners))


@op("DepthToSpace", traits=[SHUFFLES, SAMPLES], **rules("depth_to_space"))
def depth_to_space(b: Builder, input: Arg, *, blocksize: int, mode: str = "DCR") -> ast.expr:
    """`F.pixel_shuffle` is the mode CRD. DCR has the position in the block before the channel instead of after it."""

    def move(x: Arg | ast.expr) -> ast.expr:
        if mode == "DCR":
            x = b("x.unflatten(1, (n, -1)).transpose(1, 2).flatten(1, 2)", x=x, n=blocksize**2)
        return b("F.pixel_shuffle(x, n)", x=x, n=blocksize)

    return moved(b, input, input.dtype, move)


@op("SpaceToDepth", traits=[SHUFFLES, SAMPLES], **rules("space_to_depth"))
def space_to_depth(b: Builder, input: Arg, *, blocksize: int, mode: str = "DCR") -> ast.expr:
    """The inverse of DepthToSpace."""
    back = ".unflatten(1, (-1, n)).transpose(1, 2).flatten(1, 2)" if mode == "DCR" else ""
    form = f"F.pixel_unshuffle(x, size){back}"
    return moved(b, input, input.dtype, lambda x: b(form, x=x, size=blocksize, n=blocksize**2))


@op("Tile", since=6, traits=[MOVES], **rules("tile"))
def tile(b: Builder, input: Arg, repeats: Arg) -> ast.expr:
    known = repeats.ints
    if known is None:
        return b("x.repeat(r)", x=input, r=repeats.as_ints())
    if not known or all(r == 1 for r in known):
        return input.expr
    return call(b("x.repeat", x=input), *known)


@op("Tile", since=1)
def tile_1(b: Builder, input: Arg, tiles: Arg, axis: Arg) -> ast.expr:
    """Repeated along one axis. `tiles` and `axis` are single numbers of the input's dtype."""
    if axis.scalar is None:
        raise b.error("the axis is computed at run time", "fold it into a constant, e.g. with onnx-simplifier")
    position = int(axis.scalar) % input.known_rank
    counts: list[Any] = [1] * input.known_rank
    counts[position] = b("int(x.item())", x=tiles) if tiles.scalar is None else int(tiles.scalar)
    return call(b("x.repeat", x=input), *counts)


@op("LRN", traits=[NORMALISES, SAMPLES])
def lrn(b: Builder, X: Arg, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0) -> ast.expr:
    """For an even window, torch has the longer side before the channel, ONNX after it."""
    alpha, beta, bias = shortest(alpha), shortest(beta), shortest(bias)
    if size % 2 and X.rank is not None and X.rank > 2:
        return b.call(
            "F.local_response_norm", X, size, alpha=unless(alpha, 0.0001), beta=unless(beta, 0.75), k=unless(bias, 1.0)
        )
    return b.call("local_response_norm", X, size, alpha, beta, bias)


@op("Col2Im")
def col2im(
    b: Builder,
    input: Arg,
    image_shape: Arg,
    block_shape: Arg,
    *,
    dilations: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    """`F.fold` for two axes with equal padding on both sides."""
    _needs_floats(b, input)
    n = next((a.shape[0] for a in (image_shape, block_shape) if a.shape and isinstance(a.shape[0], int)), None)
    if n is None or n > MAX_RANK:
        raise b.error(
            "the number of spatial axes is unknown or too large", "make image_shape or block_shape a constant"
        )
    stride, dilation, pad = strides or [1] * n, dilations or [1] * n, pads or [0] * 2 * n
    if n == 2 and pad[:2] == pad[2:]:
        return b.call(
            "F.fold", input, image_shape.as_ints(), block_shape.as_ints(), dilation=unless(same(dilation), 1),
            padding=unless(same(pad[:2]), 0), stride=unless(same(stride), 1),
        )  # fmt: skip
    return b.call(
        "columns_to_image", input, image_shape.as_ints(), block_shape.as_ints(), tuple(dilation), tuple(pad),
        tuple(stride),
    )  # fmt: skip


@op("DeformConv", traits=[PRODUCT, CONVOLUTION], matrix="W", bias="B", weights="W B")
def deform_conv(
    b: Builder,
    X: Arg,
    W: Arg,
    offset: Arg,
    B: Arg | None = None,
    mask: Arg | None = None,
    *,
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    offset_group: int = 1,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    if X.known_rank != 4:
        raise b.error(f"a deformable convolution over {X.known_rank - 2} axes is not handled", "use two axes")
    return b.call(
        "deform_conv2d", X, W, offset, bias=unless(B, None), mask=unless(mask, None),
        stride=unless(tuple(strides or (1, 1)), (1, 1)), pads=unless(tuple(pads or (0,) * 4), (0,) * 4),
        dilation=unless(tuple(dilations or (1, 1)), (1, 1)), groups=unless(group, 1),
        offset_groups=unless(offset_group, 1),
    )  # fmt: skip


@op("RoiAlign", traits=[SELECTS], **rules("roi_align"))
def roi_align(
    b: Builder,
    X: Arg,
    rois: Arg,
    batch_indices: Arg,
    *,
    coordinate_transformation_mode: str = "output_half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> ast.expr:
    """Before opset 16 there is no shift by half a pixel."""
    return b.call(
        "roi_align", X, rois, batch_indices, (output_height, output_width), sampling_ratio=unless(sampling_ratio, 0),
        scale=unless(shortest(spatial_scale), 1.0),
        half_pixel=unless(coordinate_transformation_mode == "half_pixel", True), mode=unless(mode, "avg"),
    )  # fmt: skip


@op("MaxRoiPool", traits=[SELECTS], flat={"rois": PIECEWISE_CONSTANT})
def max_roi_pool(b: Builder, X: Arg, rois: Arg, *, pooled_shape: list[int], spatial_scale: float = 1.0) -> ast.expr:
    return b.call("max_roi_pool", X, rois, tuple(pooled_shape), scale=unless(shortest(spatial_scale), 1.0))


@op("ImageDecoder", flat=TEXT)
def image_decoder(b: Builder, encoded_stream: Arg, *, pixel_format: str = "RGB") -> ast.expr:
    """Decoded with Pillow, whose JPEG decoder is libjpeg-turbo, the one that the standard names."""
    if pixel_format not in ("RGB", "BGR", "Grayscale"):
        raise b.error(f"attribute 'pixel_format' must be RGB, BGR or Grayscale, not {pixel_format!r}", CHECK)
    b.note("the network decodes images: the module needs Pillow (pip install pillow)")
    return b.call("decode_image", encoded_stream, unless(pixel_format, "RGB"))


@op("NonMaxSuppression", traits=[SELECTS], flat=INTEGERS)
def non_max_suppression(
    b: Builder,
    boxes: Arg,
    scores: Arg,
    max_output_boxes_per_class: Arg | None = None,
    iou_threshold: Arg | None = None,
    score_threshold: Arg | None = None,
    *,
    center_point_box: int = 0,
) -> ast.expr:
    """Keep the boxes that overlap no better one of their class; none without a maximum number of boxes."""
    return b.call(
        "select_boxes",
        boxes,
        scores,
        most=OMIT if max_output_boxes_per_class is None else max_output_boxes_per_class.as_int(),
        iou_threshold=OMIT if iou_threshold is None or iou_threshold.scalar == 0 else iou_threshold.as_int(),
        score_threshold=OMIT if score_threshold is None else score_threshold.as_int(),
        centered=unless(bool(center_point_box), False),
    )
