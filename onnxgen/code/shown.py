"""Finds the first value that has a symbolic dim. Statements that compute with the dim depend on that value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from onnxgen.code.module_def import Input, Statement, assigned
from onnxgen.code.quote import SizeOf, walk
from onnxgen.shapes.dims import symbol, symbols
from onnxgen.shapes.info import Info


def shown(inputs: Iterable[Input], body: Iterable[Statement], infos: Mapping[str, Info]) -> dict[str, str]:
    """Return the first value that has each named dim as an axis, by the dim's name; not dims of the inputs."""
    found: dict[str, str | None] = {}
    for argument in inputs:
        found.update(dict.fromkeys(named_dims(infos, argument.value)))
    for statement in body:
        for value in assigned(statement):
            for name in named_dims(infos, value):
                found.setdefault(name, value)
    return {name: value for name, value in found.items() if value is not None}


def needed_dims(expressions: Iterable[ast.expr], where: Mapping[str, str]) -> set[str]:
    """Return the dims in these expressions that are read from a value (`where`: see `shown`)."""
    if not where:
        return set()
    sizes = (node for tree in expressions for node in walk(tree) if isinstance(node, SizeOf))
    return {name for size in sizes for name in symbols(size.dim) if name in where}


def makers(expressions: Iterable[ast.expr], where: Mapping[str, str]) -> set[str]:
    """Return the values that must exist before the sizes in these expressions are known."""
    return {where[name] for name in needed_dims(expressions, where)}


def named_dims(infos: Mapping[str, Info], value: str) -> list[str]:
    """Return the named dims that are axes of a tensor, alone and not in a sum or product."""
    facts = infos.get(value, Info())
    if facts.kind != "tensor" or facts.shape is None:
        return []
    return [name for dim in facts.shape for name in symbols(dim) if dim == symbol(name)]
