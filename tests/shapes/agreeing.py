"""Holds what propagation says of each value to what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Sym, substitute, symbol, symbols
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


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], actual: dict[str, Any]) -> None:
    """Every dtype, shape and element that is inferred is what came out."""
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
