"""Operators on token ids against onnxruntime (1.32 or newer where it is older than they are), bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"


def run(op: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node(op, inputs, attrs, **{"domain": MICROSOFT, **kwargs})


def refused(op: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> str:
    return refusal(op, inputs, attrs, **{"domain": MICROSOFT, **kwargs})


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("dynamic", [False, True])
def test_repeated_ngrams_are_blocked(size: int, dynamic: bool) -> None:
    """Tokens beyond the vocabulary may be there where nothing blocks them."""
    ids = np.array([[1, 2, 3, 1, 2, 5], [4, 4, 4, 4, 4, 4], [9, 1, 9, 0, 2, 0]][: 2 if size == 1 else 3])
    scores = floats(len(ids), 6)
    scores[0, 3] = np.nan
    ran = run("NGramRepeatBlock", [ids, scores], {"ngram_size": size}, dynamic=dynamic)
    assert np.isinf(ran.outputs[0]).any() == (size < 7)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_ngrams_are_blocked(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 3, (int(rng.integers(1, 4)), int(rng.integers(1, 12))))
    run("NGramRepeatBlock", [ids, floats(len(ids), 4)], {"ngram_size": int(rng.integers(1, 5))})


def test_ngrams_of_no_token_are_refused() -> None:
    assert "'ngram_size' must be at least 1, not 0" in refused(
        "NGramRepeatBlock", [ints(1)[None], floats(1, 4)], {"ngram_size": 0}
    )


@pytest.mark.parametrize("seed", range(60))
def test_drafts_part(seed: int) -> None:
    """Drawn from so few tokens that runs are found once, several times and never."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, 4, int(rng.integers(1, 9)))
    first = int(rng.integers(0, len(source) + 1))
    guesses = np.append(source[first:], 1)
    guesses[rng.random(len(guesses)) > 0.8] = 3
    least = int(rng.integers(1, 4))
    attrs = {"min_ngram_size": least, "max_ngram_size": int(rng.integers(least, 5))} if seed % 5 else {}
    inputs = [source, rng.integers(0, 4, int(rng.integers(0, 6))), ints(first)] + ([guesses] if seed % 4 else [])
    run("BifurcationDetector", inputs, attrs, outputs=2, dynamic=bool(seed % 2))


def test_drafts_that_do_not_fit() -> None:
    ran = run("BifurcationDetector", [ints(1, 2, 3), ints(1), np.array(1), ints(2, 3, 4)], outputs=2)
    assert [o.tolist() for o in ran.outputs] == [[1, 2, 3, 4], -1]
    for start, guesses in ((1, [1, 2]), (1, [1, 2, 3, 4]), (5, []), (-1, [1, 2, 3, 4, 5])):
        with pytest.raises(ValueError, match="predicted tokens"):
            ran.model(*map(torch.tensor, ([1, 2, 3], [1], start, guesses)))
    inputs, attrs = [ints(1), ints(1), ints(0)], {"min_ngram_size": 3, "max_ngram_size": 2}
    assert "min_ngram_size 3 must be from 1 to max_ngram_size 2" in refused(
        "BifurcationDetector", inputs, attrs, outputs=2
    )


@pytest.mark.parametrize("seed", range(40))
def test_time_is_warped(seed: int) -> None:
    """Costs that are often the same, and ones that add up to the same only without rounding."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 9, 2)
    drawn = [rng.integers(-2, 3, (rows, columns)), floats(rows, columns, seed=seed), np.full((rows, columns), 0.1)]
    costs = drawn[seed % 3].astype(np.float32)
    if seed % 7 == 0:
        costs[rng.integers(rows), rng.integers(columns)] = [np.nan, np.inf, -np.inf][seed % 3]
    run("DynamicTimeWarping", [costs[None] if seed % 2 else costs], dynamic=bool(seed % 4))


def test_time_that_is_not_there() -> None:
    run("DynamicTimeWarping", [np.zeros((0, 3), np.float32)])
    assert "the costs must be one matrix" in refused("DynamicTimeWarping", [floats(2, 3, 3)])


# ---- hashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, -1, 2**33 + 5])
@pytest.mark.parametrize("positive", [0, 1])
def test_hashes_of_numbers(dtype: str, seed: int, positive: int) -> None:
    x = np.frombuffer(np.random.default_rng(7).bytes(96), dtype).reshape(2, -1)
    ran = run("MurmurHash3", [x], {"seed": seed, "positive": positive})
    assert str(ran.outputs[0].dtype) == ("uint32" if positive else "int32")
    run("MurmurHash3", [x], dynamic=True)
    run("MurmurHash3", [x[0, 0, ...]], {"positive": positive})
    run("MurmurHash3", [x[:0]], {"positive": positive})


@pytest.mark.parametrize("positive", [0, 1, 2])
@pytest.mark.parametrize("shape", [(8,), (2, 2, 2), (8, 1)])
def test_hashes_of_text(positive: int, shape: tuple[int, ...]) -> None:
    words = ["", "a", "ab", "abc", "abcd", "h\u00e4llo w\u00f6rld", "\u65e5\u672c\u8a9ex", "\U0001f600"]
    run("MurmurHash3", [np.array(words, object).reshape(shape)], {"seed": 7, "positive": positive})
    run("MurmurHash3", [np.array("one", object)], {"positive": positive})
    run("MurmurHash3", [np.array([], object)], {"positive": positive})


class Hashed:
    """Drawn inputs of a hash of n-grams; `packed`: of sequences one behind the other."""

    def __init__(self, seed: int, packed: bool) -> None:
        rng = np.random.default_rng(seed)
        self.dtype = dtype = [np.int32, np.int64][seed % 2]
        n, heads, batch = (int(rng.integers(low, 5)) for low in (2, 1, 1))
        lengths = rng.integers(1, 6, batch)
        shape = (int(lengths.sum()),) if packed else (batch, int(lengths[0]))
        limits = np.iinfo(dtype)

        def drawn(low: int, high: int, *dims: int, given: bool = True) -> Any:
            return rng.integers(low, high, dims).astype(dtype) if given else None

        self.ids = drawn(0, 6, *shape) if seed % 3 else drawn(limits.min, limits.max, *shape)
        self.multipliers = drawn(limits.min, limits.max, n + seed % 4 // 3)
        self.sizes = drawn(2, 100, (n - 1) * heads)
        self.past = drawn(0, 6, batch, n - 1, given=rng.random() < 0.5)
        self.offsets = drawn(0, limits.max, (n - 1) * heads, given=rng.random() < 0.5)
        self.end = np.array(2, dtype) if rng.random() < 0.6 else None
        self.segments = rng.integers(0, 2, shape).astype(np.int32) if rng.random() < 0.6 else None
        self.past_segments = rng.integers(0, 2, (batch, n - 1)).astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.counts = rng.integers(-1, 8, batch).astype(np.int32) if rng.random() < 0.6 else None
        self.attrs = {"max_ngram_size": n, "n_head_per_ngram": heads, "pad_id": int(rng.integers(0, 7))}
        self.attrs["reset_on_eos"] = int(rng.random() < 0.5)
        if packed and self.counts is not None:
            self.attrs["state_update_capacity"] = int(rng.integers(1, 9))


@needs("NGramHashMapping")
@pytest.mark.parametrize("seed", range(48))
def test_hashes_of_ngrams(seed: int) -> None:
    """With and without what was before, ends, segments and offsets; products wrap around."""
    h = Hashed(seed, packed=False)
    inputs = [h.ids, h.multipliers, h.sizes, h.past, h.offsets, h.end, h.segments]
    run("NGramHashMapping", inputs, h.attrs, outputs=2, initializers={1, 2}, dynamic=seed % 3 == 0)
    run("NGramHashMapping", inputs, h.attrs)


@needs("VarlenNGramHashMapping")
@pytest.mark.parametrize("seed", range(72))
def test_hashes_of_packed_ngrams(seed: int) -> None:
    h = Hashed(seed, packed=True)
    before = h.past_segments if h.segments is not None and seed % 4 else None
    inputs = [h.ids, h.multipliers, h.sizes, h.starts, h.past, h.offsets, h.end, h.segments, before, h.counts]
    outputs = ["hashes", "ids", "" if h.segments is None else "segments", *(["first"] if h.counts is not None else [])]
    while not outputs[-1]:
        outputs.pop()
    run("VarlenNGramHashMapping", inputs, h.attrs, outputs=outputs, initializers={1, 2}, dynamic=seed % 3 == 0)


def test_what_the_kernels_of_hashes_refuse_is_refused() -> None:
    h = Hashed(2, packed=True)
    attrs = {"max_ngram_size": 2, "n_head_per_ngram": 1, "pad_id": 0}
    ids, sizes = h.ids[None].astype(np.int32), np.array([7], np.int32)
    plain: list[Any] = [ids, sizes, sizes]
    packed: list[Any] = [ids[0], sizes, sizes, np.array([0, ids.size], np.int32)]

    def why(inputs: list[Any], outputs: int = 1, **changed: int) -> str:
        op = "NGramHashMapping" if inputs is plain else "VarlenNGramHashMapping"
        return refused(op, inputs, {**attrs, **changed}, outputs=outputs)

    assert "max_ngram_size 1 must be at least 2" in why(plain, max_ngram_size=1)
    assert "n_head_per_ngram 0 at least 1" in why(plain, n_head_per_ngram=0)
    assert "does not fit int32" in why(plain, pad_id=2**31)
    assert "vocab_sizes must have 2 elements" in why(plain, n_head_per_ngram=2)
    assert "capture_count must be given exactly if" in why(packed, state_update_capacity=2)
    assert "capture_count must be given exactly if" in why([*packed, *[None] * 5, np.array([1], np.int32)])
    assert "the input segment_ids is missing" in why(packed, outputs=3)
    assert "the input segment_ids is missing" in why([*packed, *[None] * 4, np.array([[1]], np.int32)])
