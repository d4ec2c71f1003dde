"""Takes lines that black would not change out of a file while black formats the rest.

black takes up to 4 ms a line, and most lines of a large network are short statements that `ast.unparse` wrote as black
would. A run of such lines is replaced by one statement, a name, and put back after formatting. `from_pretrained`, half
of a small file and the same in many, is formatted alone, once a process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from onnxgen.code.class_source import ClassSource
from onnxgen.code.printer import INDENT

MAX_BLACK_LINES = 20_000  # lines to format; a file with more keeps the long lines of its methods
_BODY = 2 * len(INDENT)  # the column at which methods' lines begin
# An assignment or a call, perhaps with a shape comment. Left out is what black writes differently from `ast.unparse`:
# powers, slices, strings, 1e+20, 1 .real, (1,), and statements that may affect blank lines.
_SIMPLE = re.compile(r"( *)([\w., ]+ = )?([\w .,()\[\]=+\-*/%@<>!&|^~]+?)(  # \[[^#]*\])?", re.ASCII)
_OTHER = re.compile(
    r"\*\*|\w \.|,[)\]]|, =|\de\+|(?<![\w.])\d[\w.]*\.[A-Za-z_]|^ *\("
    r"|\b(?:return|yield|await|pass|break|continue|del|assert|raise)\b"
)
_MARK = re.compile(r"^( *)_settled_(\d+)_$", re.MULTILINE)
# Stands for `from_pretrained`. It is an f-string, as that method has: by those black sees for which versions of Python
# a file is, and splits lines accordingly.
_LOADING = 'f"_from_pretrained_"\n'


class Settled:
    """The lines that were taken out of the classes of one file.

    Attributes:
        skipped: all lines of methods were taken out, since there are too many to format.
    """

    def __init__(self, classes: Sequence[ClassSource], line_length: int) -> None:
        self.line_length = line_length
        left = sum(not self._settled(line) for c in classes for line in (*c.init, *c.forward))
        self.skipped = left > MAX_BLACK_LINES
        self.runs: list[list[str]] = []
        self.classes = [replace(c, init=self._without(c.init), forward=self._without(c.forward)) for c in classes]

    def restored(self, source: str) -> str:
        """Put the lines back into the formatted source."""
        return _MARK.sub(lambda mark: mark[1] + f"\n{mark[1]}".join(self.runs[int(mark[2])]), source)

    def _without(self, lines: list[str]) -> list[str]:
        """Replace each run of settled lines (or all lines, if skipped) by a mark."""
        left: list[str] = []
        before = None  # indentation of the current run
        for line in lines:
            indent = "" if self.skipped else line[: len(line) - len(line.lstrip(" "))]
            if not self.skipped and not self._settled(line):
                before = None
                left.append(line)
                continue
            if indent != before:
                before = indent
                left.append(f"{indent}_settled_{len(self.runs)}_")
                self.runs.append([])
            self.runs[-1].append(line[len(indent) :])
        return left

    def _settled(self, line: str) -> bool:
        if len(line) + _BODY > self.line_length or _OTHER.search(line):
            return False
        found = _SIMPLE.fullmatch(line)
        # black removes parentheses around a whole value
        return found is not None and not (found[3].startswith("(") and found[3].endswith(")"))


def formatted_apart(text: str, method: str, formatted: Callable[[str], str]) -> str:
    """Format a file with a function that is the same in many files, and formatted once.

    Args:
        text: the file.
        method: the lines of the function in it.
        formatted: formats a file.
    """
    marked = text.replace(method, _LOADING)
    if text.count(method) != 1 or marked.count(_LOADING) != 1:
        return formatted(text)
    return formatted(marked).replace(_LOADING, _alone(method, formatted))


@lru_cache(maxsize=64)
def _alone(method: str, formatted: Callable[[str], str]) -> str:
    """Format a function alone."""
    return formatted(method)
