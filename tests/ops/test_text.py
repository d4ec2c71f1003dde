"""Operators on text against onnxruntime and against ONNX's stated outputs."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxgen.classical.re2 import NotRe, as_python
from tests.ops.harness import (
    node_model,
    refusal,
    run_node,
    run_onnxruntime,
    unbound_names,
)
from tests.support.tiers import drawn

NAMES = ["StringConcat", "StringSplit", "StringNormalizer", "RegexFullMatch"]
UNICODE = "C.utf8"  # a locale that every Linux has, and whose letters change case as those of en_US


def strings(*items: str) -> np.ndarray:
    return np.array(items, dtype=object)


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


def test_concat_broadcasts() -> None:
    x, y = strings("a", "ab", "").reshape(3, 1), strings("é", "x").reshape(1, 2)
    run_node("StringConcat", [x, y], dynamic=True)
    run_node("StringConcat", [x, np.array("s", dtype=object)])
    run_node("StringConcat", [np.array("a", dtype=object), np.array("b", dtype=object)])
    run_node("StringConcat", [x[:0], y], dynamic=True)


@given(
    st.lists(st.text(" \tab-é", max_size=8), min_size=1, max_size=4),
    st.sampled_from(["", "-", "a", "ab", " "]),
    st.sampled_from([None, 0, 1, 2, -1]),
)
@settings(max_examples=drawn(60), deadline=None)
def test_split(texts: list[str], delimiter: str, most: int | None) -> None:
    attrs = {"delimiter": delimiter} | ({} if most is None else {"maxsplit": most})
    run_node("StringSplit", [strings(*texts)], attrs, outputs=2, dynamic=True)


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
@pytest.mark.parametrize("stopwords", [[], ["Ärger", "the", "ZU", "the"]])
@pytest.mark.parametrize("rows", [0, 1])
def test_normalizer(case: str, sensitive: int, stopwords: list[str], rows: int) -> None:
    x = strings("The", "the", "ärger", "Ärger", "straße", "zu", "Zu", "", "Σοφός", "THE")
    attrs = {"case_change_action": case, "is_case_sensitive": sensitive, "locale": UNICODE}
    attrs |= {"stopwords": stopwords} if stopwords else {}
    run_node("StringNormalizer", [x.reshape(1, -1) if rows else x], attrs, dynamic=not rows)
    nothing = strings("the", "the")
    run_node("StringNormalizer", [nothing.reshape(1, -1) if rows else nothing], attrs)


@pytest.mark.parametrize("case", ["LOWER", "UPPER"])
def test_normalizer_changes_letters_as_c_does(case: str) -> None:
    """Whatever Unicode had before Python's and glibc's tables part (they are of different years)."""
    letters = [chr(c) for c in range(1, 0x2C00) if not 0xD800 <= c < 0xE000 and chr(c).isprintable()]
    attrs = {"case_change_action": case, "is_case_sensitive": 1, "locale": UNICODE}
    model = node_model("StringNormalizer", [strings(*letters)], attrs)
    (expected,) = run_onnxruntime(model, {"i0": strings(*letters)})
    ran = run_node("StringNormalizer", [strings(*letters)], attrs, compare=False)
    different = {x: (a, e) for x, a, e in zip(letters, ran.outputs[0].tolist(), expected.tolist()) if a != e}
    assert different == {}


def test_normalizer_refuses_languages_of_their_own() -> None:
    x = strings("I")
    attrs = {"case_change_action": "LOWER", "locale": "tr_TR"}
    assert "locale tr_TR" in refusal("StringNormalizer", [x], attrs)
    run_node("StringNormalizer", [x], {"locale": "tr_TR"}, expected=[x])


# ---- regular expressions ---------------------------------------------------------------------------------------------

ALPHABET = "abkKsſ\u212aéÉ \t\n\v-_09.]{},5$\\"
LETTERS = st.sampled_from(list("abkK0") + [r"\.", r"\$", "é", "]", "}", "-", r"\x61", r"\x{e9}", r"\060", r"\n"])
CLASSES = st.sampled_from(
    [".", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", "[a-k]", "[^a]", r"[^\s]", r"[\w-]", "[]a]", "[^]a]", "[a-]"]
    + ["[[:alpha:]]", "[[:^space:]]", "[[:punct:]a]", "[[:word:]]", r"[\d\-k]", r"[\x{e0}-\x{ff}]", r"[.$]", "[ -~]"]
    + [r"\Qa.b\E", r"\Q$\E", "(?:)", "[[:space:]]", r"[^\D]", r"[\s\S]", r"[\t-\r]"]
)
PLACES = st.sampled_from(["^", "$", r"\A", r"\z", r"\b", r"\B", "(?m)^", "(?m:$)", "{,5}", "{", "{a}"])
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{2}?"])
FLAGS = st.sampled_from(["(?i)", "(?s)", "(?m)", "(?U)", "(?i-s)", "(?-i)", "(?is)"])


def _patterns(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.sampled_from(["(", "(?:", "(?P<n>", "(?i:", "(?s:", "(?m-i:"])
    return st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.tuples(group, inner).map(lambda t: f"{t[0]}{t[1]})"),
        st.tuples(inner, REPEATS).map(lambda t: f"(?:{t[0]}){t[1]}"),
        st.tuples(st.one_of(LETTERS, CLASSES), REPEATS).map("".join),
        st.tuples(FLAGS, inner).map("".join),
    )


PATTERNS = st.recursive(st.one_of(LETTERS, CLASSES, PLACES), _patterns, max_leaves=6)


@given(PATTERNS, st.lists(st.text(ALPHABET, max_size=5), min_size=12, max_size=12))
@settings(max_examples=drawn(400), deadline=None)
def test_patterns(pattern: str, texts: list[str]) -> None:
    """A pattern that we take matches what RE2 says; what RE2 refuses we may take, as no such file runs anywhere."""
    try:
        matcher = re.compile(as_python(pattern))
    except NotRe:
        return
    x = strings(*texts, "a", "k", "K", "\u212a", "s", "a\n", "é", "É", "")
    model = node_model("RegexFullMatch", [x], {"pattern": pattern})
    try:
        expected = run_onnxruntime(model, {"i0": x})
    except Exception as error:  # onnxruntime's own class: "Invalid regex pattern"
        assert "regex" in str(error).lower(), error
        return
    assert [matcher.fullmatch(t) is not None for t in x] == expected[0].tolist()


@pytest.mark.parametrize(
    "pattern",
    [r"\p{Greek}", r"(?=a)", r"(a)\1", "a**", "*a", "(a", "a)", "[a", "[b-a]", r"\Z", r"\_"[:1], "(?i)é", "a{2,1}"]
    + ["a{1001}", r"\C", "[[:nix:]]", "(?P=n)", "(?#x)"],
)
def test_refused_patterns(pattern: str) -> None:
    assert "the pattern can't be translated" in refusal("RegexFullMatch", [strings("a")], {"pattern": pattern})


@pytest.mark.parametrize("pattern", [r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)", r"\d{3}-\d{4}", "", "(?i)kiss"])
def test_what_is_not_refused(pattern: str) -> None:
    x = strings("me@gmail.com", "x@yahoo.com!", "555-1234", "555-12345", "", "KISS", "\u212ai\u017fs")
    run_node("RegexFullMatch", [x.reshape(7, 1)], {"pattern": pattern}, dynamic=True)


def test_the_length_of_a_pattern_costs_nothing() -> None:
    """A megabyte was read in 17 seconds."""
    began = time.process_time()
    with pytest.raises(NotRe, match="1,000,000 characters, at most 4,096"):
        as_python("a" * 1_000_000)
    assert time.process_time() - began < 1
