"""One linear pass over a graph that records what is known of every value: dtype, dims and small integer tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import MAP, is_trained
from onnxgen.graph.nodes import has_subgraphs
from onnxgen.graph.operators import card
from onnxgen.options import Options
from onnxgen.shapes import bodies
from onnxgen.shapes.dims import Dim, symbols
from onnxgen.shapes.elements import evaluate
from onnxgen.shapes.float_sizes import FloatSizes
from onnxgen.shapes.infer import STANDARD, declared, infer
from onnxgen.shapes.info import NONSENSE, UNKNOWN, Info, NodeFacts, Shape, Symbols, info, set_info, shown_dims

SYMBOLIC_DIM_COST = 256  # cost of one symbolic dim, in numbers
FREE_ELEMENTS = 64  # so few elements cost hardly more than visiting the node
MAX_STORED_ELEMENTS = 4096  # a stored tensor with more elements counts as unknown

__all__ = ["propagate"]


def propagate(
    graph: ir.Graph,
    options: Options,
    known: Mapping[str, Dim] | None = None,
    assumed: Mapping[ir.Value, bool] | None = None,
) -> None:
    """Set the `Info` of every value of a graph and its subgraphs (read with `shapes.info.info`).

    The graph must be in topological order. The result depends only on the graph: run it again after rewriting. Dims
    that the file names become symbols of that name, others are called `"{value}.{axis}"`. Never raises for an invalid
    graph: contradictory facts stay unknown. `known`: dims that replace the file's named dims. `assumed`: truth
    values that conditions are taken to have.
    """
    run = _Propagation(graph, options, known or {}, assumed or {})
    for value in graph.inputs:
        set_info(value, run.graph_input(value))
    run.walk(graph)


class _Propagation:
    """One run of `propagate`."""

    def __init__(
        self, graph: ir.Graph, options: Options, known: Mapping[str, Dim], assumed: Mapping[ir.Value, bool]
    ) -> None:
        self.assumed = assumed
        self.symbols = Symbols(known)
        self.float_sizes = FloatSizes()
        self.depth = 0
        self.budget = options.limits.fold_elements  # elements that may still be computed
        self.opsets = graph.opset_imports

    def graph_input(self, value: ir.Value) -> Info:
        """Return the facts that the file declares for a graph input."""
        if (held := MAP.get(value)) is not None:
            return Info(held.value, None, None, held.kind, held.key)
        kind = "tensor"
        if isinstance(value.type, ir.SequenceType):
            kind = "sequence"
        elif isinstance(value.type, ir.OptionalType):
            kind = "optional"
            if not isinstance(value.type.elem_type, ir.TensorType):  # of a sequence: facts are those of a tensor
                return Info(kind=kind)
        dtype = None if value.dtype in (None, ir.DataType.UNDEFINED) else value.dtype
        shape: Shape | None = None
        if value.shape is not None:
            shape = tuple(self._declared_dim(value, axis, dim) for axis, dim in enumerate(value.shape))
        if kind == "sequence":
            self.symbols.elements.update(name for dim in shape or () for name in symbols(dim))
        return Info(dtype, shape, None, kind)

    def _declared_dim(self, value: ir.Value, axis: int, dim: int | ir.SymbolicDim) -> Dim:
        if isinstance(dim, int) and dim >= 0:
            return dim
        name = dim.value if isinstance(dim, ir.SymbolicDim) else None  # a negative number: "unknown" of old exporters
        return self.symbols.declared(name, (value.name or "", axis)) if name else self.symbols.unnamed(value, axis)

    def walk(self, graph: ir.Graph) -> None:
        """Set the facts of a graph's initializers and of its nodes' outputs."""
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None:
                set_info(value, _stored(value, tensor))
        for node in graph:
            for value, facts in zip(node.outputs, self._node(node), strict=False):
                set_info(value, declared(value, facts, self.symbols))
                if value in self.assumed:
                    set_info(value, replace(info(value), data=np.full((1,) * (facts.rank or 0), self.assumed[value])))
                if facts.kind == "sequence":
                    self.symbols.elements |= shown_dims(value)

    def _node(self, node: ir.Node) -> list[Info]:
        standard = node.domain in STANDARD
        if standard and node.op_type == "Constant" and node.outputs:
            return [_constant(node)]
        version = node.version if node.version is not None else self._opset(node)
        n = NodeFacts(node, version, [None if v is None else info(v) for v in node.inputs], self.symbols)
        rule = card(node.domain, node.op_type).rules.inner
        if rule is None and has_subgraphs(node):
            rule = bodies.unknown_bodies
        if rule is not None:
            outputs = self._with_bodies(rule, n)
            return outputs + [UNKNOWN] * (len(node.outputs) - len(outputs))
        n.inferred = infer(n)
        if not standard:
            return n.inferred
        outputs = evaluate(n, self.budget)
        self.budget -= sum(_cost(facts) for facts in outputs)
        return self.float_sizes.follow(n, outputs)

    def _with_bodies(self, rule: Callable[[bodies.Walker, NodeFacts], list[Info]], n: NodeFacts) -> list[Info]:
        depth, entered = self.depth, self.symbols.depth
        try:
            return rule(self, n)
        except NONSENSE:  # the subgraphs do not fit the operator
            self.depth = depth
            self.symbols.leave_to(entered)
            return []

    def _opset(self, node: ir.Node) -> int:
        version = self.opsets.get(node.domain)
        if version is None and node.domain in STANDARD:
            version = self.opsets.get("" if node.domain else "ai.onnx")
        return version if version is not None else 1


def _cost(facts: Info) -> int:
    """Return the number of elements that were computed, if they are many. A symbolic dim counts as many numbers."""
    if facts.data is None or facts.data.size <= FREE_ELEMENTS:
        return 0
    return facts.data.size * (SYMBOLIC_DIM_COST if facts.data.dtype == object else 1)


def _stored(value: ir.Value, tensor: ir.TensorProtocol) -> Info:
    """Return the facts of a stored tensor; with its elements if they are few and not trained."""
    facts = Info(tensor.dtype, tuple(int(d) for d in tensor.shape.numpy()))
    if tensor.dtype == ir.DataType.STRING or tensor.size > MAX_STORED_ELEMENTS or is_trained(value):
        return facts
    try:
        return replace(facts, data=np.asarray(tensor.numpy()))
    except (ValueError, TypeError):  # the tensor has fewer bytes than its shape requires
        return facts


def _constant(node: ir.Node) -> Info:
    """Return the facts of a Constant node. Exactly one of several attributes holds the value."""
    attribute = next((a for a in node.attributes.values() if a.name.startswith("value")), None)
    if attribute is None:  # or "sparse_value"
        return UNKNOWN
    (value,) = node.outputs
    if attribute.type == ir.AttributeType.TENSOR:
        tensor: ir.TensorProtocol = attribute.value  # `as_tensor` checks the protocol, which is slow
        return _stored(value, tensor)
    if attribute.type in (ir.AttributeType.STRING, ir.AttributeType.STRINGS):
        count = () if attribute.type == ir.AttributeType.STRING else (len(attribute.as_strings()),)
        return Info(ir.DataType.STRING, count)
    dtype = np.float32 if attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS) else np.int64
    return _stored(value, ir.Tensor(np.array(attribute.value, dtype)))
