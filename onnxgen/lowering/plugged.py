"""Calls a plugin's function for a node: whatever it does wrong is a problem of its node, with the way out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnxgen.errors import OnnxgenError, counted
from onnxgen.plugins.loading import Plugin
from onnxgen.plugins.saying import why
from onnxgen.shapes.dims import TooComplex

if TYPE_CHECKING:
    from onnxgen.lowering.builder import Builder

RETURNS = 'return b("..."), a list of such for several outputs, or b.unpack(...)'


def lowered(b: Builder, plugin: Plugin, function: Callable[[], Any]) -> Any:
    """Call a plugin's function for a node and check the result for `Lowering`.

    Raises:
        OnnxgenError: the function fails, or returns what is no expression.
    """
    from onnxgen.lowering.builder import Unpack

    try:
        made = function()
    except (OnnxgenError, TooComplex):
        raise
    except Exception as error:
        raise b.error(f"plugin {plugin.name}: {why(error)}") from error
    if isinstance(made, Unpack):
        return made
    values = [_expression(b, plugin, value) for value in (made if isinstance(made, (list, tuple)) else [made])]
    if len(values) > len(b.node.outputs):
        there = counted(len(b.node.outputs), "output")
        raise b.error(f"plugin {plugin.name} returns {counted(len(values), 'value')} for {there}", RETURNS)
    for i in range(len(b.node.outputs)):
        if b.wants(i) and (i >= len(values) or values[i] is None):
            raise b.error(f"plugin {plugin.name} returns None for output {i}, which is used", RETURNS)
    return values


def _expression(b: Builder, plugin: Plugin, value: Any) -> ast.expr | None:
    found = getattr(value, "expr", value)  # an input, handed on
    if found is None or isinstance(found, ast.expr):
        return found
    raise b.error(f"plugin {plugin.name} returns {type(value).__name__}, which is not an expression", RETURNS)
