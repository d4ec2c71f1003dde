"""Text that is split, matched and normalised."""

from __future__ import annotations

import ast
from typing import Any

from onnxgen import op
from onnxgen.classical.re2 import NotRe, as_python, as_searches
from onnxgen.code.quote import OMIT, unless
from onnxgen.errors import WRITER, OnnxgenError
from onnxgen.graph.gradients import TEXT
from onnxgen.graph.traits import TEXTS
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT
from onnxgen.shapes import infer_microsoft

# Languages with their own case rules, and locales that know only ASCII.
SPECIAL_CASE_RULES, ASCII_ONLY = ("tr", "az", "lt"), ("C", "POSIX")


@op("StringSplit", traits=[TEXTS], flat=TEXT)
def string_split(b: Builder, X: Arg, *, delimiter: str = "", maxsplit: int | None = None) -> Any:
    most = OMIT if maxsplit is None or maxsplit < 0 else maxsplit
    return b.unpack(b.call("string_split", X, delimiter=unless(delimiter, ""), most=most), 2)


@op("StringNormalizer", traits=[TEXTS], flat=TEXT)
def string_normalizer(
    b: Builder,
    X: Arg,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    stopwords: list[str] | None = None,
    locale: str = "en_US",
) -> ast.expr:
    words, compares = sorted(set(stopwords or [])), not is_case_sensitive and bool(stopwords)
    if case_change_action != "NONE" or compares:
        language = locale.replace("-", "_").partition("_")[0].partition(".")[0].lower()
        if language in SPECIAL_CASE_RULES or locale in ASCII_ONLY:
            raise b.error(f"case rules of locale {locale} differ from Python's", "use en_US")
    return b.call(
        "normalized_words",
        X,
        case=unless(case_change_action, "NONE"),
        stopwords=unless(words, []),
        case_sensitive=unless(bool(words) and not compares, False),
    )


@op("RegexFullMatch", traits=[TEXTS], flat=TEXT)
def regex_full_match(b: Builder, X: Arg, *, pattern: str = "") -> ast.expr:
    """The pattern is translated from RE2 to one of Python's `re` that matches the same strings, or refused."""
    try:
        return b("full_match(x, p)", x=X, p=as_python(pattern))
    except NotRe as error:
        raise _untranslated(b, error) from error


def _untranslated(b: Builder, error: NotRe) -> OnnxgenError:
    way_out = "write the pattern in another way, or cut the node off with --inputs"
    return b.error(f"the pattern can't be translated to Python's `re`: {error}", way_out)


@op("Tokenizer", domain=MICROSOFT, infer=infer_microsoft.tokens, flat=TEXT)
def tokenizer(
    b: Builder, X: Arg, *, mark: int, mincharnum: int, pad_value: str, separators: list[str] | None = None,
    tokenexp: str | None = None,
) -> ast.expr:  # fmt: skip
    """RE2 takes the longest match at a position. Other patterns are split into alternatives, or refused."""
    if X.rank not in (None, 1, 2) or mincharnum < 1:
        raise b.error(
            f"the input must have 1 or 2 axes (rank {X.rank}), and mincharnum {mincharnum} be at least 1", WRITER
        )
    if not separators and not tokenexp:
        raise b.error("the node has neither separators nor a tokenexp", WRITER)
    by_letter = separators == [""] or not separators and tokenexp == "."
    if by_letter and mincharnum > 1:
        raise b.error(f"tokens are single letters, but mincharnum is {mincharnum}", WRITER)
    try:
        between = [] if by_letter else [as_searches(pattern) for pattern in separators or ()]
        words = [] if by_letter or separators else as_searches(tokenexp or "")
    except NotRe as error:
        raise _untranslated(b, error) from error
    return b.call(
        "split_words", X, pad_value, separators=unless(between, []), words=unless(words, []),
        least=unless(mincharnum, 1), mark=unless(bool(mark), False),
    )  # fmt: skip
