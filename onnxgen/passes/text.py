"""Text where an operator only moves, picks or compares elements: it works on numbers that stand for the strings.

`TextCodes` numbers the different strings of a node's inputs in their order, so that equal strings are equal numbers and
sorted ones sorted numbers; `TextAt` makes strings of the results again. So every such operator takes text, without
knowing of it.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import Problem, Problems
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes, told
from onnxgen.graph.traits import FILLS, MOVES
from onnxgen.options import Options
from onnxgen.passes.rewrite import beside
from onnxgen.shapes.info import Info, info, set_info

STRING = ir.DataType.STRING
COMPARE = ("Equal", "Unique")  # by what the elements are, not by what they mean
# what hands on values of any kind, or is about text itself
NATIVE = frozenset(
    "Cast CastLike Identity If Loop Optional OptionalGetElement OptionalHasElement RegexFullMatch "
    "SequenceConstruct SequenceInsert SequenceMap Shape Size StringConcat StringNormalizer StringSplit "
    "TfIdfVectorizer".split()
)


def text(model: ir.Model, options: Options) -> None:
    """Rewrite every node of the standard that takes text and does not look into it.

    Raises:
        OnnxgenError: with every other one that is not known to take text.
    """
    problems = Problems()
    for node in all_nodes(model.graph):
        texts = [value for value in node.inputs if value is not None and _is_text(value)]
        if not texts or node.domain not in ("", "ai.onnx") or node.op_type in NATIVE:
            continue
        if (is_a(node, MOVES) or node.op_type in COMPARE) and not _puts_zeros(node):
            _by_codes(node, list(dict.fromkeys(texts)))
        else:
            name, operator = told(node), printable(node.op_type)
            problems.add(
                Problem("the operator does not take strings", name, operator, help="do it before or after the network")
            )
    problems.raise_if_any()


def _is_text(value: ir.Value) -> bool:
    facts = info(value)
    return facts.dtype == STRING and facts.kind == "tensor"


def _puts_zeros(node: ir.Node) -> bool:
    """Between its elements: a number for text is no empty string."""
    given = len(node.inputs) > 2 and node.inputs[2] is not None
    mode = node.attributes.get("mode")
    return is_a(node, FILLS) and not given and (mode is None or mode.as_string() == "constant")


def _by_codes(node: ir.Node, texts: list[ir.Value]) -> None:
    graph = node.graph
    assert graph is not None
    codes = ir.Node(DOMAIN, "TextCodes", texts, num_outputs=1 + len(texts), version=1)
    table = codes.outputs[0]
    table.name = f"{node.outputs[0].name}.table"
    set_info(table, Info(STRING))
    beside(codes, node)
    graph.insert_before(node, codes)
    for value, code in zip(texts, codes.outputs[1:]):
        code.name = f"{value.name}.codes"
        set_info(code, replace(info(value), dtype=ir.DataType.INT64))
        for i, given in enumerate(node.inputs):
            if given is value:
                node.replace_input_with(i, code)
    for output in node.outputs:
        if _is_text(output):
            _decoded(node, table, output)


def _decoded(node: ir.Node, table: ir.Value, output: ir.Value) -> None:
    """Put `TextAt` between an output, which is numbers now, and whatever uses it; that keeps the name."""
    at = ir.Node(DOMAIN, "TextAt", [table, output], version=1)
    made = at.outputs[0]
    made.shape, made.type = output.shape, output.type
    set_info(made, info(output))
    set_info(output, replace(info(output), dtype=ir.DataType.INT64))
    beside(at, node)
    assert node.graph is not None
    node.graph.insert_after(node, at)
    made.name, output.name = output.name, f"{output.name}.codes"
    ir.convenience.replace_all_uses_with(output, made, replace_graph_outputs=True)
    at.replace_input_with(1, output)
    output.type = ir.TensorType(ir.DataType.INT64)
