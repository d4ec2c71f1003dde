"""Rules of propagation on bodies, on operators of com.microsoft, and on elements that are computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxgen.shapes.elements import _with_data
from onnxgen.shapes.info import Info
from tests.shapes.test_propagate_rules import hold, infos

STEP = "(float[2] s, float[2] e) => (float[2] t, float[2] o) { t = Add(s, e) o = Neg(t) }"
CASES = {  # opset, the graph, and the shape of y
    "the states of an old Scan": (
        8,
        f"""(float[n, 2] first, float[n, m, 2] x) => (y, z)
        {{ y, z = Scan <num_scan_inputs = 1, body = step {STEP}> ( , first, x) }}""",
        "n, 2",
    ),
    "the sequences of an old Scan": (
        8,
        f"""(float[n, 2] first, float[n, m, 2] x) => (z, y)
        {{ z, y = Scan <num_scan_inputs = 1, body = step {STEP}> ( , first, x) }}""",
        "n, m, 2",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_are_those_of_onnxruntime(name: str) -> None:
    opset, text, expected = CASES[name]
    hold(onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> g {text}'), expected)


@pytest.mark.parametrize(("turned", "taken", "made"), [(1, 16, 4), (0, 4, 16)])
def test_a_packed_matrix_is_turned_or_not(turned: int, taken: int, made: int) -> None:
    """As onnxruntime infers it; what its kernel computes of the one that is not is not defined."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 7, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[n, {taken}] x) => (float[n, k] y)
        <int64[1] size = {{32}}, float[4] scale = {{1, 2, 3, 4}}> {{
        w = ConstantOfShape <value = uint8[1] {{7}}> (size)
        y = com.microsoft.MatMulBnb4 <K = 16, N = 4, block_size = 16, quant_type = 1, transB = {turned}> (x, w, scale)
        }}"""
    )
    (output,) = ort.InferenceSession(proto.SerializeToString()).get_outputs()
    assert [str(dim) for dim in infos(proto)["y"].shape or ()] == [str(dim) for dim in output.shape] == ["n", str(made)]


@pytest.mark.parametrize("last", [0, 1])
def test_channels_in_blocks_are_those_of_the_layer_behind(last: int) -> None:
    """onnxruntime's own layout pads channels to whole blocks, of as many as the processor takes at once."""
    x = "n, h, w, 3" if last else "n, 3, h, w"
    proto = onnx.parser.parse_model(
        f"""<ir_version: 7, opset_import: ["" : 17, "com.microsoft.nchwc" : 1]> g (float[{x}] x) => (z)
        <int64[4] size = {{16, 8, 1, 1}}> {{ w = ConstantOfShape (size)
        y = com.microsoft.nchwc.ReorderInput <channels_last = {last}> (x)
        z = com.microsoft.nchwc.Conv <group = 2> (y, w) }}"""
    )
    facts = infos(proto)
    assert [str(dim) for dim in facts["y"].shape or ()] == ["n", "16", "h", "w"]
    assert [str(dim) for dim in facts["z"].shape or ()] == ["n", "16", "h", "w"]


def test_elements_of_another_type_or_shape_than_is_inferred_are_not_known() -> None:
    for array, fits in (
        (np.array([1, 2]), True),
        (np.array([1, 2, 3]), False),
        (np.array([[1, 2]]), False),
        (np.float32([1, 2]), False),
        (np.array([2**63, 1], object), False),
    ):
        found = _with_data(Info(ir.DataType.INT64, (2,)), array)
        assert found.shape == (2,) and (found.data is not None) == fits, array
