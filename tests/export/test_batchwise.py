"""Recurrent layers that take the batch first, which onnxruntime refuses: what is exported runs there all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch

import onnxgen
from onnxgen.export.report import BACK
from onnxgen.verify import verify
from tests.export.trained import perturbed
from tests.support.real import imported

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
BATCH, STEPS, SIZE, HIDDEN = 2, 4, 3, 2


def batch_first(kind: str, more: str = "", inside: bool = False) -> onnx.ModelProto:
    """A layer of both directions with everything it can be given, perhaps in a branch."""
    states = ("h", "c") if kind == "LSTM" else ("h",)
    began = ", ".join(f"{s}0" for s in states)
    made = ["y", *(f"{s}1" for s in states)]
    attributes = f'hidden_size={HIDDEN}, direction="bidirectional", layout=1{more}'
    body = f"{', '.join(made)} = {kind}<{attributes}>(x, W, R, , n, {began})"
    if inside:
        inner = ", ".join(f"float[{'A,B,C,D' if v == 'y' else 'A,B,C'}] {v}_in" for v in made)
        branch = f"() => ({inner}) {{ {body.replace(', '.join(made), ', '.join(f'{v}_in' for v in made))} }}"
        body = f"{', '.join(made)} = If(flag) <then_branch = a {branch}, else_branch = b {branch}>"
    inputs = [f"float[B,S,{SIZE}] x", "int32[B] n", *(f"float[B,2,{HIDDEN}] {s}0" for s in states)]
    inputs += ["bool flag"] if inside else []
    ends = ", ".join(f"float[B,2,{HIDDEN}] {s}1" for s in states)
    text = f"""
        <ir_version: 9, opset_import: ["": 18]>
        g ({", ".join(inputs)}) => (float[B,S,2,{HIDDEN}] y, {ends}) {{ {body} }}
        """
    model = onnx.parser.parse_model(text)
    numbers = np.random.default_rng(0)
    for name, width in (("W", SIZE), ("R", HIDDEN)):
        array = numbers.standard_normal((2, GATES[kind] * HIDDEN, width)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(("more", "inside"), [("", False), (", clip=0.4", True)], ids=["alone", "in a branch"])
@pytest.mark.parametrize("kind", GATES)
def test_what_is_written_loads(kind: str, more: str, inside: bool, tmp_path: Path) -> None:
    onnx.save(batch_first(kind, more, inside), tmp_path / "m.onnx")
    with pytest.raises(Exception, match="layout"):
        ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    model = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    model.load_state_dict(perturbed(model))
    report = onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "tuned.onnx")
    assert report.method == BACK and report.verified is not None and report.verified.agrees
    assert {run.oracle for run in report.verified.runs} == {"onnxruntime"}
    assert any("onnxruntime runs no others" in note for note in report.notes)
    session = ort.InferenceSession(tmp_path / "tuned.onnx", providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(1)
    state = (BATCH, 2, HIDDEN)
    given = [numbers.standard_normal((BATCH, STEPS, SIZE)).astype(np.float32), np.array([4, 2], np.int32)]
    given += [numbers.standard_normal(state).astype(np.float32) for _ in range(2 if kind == "LSTM" else 1)]
    given += [np.array(True)] if inside else []
    made = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), given, strict=True)})
    with torch.no_grad():
        expected = model(*map(torch.from_numpy, given))
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), 1e-4, 1e-5)


def test_the_same_graph_if_asked(tmp_path: Path) -> None:
    onnx.save(batch_first("LSTM"), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    onnxgen.export(tmp_path / "model.py", out=tmp_path / "tuned.onnx", same_graph=True)
    assert onnx.load(tmp_path / "tuned.onnx").graph.node == onnx.load(tmp_path / "m.onnx").graph.node


@pytest.mark.parametrize("kind", GATES)
def test_onnxruntime_answers_when_it_is_verified(kind: str, tmp_path: Path) -> None:
    """onnx's own evaluator, which loads the file, ignores `clip`."""
    onnx.save(batch_first(kind, ", clip=0.2"), tmp_path / "m.onnx")
    report = verify(tmp_path / "m.onnx")
    assert report.agrees and {run.oracle for run in report.runs} == {"onnxruntime"}


def test_what_onnxruntime_does_not_load_is_said(tmp_path: Path) -> None:
    """Another program may: the file is compared with onnx's evaluator."""
    text = """
        <ir_version: 9, opset_import: ["": 18]>
        g (double[B,3] x) => (double[B,2] y) <double[3,2] w = {0.1,0.2,0.3,0.4,0.5,0.6}>
        { h = MatMul(x, w) y = Tan(h) }
        """
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    report = onnxgen.export(tmp_path / "model.py", out=tmp_path / "tuned.onnx")
    assert any(note.startswith("onnxruntime can't load it") and "Tan" in note for note in report.notes)
