"""A dim called `?` or `None` is unknown. Two of them are not one size, as two called `batch` are."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as rt
import pytest
import torch
from onnx import helper as oh
from onnx.numpy_helper import from_array

import onnxgen
from onnxgen.export.freed import fix_sizes
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.normal import is_placeholder, separate
from onnxgen.record.signature import Port, Signature
from tests.support.reader_models import Write, model, node, value, write

__all__ = ["write"]  # a fixture

NAMES = ["batch", "N", "seq_len", "past_seq + 1", "floor(h/2)", "batch size", "batch-size", "dynamic_batch", "s58"]
NAMES += ["x_dynamic_axes_1", "DynamicDimension.0", "any_length_of_text", "Concat_o0__d2", "none_of_them"]
PLACEHOLDERS = ["?", "None", "none", "-1", "unk", "unk__12", "unknown", "?_0", "*", "...", "0", "Unknown_3", "<unk>"]
PLACEHOLDERS += ["unknown_dim", "nan", "null", "dynamic", "undefined", "None + 1", "unk__1*unk__2", "N?", "_", "[None]"]


@pytest.mark.parametrize("text", NAMES)
def test_a_name(text: str) -> None:
    assert not is_placeholder(text)


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_a_placeholder(text: str) -> None:
    assert is_placeholder(text)


def swapped(first: str, second: str) -> onnx.ModelProto:
    """Take x apart by rows and put it together again with the first two axes swapped."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Reshape", ["t", "flat"], ["r"]),
        node("Relu", ["r"], ["q"]),
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "order"], ["to"]),
        node("Reshape", ["q", "to"], ["y"]),
    ]
    stored = [from_array(np.array([-1, 4]), "flat"), from_array(np.array([1, 0, 2]), "order")]
    return model(nodes, stored, inputs=[value("x", (first, second, 4))])


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_two_axes_of_one_placeholder_differ(text: str, write: Write) -> None:
    path = write(swapped(text, text))
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    made = onnxgen.load(path)(torch.tensor(x)).detach().numpy()
    np.testing.assert_array_equal(made, rt.InferenceSession(path).run(None, {"x": x})[0])


def test_inputs_do_not_share_a_placeholder(write: Write) -> None:
    proto = model([node("Add", ["x", "z"])], inputs=[value("x", ("unk", "N")), value("z", ("unk", "N"))])
    shapes = [list(v.shape or ()) for v in read(write(proto), Options()).graph.inputs]
    assert [[str(d) for d in shape] for shape in shapes] == [["None", "N"], ["None", "N"]]
    assert all(shape[0].value is None for shape in shapes)  # type: ignore[union-attr]
    read(write(proto), Options(input_shapes={"x": (2, 3), "z": (1, 3)}))  # two sizes, for they are two dims


def test_only_repeated_placeholders_of_inputs_go() -> None:
    proto = swapped("unk__3", "N")
    proto.graph.input.append(oh.make_tensor_sequence_value_info("l", onnx.TensorProto.FLOAT, ["?", "N"]))
    proto.graph.input.append(value("z", ("?", 4)))
    proto.graph.value_info.append(value("t", ("N", "unk__3", 4)))
    separate(proto)
    dims = [[d.dim_param for d in v.type.tensor_type.shape.dim] for v in (*proto.graph.input, *proto.graph.value_info)]
    assert dims == [["unk__3", "N", ""], [], ["", ""], ["N", "", ""]]
    listed = proto.graph.input[1].type.sequence_type.elem_type.tensor_type.shape.dim
    assert [d.dim_param for d in listed] == ["", "N"]


def test_sizes_that_export_declares_are_not_those_of_a_placeholder() -> None:
    proto = swapped("?", "?")
    proto.graph.value_info.append(value("t", ("?", "?", 4)))
    fix_sizes(proto, Signature((Port("x", "float32", (2, 3, 4)),), ()))
    assert [d.dim_param for d in proto.graph.value_info[0].type.tensor_type.shape.dim] == ["?", "?", ""]
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 4]
