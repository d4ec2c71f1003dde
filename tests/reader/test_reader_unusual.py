"""Unusual files that are read right, and fixed input shapes; `tests/whole/test_real_models.py` reads real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.normal import normalize
from tests.support.reader_models import (
    ADD,
    RELU,
    Write,
    X,
    branch,
    conditional,
    model,
    no_import,
    node,
    refusal,
    run,
    same_as_before,
    untyped,
    value,
    weight,
    write,
)

__all__ = ["write"]  # a fixture


def old_style() -> onnx.ModelProto:
    return model([ADD], [weight("w", 4)], inputs=["x", value("w", [4])], ir_version=3)


UNUSUAL: dict[str, onnx.ModelProto] = {
    "unsorted": model([node("Relu", ["a"]), node("Add", ["x", "b"], ["a"]), node("Neg", ["x"], ["b"])]),
    "unsorted, through a branch": conditional(
        branch([node("Neg", ["z"], ["q"])], "q"), after=[node("Abs", ["x"], ["z"])]
    ),
    "same names in both branches": conditional(branch([node("Abs", ["x"], ["other"])], "other")),
    "inner initializer hides": conditional(
        branch([node("Add", ["x", "z"], ["q"])], "q", [weight("z", 4)]), [node("Abs", ["x"], ["z"])]
    ),
    "inner name of a later node": conditional(
        branch([node("Neg", ["x"], ["z"])], "z"), after=[node("Abs", ["x"], ["z"])]
    ),
    "input as output": model([], outputs=["x"]),
    "initializer as output": model([], [weight("w", 4)], outputs=["w"]),
    "output twice": model([RELU], outputs=["y", "y"]),
    "unused initializer": model([RELU], [weight("w", 4)]),
    "empty initializer": model([node("Concat", ["x", "w"], axis=0)], [weight("w", 0, 3, 4)]),
    "negative declared dim": model([RELU], inputs=[value("x", [-1, 3, 4])]),
    "ai.onnx spelt out": model([oh.make_node("Softmax", ["x"], ["y"], domain="ai.onnx")], opsets={"ai.onnx": 12}),
    "optional inputs": model([node("Clip", ["x", "", "w"])], [weight("w")]),
    "sparse": model([ADD]),
}
UNUSUAL["inner sparse initializer hides a later name"] = conditional(
    branch([node("Add", ["x", "z"], ["q"])], "q"), [node("Abs", ["y"], ["z"])]
)
UNUSUAL["inner sparse initializer hides a later name"].graph.node[1].attribute[1].g.sparse_initializer.append(
    oh.make_sparse_tensor(from_array(np.float32([5, 7]), "z"), from_array(np.int64([1, 3])), [4])
)
UNUSUAL["sparse"].graph.sparse_initializer.append(
    oh.make_sparse_tensor(from_array(np.float32([5, 7]), "w"), from_array(np.int64([1, 3])), [4])
)


def test_unusual(write: Write) -> None:
    for proto in UNUSUAL.values():
        same_as_before(proto, read(write(proto), Options()))


def test_unsorted_branch_and_nodes_of_one_name(write: Write) -> None:
    """Fine by the standard, or plain enough; onnxruntime refuses both."""
    inside = [node("Neg", ["r"], ["q"], name="n"), node("Abs", ["x"], ["r"], name="n")]
    found = read(write(conditional(branch(inside, "q"))), Options())
    for i, step in enumerate(found.graph.all_nodes()):
        step.name = str(i)
    np.testing.assert_array_equal(run(ir.to_proto(found))[0], -np.abs(X))


def test_inputs_with_an_initializer_are_weights(write: Write) -> None:
    found = read(write(old_style()), Options())
    assert [v.name for v in found.graph.inputs] == ["x"]
    assert list(found.graph.initializers) == ["w"] and found.graph.initializers["w"].is_initializer()
    same_as_before(model([ADD], [weight("w", 4)]), found)


def test_branch_returns_an_outer_value(write: Write) -> None:
    """onnxruntime refuses this, and onnx_ir would return a value that nothing makes."""
    found = read(write(conditional(branch([], "z"), [node("Abs", ["x"], ["z"])])), Options())
    np.testing.assert_array_equal(run(ir.to_proto(found))[0], np.abs(X))


def test_attribute_without_a_type(write: Write) -> None:
    found = read(write(model([untyped(i=1)])), Options())
    same_as_before(model([node("Softmax", axis=1)]), found)


@pytest.mark.parametrize("pairs", [False, True])
def test_sparse_tensors(write: Write, pairs: bool) -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 3] = 5, 7
    indices = np.int64([[0, 1], [2, 3]]) if pairs else np.int64([1, 11])
    sparse = oh.make_sparse_tensor(from_array(np.float32([5, 7]), "w"), from_array(indices), [3, 4])
    constant = node("Constant", [], ["w"], sparse_value=sparse)
    found = read(write(model([constant, ADD])), Options())
    np.testing.assert_array_equal(run(ir.to_proto(found))[0], X + dense)
    for bad in (np.int64([1, 12]), np.int64([-1, 2]), np.int64([[0, 1], [3, 3]]), np.int64([1, 2, 3])):
        sparse.indices.CopyFrom(from_array(bad))
        assert "indices" in refusal(write(model([node("Constant", [], ["w"], sparse_value=sparse), ADD])))
    sparse.dims[:] = [2**40, 4]
    assert "elements when dense; the limit is" in refusal(
        write(model([node("Constant", [], ["w"], sparse_value=sparse), ADD]))
    )


def test_no_import_before_ir_version_3_is_opset_1(write: Write) -> None:
    assert read(write(no_import(2)), Options()).opset_imports[""] == 1


def test_map_outputs_are_left_to_the_operators(write: Write) -> None:
    proto = model([oh.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml")], opsets={"ai.onnx.ml": 1})
    kind = oh.make_map_type_proto(TensorProto.INT64, oh.make_tensor_type_proto(TensorProto.FLOAT, []))
    proto.graph.output[0].type.CopyFrom(oh.make_sequence_type_proto(kind))
    assert read(write(proto), Options()).graph.outputs[0].type is None


@pytest.mark.parametrize(
    "dtype", ["FLOAT16", "BFLOAT16", "INT4", "UINT4", "FLOAT8E4M3FN", "COMPLEX64", "BOOL", "STRING"]
)
@pytest.mark.parametrize("raw", [False, True])
def test_every_way_to_store_a_tensor(write: Write, dtype: str, raw: bool) -> None:
    if raw and dtype == "STRING":
        pytest.skip("strings are never raw")
    number = TensorProto.DataType.Value(dtype)
    content: Any = [b"a", b"b", b"c"] if dtype == "STRING" else np.array([0, 1, 1], oh.tensor_dtype_to_np_dtype(number))
    tensor = from_array(content, "w") if raw else oh.make_tensor("w", number, [3], content)
    read(write(model([RELU], [tensor])), Options())


def test_input_shapes(write: Write) -> None:
    proto = model([node("Add", ["x", "m"])], inputs=[value("x", ["n", 3, None]), value("m", ["n", 1, 1])])
    proto.graph.output[0].CopyFrom(value("y", ["n", 3, "k"]))
    found = read(write(proto), Options(input_shapes={"x": (5, -1, 4)}))
    shapes = [list(v.shape or ()) for v in (*found.graph.inputs, *found.graph.outputs)]
    assert shapes[0] == [5, 3, 4] and shapes[1] == [5, 1, 1]  # n is 5 wherever it is named
    assert shapes[2][:2] == [5, 3] and not isinstance(shapes[2][2], int)


def test_input_shapes_reach_inner_graphs(write: Write) -> None:
    """Every declared size of the name is fixed: inputs, outputs and values inside of a loop's body, too."""
    body = oh.make_graph(
        [node("Identity", ["go"], ["still"]), node("Relu", ["state"], ["middle"]), node("Neg", ["middle"], ["next"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("state", ["n", 3])],
        [value("still", [], TensorProto.BOOL), value("next", ["n", 3])],
        value_info=[value("middle", ["n", 3])],
    )
    loop = node("Loop", ["count", "", "x"], ["y"], body=body)
    proto = model([loop], [from_array(np.array(2), "count")], inputs=[value("x", ["n", 3])])
    found = read(write(proto), Options(input_shapes={"x": (5, 3)}))
    inner = [*found.graph][0].attributes["body"].as_graph()
    values = [inner.inputs[2], *(v for n in inner for v in n.outputs if v.name in ("middle", "next")), inner.outputs[1]]
    assert [list(v.shape or ()) for v in values] == [[5, 3]] * 4


def test_a_type_that_was_text_is_only_a_number_then() -> None:
    """ONNX's own checker finds one value in the attribute."""
    proto = model([node("Cast", to="FLOAT")], opsets={"": 1})
    normalize(proto)
    (attribute,) = proto.graph.node[0].attribute
    onnx.checker.check_attribute(attribute)
    assert attribute.i == TensorProto.FLOAT


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"z\n": (1,)}, "no input z? -> its inputs are: x, m, q?"),
        ({"x": (1, 3)}, "--input-shape of x: the input has 3 dims, not 2"),
        ({"q'": (2, 1)}, "--input-shape of q?: the input has 1 dims, not 2"),
        ({"x": (1, 4, 4)}, "the file fixes dim 1 at 3, not 4"),
        ({"x": (1, 3, -2)}, "a negative dim"),
        ({"x": (1, 3, 4), "m": (2, 1, 1)}, "dim 0 is n, which is 1 elsewhere, not 2"),
    ],
)
def test_wrong_input_shapes(write: Write, shapes: dict[str, tuple[int, ...]], says: str) -> None:
    inputs = [value("x", ["n", 3, None]), value("m", ["n", 1, 1]), value("q'", [1])]
    path = write(model([node("Add", ["x", "m"])], inputs=inputs))
    assert says in refusal(path, Options(input_shapes=shapes))


def test_an_input_without_a_rank_gets_one_from_the_option(write: Write, tmp_path: Path) -> None:
    """The refusal names the option and the input; `verify` takes the shape that the module was generated for."""
    proto = model([node("Relu", ["x"], ["r"]), node("Flatten", ["r"])], inputs=[value("x", [1])])
    for port in (*proto.graph.input, *proto.graph.output):
        port.type.tensor_type.ClearField("shape")
    path, out = write(proto), tmp_path / "made.py"
    with pytest.raises(OnnxgenError, match="the file declares no rank for x: .* --input-shape x="):
        onnxgen.generate(path, out)
    onnxgen.generate(path, out, Options(input_shapes={"x": (-1, 3, 4)}))
    report = onnxgen.verify(path, out)
    assert report.agrees and {run.inputs["x"] for run in report.runs} == {
        "float32 [2, 3, 4]", "float32 [3, 3, 4]", "float32 [1, 3, 4]"
    }  # fmt: skip
