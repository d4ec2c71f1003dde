"""Operators of onnxruntime on token ids and their scores: steps of decoders, and hashes."""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import DeviceOf, unless
from onnxgen.errors import WRITER
from onnxgen.graph.gradients import INTEGERS
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT
from onnxgen.shapes import infer_microsoft


@op("NGramRepeatBlock", domain=MICROSOFT, infer=infer_microsoft.ngram_repeat_block)
def ngram_repeat_block(b: Builder, input_ids: Arg, scores: Arg, *, ngram_size: int) -> ast.expr:
    if ngram_size < 1:
        raise b.error(f"attribute 'ngram_size' must be at least 1, not {ngram_size}", WRITER)
    return b.call("block_repeated_ngrams", input_ids, scores, ngram_size)


@op("BifurcationDetector", domain=MICROSOFT, infer=infer_microsoft.bifurcation, flat=INTEGERS)
def bifurcation_detector(
    b: Builder, src_tokens: Arg, cur_tokens: Arg, prev_suffix_match_idx: Arg, pred_tokens: Arg | None = None, *,
    max_ngram_size: int = 3, min_ngram_size: int = 1,
) -> Any:  # fmt: skip
    """A step of aggressive decoding: predicted tokens are accepted as long as they equal the source."""
    if not 1 <= min_ngram_size <= max_ngram_size:
        raise b.error(f"min_ngram_size {min_ngram_size} must be from 1 to max_ngram_size {max_ngram_size}", WRITER)
    made = b.call(
        "merge_draft", src_tokens, cur_tokens, prev_suffix_match_idx, unless(pred_tokens, None),
        least=unless(min_ngram_size, 1), most=unless(max_ngram_size, 3),
    )  # fmt: skip
    return b.unpack(made, 2)


@op("DynamicTimeWarping", domain=MICROSOFT, infer=infer_microsoft.time_warping, flat=INTEGERS)
def dynamic_time_warping(b: Builder, input: Arg) -> ast.expr:
    shape = input.shape
    if shape is not None and len(shape) != 2 and (len(shape) != 3 or isinstance(shape[0], int) and shape[0] != 1):
        raise b.error("the costs must be one matrix, [m, n] or [1, m, n]", WRITER)
    return b.call("dynamic_time_warping", input)


@op("MurmurHash3", domain=MICROSOFT, infer=infer_microsoft.murmur_hash, flat=INTEGERS)
def murmur_hash3(b: Builder, X: Arg, *, positive: int = 1, seed: int = 0) -> ast.expr:
    """Hashes the bytes of numbers, and the UTF-8 of strings."""
    dtype = ir.DataType.UINT32 if positive == 1 else ir.DataType.INT32
    if X.dtype == ir.DataType.STRING:
        return b.call("murmur_text_hash", X, seed % 2**32, dtype, DeviceOf())
    return b.call("murmur_hash", X, seed % 2**32, dtype)


# ---- hashes of n-grams -----------------------------------------------------------------------------------------------


@op("NGramHashMapping", domain=MICROSOFT, infer=infer_microsoft.ngram_hashes, flat=INTEGERS)
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


@op("VarlenNGramHashMapping", domain=MICROSOFT, infer=infer_microsoft.ngram_hashes, flat=INTEGERS)
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
    made: list[ast.expr | None] = [hashes, *(
        b("w[s[1:] - 1, 1:]", w=w, s=starts) if w is not None and b.wants(i) else None
        for i, w in enumerate((windows, segments), 1)
    )]  # fmt: skip
    if b.wants(3) and capture_count is not None:
        made.append(b.call("leading_states", windows, starts, capture_count, state_update_capacity, pad_id))
    return made


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
    given = {"offsets": offsets, "end": end, "segments": segments}
    return {name: unless(value, None) for name, value in given.items()}
