"""Small ONNX files for the tests of the reader, built by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto, TensorProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.reader import read

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 10 - 1


def value(name: str, shape: Sequence[Any] | None = (2, 3, 4), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return oh.make_tensor_value_info(name, dtype, shape)


def weight(name: str, *dims: int) -> TensorProto:
    return from_array(np.arange(np.prod(dims, dtype=int), dtype=np.float32).reshape(dims), name)


def model(
    nodes: Iterable[NodeProto],
    weights: Sequence[TensorProto] = (),
    inputs: Sequence[str | onnx.ValueInfoProto] = ("x",),
    outputs: Sequence[str] = ("y",),
    opsets: dict[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    ir_version: int = 10,
) -> onnx.ModelProto:
    graph = oh.make_graph(
        list(nodes),
        "g",
        [value(i) if isinstance(i, str) else i for i in inputs],
        [value(o, None) for o in outputs],
        list(weights),
    )
    imports = [oh.make_opsetid(d, v) for d, v in (opsets or {"": 17}).items()]
    return oh.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir_version)


def node(op: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **kw: Any) -> NodeProto:
    return oh.make_node(op, list(inputs), list(outputs), **kw)


RELU = node("Relu")


def branch(nodes: Iterable[NodeProto], out: str, weights: Sequence[TensorProto] = ()) -> onnx.GraphProto:
    return oh.make_graph(list(nodes), "b", [], [value(out, None)], list(weights))


TRUE = from_array(np.array(True), "c")


def conditional(then: onnx.GraphProto, before: Sequence[NodeProto] = (), after: Sequence[NodeProto] = ()) -> Any:
    other = branch([node("Neg", ["x"], ["other"])], "other")
    both = node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)
    return model([*before, both, *after], [TRUE])


Write = Callable[[onnx.ModelProto | bytes], Path]


def refusal(path: Path, options: Options | None = None) -> str:
    with pytest.raises(OnnxgenError) as caught:
        read(path, options or Options())
    message = str(caught.value)
    assert message.isascii() and all(len(line) < 600 for line in message.splitlines())
    return message


def run(proto: onnx.ModelProto, x: Any = X) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(proto.SerializeToString())
    return session.run(None, {i.name: x for i in session.get_inputs()})  # type: ignore[no-any-return]


def same_as_before(proto: onnx.ModelProto, found: ir.Model) -> None:
    """onnxruntime gets the same from the model that was read as from the file."""
    for before, after in zip(run(proto), run(ir.to_proto(found)), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[onnx.ModelProto | bytes], Path]:
    def write(what: onnx.ModelProto | bytes) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(what if isinstance(what, bytes) else what.SerializeToString())
        return path

    return write


ADD = node("Add", ["x", "w"], name="plus")


def untyped(**value: Any) -> NodeProto:
    made = node("Softmax", axis=1)
    made.attribute[0].Clear()
    made.attribute[0].name = "axis"
    for name, content in value.items():
        setattr(made.attribute[0], name, content)
    return made


def no_import(ir_version: int = 10) -> onnx.ModelProto:
    proto = model([RELU], ir_version=ir_version)
    del proto.opset_import[:]
    return proto
