"""Methods of a generated file that a person is to fill in."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from onnxgen.code import printer

MAX_NODES = 6  # named in a text


@dataclass
class Stub:
    """A method that is left open.

    Attributes:
        name: of the method.
        arguments, keywords: of the method.
        returns: the annotation of its result.
        about: the operator, printable.
        doc: lines of its docstring after the first.
        nodes: the names of the nodes that call it.
        calls: the calls in the network, which get its final name.
    """

    name: str
    arguments: list[ast.arg]
    keywords: list[ast.arg]
    returns: str
    about: str
    doc: list[str]
    nodes: list[str] = field(default_factory=list)
    calls: list[ast.Attribute] = field(default_factory=list)

    @property
    def tree(self) -> ast.FunctionDef:
        """The method, without its docstring."""
        given = ast.arguments(
            [], [ast.arg("self"), *self.arguments], None, self.keywords, [None for _ in self.keywords], None, []
        )
        error = ast.Call(ast.Name("NotImplementedError", ast.Load()), [ast.Constant(self._message)], [])
        return ast.FunctionDef(self.name, given, [ast.Raise(error)], [], printer.annotation(self.returns))

    @property
    def lines(self) -> list[str]:
        """The text of the method."""
        given = ["self", *map(printer.argument, self.arguments)]
        given += ["*", *map(printer.argument, self.keywords)] if self.keywords else []
        return [
            f"def {self.name}({', '.join(given)}) -> {self.returns}:",
            f'    """{printer.comment(f"{self.about}, left open: {named(self.nodes)}.")}',
            "",
            *(f"    {printer.comment(line)}" for line in self.doc),
            '    """',
            f'    raise NotImplementedError("{printer.between_quotes(self._message)}")',
        ]

    @property
    def _message(self) -> str:
        return f"{self.about} is left open: fill in {self.name}"


def named(nodes: list[str]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {listed(nodes)}"


def listed(nodes: list[str]) -> str:
    shown = ", ".join(node or "(unnamed)" for node in nodes[:MAX_NODES])
    return shown + (f" and {len(nodes) - MAX_NODES} more" if len(nodes) > MAX_NODES else "")
