"""Text that is split, matched and normalised, and counts of n-grams (TfIdfVectorizer)."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen import op
from onnxgen.classical.re2 import NotRe, as_python, as_searches
from onnxgen.code.quote import OMIT, Ref, literal, unless
from onnxgen.errors import CHECK, WRITER, OnnxgenError
from onnxgen.graph.operators import COUNTED, TEXT
from onnxgen.graph.traits import TEXTS
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.shapes.info import Info, NodeFacts, tensor

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


def _tokens(n: NodeFacts) -> list[Info]:
    """A tokenizer adds an axis, unless there are no strings."""
    shape = n.shape(0)
    return [tensor(ir.DataType.STRING, [*shape[:-1], 0] if 0 in shape else [*shape, n.fresh(len(shape))])]


@op("Tokenizer", domain="com.microsoft", infer=_tokens, flat=TEXT)
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
    if by_letter:
        separators = tokenexp = None
    try:
        between = [as_searches(pattern) for pattern in separators or ()]
        words = as_searches(tokenexp) if tokenexp and not separators else []
    except NotRe as error:
        raise _untranslated(b, error) from error
    return b.call(
        "split_words", X, pad_value, separators=unless(between, []), words=unless(words, []),
        least=unless(mincharnum, 1), mark=unless(bool(mark), False),
    )  # fmt: skip


Gram = tuple[int, ...]


@op("TfIdfVectorizer", traits=[TEXTS], flat=COUNTED)
def tf_idf_vectorizer(
    b: Builder,
    X: Arg,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: list[int],
    ngram_indexes: list[int],
    pool_int64s: list[int] | None = None,
    pool_strings: list[str] | None = None,
    weights: list[float] | None = None,
) -> ast.expr:
    """Searches a tree of n-grams for all positions at once; then weights the columns."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise b.error(f"attribute 'mode' must be TF, IDF or TFIDF, not {mode!r}", CHECK)
    pool: list[Any] = list(pool_strings if pool_strings is not None else pool_int64s or [])
    words = sorted(set(pool))
    places = {word: i for i, word in enumerate(words)}
    grams = _grams(b, [places[word] for word in pool], ngram_counts, ngram_indexes)
    grams = {gram: column for gram, column in grams.items() if min_gram_length <= len(gram) <= max_gram_length}
    if pool_strings is not None:
        known = b.texts(words, "vocabulary")
    else:
        known = b.buffer(np.array(words, np.int64), "vocabulary")
    ranks = b.let(b("ranks_of(x, known)", x=X, known=known), "words")
    counts = _counts(b, ranks, grams, len(words), max(ngram_indexes, default=-1) + 1, max_skip_count)
    return _weighted(b, counts, mode, ngram_indexes, weights)


def _grams(b: Builder, pool: list[int], starts: list[int], columns: list[int]) -> dict[Gram, int]:
    """Return the column of each n-gram of word ranks. `starts`: where 1-grams, 2-grams, ... begin in the pool."""
    grams: dict[Gram, int] = {}
    rest = iter(columns)
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % n:
            raise b.error(f"ngram_counts do not divide the pool into {n}-grams", WRITER)
        for i in range(start, end, n):
            gram, column = tuple(pool[i : i + n]), next(rest, -1)
            if column < 0:
                raise b.error("ngram_indexes are negative, or fewer than the n-grams of the pool", WRITER)
            if gram in grams:
                raise b.error("an n-gram is in the pool twice", "remove one of them")
            grams[gram] = column
    return grams


def _counts(b: Builder, ranks: Ref, grams: dict[Gram, int], words: int, size: int, skips: int) -> ast.expr:
    """Return the call of `count_ngrams`, with a sorted table for each length of n-grams."""
    prefixes, columns = [], []
    above: dict[Gram, int] = {(): 0}
    for n in range(1, max(map(len, grams), default=0) + 1):
        # sorted n-grams have sorted codes, since their prefixes are numbered in sorted order
        level = sorted({gram[:n] for gram in grams if len(gram) >= n})
        prefixes.append(np.array([above[run[:-1]] * words + run[-1] for run in level], np.int64))
        columns.append(np.array([grams.get(run, -1) for run in level], np.int64))
        above = {run: i for i, run in enumerate(level)}
    tables = [b.buffer(p, f"ngrams{n}") for n, p in enumerate(prefixes, 1)]
    places = [b.buffer(c, f"columns{n}") for n, c in enumerate(columns, 1)]
    return b.call("count_ngrams", ranks, words, tables, places, size, skips=unless(skips, 0))


def _weighted(b: Builder, counts: ast.expr, mode: str, columns: list[int], weights: list[float] | None) -> ast.expr:
    if mode == "TF":
        return counts
    if weights is not None and len(weights) != len(columns):
        raise b.error(f"the node has {len(weights)} weights for {len(columns)} n-grams", WRITER)
    if weights is None:
        return counts if mode == "TFIDF" else b("(x > 0).float()", x=counts)
    factors: NDArray[np.float32] = np.zeros(max(columns, default=-1) + 1, np.float32)
    factors[columns] = weights
    table = b.buffer(factors, "weights", ir.DataType.FLOAT)
    return b("x * w" if mode == "TFIDF" else "(x > 0) * w", x=counts, w=literal(table))
