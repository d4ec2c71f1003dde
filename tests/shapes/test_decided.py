"""Conditions on sizes are decided where onnxruntime stops behind one of the branches, and only there."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.decided import decided

# What follows a tensor of rank 1 where x has one column, else of rank 2; the condition that holds in all runs, or None.
BEHIND: list[tuple[str, bool | None]] = [
    ("y = Transpose<perm=[1, 0]>(z)", False),
    ("y = Transpose<perm=[0]>(z)", True),
    ("y = Gemm(z, w)", False),
    ("r = Reshape(x, flat) y = Concat<axis=0>(z, r)", True),
    ("y = Relu(z)", None),
]


def ended(condition: str, behind: str) -> onnx.ModelProto:
    """The graph in which `condition` makes c of the number of columns."""
    lines = f"s = Shape(x) i = Gather(s, one) {condition} z = If(c)".replace(") ", ")\n ")
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, m] x, int64 k) => (y)
        <int64 one = {{1}}, int64[1] last = {{1}}, int64[1] flat = {{-1}}, float[3, 1] w = {{1., 1., 1.}}> {{
            {lines} <then_branch = a () => (p) {{ p = Squeeze(x, last) }}, else_branch = b () => (q) {{ q = Neg(x) }}>
            {behind.replace(") ", ")" + chr(10))}
        }}""")


def found(proto: onnx.ModelProto) -> dict[str | None, bool]:
    model = ir.serde.deserialize_model(proto)
    propagate(model.graph, Options())
    return {value.name: choice for value, choice in decided(model.graph, Options()).items()}


def runs(proto: onnx.ModelProto, columns: int) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.ones((2, columns), np.float32), "k": np.array(columns)}
    try:
        session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
    except (Fail, InvalidArgument, RuntimeException):
        return False
    return True


@pytest.mark.parametrize(("behind", "held"), BEHIND)
def test_what_is_decided_is_what_onnxruntime_can_run(behind: str, held: bool | None) -> None:
    proto = ended("c = Equal(i, one)", behind)
    assert found(proto) == ({} if held is None else {"c": held})
    assert (runs(proto, 1), runs(proto, 3)) == (held is not False, held is not True)


def test_what_an_input_chooses_is_not_decided() -> None:
    assert found(ended("c = Equal(k, one)", BEHIND[0][0])) == {}


def test_a_condition_is_followed_once_through_each_of_its_nodes() -> None:
    """There are 2**60 ways through these sums to the size: to take each would not end."""
    sums = " ".join(f"d{n + 1} = Add(d{n}, d{n})" for n in range(60))
    proto = ended(f"d0 = Cast<to=11>(i) {sums} e = Cast<to=11>(one) c = Less(d60, e)", BEHIND[0][0])
    assert found(proto) == {"c": False}
