"""Operators that have no standard form, and so are no bodies.

Those on token ids and their scores, which are steps of decoders and hashes, stand last.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, DeviceOf, literal, unless
from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT, op
from onnxgen.graph.traits import PRODUCT
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.microsoft import infer
from onnxgen.microsoft.domain import MICROSOFT
from onnxgen.ops.pool import spatial_rank, window
from onnxgen.shapes import infer_math, ranges
from onnxgen.shapes.infer_math import same
from onnxgen.weights.dequantised import BNB_TABLES


@op("Inverse", domain=MICROSOFT, infer=same)
def inverse(b: Builder, X: Arg) -> ast.expr:
    if X.dtype == ir.DataType.FLOAT16:
        return b("torch.linalg.inv(x.float()).half()", x=X)
    return b("torch.linalg.inv(x)", x=X)


@op("CDist", domain=MICROSOFT, infer=infer.cdist)
def cdist(b: Builder, A: Arg, B: Arg, *, metric: str = "sqeuclidean") -> ast.expr:
    """Distances of rows to rows, or their squares."""
    if metric not in ("euclidean", "sqeuclidean"):
        raise b.error(f"attribute 'metric' must be euclidean or sqeuclidean, not {metric!r}", WRITER)
    if metric == "sqeuclidean":
        return b("(x.unsqueeze(1) - y).square().sum(-1)", x=A, y=B)
    return b("torch.cdist(x, y, compute_mode=m)", x=A, y=B, m="donot_use_mm_for_euclid_dist")


@op("Rfft", domain=MICROSOFT, infer=infer.rfft)
def rfft(b: Builder, X: Arg, *, onesided: int = 1, normalized: int = 0, signal_ndim: int = 1) -> ast.expr:
    """Over the last axes, as pairs of real and imaginary parts. A normalized transform is refused."""
    function = "rfftn" if onesided else "fftn"
    return b("torch.view_as_real(y)", y=b.call(f"torch.fft.{function}", X, dim=_fft_axes(b, normalized, signal_ndim)))


def _fft_axes(b: Builder, normalized: int, signal_ndim: int) -> tuple[int, ...]:
    if normalized:
        raise b.error("attribute 'normalized' must be 0: onnxruntime has no normalized transform", WRITER)
    return tuple(range(-signal_ndim, 0))


@op("Irfft", domain=MICROSOFT, infer=infer.irfft)
def irfft(b: Builder, X: Arg, *, onesided: int = 1, normalized: int = 0, signal_ndim: int) -> ast.expr:
    """The inverse of Rfft; one-sided transforms give an even number of elements."""
    axes = _fft_axes(b, normalized, signal_ndim)
    x = b("torch.view_as_complex(x)", x=X)
    if onesided:
        return b.call("torch.fft.irfftn", x, dim=axes)
    return b("y.real", y=b.call("torch.fft.ifftn", x, dim=axes))


# ---- weights of a few bits -------------------------------------------------------------------------------------------


@op(
    "MatMulNBits",
    traits=[PRODUCT],
    domain=MICROSOFT,
    still="B scales zero_points g_idx",
    infer=infer.blocked_product,
)
def matmul_nbits(
    b: Builder, A: Arg, B: Arg, scales: Arg, zero_points: Arg | None = None, g_idx: Arg | None = None,
    bias: Arg | None = None, *, K: int, N: int, block_size: int, bits: int = 4, accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> ast.expr:  # fmt: skip
    """A linear layer whose weights are quantised in blocks of each row; computed in the input's type."""
    if weight_prepacked:
        raise b.error("the weights are prepacked for one kind of device", FOR_CPU)
    if block_size < 1 or not 1 <= bits <= 8:
        raise b.error(f"block_size {block_size} must be positive, and bits {bits} from 1 to 8", WRITER)
    blocks = -(-K // block_size)
    packed = B.expr if B.rank == 3 else b("x.reshape(n, m, -1)", x=B, n=N, m=blocks)
    weight = b.call("dequantize_blocks", packed, scales, zero_points, K, bits, unless(g_idx, None))
    return b.call("F.linear", A, weight, unless(bias, None))


@op("MatMulBnb4", traits=[PRODUCT], domain=MICROSOFT, still="B absmax", infer=infer.blocked_product)
def matmul_bnb4(
    b: Builder, A: Arg, B: Arg, absmax: Arg, *, K: int, N: int, block_size: int, quant_type: int,
    training_mode: int = 0, transB: int = 1,
) -> ast.expr:  # fmt: skip
    """A linear layer with 4-bit weights of bitsandbytes."""
    values = BNB_TABLES.get(quant_type)
    if values is None or block_size < 1:
        raise b.error(
            f"quant_type {quant_type} must be 0 (FP4) or 1 (NF4), and block_size {block_size} positive", WRITER
        )
    table = np.asarray(values if quant_type else [*values, *(-v for v in values)], np.float32)
    weight = b.call("dequantize_table", B, absmax, b.buffer(table, "table"), (N, K), block_size)
    return b("F.linear(x, w)", x=A, w=weight) if transB else b("x @ w", x=A, w=weight)


@op("MatMulFpQ4", traits=[PRODUCT], domain=MICROSOFT, infer=infer.matmul_fp_q4)
def matmul_fp_q4(b: Builder, A: Arg, B: Arg, B_shape: Arg, *, blk_quant_type: int = 1) -> ast.expr:
    """A linear layer whose weights, scales and zero points are one blob. The kernel reads all types but 0 as 1."""
    sizes = B_shape.known_ints("B_shape")
    if len(sizes) != 2 or min(sizes) < 1:
        raise b.error(f"input B_shape must be two positive sizes, not {sizes}", WRITER)
    columns, rows = sizes
    size = rows * -(-columns // 32) * (21 if blk_quant_type else 20)
    if B.shape is not None and isinstance(B.shape[0], int) and B.shape != (size,):
        raise b.error(
            f"the blob of a {columns:,} by {rows:,} matrix must have {size:,} bytes", "quantise the model again"
        )
    weight = b.call("dequantize_blob", B, (rows, columns), blk_quant_type != 0)
    return b.call("F.linear", A, weight)


@op("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    b: Builder, data: Arg, indices: Arg, scales: Arg, zero_points: Arg | None = None, *,
    bits: int = 4, block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1,
) -> ast.expr:  # fmt: skip
    """Gather slices of a table that is quantised in blocks: of a 4-bit type, or packed in bytes."""
    rank = data.known_rank
    if not (-rank <= gather_axis < rank and -rank <= quantize_axis < rank) or block_size < 1 or bits not in (2, 4, 8):
        raise b.error(
            f"gather_axis {gather_axis} and quantize_axis {quantize_axis} must be axes of rank {rank}, "
            f"block_size {block_size} positive, and bits {bits} one of 2, 4, 8",
            WRITER,
        )
    gather_axis, quantize_axis = gather_axis % rank, quantize_axis % rank
    is_packed = data.dtype == ir.DataType.UINT8
    if gather_axis == quantize_axis or data.is_float or (is_packed and (gather_axis or quantize_axis != rank - 1)):
        raise b.error("a float table, or one gathered along the axis of its blocks, is not handled", FOR_CPU)
    return b.call(
        "gather_blocks", data, indices, scales, unless(zero_points, None), axis=gather_axis,
        along=quantize_axis, block=block_size, bits=bits if is_packed else OMIT,
    )  # fmt: skip


@op("UnfoldTensor", domain=MICROSOFT)
def unfold_tensor(b: Builder, input: Arg, *, size: int, dim: int = -1, step: int = 1) -> ast.expr:
    return b("x.unfold(dim, size, step)", x=input, dim=dim, size=size, step=step)


@op("CropAndResize", domain=MICROSOFT, ranges=ranges.roi_align)
def crop_and_resize(
    b: Builder, X: Arg, rois: Arg, batch_indices: Arg, crop_size: Arg, *,
    extrapolation_value: float = 0.0, mode: str = "bilinear",
) -> ast.expr:  # fmt: skip
    """Crop boxes of images and resize them to one size. Coordinates are relative to the image size less one pixel."""
    if mode not in ("bilinear", "nearest"):
        raise b.error(f"attribute 'mode' must be bilinear or nearest, not {mode!r}", WRITER)
    return b.call(
        "crop_and_resize", X, rois, batch_indices, crop_size.as_ints(), is_nearest=unless(mode == "nearest", False),
        outside=unless(extrapolation_value, 0.0),
    )  # fmt: skip


# ---- quantised, with onnxruntime's own rounding ----------------------------------------------------------------------


def _number(arg: Arg | None) -> Any:
    """Return a scale or zero point as numpy's float32, or as a tensor if it is not known; 0 for an absent one."""
    constant = np.zeros(1) if arg is None else arg.constant
    return np.float32(constant.reshape(-1)[0]) if constant is not None and constant.size == 1 else literal(arg)


def _plain(value: Any) -> Any:
    """Return a Python number with all digits, since the helpers compute with it in float64."""
    return float(value) if isinstance(value, np.floating) else value


@op("MaxpoolWithMask", domain=MICROSOFT, infer=infer_math.pool)
def maxpool_with_mask(
    b: Builder, X: Arg, M: Arg, *, auto_pad: str = "NOTSET", kernel_shape: list[int], pads: list[int] | None = None,
    storage_order: int = 0, strides: list[int] | None = None,
) -> ast.expr:  # fmt: skip
    """Each row of a window ends at the first 0 of its mask. A window without elements gives the lowest number."""
    w = window(b, X, auto_pad, 0, None, kernel_shape, pads, strides)
    spatial_rank(b, w.n)
    if w.empty is not None:
        return b("x.new_empty(s)", x=X, s=w.empty)
    return b.call("masked_max_pool", X, M, tuple(w.kernel), tuple(w.stride), w.all_sides)


@op("QLinearAdd", domain=MICROSOFT, infer=infer.qlinear_binary, flat=PIECEWISE_CONSTANT)
def qlinear_add(
    b: Builder, A: Arg, A_scale: Arg, A_zero_point: Arg | None, B: Arg, B_scale: Arg, B_zero_point: Arg | None,
    C_scale: Arg, C_zero_point: Arg | None = None,
) -> ast.expr:  # fmt: skip
    """The helper takes scales relative to the result's, and one offset for all zero points."""
    scales = [_number(s) for s in (A_scale, B_scale, C_scale)]
    zeros = [_number(z) for z in (A_zero_point, B_zero_point, C_zero_point)]
    if all(isinstance(v, np.floating) for v in (*scales, *zeros)):
        first, second = scales[0] / scales[2], scales[1] / scales[2]
        offset = zeros[2] - (first * zeros[0] + second * zeros[1])
    else:
        scales, zeros = [_plain(s) for s in scales], [_plain(z) for z in zeros]
        first = b.let(b("x / y", x=scales[0], y=scales[2]), "scale")
        second = b.let(b("x / y", x=scales[1], y=scales[2]), "scale")
        offset = b("c - (s * x + t * y)", c=zeros[2], s=first, x=zeros[0], t=second, y=zeros[1])
    return b.call("quantized_sum", A, _plain(first), B, _plain(second), _plain(offset))


@op("QLinearSoftmax", domain=MICROSOFT, infer=same, flat=PIECEWISE_CONSTANT)
def qlinear_softmax(
    b: Builder, X: Arg, X_scale: Arg, x_zero_point: Arg | None, y_scale: Arg, y_zero_point: Arg | None = None, *,
    opset: int, axis: int = -1,
) -> ast.expr:  # fmt: skip
    """Before opset 13 the softmax is over all axes from `axis` on."""
    rank = X.known_rank
    if not -rank <= axis < rank:
        raise b.error(f"attribute 'axis' is {axis}, but the input has rank {rank}", WRITER)
    flat = opset < 13 and axis % rank != rank - 1
    x = b.call(b("x.flatten", x=X), unless(axis % rank, 0)) if flat else X.expr
    zero = _plain(_number(y_zero_point))
    softmax = b.call(
        "quantized_softmax", x, _plain(_number(X_scale)), _plain(_number(y_scale)),
        int(zero) if isinstance(zero, (int, float)) else zero, -1 if flat else axis,
    )  # fmt: skip
    return b("y.reshape(x.shape)", y=softmax, x=X) if flat else softmax


@op("NGramRepeatBlock", domain=MICROSOFT, infer=infer.ngram_repeat_block)
def ngram_repeat_block(b: Builder, input_ids: Arg, scores: Arg, *, ngram_size: int) -> ast.expr:
    if ngram_size < 1:
        raise b.error(f"attribute 'ngram_size' must be at least 1, not {ngram_size}", WRITER)
    return b.call("block_repeated_ngrams", input_ids, scores, ngram_size)


@op("BifurcationDetector", domain=MICROSOFT, infer=infer.bifurcation, flat=INTEGERS)
def bifurcation_detector(
    b: Builder, src_tokens: Arg, cur_tokens: Arg, prev_suffix_match_idx: Arg, pred_tokens: Arg | None = None, *,
    max_ngram_size: int = 3, min_ngram_size: int = 1,
) -> Any:  # fmt: skip
    """A step of aggressive decoding: predicted tokens are accepted as long as they equal the source."""
    if not 1 <= min_ngram_size <= max_ngram_size:
        raise b.error(f"min_ngram_size {min_ngram_size} must be from 1 to max_ngram_size {max_ngram_size}", WRITER)
    draft = b.call(
        "merge_draft", src_tokens, cur_tokens, prev_suffix_match_idx, unless(pred_tokens, None),
        least=unless(min_ngram_size, 1), most=unless(max_ngram_size, 3),
    )  # fmt: skip
    return b.unpack(draft, 2)


@op("DynamicTimeWarping", domain=MICROSOFT, infer=infer.time_warping, flat=INTEGERS)
def dynamic_time_warping(b: Builder, input: Arg) -> ast.expr:
    shape = input.shape
    if shape is not None and len(shape) != 2 and (len(shape) != 3 or isinstance(shape[0], int) and shape[0] != 1):
        raise b.error("the costs must be one matrix, [m, n] or [1, m, n]", WRITER)
    return b.call("dynamic_time_warping", input)


@op("MurmurHash3", domain=MICROSOFT, infer=infer.murmur_hash, flat=INTEGERS)
def murmur_hash3(b: Builder, X: Arg, *, positive: int = 1, seed: int = 0) -> ast.expr:
    """Hashes the bytes of numbers, and the UTF-8 of strings."""
    dtype = ir.DataType.UINT32 if positive == 1 else ir.DataType.INT32
    if X.dtype == ir.DataType.STRING:
        return b.call("murmur_text_hash", X, seed % 2**32, dtype, DeviceOf())
    return b.call("murmur_hash", X, seed % 2**32, dtype)


# ---- hashes of n-grams -----------------------------------------------------------------------------------------------


@op("NGramHashMapping", domain=MICROSOFT, infer=infer.ngram_hashes, flat=INTEGERS)
def ngram_hash_mapping(
    b: Builder, input_ids: Arg, multipliers: Arg, vocab_sizes: Arg, past_ids: Arg | None = None,
    head_offsets: Arg | None = None, eos_token_id: Arg | None = None, segment_ids: Arg | None = None, *,
    max_ngram_size: int, n_head_per_ngram: int, pad_id: int, reset_on_eos: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """The ids follow those of an earlier call, or `pad_id`."""
    fill = _fill(b, input_ids, vocab_sizes, eos_token_id, pad_id, max_ngram_size, n_head_per_ngram)
    before = max_ngram_size - 1
    past: Any = past_ids
    if past is None:
        form = "x.new_full((x.shape[0], n), f)" if eos_token_id is None else "f.expand(x.shape[0], n)"
        past = b(form, x=input_ids, f=fill, n=before)
    ids, segments = b.let(b("torch.cat([p, x], 1)", p=past, x=input_ids), "ids"), None
    if segment_ids is not None:
        parts = b("torch.cat([s[:, :1].expand(-1, n), s], 1)", s=segment_ids, n=before)
        segments = b("s.unfold(1, n, 1)", s=parts, n=max_ngram_size)
    windows = b("x.unfold(1, n, 1)", x=ids, n=max_ngram_size)
    hashes = b.call(
        "ngram_hashes", windows, multipliers, vocab_sizes, fill,
        **_options(head_offsets, eos_token_id if reset_on_eos else None, segments),
    )  # fmt: skip
    return [hashes, b("x[:, -n:]", x=ids, n=before) if b.wants(1) else None]


@op("VarlenNGramHashMapping", domain=MICROSOFT, infer=infer.ngram_hashes, flat=INTEGERS)
def varlen_ngram_hash_mapping(
    b: Builder, input_ids: Arg, multipliers: Arg, vocab_sizes: Arg, cumulative_sequence_length: Arg,
    past_ids: Arg | None = None, head_offsets: Arg | None = None, eos_token_id: Arg | None = None,
    segment_ids: Arg | None = None, past_segment_ids: Arg | None = None, capture_count: Arg | None = None, *,
    max_ngram_size: int, n_head_per_ngram: int, pad_id: int, reset_on_eos: int = 0, state_update_capacity: int = 0,
) -> list[ast.expr | None]:  # fmt: skip
    """NGramHashMapping of packed sequences; also returns the ids that the next call needs."""
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count must be given exactly if state_update_capacity is positive", WRITER)
    if segment_ids is None and (past_segment_ids is not None or b.wants(2)):
        raise b.error("past or present segments are used, but the input segment_ids is missing", WRITER)
    fill = _fill(b, input_ids, vocab_sizes, eos_token_id, pad_id, max_ngram_size, n_head_per_ngram)
    starts, before, segments = cumulative_sequence_length, max_ngram_size - 1, None
    past: Any = past_ids
    if past is None:
        form = "x.new_full((s.shape[0] - 1, n), f)" if eos_token_id is None else "f.expand(s.shape[0] - 1, n)"
        past = b(form, x=input_ids, s=starts, f=fill, n=before)
    windows = b.let(b.call("packed_windows", input_ids, starts, past), "windows")
    if segment_ids is not None:
        past = b("x[s[:-1], None].expand(-1, n)", x=segment_ids, s=starts, n=before)
        past = past if past_segment_ids is None else past_segment_ids
        segments = b.let(b.call("packed_windows", segment_ids, starts, past), "segments")
    hashes = b.call(
        "ngram_hashes", windows, multipliers, vocab_sizes, fill,
        **_options(head_offsets, eos_token_id if reset_on_eos else None, segments),
    )  # fmt: skip
    outputs: list[ast.expr | None] = [hashes, *(
        b("w[s[1:] - 1, 1:]", w=w, s=starts) if w is not None and b.wants(i) else None
        for i, w in enumerate((windows, segments), 1)
    )]  # fmt: skip
    if b.wants(3) and capture_count is not None:
        outputs.append(b.call("leading_states", windows, starts, capture_count, state_update_capacity, pad_id))
    return outputs


def _fill(b: Builder, ids: Arg, sizes: Arg, end: Arg | None, pad: int, longest: int, heads: int) -> Any:
    """Check the attributes, and return what stands for a missing token."""
    if longest < 2 or heads < 1:
        raise b.error(f"max_ngram_size {longest} must be at least 2, and n_head_per_ngram {heads} at least 1", WRITER)
    if ids.dtype == ir.DataType.INT32 and not -(2**31) <= pad < 2**31:
        raise b.error(f"attribute 'pad_id' {pad} does not fit int32", WRITER)
    if sizes.shape is not None and sizes.shape != ((longest - 1) * heads,):
        raise b.error(f"input vocab_sizes must have {(longest - 1) * heads} elements", WRITER)
    return pad if end is None else end


def _options(offsets: Arg | None, end: Arg | None, segments: ast.expr | None) -> dict[str, Any]:
    options = {"offsets": offsets, "end": end, "segments": segments}
    return {name: unless(value, None) for name, value in options.items()}
