"""Holds what propagation says of each value to what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.graph.operators import bodies, card
from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Sym, substitute, symbol, symbols
from onnxgen.shapes.elements import operation_of
from onnxgen.shapes.info import Info, info


class Bindings:
    """Numbers for symbols: from the inputs first, then from the first dim that is nothing but the symbol."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def check(self, dim: Any, actual: int, what: str) -> None:
        left = substitute(dim, self.values)
        if isinstance(left, Sym):
            unbound = symbols(left)
            name = next(iter(unbound))
            if left == symbol(name):
                self.values[name] = int(actual)
            return  # an expression over a symbol that no tensor here has shown yet
        assert left == actual, f"{what}: {dim} should be {actual}, not {left}"


def outputs_of_all_nodes(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    import onnxruntime as ort

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    have = {o.name for o in exposed.graph.output}
    for node in model.graph.node:
        exposed.graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o and o not in have)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


EXOTIC = [ir.DataType.BFLOAT16, *(d for d in ir.DataType if d.name.startswith("FLOAT8"))]


def agree(name: str, facts: Info, actual: Any, bindings: Bindings) -> None:
    if not isinstance(actual, np.ndarray):
        assert facts.kind != "tensor" or facts.dtype is None or actual is None, f"{name} is a {type(actual)}"
        return
    if facts.dtype in EXOTIC:  # onnxruntime hands out their bits
        actual = actual.view(facts.dtype.numpy())
    elif facts.dtype is not None and facts.dtype != ir.DataType.STRING:
        assert facts.dtype.numpy() == actual.dtype, f"{name}: {facts.dtype} should be {actual.dtype}"
    if facts.shape is not None:
        assert len(facts.shape) == actual.ndim, f"{name}: {facts.shape} should be {actual.shape}"
        for axis, (dim, size) in enumerate(zip(facts.shape, actual.shape, strict=True)):
            bindings.check(dim, size, f"{name} axis {axis}")
    if facts.data is not None and facts.data.dtype == object:
        for i, (dim, number) in enumerate(zip(facts.data.flat, actual.flat, strict=True)):
            bindings.check(dim, number, f"{name}[{i}]")
    elif facts.data is not None:
        exact = facts.data.dtype.kind != "f"
        np.testing.assert_allclose(
            facts.data, actual, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6, err_msg=name
        )


def free_dims(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with every dim of every input symbolic."""
    free = onnx.ModelProto()
    free.CopyFrom(proto)
    stored = {t.name for t in free.graph.initializer}
    for value in free.graph.input:
        if value.name not in stored:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"{value.name}[{axis}]"
    return free


def free_ranks(proto: onnx.ModelProto, kept: int) -> onnx.ModelProto:
    """The same model where nothing is said of the shape of any input but the first `kept`; their dims are symbolic."""
    free = free_dims(proto)
    for value in free.graph.input[kept:]:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return free


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], actual: dict[str, Any]) -> list[Info]:
    """Every dtype, shape and element that is inferred is what came out; returns what is known of the outputs."""
    model = ir.serde.deserialize_model(proto)
    model.graph.sort()
    propagate(model.graph, Options())
    bindings = Bindings()
    for value in model.graph.inputs:
        if value.name in feeds:
            agree(value.name or "", info(value), feeds[value.name], bindings)
    for node in model.graph:
        for value in node.outputs:
            if value.name in actual:
                agree(value.name or "", info(value), actual[value.name], bindings)
    return [info(value) for value in model.graph.outputs]


# ---------------------------------------------------------------------------------- one operator, known in many ways

FEW = 1024  # elements of an input that is stored in the file
# Nothing says before what these give.
BY_VALUE = {name for (domain, name), (known,) in bodies().items() if domain and known.infer is None}
BY_VALUE |= {"BiasDropout", "CropAndResize", "DecoderAttention", "GatherBlockQuantized", "UnfoldTensor"}
SEEN_LATER = {"Loop", "Scan"}  # what runs once for each turn has a length that only running shows
# Some of their results are left to the run: other floats, other reductions, empty ones, more axes.
SOME_ELEMENTS = set("Cast CastLike CumSum GatherND ReduceMax ReduceMin ScatterElements ScatterND".split())


def hold_sizes(proto: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Sequence[Any]) -> None:
    """Hold what propagation says of a small graph to its results, where the sizes of inputs are known, or free."""
    bare, feeds, actual = _arrays(proto, feeds, outputs)
    first = proto.graph.node[0]
    found = check(bare, feeds, actual)
    for value, facts in zip(_by_onnx(bare), found, strict=True):
        assert _knows(facts, value, first), f"{value.name}: {facts}, where ONNX's inference knows {value.type}"
    if first.domain == "com.microsoft" and first.op_type not in BY_VALUE:
        tensors = [facts for facts, value in zip(found, outputs, strict=True) if isinstance(value, np.ndarray)]
        assert all(facts.dtype is not None and facts.shape is not None for facts in tensors), (
            f"{first.op_type}: {found}"
        )
    check(free_dims(bare), feeds, actual)


def hold_types(proto: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Sequence[Any]) -> None:
    """The same where nothing is known of the shape of any input, or of any but the first: dtypes are still known."""
    bare, feeds, actual = _arrays(proto, feeds, outputs)
    ranked = check(free_dims(bare), feeds, actual)
    for kept in range(min(len(bare.graph.input), 2)):
        for facts, known in zip(check(free_ranks(bare, kept), feeds, actual), ranked, strict=True):
            if known.dtype is not None and not proto.graph.node[0].domain:
                assert (facts.dtype, facts.kind) == (known.dtype, known.kind), f"{facts}, and with ranks {known}"


def hold_elements(proto: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Sequence[Any]) -> None:
    """The same where the elements are known: those of indices and sizes alone, or those of all small inputs."""
    bare, feeds, actual = _arrays(proto, feeds, outputs)
    sizes = {name: array for name, array in feeds.items() if _is_small(array) and array.dtype.kind in "iu"}
    if sizes and len(sizes) < len(feeds):
        check(_with_stored(free_dims(bare), sizes), {n: a for n, a in feeds.items() if n not in sizes}, actual)
    stored = {name: array for name, array in feeds.items() if _is_small(array)}
    found = check(_with_stored(bare, stored), {n: a for n, a in feeds.items() if n not in stored}, actual)
    first = proto.graph.node[0]
    has_rule = not first.domain and operation_of(card("", first.op_type)) is not None
    if len(stored) == len(feeds) and len(proto.graph.node) == 1 and has_rule:
        assert found[0].data is not None or first.op_type in SOME_ELEMENTS, f"the elements of {first.op_type}"


def _arrays(
    proto: onnx.ModelProto, feeds: Mapping[str, Any], outputs: Sequence[Any]
) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]:
    """The model without what it says of its outputs, its inputs, and its outputs by name."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.ClearField("type")
    named = dict(zip((o.name for o in proto.graph.output), map(_array, outputs), strict=True))
    return bare, {name: _array(value) for name, value in feeds.items()}, named


def _array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.generic) else value


def _is_small(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.size <= FEW


def _with_stored(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The same model with some inputs stored in the file."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    kept = [value for value in made.graph.input if value.name not in arrays]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return made


def _by_onnx(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The outputs as ONNX's own inference describes them; without a description where that is of no use."""
    if any(node.domain or node.op_type in SEEN_LATER for node in proto.graph.node):
        return list(proto.graph.output)
    return list(onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.output)


def _knows(facts: Info, value: onnx.ValueInfoProto, node: onnx.NodeProto) -> bool:
    """Whether the dtype of a tensor is known where it is declared, and each of its dims."""
    if node.op_type != "OptionalGetElement" and value.type.WhichOneof("value") not in (None, f"{facts.kind}_type"):
        return False
    kind = value.type.tensor_type
    if not kind.elem_type or not kind.HasField("shape"):
        return facts.dtype is not None or not kind.elem_type
    dims = kind.shape.dim
    if facts.dtype is None or facts.shape is None or len(facts.shape) != len(dims):
        return False
    return all(isinstance(mine, int) for mine, its in zip(facts.shape, dims, strict=True) if its.HasField("dim_value"))
