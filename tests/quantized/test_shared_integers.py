"""Integers that a file stores once for several tensors of floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxgen import Options, export, generate
from tests.quantized.nets import pretrained
from tests.quantized.test_way_back import tensors

RNG = np.random.default_rng(5)


def file(path: Path, second: str, w: str = "w") -> Path:
    """relu(x @ w) @ w, of one tensor of integers that two nodes dequantise, the second by the scale `second`."""
    stored = {w: RNG.integers(-127, 128, (6, 6)).astype(np.int8), "s": np.float32(0.01), "t": np.float32(0.02)}
    nodes = [
        helper.make_node("DequantizeLinear", [w, "s"], ["first"]),
        helper.make_node("DequantizeLinear", [w, second], ["second"]),
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in "xy")
    used = [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items() if k in (w, "s", second)]
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], used), opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize("mode", ["float", "qat", "qat-learned"])
@pytest.mark.parametrize("second", ["s", "t"])
def test_untrained_it_is_the_same_file(second: str, mode: str, tmp_path: Path) -> None:
    path, module = file(tmp_path / "m.onnx", second), tmp_path / "m.py"
    notes = generate(path, module, Options(quantized=mode)).report.notes
    assert not any("between integers" in note for note in notes), "none is left"
    report = export(module, path, out=tmp_path / "same.onnx")
    assert report.method == "written back" and (tmp_path / "same.onnx").read_bytes() == path.read_bytes()


def test_of_one_scale_they_are_one_parameter(tmp_path: Path) -> None:
    path, module = file(tmp_path / "m.onnx", "s"), tmp_path / "m.py"
    generate(path, module, Options(quantized="qat"))
    model, x = pretrained(module), torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    (weight,) = model.parameters()
    with torch.no_grad():
        weight *= 0.4
        expected = model(x).numpy()
    assert export(module, path, model, tmp_path / "tuned.onnx").changed == ["w"]
    session = onnxruntime.InferenceSession(tmp_path / "tuned.onnx", providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, {"x": x.numpy()})[0], expected, atol=1e-4)
    assert (tensors(tmp_path / "tuned.onnx")["w"] == np.rint(tensors(path)["w"] * 0.4)).all()


def test_of_two_scales_they_may_move_together_but_not_apart(tmp_path: Path) -> None:
    path, module = file(tmp_path / "m.onnx", "t", "w\n"), tmp_path / "m.py"
    generate(path, module, Options(quantized="float"))
    model = pretrained(module)
    first, second = model.parameters()
    with torch.no_grad():
        first *= 0.4
        second *= 0.4
    report = export(module, path, model, tmp_path / "together.onnx", verify=False)
    assert report.method == "written back" and report.changed == ["w\n"]
    with torch.no_grad():
        second *= 0.4
    report = export(module, path, model, tmp_path / "apart.onnx", verify=False)
    assert report.method != "written back" and "stores w? once for tensors with several scales" in report.why


def test_a_record_of_a_scale_that_the_file_has_not(tmp_path: Path) -> None:
    path, module = file(tmp_path / "m.onnx", "t"), tmp_path / "m.py"
    generate(path, module, Options(quantized="float"))
    sidecar = module.with_suffix(".safetensors")
    content = sidecar.read_bytes()
    changed = content.replace(rb"\"scales\": [\"t\"]", rb"\"scales\": [\"u\"]")
    assert changed != content
    sidecar.write_bytes(changed)
    report = export(module, path, out=tmp_path / "out.onnx", verify=False)
    assert report.method != "written back" and report.why == "the original graph has no tensor u"
