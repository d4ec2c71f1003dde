"""Infer one node's output dtypes and shapes: by its rule, else by onnx's inference, else by what the file declares."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import card
from onnxgen.graph.operators import of_plugins
from onnxgen.graph.schemas import schema
from onnxgen.graph.traits import (
    BROADCASTS,
    COMPARISON,
    CONVOLUTION,
    ELEMENTWISE,
    GLOBAL_POOL,
    NORMALISES,
    POOL,
    REDUCTION,
    SOFTMAX,
    Trait,
)  # fmt: skip
from onnxgen.shapes.dims import TooComplex
from onnxgen.shapes.infer_conv import conv, global_pool, pool
from onnxgen.shapes.infer_elementwise import arithmetic, comparison, same
from onnxgen.shapes.infer_fallback import infer_with_onnx
from onnxgen.shapes.infer_math import reduce
from onnxgen.shapes.info import UNKNOWN, Info
from onnxgen.shapes.node_facts import NONSENSE, NodeFacts, Rule, Symbols, Unknown

# the rules of operators whose cards name none, by the first trait that they have
OF_KIND: dict[Trait, Rule] = {
    COMPARISON: comparison,
    BROADCASTS: arithmetic,
    ELEMENTWISE: same,
    REDUCTION: reduce,
    GLOBAL_POOL: global_pool,
    POOL: pool,
    CONVOLUTION: conv,
    NORMALISES: same,
    SOFTMAX: same,
}

STANDARD = ("", "ai.onnx")


def is_operator(domain: str, name: str, opset: int) -> bool:
    """Return True if onnxruntime has an operator of this name: it takes that, and not a local function of the file."""
    if domain in (*STANDARD, "ai.onnx.ml"):
        return schema("" if domain in STANDARD else domain, name, opset) is not None
    return domain == "com.microsoft" and bool(card(domain, name).name)


def infer(n: NodeFacts) -> list[Info]:
    """Return the facts of every output of a node, without elements. Unknown facts are `UNKNOWN`."""
    count = len(n.node.outputs)
    operator = of_plugins(n.node.domain, n.op, n.opset)
    if operator is not None and operator.infer is not None:
        return (list(operator.infer(n)) + [UNKNOWN] * count)[:count]
    standard = n.node.domain in STANDARD
    rule = rule_of(n.node)
    try:
        found = rule(n) if rule is not None else infer_with_onnx(n) if standard else []
    except (Unknown, TooComplex):
        found = infer_with_onnx(n) if standard else []
    except NONSENSE:
        found = []
    return (found + [UNKNOWN] * count)[:count]


def rule_of(node: ir.Node) -> Rule | None:
    """Return the rule of one of onnxgen's own operators, or of its kind; None if it has none."""
    known = card(node.domain, node.op_type)
    of_kind = (rule for trait, rule in OF_KIND.items() if trait in known.traits)
    return known.infer or next(of_kind, None)


def declared(value: ir.Value, facts: Info, symbols: Symbols) -> Info:
    """Complete `facts` with the dtype and rank that the file declares for a value. Declared dims may be outdated."""
    if facts.dtype is not None and (facts.shape is not None or facts.kind in ("map", "maps")):
        return facts
    kind = facts.kind
    if isinstance(value.type, ir.SequenceType):
        kind = "sequence"
    elif isinstance(value.type, ir.OptionalType):
        kind = "optional"
    dtype = facts.dtype or value.dtype
    shape = facts.shape
    if shape is None and value.shape is not None and kind == "tensor":
        shape = tuple(symbols.fresh(value, axis) for axis in range(len(value.shape)))
    return Info(None if dtype == ir.DataType.UNDEFINED else dtype, shape, facts.data, kind)
