"""Networks of which rounding decides the outputs: the right module is told from a wrong one, step by step."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgen.pipeline import generate
from onnxgen.verify import verify

ROWS, WIDTH = 64, 48


@pytest.fixture
def ranked(tmp_path: Path) -> Path:
    """Scores that are nearly equal choose rows that are far apart: another order of additions chooses other rows."""
    rng = np.random.default_rng(3)  # sums of positive numbers: nothing cancels
    scores = np.tile(rng.random((WIDTH, 1)).astype(np.float32), (1, ROWS))
    scores += np.float32(1e-7) * rng.standard_normal(scores.shape).astype(np.float32)
    table = (1000 * rng.standard_normal((ROWS, 4))).astype(np.float32)
    arrays = {"scores": scores, "table": table, "k": np.int64([5])}
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["positive"]),
        helper.make_node("MatMul", ["positive", "scores"], ["ranks"]),
        helper.make_node("TopK", ["ranks", "k"], ["best", "places"], axis=-1),
        helper.make_node("Gather", ["table", "places"], ["rows"], axis=0),
        helper.make_node("Mul", ["rows", "rows"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, WIDTH])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [7, 5, 4])]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "ranked", inputs, outputs, weights)
    path = tmp_path / "ranked.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


OTHER_ORDER = (
    "F.linear(torch.sigmoid(x).flip(-1), self.fc.weight.flip(-1))"  # the same products, added from the other end
)


def _edited(path: Path, out: Path, *changes: tuple[str, str]) -> Path:
    generate(path, out)
    source = out.read_text().replace("from torch import", "import torch.nn.functional as F\nfrom torch import", 1)
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    out.write_text(source)
    return out


def test_rounding_that_chooses_rows_is_held_step_by_step(ranked: Path, tmp_path: Path) -> None:
    report = verify(ranked, _edited(ranked, tmp_path / "model.py", ("self.fc(torch.sigmoid(x))", OTHER_ORDER)))
    assert report.agrees and not report.untold
    assert any("intermediate results to the next" in note for note in report.notes)


WRONG = {
    "before the choice": ("self.fc(torch.sigmoid(x))", f"({OTHER_ORDER} * torch.linspace(0.99, 1.0, 64))"),
    "behind the choice": ("return rows * rows", "return 1.01 * rows * rows"),
}


@pytest.mark.parametrize("where", WRONG)
def test_a_wrong_step_is_not_excused_by_rounding(where: str, ranked: Path, tmp_path: Path) -> None:
    changes = [WRONG[where]] + ([] if where == "before the choice" else [("self.fc(torch.sigmoid(x))", OTHER_ORDER)])
    report = verify(ranked, _edited(ranked, tmp_path / "model.py", *changes))
    assert not report.agrees
