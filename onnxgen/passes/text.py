"""Let operators that only move, pick or compare text elements work on numbers that stand for the strings.

`TextCodes` numbers the distinct strings of a node's inputs in sorted order: equal strings get equal numbers, and the
order is kept. `TextAt` turns the results back into strings. So the functions of these operators need not support text.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import Problem, Problems
from onnxgen.graph.nodes import all_nodes, told
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import FILLS, MOVES, TEXTS
from onnxgen.options import Options
from onnxgen.passes.rewrite import beside, input_at, insert, insert_behind, own
from onnxgen.shapes.info import Info, info, set_info

STRING = ir.DataType.STRING
COMPARES = ("Equal", "Unique")  # elements by equality alone


def text(model: ir.Model, options: Options) -> None:
    """Rewrite every standard node that takes text and does not look inside the strings.

    Raises:
        OnnxgenError: another node takes text and is not known to support it; every such node is named.
    """
    problems = Problems()
    for node in all_nodes(model.graph):
        texts = [value for value in node.inputs if value is not None and _is_text(value)]
        if not texts or node.domain not in ("", "ai.onnx") or is_a(node, TEXTS):
            continue
        if (is_a(node, MOVES) or node.op_type in COMPARES) and not _puts_zeros(node):
            _by_codes(node, list(dict.fromkeys(texts)))
        else:
            what, way_out = "the operator does not take strings", "do it before or after the network"
            problems.add(Problem(what, told(node), printable(node.op_type), help=way_out))
    problems.raise_if_any()


def _is_text(value: ir.Value) -> bool:
    facts = info(value)
    return facts.dtype == STRING and facts.kind == "tensor"


def _puts_zeros(node: ir.Node) -> bool:
    """True if a node puts zeros between the elements: the code 0 stands for some string, not for an empty one."""
    mode = node.attributes.get_string("mode", None)
    return is_a(node, FILLS) and input_at(node, 2) is None and mode in (None, "constant")


def _by_codes(node: ir.Node, texts: list[ir.Value]) -> None:
    """Let a node take codes instead of texts, and put `TextAt` between its outputs and their users."""
    codes = own("TextCodes", texts, 1 + len(texts))
    table = insert(node, codes, f"{node.outputs[0].name}.table", Info(STRING), node)
    for value, code in zip(texts, codes.outputs[1:]):
        code.name = f"{value.name}.codes"
        set_info(code, replace(info(value), dtype=ir.DataType.INT64))
        for i, operand in enumerate(node.inputs):
            if operand is value:
                node.replace_input_with(i, code)
    for output in filter(_is_text, node.outputs):
        at = own("TextAt", [table, output])
        beside(at, node)
        insert_behind(output, at, "codes")
        set_info(output, replace(info(output), dtype=ir.DataType.INT64))
        output.type = ir.TensorType(ir.DataType.INT64)
