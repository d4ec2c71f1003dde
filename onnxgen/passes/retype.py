"""`--dtype`: let a network compute in another floating point type, as if its file had been written in that type.

Every float of the graph gets the type, except floats that only serve to compute sizes: a factor of 0.1 is 0.09998 in
half precision, and would give other sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.errors import Problem, Problems
from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import FLOATS, all_nodes, subgraphs, told
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import BROADCASTS, FILLS, RESAMPLES
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import stored

KEY = "dtype"  # of the type's name in the sidecar's metadata
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "output_datatype")  # they name the type of a result
FLOAT32_BY_DEFAULT = ("RandomNormal", "RandomUniform")  # without such an attribute


class RetypedTensor(ir.LazyTensor):
    """A stored tensor in another floating point type, converted when it is read.

    Finite numbers stay finite (masks have -3.4e38), and a single nonzero number stays nonzero (an epsilon).
    """

    def __init__(self, tensor: ir.TensorProtocol, dtype: ir.DataType) -> None:
        shape = ir.Shape(tensor.shape.numpy())
        super().__init__(lambda: ir.tensor(_cast(tensor.numpy(), dtype), dtype), dtype, shape, name=tensor.name)


def _cast(array: NDArray[np.generic], dtype: ir.DataType) -> NDArray[np.generic]:
    import ml_dtypes

    limits: Any = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        converted = np.asarray(array.astype(dtype.numpy()))
        wide = array.astype(np.float64)
        lost = np.isfinite(wide) & ~np.isfinite(converted.astype(np.float64))
        if lost.any():
            converted = np.where(lost, np.where(wide > 0, limits.max, limits.min), converted)
        if array.size == 1 and wide.any() and not converted.any():
            converted = np.copysign(np.full_like(converted, limits.smallest_subnormal), wide)
    return converted.astype(dtype.numpy(), copy=False)


def retype(model: ir.Model, dtype: ir.DataType, *, is_file: bool = False) -> None:
    """Give every float of a propagated graph another type, except sizes. The facts of its values stay up to date.

    `is_file`: the graph stays ONNX. Otherwise single numbers beside a tensor are unchanged: torch accepts Python
    numbers with a tensor of any type, and computes with their full precision.
    """
    if not is_file and dtype != ir.DataType.FLOAT:
        _refuse_classical(model.graph)
    groups = _Groups(model.graph)
    for value in groups.values:
        if not groups.is_size(value) and (is_file or not _is_number(value)):
            _retype_value(value, dtype)
    for node in all_nodes(model.graph):
        if any(value in groups.values and not groups.is_size(value) for value in node.outputs):
            retype_node(node, dtype)


def _refuse_classical(graph: ir.Graph) -> None:
    """Raise `OnnxgenError` for operators that compute in single precision by their specification."""
    problems = Problems()
    for node in all_nodes(graph):
        values = (*node.inputs, *node.outputs)
        if node.domain == "ai.onnx.ml" and any(v is not None and info(v).dtype in FLOATS for v in values):
            name, op = told(node), f"{node.domain}.{node.op_type}"
            problems.add(Problem("operators of ai.onnx.ml compute in float32 only", name, op, help="leave --dtype out"))
    problems.raise_if_any()


def _is_number(value: ir.Value) -> bool:
    """True for a single number that is not a weight or an output, if all its users also take a tensor."""
    tensor = stored(value)
    if tensor is None or tensor.size != 1 or value.is_graph_output() or is_trained(value):
        return False
    rank = len(tensor.shape)
    return all(_takes_numbers(use.node) and any(_is_wide(v, rank) for v in use.node.inputs) for use in value.uses())


def _takes_numbers(node: ir.Node) -> bool:
    """True if torch's function takes a Python number beside a tensor."""
    takes_two = is_a(node, BROADCASTS, FILLS) and node.op_type not in ("Sum", "Mean")
    return takes_two or node.op_type in ("Clip", "Dropout")


def _is_wide(value: ir.Value | None, rank: int) -> bool:
    """True for a computed float with at least `rank` axes."""
    facts = info(value)
    return stored(value) is None and facts.dtype in FLOATS and facts.rank is not None and facts.rank >= rank


class _Groups:
    """The floats of a graph in groups: the inputs and outputs of a node are in one group (union-find).

    So does a Cast from one type of floats to another. A group gets the new type if it has an input or output of the
    graph, or a float that is not computed from floats. All other groups are sizes.

    Attributes:
        values: maps each float to another one of its group; a group's representative to itself.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        self.wanted: list[ir.Value] = []
        for inner in (graph, *graph.subgraphs()):
            for value in (*inner.inputs, *inner.initializers.values()):
                self._note(value)
        for node in all_nodes(graph):
            self._join(node)
        self.wanted += [value for value in (*graph.inputs, *graph.outputs) if self._note(value)]
        self.computing = {self._first(value) for value in self.wanted}

    def is_size(self, value: ir.Value) -> bool:
        return self._first(value) not in self.computing

    def _note(self, value: ir.Value | None) -> TypeGuard[ir.Value]:
        """Add a value if it is a float. Returns True if it is."""
        if value is None or (info(value).dtype or value.dtype) not in FLOATS:
            return False
        self.values.setdefault(value, value)
        return True

    def _join(self, node: ir.Node) -> None:
        inputs = [v for i, v in enumerate(node.inputs) if self._note(v) and not _is_fixed(node, i)]
        graphs = (v for graph in subgraphs(node) for v in (*graph.inputs, *graph.outputs))
        outputs = [v for v in (*node.outputs, *graphs) if self._note(v)]
        if node.op_type == "Cast" and node.domain in ("", "ai.onnx") and not (inputs and outputs):
            return  # it makes floats of a size, or a size of floats
        if not inputs and node.op_type != "Constant":
            self.wanted += outputs
        joined = [*inputs, *outputs]
        for value in joined[1:]:
            self.values[self._first(value)] = self._first(joined[0])

    def _first(self, value: ir.Value) -> ir.Value:
        while self.values[value] is not value:
            self.values[value] = value = self.values[self.values[value]]
        return value


def _is_fixed(node: ir.Node, i: int) -> bool:
    """True if an operator takes only one floating point type for an input, as Resize does for its scales."""
    if not is_a(node, RESAMPLES):
        return False
    schema = onnx.defs.get_schema(node.op_type, node.version or 13, "")
    return i < len(schema.inputs) and schema.inputs[i].type_str == "tensor(float)"


def _retype_value(value: ir.Value, dtype: ir.DataType) -> None:
    value.type = _retyped(value.type, dtype)
    facts = info(value)
    known = None if facts.data is None or facts.dtype not in FLOATS else _cast(facts.data, dtype)
    set_info(value, replace(facts, dtype=dtype, data=known))
    if value.const_value is not None and value.const_value.dtype != dtype:
        value.const_value = RetypedTensor(value.const_value, dtype)


def _retyped(kind: ir.TypeProtocol | None, dtype: ir.DataType) -> ir.TypeProtocol | None:
    if kind is None or isinstance(kind, ir.TensorType):
        return ir.TensorType(dtype)
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        inner = _retyped(kind.elem_type, dtype)
        assert inner is not None
        return type(kind)(inner)
    return kind


def retype_node(node: ir.Node, dtype: ir.DataType) -> None:
    """Change the attributes of a node that set the type of its results."""
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if name in TYPE_ATTRIBUTES and attribute.type == ir.AttributeType.INT and attribute.as_int() in FLOATS:
            node.attributes[name] = ir.AttrInt64(name, int(dtype))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in FLOATS:
            node.attributes[name] = ir.AttrTensor(name, RetypedTensor(attribute.as_tensor(), dtype))
        elif node.op_type == "Constant" and name in ("value_float", "value_floats"):
            tensor = ir.tensor(np.asarray(attribute.value, np.float32), name=node.outputs[0].name)
            del node.attributes[name]
            node.attributes["value"] = ir.AttrTensor("value", RetypedTensor(tensor, dtype))
    if node.op_type in FLOAT32_BY_DEFAULT and "dtype" not in node.attributes:
        node.attributes["dtype"] = ir.AttrInt64("dtype", int(dtype))
    if node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, dtype.numpy()), dtype))
