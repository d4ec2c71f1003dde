"""Counts of runs of words against onnxruntime and against ONNX's stated outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.harness import refusal, run_node, unbound_names
from tests.support.tiers import drawn

BASE: dict[str, Any] = {
    "max_gram_length": 3,
    "min_gram_length": 1,
    "max_skip_count": 1,
    "mode": "TF",
    "ngram_counts": [0, 3, 7],
    "ngram_indexes": [2, 0, 5, 1, 3, 4],
    "pool_int64s": [2, 3, -5, 3, 2, 2, 2, 3, 3, 2],
}


def test_every_schema_version_binds() -> None:
    assert unbound_names("TfIdfVectorizer") == []


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["int64", "int32", "text"])
def test_modes(mode: str, weighted: bool, kind: str) -> None:
    x = np.array([[2, 3, 3, 2, 7, 2], [3, 3, 2, 2, 2, -5]])
    attrs = BASE | {"mode": mode} | ({"weights": [0.5, 2.0, 3.0, 0.25, 1.5, 4.0]} if weighted else {})
    if kind == "text":
        attrs = {k: v for k, v in attrs.items() if k != "pool_int64s"}
        attrs["pool_strings"] = [f"w{v}" for v in BASE["pool_int64s"]]
        x = np.array([[f"w{v}" for v in row] for row in x.tolist()], dtype=object)
    else:
        x = x.astype(kind)
    run_node("TfIdfVectorizer", [x], attrs, dynamic=True)
    run_node("TfIdfVectorizer", [x[0]], attrs)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
)
@settings(max_examples=drawn(80), deadline=None)
def test_random(words: list[int], grams: set[Any], skips: int, least: int, more: int, random: Any) -> None:
    ordered = sorted(grams, key=len)
    columns = list(range(len(ordered)))
    random.shuffle(columns)
    sizes = [sum(len(g) for g in ordered if len(g) < n) for n in (1, 2, 3)]
    attrs = {
        "max_gram_length": min(least + more, 3),
        "min_gram_length": least,
        "max_skip_count": skips,
        "mode": "TFIDF",
        "ngram_counts": sizes[: max(len(ordered[-1]), least + more)],
        "ngram_indexes": columns,
        "pool_int64s": [v for g in ordered for v in g],
        "weights": [float(c + 1) for c in columns],
    }
    run_node("TfIdfVectorizer", [np.array(words)], attrs)


def test_a_large_vocabulary_lies_in_the_sidecar() -> None:
    words = [f"word{i}" for i in range(2000)]
    attrs = {
        "max_gram_length": 1,
        "min_gram_length": 1,
        "max_skip_count": 0,
        "mode": "IDF",
        "ngram_counts": [0],
        "ngram_indexes": list(range(2000)),
        "pool_strings": words,
        "weights": [i / 7 for i in range(2000)],
    }
    ran = run_node("TfIdfVectorizer", [np.array([["word7", "nix", "word1999"]], dtype=object)], attrs)
    assert "word1999" not in ran.source and "read_texts(" in ran.source


def test_refusals() -> None:
    x = np.array([1, 2])
    assert "mode" in refusal("TfIdfVectorizer", [x], BASE | {"mode": "tf"})
    assert "do not divide the pool" in refusal("TfIdfVectorizer", [x], BASE | {"ngram_counts": [0, 3, 6]})
    assert "twice" in refusal("TfIdfVectorizer", [x], BASE | {"pool_int64s": [2, 2, 5, 3, 2, 2, 2, 3, 3, 2]})
