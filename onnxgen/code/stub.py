"""A method that a person is to fill in, as the file has it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

SHOWN = 6  # nodes that are named


@dataclass
class Stub:
    """A method that is left open.

    Attributes:
        name: what it is called.
        arguments, keywords: each `name: annotation`.
        returns: the annotation of what it returns.
        about: the operator, printable.
        doc: lines of its docstring after the first.
        nodes: the nodes that call it, by name.
        calls: where it is called, until it has its final name.
    """

    name: str
    arguments: list[str]
    keywords: list[str]
    returns: str
    about: str
    doc: list[str]
    nodes: list[str] = field(default_factory=list)
    calls: list[ast.Attribute] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """The method as a class has it."""
        given = ["self", *self.arguments, *(["*", *self.keywords] if self.keywords else [])]
        return [
            f"def {self.name}({', '.join(given)}) -> {self.returns}:",
            f'    """{self.about}, left open: {named(self.nodes)}.',
            "",
            *(f"    {line}" for line in self.doc),
            '    """',
            f"    raise NotImplementedError({literal_text(f'{self.about} is left open: fill in {self.name}')})",
        ]


def named(nodes: list[str]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {listed(nodes)}"


def listed(nodes: list[str]) -> str:
    shown = ", ".join(node or "(unnamed)" for node in nodes[:SHOWN])
    return shown + (f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else "")


def literal_text(text: str) -> str:
    """A literal in double quotes, of text that is printable ASCII without quotes."""
    return f'"{text}"'
