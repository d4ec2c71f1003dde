"""Call a plugin's rule for the dtypes and shapes of an operator's outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.graph.nodes import told
from onnxgen.plugins.saying import why
from onnxgen.shapes.dims import TooComplex
from onnxgen.shapes.info import UNKNOWN, Info
from onnxgen.shapes.node_facts import Contradiction, NodeFacts, Rule, Unknown

if TYPE_CHECKING:
    from onnxgen.plugins.loading import Plugin


def inferred(plugin: Plugin, rule: Rule, n: NodeFacts) -> list[Info]:
    """Return the facts of a node's outputs by a plugin's rule, without elements: only onnxgen's own rules know these.

    Raises:
        OnnxgenError: the rule fails, or does not return facts.
    """
    op = printable(f"{n.node.domain}.{n.op}" if n.node.domain else n.op)
    try:
        found = list(rule(n))
        if not all(isinstance(facts, Info) for facts in found):
            raise TypeError("an infer rule must return a list of Info")
    except (Unknown, Contradiction, TooComplex):
        return []
    except Exception as error:
        what = f"plugin {plugin.name}: the infer rule fails: {why(error)}"
        raise OnnxgenError(Problem(printable(what, 400), told(n.node), op, n.opset)) from error
    return [UNKNOWN if facts == UNKNOWN else replace(facts, data=None) for facts in found]
