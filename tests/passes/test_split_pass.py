"""A Split whose parts lose its axis is `unbind`, and what passes make dead is gone at once."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxgen.options import Options
from onnxgen.passes.convolutions import paddings
from onnxgen.passes.sequences import sequences
from onnxgen.shapes import propagate
from tests.support.exported import held_graph


def split(sizes: list[int], used: int) -> onnx.ModelProto:
    """Parts of the second axis; the first ones of size 1 lose it and are added, with factors that tell them apart."""
    parts = [f"p{i}" for i in range(len(sizes))]
    nodes = [helper.make_node("Split", ["x", "sizes"], parts, axis=1)]
    for i in range(used):
        nodes.append(helper.make_node("Squeeze", [f"p{i}", "axis"], [f"s{i}"]))
        nodes.append(helper.make_node("Pow", [f"s{i}", f"e{i}"], [f"t{i}"]))
    nodes.append(helper.make_node("Sum", [f"t{i}" for i in range(used)], ["y"]))
    stored = [numpy_helper.from_array(np.array(i + 1, np.float32), f"e{i}") for i in range(used)]
    stored += [numpy_helper.from_array(np.array(v), n) for n, v in (("sizes", sizes), ("axis", [1]))]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, sum(sizes), 3])
    graph = helper.make_graph(
        nodes, "g", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_few_parts_are_unpacked_in_one_line() -> None:
    """Not many, and none of another size, even if nothing uses it."""
    for sizes, used, is_one in (
        ([1] * 2, 2, True), ([1] * 8, 8, True), ([1] * 8, 5, True), ([1] * 9, 9, False), ([1, 1, 3], 2, False),
    ):  # fmt: skip
        x = np.random.default_rng(0).random((2, sum(sizes), 3), np.float32)
        ran = held_graph(split(sizes, used), {"x": x})
        assert ("unbind(" in ran.forward) == is_one, (sizes, used)


DEAD = {
    "the padding of a layer": (
        paddings, "p = Pad (x, around) y = MaxPool <kernel_shape = [2, 2]> (p)", ["MaxPool"],
    ),
    "the items of a list": (
        sequences, "s = SplitToSequence <axis = 3> (x) a = SequenceAt (s, zero) y = Neg (a)", ["Split", "Neg"],
    ),
}  # fmt: skip


def test_what_a_pass_replaced_is_no_use_of_anything() -> None:
    """Later passes ask whether a value has another use."""
    for what, (rewrite, body, left) in DEAD.items():
        proto = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 5] x) => (float[a, b, c, d] y)
            <int64[8] around = {{0, 0, 1, 1, 0, 0, 1, 1}}, float low = {{-inf}}, int64 zero = {{0}}> {{ {body} }}"""
        )
        if rewrite is paddings:
            proto.graph.node[0].input.append("low")
        model = ir.from_proto(proto)
        propagate(model.graph, Options())
        rewrite(model, Options())
        assert [node.op_type for node in model.graph if node.op_type != "Constant"] == left, what
