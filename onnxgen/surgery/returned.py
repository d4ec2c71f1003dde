"""The outputs of a module that somebody edited: they are called as the variables that `forward` returns."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch import nn

from onnxgen.record.base import BASE, UNREADABLE, unpacked
from onnxgen.record.signature import Port


def as_returned(outputs: tuple[Port, ...], kind: type[nn.Module], metadata: Mapping[str, str]) -> tuple[Port, ...]:
    """Return the outputs of a class, which are those of the graph unless its `forward` returns another number.

    An expression that the module was generated with stays the output of the graph. Any other one is called as its
    variable, or `output1` by its place, and nothing is known of it.
    """
    now = _of_function(kind.forward)
    if len(now) < 2 or len(now) == len(outputs):
        return outputs
    then = _of_text(unpacked(metadata.get(BASE, "")) or "", kind.__name__)
    known = dict(zip(then, outputs, strict=True)) if len(then) == len(outputs) else {}
    found: list[Port] = []
    for number, text in enumerate(now):
        port = known.get(text) or Port(text if text.isidentifier() else f"output{number}", None, None)
        if port.name in {other.name for other in found}:
            port = Port(f"output{number}", None, None)
        found.append(port)
    return tuple(found)


@lru_cache(maxsize=64)
def _of_function(forward: Callable[..., Any]) -> Sequence[str]:
    """Return what `forward` returns last, as text; () if its source is not to be had."""
    try:
        return _returned(ast.parse(textwrap.dedent(inspect.getsource(forward))))
    except (OSError, TypeError, *UNREADABLE):
        return ()


def _of_text(text: str, name: str) -> Sequence[str]:
    try:
        classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    except UNREADABLE:
        return ()
    functions = [node for one in classes for node in one.body if getattr(node, "name", "") == "forward"]
    return _returned(functions[0]) if functions else ()


def _returned(tree: ast.AST) -> Sequence[str]:
    """Return the expressions of the last `return`, which is that of `forward` itself."""
    body = tree.body[0] if isinstance(tree, ast.Module) else tree
    last = body.body[-1] if isinstance(body, ast.FunctionDef) else None
    if not isinstance(last, ast.Return) or last.value is None:
        return ()
    values = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    return [ast.unparse(value) for value in values]
