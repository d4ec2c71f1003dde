"""One class of a generated file as the templates get it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxgen.code.annotations import ANNOTATION
from onnxgen.code.printer import GLANCE, INDENT, LINE_LENGTH, comment

if TYPE_CHECKING:
    from onnxgen.structure.parameters import Parameter

_NODES = re.compile(f"(?:  #|;) {ANNOTATION}")  # `--annotate` changes no choice
_HEADS = 4  # lines: of the class, `__init__`, `super().__init__()`, `forward`
_ROOM = GLANCE - 2 * len(INDENT)


@dataclass
class ClassSource:
    """The text of a `ClassTree`; docs/TEMPLATES.md describes the attributes."""

    name: str
    base: str = "nn.Module"
    paths: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    returns: str = "Tensor"
    ties: list[tuple[str, str]] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    stubs: list[list[str]] = field(default_factory=list)
    methods: list[list[str]] = field(default_factory=list)
    about: str = ""
    says_none: bool = True

    @property
    def doc(self) -> str:
        """The docstring: what the class computes; "" for the root."""
        if self.paths == [""] or not self.about:
            return ""
        text = comment(f"{self.about}.")
        if len(text) <= LINE_LENGTH - len(f'{INDENT}""""""'):
            return text
        width = LINE_LENGTH - len('"""')  # black leaves the quotes of a text of one line where they are
        lines = textwrap.wrap(f'{INDENT}"""{text}', width, subsequent_indent=INDENT)
        return "\n".join([*lines, INDENT])[7:]


def length(source: ClassSource) -> int:
    """Return the number of lines of a class, about: the formatter breaks those that are too long."""
    texts = [*source.init, *source.forward, *source.layers, *(line for method in source.methods for line in method)]
    lines = [_NODES.split(text)[0] for text in texts if not text.lstrip().startswith(f"# {ANNOTATION}")]
    unnamed = sum(line.count("nn.Module()") for line in lines)  # a class that nobody wrote
    return _HEADS * (1 + unnamed) + sum(map(_height, lines))


def forward_length(source: ClassSource) -> int:
    """Return the number of lines of `forward`, about, without comments and empty lines."""
    lines = (text.partition("  # ")[0] for text in source.forward)
    return 1 + sum(_height(line) for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _height(line: str) -> int:
    """Return how many lines the formatter makes of a statement; of a long one, each item in brackets is a line."""
    if len(line) <= _ROOM:
        return 1
    depth, begin, items, apart = 0, 0, 1, 1
    for i, letter in enumerate(line):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 1 and letter in "([{":
            begin, items = i, 1
        items += letter == "," and depth == 1
        apart += letter == "," and depth == 0
    if apart > 1:  # a tuple without brackets
        return 2 + apart
    inside = len(line) - begin
    return 3 if inside <= _ROOM - 2 else 2 + max(items, inside // _ROOM + 1)
