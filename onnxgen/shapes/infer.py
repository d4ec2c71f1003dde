"""Infer one node's output dtypes and shapes: by its rule, by onnx, or by what the file declares.

Symbolic dims pass through onnx's C++ code as tokens (`dim_param`). A token in the result stands for
the dim that was passed in; any other dim is new. (`onnx.shape_inference.infer_node_outputs`, about
50 microseconds a call.)

A node can't run on tensors of the ranks and sizes that are known if its rule finds a contradiction
(`misfit`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from onnxgen.graph.nodes import has_subgraphs, schema
from onnxgen.graph.operators import card, of_plugins
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
)
from onnxgen.shapes.dims import Dim, Sym, TooComplex, substitute, symbols
from onnxgen.shapes.expression import symbol
from onnxgen.shapes.infer_math import arithmetic, comparison, conv, global_pool, pool, reduce, same
from onnxgen.shapes.info import NONSENSE, UNKNOWN, Contradiction, Info, NodeFacts, Rule, Symbols, Unknown, info

MAX_CONSTANT_ELEMENTS = 1024  # larger constants are not passed to shape inference


def infer_with_onnx(n: NodeFacts) -> list[Info]:
    """Return the facts of a node's outputs, `UNKNOWN` where onnx cannot infer them. Never raises."""
    unknown = [UNKNOWN] * len(n.node.outputs)
    known = schema("", n.op, n.opset)
    if known is None or has_subgraphs(n.node):
        return unknown
    tokens: dict[Dim, str] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    names: list[str] = []
    for i in range(len(n.inputs)):
        facts = n.input(i)
        names.append(f"i{i}" if n.has(i) else "")
        if n.has(i):
            types[names[i]] = _type(facts, tokens)
            constant = facts.constant
            if constant is not None and constant.size <= MAX_CONSTANT_ELEMENTS and facts.dtype is not None:
                data[names[i]] = ir.serde.serialize_tensor(ir.Tensor(constant, dtype=facts.dtype))
    try:
        node = onnx.NodeProto(op_type=n.op, input=names, output=[f"o{i}" for i in range(len(unknown))])
        node.attribute.extend(ir.serde.serialize_attribute(a) for a in n.node.attributes.values())
        opsets = [onnx.helper.make_opsetid("", n.opset)]
        inferred = infer_node_outputs(known, node, types, data, opset_imports=opsets)
    except Exception:  # the node may be invalid; any error of the native code means that nothing is known
        return unknown
    dims = {token: dim for dim, token in tokens.items()}
    return [_facts(n, i, inferred.get(f"o{i}"), dims) for i in range(len(unknown))]


def _type(facts: Info, tokens: dict[Dim, str]) -> onnx.TypeProto:
    element = onnx.TypeProto()
    if facts.dtype is not None:
        element.tensor_type.elem_type = facts.dtype.value
    if facts.shape is not None:
        element.tensor_type.shape.SetInParent()
        for dim in facts.shape:
            if isinstance(dim, Sym):
                element.tensor_type.shape.dim.add().dim_param = tokens.setdefault(dim, f"d{len(tokens)}")
            else:
                element.tensor_type.shape.dim.add().dim_value = dim
    result = onnx.TypeProto()
    if facts.kind == "sequence":
        result.sequence_type.elem_type.CopyFrom(element)
    elif facts.kind == "optional":
        result.optional_type.elem_type.CopyFrom(element)
    else:
        return element
    return result


def _facts(n: NodeFacts, output: int, type_proto: onnx.TypeProto | None, dims: dict[str, Dim]) -> Info:
    if type_proto is None:
        return UNKNOWN
    kind = "tensor"
    if type_proto.HasField("optional_type"):
        kind, type_proto = "optional", type_proto.optional_type.elem_type
    elif type_proto.HasField("sequence_type"):
        kind, type_proto = "sequence", type_proto.sequence_type.elem_type
    if not type_proto.HasField("tensor_type"):
        return Info(kind=kind)
    tensor_type = type_proto.tensor_type
    dtype = ir.DataType(tensor_type.elem_type) if tensor_type.elem_type else None
    if not tensor_type.HasField("shape"):
        return Info(dtype, kind=kind)
    shape: list[Dim] = []
    for axis, dim in enumerate(tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            known = dims.get(dim.dim_param) if dim.dim_param else None
            shape.append(n.fresh(axis, output) if known is None else known)
    return Info(dtype, tuple(shape), kind=kind)


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
        outputs = rule(n) if rule is not None else infer_with_onnx(n) if standard else []
    except (Unknown, TooComplex):
        outputs = infer_with_onnx(n) if standard else []
    except NONSENSE:
        outputs = []
    return (outputs + [UNKNOWN] * count)[:count]


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


def misfit(node: ir.Node, opset: int) -> str:
    """Return why a node can't run on inputs of the known sizes, however large the others are; "" if it may run.

    Sizes that are not known count as 1 or more: of nothing, a network may make anything.
    """
    rule = rule_of(node) if node.domain in STANDARD else None
    if rule is None:
        return ""
    try:
        rule(NodeFacts(node, opset, [None if v is None else _of_something(info(v)) for v in node.inputs], Symbols({})))
    except Contradiction as why:
        return str(why)
    except (*NONSENSE, TooComplex):
        pass
    return ""


def fails(graph: ir.Graph, opset: int | None = None) -> bool:
    """Return True if a run of the graph certainly fails at one of its nodes, by the facts that are recorded now.

    A network that halves its picture and adds what it enlarges again to what it kept fails for most sizes.

    Args:
        opset: of the standard, for nodes that note none. Default: what the graph says.
    """
    opset = graph.opset_imports.get("", 1) if opset is None else opset
    return any(_fails(node, opset) for node in graph)


def _fails(node: ir.Node, opset: int) -> bool:
    if node.domain == "" and node.op_type == "If":
        known = info(node.inputs[0]).truth
        taken = [name for name, truth in (("then_branch", True), ("else_branch", False)) if known in (truth, None)]
        return all(fails(node.attributes[name].as_graph(), opset) for name in taken)
    return not has_subgraphs(node) and bool(misfit(node, node.version or opset))


def _of_something(facts: Info) -> Info:
    shape = None if facts.shape is None else tuple(map(_at_least_one, facts.shape))
    data = facts.data
    if data is not None and data.dtype == object:
        positive = np.empty(data.shape, object)
        positive.reshape(-1)[:] = [_at_least_one(dim) for dim in data.flat]
        data = positive
    return replace(facts, shape=shape, data=data)


def _at_least_one(dim: Dim) -> Dim:
    return substitute(dim, {name: symbol(name, known.source) + 1 for name, known in symbols(dim).items()})
