"""One class of a generated file as the templates get it."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxgen.code.printer import INDENT, LINE_LENGTH, comment

if TYPE_CHECKING:
    from onnxgen.structure.parameters import Parameter


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

    @property
    def doc(self) -> str:
        """The docstring: the paths of the modules; "" for the root, and if the path would only be a number."""
        if not self.paths or len(self.paths) == 1 and not re.search(r"[^\d.]", self.paths[0]):
            return ""
        several = f" to {self.paths[-1]} ({len(self.paths)} uses)" if len(self.paths) > 1 else ""
        text = comment(f"{self.paths[0]}{several}.")
        if len(text) <= LINE_LENGTH - len(f'{INDENT}""""""'):
            return text
        return "\n".join([*textwrap.wrap(f'{INDENT}"""{text}', LINE_LENGTH, subsequent_indent=INDENT), INDENT])[7:]


def code_of(source: ClassSource) -> str:
    """Return all code of a class, in which the names of helpers and imports are looked for."""
    opened = [line for method in (*source.stubs, *source.methods) for line in method]
    values = [*map(str, source.parameters), *source.layers, *source.init, *source.arguments, *source.forward]
    return "\n".join([*values, *opened, source.returns])
