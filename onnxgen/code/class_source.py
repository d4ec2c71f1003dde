"""One class of a generated file as the templates get it: text."""

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
    """One class, ready for the template.

    Attributes:
        name: its final name.
        base: what it is derived from.
        paths: the module paths of its instances ("" is the root).
        init, forward: lines of code, indented relative to the method's body.
        arguments: of `forward`, each `name: annotation`.
        returns: the annotation of what `forward` returns.
        ties: of the root, pairs of attributes that are to be one parameter.
        parameters: of the constructor.
        layers: what the class consists of if it is an `nn.Sequential` itself.
        stubs: lines of each method that is left open.
    """

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

    @property
    def doc(self) -> str:
        """Which modules it is; "" for the root, and where that would only be a number."""
        if not self.paths or len(self.paths) == 1 and not re.search(r"[^\d.]", self.paths[0]):
            return ""
        several = f" to {self.paths[-1]} ({len(self.paths)} uses)" if len(self.paths) > 1 else ""
        text = comment(f"{self.paths[0]}{several}.")
        if len(text) <= LINE_LENGTH - len(f'{INDENT}""""""'):
            return text
        return "\n".join([*textwrap.wrap(f'{INDENT}"""{text}', LINE_LENGTH, subsequent_indent=INDENT), INDENT])[7:]


def code_of(source: ClassSource) -> str:
    """All code of a class, whose names say what the file imports and which helpers it has."""
    opened = [line for stub in source.stubs for line in stub]
    values = [*map(str, source.parameters), *source.layers, *source.init, *source.arguments, *source.forward]
    return "\n".join([*values, *opened, source.returns])
