"""Text: arrays of strings are numpy's, of dtype object."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def texts(items: Sequence[str], shape: Sequence[int]) -> np.ndarray:
    """An array of strings; numpy itself takes a string for a sequence of letters."""
    made = np.empty(len(items), dtype=object)
    made[:] = items
    return made.reshape(tuple(shape))


def read_texts(encoded: Tensor, shape: Sequence[int]) -> np.ndarray:
    """An array of strings that a sidecar has as JSON: the bytes of a list, uint8."""
    return texts(json.loads(bytes(encoded.tolist())), shape)


def text_codes(*arrays: np.ndarray, device: torch.device) -> list[np.ndarray | Tensor]:
    """The different strings of some arrays, sorted, and each array with the numbers of its strings there, int64."""
    table, codes = np.unique(np.concatenate([array.reshape(-1) for array in arrays]), return_inverse=True)
    parts = np.split(codes, np.cumsum([array.size for array in arrays])[:-1])
    return [table, *(torch.tensor(part, device=device).reshape(a.shape) for part, a in zip(parts, arrays))]


def string_concat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The strings of y after those of x, which broadcast; also of rank 0, where numpy makes a str of the sum."""
    return np.asarray(x + y, dtype=object)


def string_split(x: np.ndarray, delimiter: str = "", most: int = -1) -> tuple[np.ndarray, Tensor]:
    """ONNX StringSplit (20), as onnxruntime has it: the pieces between delimiters, or runs of spaces.

    An empty string has no pieces. `most`: how often a string is split; -1: wherever possible.

    Returns:
        The pieces, with one axis more, filled up with empty strings; and how many they are, int64.
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
    return texts(filled, [*x.shape, width]), counts


def changed_case(text: str, upper: bool) -> str:
    """Letter by letter, as C has it: a letter whose other case is several letters ("ß") stays, "Σ" is always "σ"."""
    made = []
    for letter in text:
        other = letter.upper() if upper else letter.lower()
        if len(other) > 1:
            other = letter.title() if upper else other[0]
        made.append(other if len(other) == 1 else letter)
    return "".join(made)


def normalized(
    x: np.ndarray, case: str = "NONE", stopwords: Sequence[str] = (), case_sensitive: bool = False
) -> np.ndarray:
    """ONNX StringNormalizer (10): without some words, and in lower or upper case.

    Args:
        x: strings [n] or [1, n].
        case: "LOWER", "UPPER" or "NONE".
        stopwords: what is left out.
        case_sensitive: stop words must be written like that; else case does not matter.

    Returns:
        The strings that are left, one empty string if none is.
    """
    compared = set(stopwords) if case_sensitive else {changed_case(word, case == "UPPER") for word in stopwords}
    kept = []
    for text in x.reshape(-1).tolist():
        changed = text if case == "NONE" else changed_case(text, case == "UPPER")
        if (text if case_sensitive else changed_case(text, case == "UPPER")) not in compared:
            kept.append(changed)
    kept = kept or [""]
    return texts(kept, [*x.shape[:-1], len(kept)])


def full_match(x: np.ndarray, pattern: str) -> Tensor:
    """Whether each whole string matches a regular expression, bool of x's shape."""
    matcher = re.compile(pattern)
    return torch.tensor([matcher.fullmatch(t) is not None for t in x.reshape(-1)], dtype=torch.bool).reshape(x.shape)
