"""The values that a graph computes behind its raw maps, for given maps. `onnx.reference` computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.errors import FIX_SHAPE, OnnxgenError
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import subgraphs
from onnxgen.graph.traits import SELECTS
from onnxgen.shapes.info import info

Array = NDArray[Any]


class Response:
    """Computes what stands behind raw maps: every float value up to operators that choose among the points.

    Args:
        model: the graph, whose shapes are propagated.
        raw: the raw maps.
        nodes: the nodes behind them (`frontier.behind`).

    Attributes:
        names: the values that are computed, in the order of the graph.

    Raises:
        OnnxgenError: sizes are unknown, or a node can't be computed.
    """

    def __init__(self, model: ir.Model, raw: Sequence[ir.Value], nodes: Sequence[ir.Node]) -> None:
        self.shapes = {str(value.name): sizes(value) for value in raw}
        left, made = list[ir.Node](), set[ir.Value](raw)
        late = set[ir.Value]()
        for node in nodes:
            given = [value for value in node.inputs if value is not None]
            if is_a(node, SELECTS) or not late.isdisjoint(given) or any(True for _ in subgraphs(node)):
                late.update(node.outputs)
                continue
            left.append(node)
            made.update(node.outputs)
        beside = {v for node in left for v in node.inputs if v is not None} - made
        self.beside = {str(v.name): sizes(v) for v in beside if v.const_value is None and v.name}
        ends = [v for node in left for v in node.outputs if v.name]
        self.names = [str(v.name) for v in ends]
        stored = [v for v in beside if v.const_value is not None]
        self.evaluator = _evaluator(model, left, stored, [*self.shapes, *self.beside], self.names)

    def __call__(self, maps: Mapping[str, Array]) -> dict[str, Array]:
        """Return the float values behind the raw maps of these names."""
        feeds = {**maps, **{name: np.zeros(shape, np.float32) for name, shape in self.beside.items()}}
        try:
            found = self.evaluator.run(None, feeds)
        except Exception as error:  # the evaluator raises errors of every kind
            what = f"what is behind the raw maps can't be computed: {printable(str(error), 200)}"
            raise OnnxgenError(what) from None
        return {name: value for name, value in zip(self.names, found) if getattr(value, "dtype", None) == np.float32}


def sizes(value: ir.Value) -> tuple[int, ...]:
    """Return the sizes of a value. An open first axis counts as 1.

    Raises:
        OnnxgenError: another axis is open.
    """
    shape = info(value).shape
    found = (
        None
        if shape is None
        else tuple(1 if not axis and not isinstance(d, int) else d for axis, d in enumerate(shape))
    )
    if found is None or not all(isinstance(size, int) for size in found):
        what = f"the sizes of {printable(value.name or '')} are not fixed"
        raise OnnxgenError(what, help=FIX_SHAPE)
    return tuple(int(size) for size in found)  # type: ignore[arg-type]


def _evaluator(
    model: ir.Model, nodes: Sequence[ir.Node], stored: Sequence[ir.Value], inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    from onnx.reference import ReferenceEvaluator  # imported here: it takes half a second

    graph = onnx.GraphProto(name="tail", node=[ir.serde.serialize_node(node) for node in nodes])
    for value in stored:
        assert value.const_value is not None
        tensor = ir.serde.serialize_tensor(ir.tensor(value.const_value.numpy(), value.const_value.dtype))
        tensor.name = str(value.name)
        graph.initializer.append(tensor)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    proto = onnx.ModelProto(ir_version=10, graph=graph)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    try:
        return ReferenceEvaluator(proto)
    except Exception as error:  # an operator that it does not know, say
        raise OnnxgenError(f"what is behind the raw maps can't be computed: {printable(str(error), 200)}") from None
