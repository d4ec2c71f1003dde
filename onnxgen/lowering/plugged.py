"""Calls a plugin's function for a node and checks what it does. Every mistake is reported as a problem of the node."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from onnxgen.code.copied import helper_names
from onnxgen.errors import OnnxgenError, counted
from onnxgen.plugins.loading import Plugin
from onnxgen.plugins.saying import why
from onnxgen.shapes.dims import TooComplex

if TYPE_CHECKING:
    from onnxgen.lowering.builder import Builder

WHAT_TO_RETURN = 'return b("..."), a list of such for several outputs, or b.unpack(...)'
# Names that a plugin's expression may use without giving them a value: every generated file has them.
FILE_NAMES = frozenset(
    """
    torch nn F Tensor np math re json Path self
    abs all any bool complex dict enumerate float int isinstance len list map max min range reversed round set slice
    sorted str sum tuple zip
    """.split()
)


def check_text(b: Builder, plugin: Plugin, template: str, values: Mapping[str, Any]) -> None:
    """Check an expression that a plugin writes: it must use all values that it is given, and no unknown names.

    Raises:
        OnnxgenError: it does not, or it is not an expression.
    """
    try:
        nodes = list(ast.walk(ast.parse(template, mode="eval")))
    except SyntaxError:
        raise b.error(f"plugin {plugin.name}: the text is not a Python expression: {template}") from None
    names = [n for n in nodes if isinstance(n, ast.Name)]
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    bound = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    if unknown := sorted(read - bound - values.keys() - FILE_NAMES - helper_names()):
        what = f"plugin {plugin.name}: the text uses {', '.join(unknown)} without a value: {template}"
        raise b.error(what, f"pass it: b(text, {unknown[0]}=...)")
    if unused := sorted(values.keys() - read):
        raise b.error(f"plugin {plugin.name}: the text does not use {', '.join(unused)}: {template}")


def lowered(b: Builder, plugin: Plugin, function: Callable[[], Any]) -> Any:
    """Call a plugin's function for a node and check the result for `Lowering`.

    Raises:
        OnnxgenError: the function fails, or its result is not an expression.
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
        raise b.error(f"plugin {plugin.name} returns {counted(len(values), 'value')} for {there}", WHAT_TO_RETURN)
    for i in range(len(b.node.outputs)):
        if b.wants(i) and (i >= len(values) or values[i] is None):
            raise b.error(f"plugin {plugin.name} returns None for output {i}, which is used", WHAT_TO_RETURN)
    return values


def _expression(b: Builder, plugin: Plugin, value: Any) -> ast.expr | None:
    found = getattr(value, "expr", value)  # an input that is passed on
    if found is None or isinstance(found, ast.expr):
        return found
    raise b.error(f"plugin {plugin.name} returns {type(value).__name__}, which is not an expression", WHAT_TO_RETURN)
