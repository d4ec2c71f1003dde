"""Tables of idioms: an idiom has several spellings, and a function that builds the node they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import all_nodes
from onnxgen.passes.pattern import Match, Pattern, present
from onnxgen.passes.rewrite import replace
from onnxgen.shapes.info import info


@dataclass(frozen=True)
class Idiom:
    """Spellings of one function. `build` returns the node for a match, or None if the match is not the function."""

    patterns: tuple[Pattern, ...]
    build: Callable[[Match], ir.Node | None]


class Table:
    """Idioms, indexed by the operators that a spelling may end with, so that every node is looked at once."""

    def __init__(self, idioms: Sequence[Idiom]) -> None:
        self.by_root: dict[str, list[tuple[Pattern, Idiom]]] = {}
        for idiom in idioms:
            for pattern in idiom.patterns:
                for root in dict.fromkeys(pattern.root.roots):
                    self.by_root.setdefault(root, []).append((pattern, idiom))

    def rewrite(self, model: ir.Model, users_first: bool = False) -> None:
        """Replace each spelling by the node of the first idiom that matches.

        Producers come before their users, so that a spelling may contain operators that other idioms made. With
        `users_first` it is the other way round, so that a shorter idiom does not take the start of a longer one.
        """
        nodes = all_nodes(model.graph)
        operators: set[str] = set().union(*map(present, nodes))  # few graphs have all operators of a formula
        for node in reversed(nodes) if users_first else nodes:
            if node.graph is None or node.domain != "" or info(node.outputs[0]).dtype not in FLOATS:
                continue
            for pattern, idiom in self.by_root.get(node.op_type, ()):
                match = pattern.match(node) if pattern.operators <= operators else None
                new = idiom.build(match) if match is not None else None
                if new is not None:
                    replace(node, new)
                    operators |= present(new)
                    break


def same_as(match: Match, name: str = "x") -> bool:
    """True if the result has the type and shape of a matched tensor, that is, no constant has broadcast it."""
    x, y = info(match.tensor(name)), info(match.root.outputs[0])
    return x.shape is not None and x.shape == y.shape and x.dtype == y.dtype
