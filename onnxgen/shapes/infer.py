"""Infer one node's output dtypes and shapes: by its rule, else by onnx's inference, else by what the file declares."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import of_plugins, own
from onnxgen.graph.schemas import schema
from onnxgen.shapes import infer_conv, infer_elementwise, infer_layout, infer_math, infer_microsoft, infer_slice
from onnxgen.shapes.dims import TooComplex
from onnxgen.shapes.infer_fallback import infer_with_onnx
from onnxgen.shapes.info import UNKNOWN, Info
from onnxgen.shapes.node_facts import NONSENSE, NodeFacts, Rule, Symbols, Unknown

RULES: dict[str, Rule] = {
    **infer_elementwise.RULES,
    **infer_layout.RULES,
    **infer_slice.RULES,
    **infer_conv.RULES,
    **infer_math.RULES,
    **infer_microsoft.DROPPED_RULES,
}

STANDARD = ("", "ai.onnx")
OTHERS: dict[str, dict[str, Rule]] = {  # rules for operators of other domains
    "com.microsoft": infer_microsoft.RULES,
    "com.microsoft.nchwc": infer_microsoft.NCHWC_RULES,
    DOMAIN: {  # operators that passes create before the last propagation
        "SummedPool": infer_conv.RULES["AveragePool"],
        "DynamicConv": infer_conv.of_integers,
        "DynamicLinear": infer_math.of_integers,
        **dict.fromkeys(("FakeQuantize", "FakeQuantizeDynamic", "WeightNorm", "SpectralNorm"), lambda n: [n.input(0)]),
    },
}


# operators of com.microsoft that have neither a rule nor a function
UNRULED = frozenset(
    """
    ComplexMul ComplexMulConj ConvTransposeWithDynamicPads ExpandDims GatherND GemmFastGelu GemmFloat8
    GemmaRotaryEmbedding HyperConnectionLowRankMix MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight
    MatMulInteger16 MulInteger NhwcMaxPool Pad QLinearReduceMean RMSNormRotary Range ReduceSumInteger
    TorchEmbedding
    """.split()
)


def is_operator(domain: str, name: str, opset: int) -> bool:
    """Return True if onnxruntime has an operator of this name: it takes that, and not a local function of the file."""
    if domain in STANDARD:
        return schema("", name, opset) is not None
    if domain == "ai.onnx.ml":
        return schema(domain, name, opset) is not None
    rules = OTHERS.get(domain, {}) if domain == "com.microsoft" else {}
    return name in rules or domain == "com.microsoft" and (name in UNRULED or own(domain, name, opset) is not None)


def infer(n: NodeFacts) -> list[Info]:
    """Return the facts of every output of a node, without elements. Unknown facts are `UNKNOWN`."""
    count = len(n.node.outputs)
    operator = of_plugins(n.node.domain, n.op, n.opset)
    if operator is not None and operator.infer is not None:
        return (list(operator.infer(n)) + [UNKNOWN] * count)[:count]
    standard = n.node.domain in STANDARD
    rule = RULES.get(n.op) or infer_elementwise.of_kind(n.node) if standard else OTHERS.get(n.node.domain, {}).get(n.op)
    operator = own(n.node.domain, n.op, n.opset)
    rule = rule or (operator.infer if operator is not None else None)
    try:
        found = rule(n) if rule is not None else infer_with_onnx(n) if standard else []
    except (Unknown, TooComplex):
        found = infer_with_onnx(n) if standard else []
    except NONSENSE:
        found = []
    return (found + [UNKNOWN] * count)[:count]


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
