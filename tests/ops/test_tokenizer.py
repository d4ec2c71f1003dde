"""Strings cut into words, against onnxruntime."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxgen.classical.re2 import NotRe, as_searches
from onnxgen.helpers.text import split_words
from tests.ops.fuzz import examples
from tests.ops.harness import Ran, node_model, refusal, run_node, run_onnxruntime
from tests.ops.kernels import needs
from tests.ops.test_text import ALPHABET, PATTERNS

OP, MICROSOFT = "Tokenizer", "com.microsoft"
TEXTS = [
    "Hello World",
    "I  love computer-science, a lot!",
    "",
    " ",
    "a1 b22 3.14 it's",
    "日本語 é\tx\n",
    "\U0001f600 ok",
]


def strings(*texts: str) -> Any:
    return np.array(texts, object)


def run(x: Any, mincharnum: int = 1, pad_value: str = "#", mark: int = 0, dynamic: bool = False, **attrs: Any) -> Ran:
    attrs |= {"mincharnum": mincharnum, "pad_value": pad_value, "mark": mark}
    return run_node(OP, [x], attrs, domain=MICROSOFT, dynamic=dynamic)


MODES: list[dict[str, Any]] = [
    {"separators": [" "]},
    {"separators": [" ", "[.]", r"\?", ",", ";", ":", r"\!"]},  # skl2onnx
    {"separators": [r"\s+", r"\W"]},
    {"separators": ["e|el|ell"]},
    {"separators": [""]},
    {"tokenexp": "."},
    {"tokenexp": "[a-zA-Z0-9_]+"},
    {"tokenexp": r"\b\w\w+\b"},
    {"tokenexp": r"\d+|\d+\.\d+|\w+"},
    {"tokenexp": "l|lo"},
    {"tokenexp": "(?i)[^ ]"},
]


@needs(OP)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mark", [0, 1])
def test_words_and_letters(mode: dict[str, Any], mark: int) -> None:
    run(strings(*TEXTS), mark=mark, dynamic=True, **mode)
    run(strings(*TEXTS[:6]).reshape(3, 2), mark=mark, pad_value="", **mode)


@needs(OP)
@pytest.mark.parametrize("mode", [m for m in MODES if m not in ({"separators": [""]}, {"tokenexp": "."})])
@pytest.mark.parametrize("least", [2, 3])
def test_words_of_a_few_letters_at_least(mode: dict[str, Any], least: int) -> None:
    """Letters are those of Unicode; words that are too short may be parts of longer ones."""
    run(strings(*TEXTS), mincharnum=least, **mode)


@needs(OP)
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (0, 0)])
def test_no_strings(shape: tuple[int, ...]) -> None:
    """The result has no further axis."""
    for mode in MODES[:1] + MODES[-1:]:
        assert run(np.zeros(shape, object), **mode).outputs[0].ndim == len(shape)


@needs(OP)
@pytest.mark.parametrize("mark", [0, 1])
def test_no_words(mark: int) -> None:
    for x in (strings("", " "), strings(" ", "").reshape(2, 1)):
        assert run(x, mark=mark, separators=[" "]).outputs[0].shape == (*x.shape, 0)


@needs(OP)
def test_separators_come_before_a_pattern_of_words() -> None:
    run(strings("ab", "b c"), separators=["b"], tokenexp="b")
    run(strings("ab", "b c"), separators=[""], tokenexp="b")


@needs(OP)
@pytest.mark.parametrize("pattern", [r"\b", "^", "$", "x*", r"\b|,", "(?m)^", "a*"])
def test_matches_of_nothing(pattern: str) -> None:
    """A separator that is empty takes the next letter with it; a word that is empty is none."""
    x = strings("ab cd", "a,b\nc", "axxb", "日本語", "")
    run(x, separators=[pattern])
    run(x, separators=[" ", pattern])
    run(x, tokenexp=pattern)


@needs(OP)
@given(PATTERNS, st.lists(st.text(ALPHABET, max_size=8), min_size=8, max_size=8), st.booleans(), st.integers(1, 3))
@examples(400)
def test_any_pattern(pattern: str, texts: list[str], separates: bool, least: int) -> None:
    """A pattern that we take matches what RE2 finds the longest; what RE2 refuses we may take."""
    try:
        searches = as_searches(pattern)
    except NotRe:
        return
    mode: dict[str, Any] = {"separators": [pattern]} if separates else {"tokenexp": pattern}
    if pattern in ("", "."):
        return
    x = strings(*texts, "aab", "abkK", "k a", "")
    attrs = {"mincharnum": least, "pad_value": "#", "mark": 0}
    try:
        expected = run_onnxruntime(node_model(OP, [x], {**mode, **attrs}, domain=MICROSOFT), {"i0": x})
    except Exception as error:  # onnxruntime's own class; its \\B may match between the bytes of a letter
        assert re.search("Can not digest" + r"|invalid utf8" * (r"\B" in pattern), str(error)), error
        return
    given = {"separators": [searches]} if separates else {"words": searches}
    assert split_words(x, "#", least=least, **given).tolist() == expected[0].tolist()


@pytest.mark.parametrize("pattern", ["a?(ab)?", "(?:a|ab)$", "(|a)*", r"\p{Greek}", "(a"])
def test_refused_patterns(pattern: str) -> None:
    """Where `re` may find a shorter match first, or RE2 knows what it does not."""
    attrs = {"mincharnum": 1, "pad_value": "#", "mark": 0}
    for mode in ({"tokenexp": pattern}, {"separators": [" ", pattern]}):
        assert "the pattern can't be translated" in refusal(OP, [strings("a")], {**attrs, **mode}, domain=MICROSOFT)


def test_what_the_kernel_refuses_is_refused() -> None:
    def why(x: Any, **attrs: Any) -> str:
        return refusal(OP, [x], {"mincharnum": 1, "pad_value": "#", "mark": 0, **attrs}, domain=MICROSOFT)

    x = strings("a b")
    assert "neither separators nor a tokenexp" in why(x)
    assert "neither separators nor a tokenexp" in why(x, tokenexp="")
    assert "single letters, but mincharnum is 2" in why(x, separators=[""], mincharnum=2)
    assert "single letters, but mincharnum is 2" in why(x, tokenexp=".", mincharnum=2)
    assert "mincharnum 0 be at least 1" in why(x, separators=[" "], mincharnum=0)
    assert "1 or 2 axes (rank 3)" in why(x.reshape(1, 1, 1), separators=[" "])
    assert "pad_value" in refusal(OP, [x], {"mincharnum": 1, "mark": 0, "separators": [" "]}, domain=MICROSOFT)


@pytest.mark.parametrize(
    "pattern", ["(?:(?:){1000}){1000}", "(?:(?:^{10}){1000}){1000}", "(((((a{9}){9}){9}){9}){9}){9}"]
)
def test_patterns_of_very_many_parts_are_refused_at_once(pattern: str) -> None:
    began = time.process_time()
    with pytest.raises(NotRe, match="too large"):
        as_searches(pattern)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "pattern, searched",
    [("ab|abc", ["ab", "abc"]), ("abc|ab", ["abc|ab"]), ("(a|ab)(c|bcd)", ["(?:a|ab)(?:c|bcd)"]), ("a*?", ["a*"])],
)
def test_alternatives_are_searched_apart_where_their_order_matters(pattern: str, searched: list[str]) -> None:
    assert as_searches(pattern) == searched
