"""Calls what a plugin has: whatever it does wrong is a problem of its node, with the way out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnxgen.errors import OnnxgenError, Problem, counted
from onnxgen.names import printable
from onnxgen.plugins.loading import Plugin, why
from onnxgen.propagate.dims import TooComplex
from onnxgen.propagate.info import UNKNOWN, Info
from onnxgen.propagate.node_facts import Contradiction, NodeFacts, Rule, Unknown

if TYPE_CHECKING:
    from onnxgen.ops.builder import Builder

RETURNS = 'return b("..."), a list of such for several outputs, or b.unpack(...)'


def lowered(b: Builder, plugin: Plugin, function: Callable[[], Any]) -> Any:
    """What a plugin's function returns for a node, as `Lowering` takes it.

    Raises:
        OnnxgenError: the function fails, or returns what is no expression.
    """
    from onnxgen.ops.builder import Unpack

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
            raise b.error(f"plugin {plugin.name} returns nothing for output {i}, which is used", RETURNS)
    return values


def _expression(b: Builder, plugin: Plugin, value: Any) -> ast.expr | None:
    found = getattr(value, "expr", value)  # an input, handed on
    if found is None or isinstance(found, ast.expr):
        return found
    raise b.error(f"plugin {plugin.name} returns {type(value).__name__}, which is no expression", RETURNS)


def inferred(n: NodeFacts, plugin: Plugin, rule: Rule) -> list[Info]:
    """What a plugin's rule says of a node's outputs; never elements, which only onnxgen's own rules know.

    Raises:
        OnnxgenError: the rule fails, or says something else than facts.
    """
    op = printable(f"{n.node.domain}.{n.op}" if n.node.domain else n.op)
    try:
        found = list(rule(n))
        if not all(isinstance(facts, Info) for facts in found):
            raise TypeError("a rule returns a list of Info")
    except (Unknown, Contradiction, TooComplex):
        return []
    except Exception as error:
        what = f"plugin {plugin.name}: its infer rule: {why(error)}"
        raise OnnxgenError(Problem(printable(what, 400), printable(n.node.name or ""), op, n.opset)) from error
    return [UNKNOWN if facts == UNKNOWN else replace(facts, data=None) for facts in found]
