"""Text, as numpy arrays of strings with dtype object."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def text_array(items: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """Make an array of strings; numpy alone takes a string for a sequence."""
    made = np.empty(len(items), dtype=object)
    made[:] = items
    return made.reshape(tuple(shape))


def read_texts(encoded: Tensor, shape: Sequence[int]) -> np.ndarray:
    """Read strings that the weights file stores as uint8 bytes of a JSON list."""
    return text_array(json.loads(bytes(encoded.tolist())), shape)


def text_codes(*arrays: np.ndarray, device: torch.device) -> list[np.ndarray | Tensor]:
    """Return the sorted distinct strings, and each array as int64 indices into them."""
    table, codes = np.unique(np.concatenate([array.reshape(-1) for array in arrays]), return_inverse=True)
    parts = np.split(codes, np.cumsum([array.size for array in arrays])[:-1])
    return [table, *(torch.tensor(part, device=device).reshape(a.shape) for part, a in zip(parts, arrays))]


def string_concat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ONNX StringConcat; also for rank 0, for which numpy returns a str."""
    return np.asarray(x + y, dtype=object)


def string_split(x: np.ndarray, delimiter: str = "", most: int = -1) -> tuple[np.ndarray, Tensor]:
    """ONNX StringSplit (20), as onnxruntime: split at delimiters, or at runs of spaces.

    An empty string has no pieces. `most`: how often to split a string; -1: no limit.

    Returns:
        The pieces, with a further axis, filled up with empty strings; and their
        numbers, int64.
    """
    pieces: list[list[str]] = []
    for text in x.reshape(-1).tolist():
        if delimiter:
            pieces.append(text.split(delimiter, most) if text else [])
            continue
        rest = text.strip(" ")
        found: list[str] = []
        while rest:
            last = len(found) == most
            piece, _, rest = (rest, "", "") if last else rest.partition(" ")
            found.append(piece)
            rest = rest.lstrip(" ")
        pieces.append(found)
    width = max(map(len, pieces), default=0)
    filled = [piece for found in pieces for piece in [*found, *[""] * (width - len(found))]]
    counts = torch.tensor([len(found) for found in pieces], dtype=torch.int64).reshape(x.shape)
    return text_array(filled, [*x.shape, width]), counts


def changed_case(text: str, upper: bool) -> str:
    """Change the case letter by letter, as C: no letter becomes several."""
    made = []
    for letter in text:
        other = letter.upper() if upper else letter.lower()
        if len(other) > 1:
            other = letter.title() if upper else other[0]
        made.append(other if len(other) == 1 else letter)
    return "".join(made)


def normalized_words(
    x: np.ndarray, case: str = "NONE", stopwords: Sequence[str] = (), case_sensitive: bool = False
) -> np.ndarray:
    """ONNX StringNormalizer (10): leave out stop words, and change the case.

    Args:
        x: strings [n] or [1, n].
        case: "LOWER", "UPPER" or "NONE".
        stopwords: the words to leave out.
        case_sensitive: compare stop words with their case.

    Returns:
        The remaining strings; a single empty string if there are none.
    """
    compared = set(stopwords) if case_sensitive else {changed_case(word, case == "UPPER") for word in stopwords}
    kept = []
    for text in x.reshape(-1).tolist():
        changed = text if case == "NONE" else changed_case(text, case == "UPPER")
        if (text if case_sensitive else changed_case(text, case == "UPPER")) not in compared:
            kept.append(changed)
    kept = kept or [""]
    return text_array(kept, [*x.shape[:-1], len(kept)])


def full_match(x: np.ndarray, pattern: str) -> Tensor:
    """Return True for strings that match a regular expression as a whole."""
    matcher = re.compile(pattern)
    return torch.tensor([matcher.fullmatch(t) is not None for t in x.reshape(-1)], dtype=torch.bool).reshape(x.shape)


def numbers_as_text(x: Tensor) -> np.ndarray:
    """Convert numbers to strings as onnxruntime: at most 8 digits, bools as 0 or 1."""
    if x.dtype.is_floating_point:
        names = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
        made = [names.get(str(number), f"{number:.8g}") for number in x.flatten().tolist()]
    else:
        made = [str(int(number)) for number in x.flatten().tolist()]
    return text_array(made, x.shape)


def floats_in(x: np.ndarray, device: torch.device) -> Tensor:
    """Parse the number at the start of each string as C does, as float64 of x's shape.

    Examples: "1.5e3", "INF", "NaN", "0x1p3".

    Raises:
        ValueError: a string does not begin with a number, or the number is too large.
    """
    forms = [
        r"0x(?:[\da-f]+\.?[\da-f]*|\.[\da-f]+)(?:p[+-]?\d+)?",
        r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?",
        "inf(?:inity)?",
        "nan",
    ]
    matcher = re.compile(rf"\s*([+-]?)({'|'.join(forms)})", re.IGNORECASE | re.ASCII)
    numbers = []
    for text in x.reshape(-1).tolist():
        found = matcher.match(text)
        if found is None:
            raise ValueError(f"no number: {text!r}")
        digits = found[2].lower()
        number = float.fromhex(digits) if digits.startswith("0x") else float(digits)
        if number == float("inf") and not digits.startswith("inf"):
            raise ValueError(f"too large a number: {text!r}")
        numbers.append(-number if found[1] == "-" else number)
    return torch.tensor(numbers, dtype=torch.float64, device=device).reshape(x.shape)


def integers_in(x: np.ndarray, device: torch.device, signed: bool = True) -> Tensor:
    """Parse the integer at the start of each string as C does, as int64 of x's shape.

    Examples: "12.5" and "12e3" are 12.

    Args:
        signed: if False, numbers up to 2**64 - 1 are allowed, and become negative
            numbers with the same bits.

    Raises:
        ValueError: a string does not begin with an integer, or it does not fit 64 bits.
    """
    numbers = []
    limit = 2**63 if signed else 2**64
    for text in x.reshape(-1).tolist():
        found = re.match(r"\s*[+-]?\d+", text, re.ASCII)
        if found is None or not -(2**63) <= int(found[0]) < limit:
            raise ValueError(f"no integer of 64 bits: {text!r}")
        number = int(found[0])
        numbers.append(number - 2**64 if number >= 2**63 else number)
    return torch.tensor(numbers, dtype=torch.int64, device=device).reshape(x.shape)


# ---- words -----------------------------------------------------------------------------------------------------------


def first_match(patterns: Sequence[str], text: str, start: int) -> tuple[int, int] | None:
    """Return begin and end of the first match from `start` on, the longest there."""
    found = [match.span() for pattern in patterns if (match := re.compile(pattern).search(text, start))]
    return min(found, key=lambda span: (span[0], -span[1]), default=None)


def words_between(text: str, separator: Sequence[str]) -> list[str]:
    """Split a string at the matches of a separator; an empty match takes a letter."""
    words, start = [], 0
    while start <= len(text) and (span := first_match(separator, text, start)):
        words.append(text[start : span[0]])
        start = span[1] + (span[0] == span[1])
    return [*words, text[start:]]


def words_in(text: str, pattern: Sequence[str], least: int) -> list[str]:
    """Find matches of at least `least` letters; in shorter ones, go on at letter 2."""
    words, start = [], 0
    while start <= len(text) and (span := first_match(pattern, text, start)):
        long_enough = span[1] - span[0] >= least
        words += [text[span[0] : span[1]]] if long_enough else []
        start = span[1] if long_enough else span[0] + 1
    return words


def split_words(
    x: np.ndarray,
    padding: str,
    separators: Sequence[Sequence[str]] = (),
    words: Sequence[str] = (),
    least: int = 1,
    mark: bool = False,
) -> np.ndarray:
    """onnxruntime's Tokenizer: split strings into words, or letters, along a new axis.

    Args:
        x: strings [n] or [m, n]. If there are none, the result has no further axis.
        padding: fills up strings with fewer words than others.
        separators: regular expressions of separators, each as alternatives, applied one
            after the other.
        words: alternatives of a regular expression that words match.
        least: the minimum number of letters of a word.
        mark: put the letters U+0002 and U+0003 around the words of a string, unless no
            string has any.
    """
    if x.size == 0:
        return x[..., :0]
    rows = []
    for text in x.reshape(-1).tolist():
        row = [text] if separators else words_in(text, words, least) if words else list(text)
        for separator in separators:
            row = [word for part in row for word in words_between(part, separator) if len(word) >= least]
        rows.append(row)
    if mark and any(rows):
        rows = [["\x02", *row, "\x03"] for row in rows]
    width = max(map(len, rows))
    return text_array([word for row in rows for word in [*row, *[padding] * (width - len(row))]], [*x.shape, width])
