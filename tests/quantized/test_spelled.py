"""Stored integers that a file makes floats of by Cast and Mul, as tools write that quantise weights alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onnxgen import Options, export, generate, verify
from onnxgen.export.adapter import export_apart
from tests.quantized.nets import pretrained, run

FLOAT = Options(quantized="float")
RNG = np.random.default_rng(0)


def spelled(path: Path, weight: NDArray[np.generic], scale: NDArray[np.float32], zero: object = None) -> Path:
    """Write y = x @ ((Cast(w_q) - Cast(w_zero)) * w_scale) + b."""
    stored = {"w_q": weight, "w_scale": scale, "b": np.arange(weight.shape[1], dtype=np.float32)}
    nodes = [helper.make_node("Cast", ["w_q"], ["w_f"], to=TensorProto.FLOAT)]
    if zero is not None:
        stored["w_zero"] = np.asarray(zero, weight.dtype)
        nodes += [
            helper.make_node("Cast", ["w_zero"], ["zero_f"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["w_f", "zero_f"], ["centred"]),
        ]
    product = ["w_scale", "centred"] if zero is not None else ["w_f", "w_scale"]
    nodes += [
        helper.make_node("Mul", product, ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in "xy"]
    ports[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weight.shape[0]])
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


INT8 = RNG.integers(-127, 128, (6, 4)).astype(np.int8)
COLUMNS, ROWS = (RNG.uniform(0.01, 0.1, shape).astype(np.float32) for shape in ((1, 4), (6, 1)))
CASES = {
    "columns": (INT8, COLUMNS, None),
    "columns of rank 1": (INT8, COLUMNS[0], None),
    "rows": (INT8, ROWS, None),
    "one scale, and a zero point": (RNG.integers(0, 256, (6, 4)).astype(np.uint8), np.float32([0.02]), 131),
    "zero points of columns": (INT8, COLUMNS, RNG.integers(-9, 9, (1, 4))),
}


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_weights_of_a_layer(case: str, tmp_path: Path) -> None:
    """The layer computes what the file does, and an export writes its integers again."""
    path, module = spelled(tmp_path / "m.onnx", *CASES[case]), tmp_path / "m.py"
    generate(path, module, FLOAT)
    model = pretrained(module)
    (layer,) = (m for m in model.modules() if isinstance(m, nn.Linear))
    assert layer.weight.requires_grad
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    assert np.allclose(model(x).detach().numpy(), run(path, x), 1e-6, 1e-6)
    assert verify(path, module, options=FLOAT).agrees
    export(module, path, out=tmp_path / "back.onnx")
    assert (tmp_path / "back.onnx").read_bytes() == path.read_bytes()
    step = torch.from_numpy(np.broadcast_to(CASES[case][1], (6, 4)).copy()).T
    with torch.no_grad():
        layer.weight[1:3] -= 5 * step[1:3] * layer.weight[1:3].sign()
    export(module, path, model, tmp_path / "back.onnx")
    assert np.allclose(model(x).detach().numpy(), run(tmp_path / "back.onnx", x), 1e-5, 1e-5)


BOTH = (COLUMNS * ROWS).astype(np.float32)


@pytest.mark.parametrize("weight, scale", [(INT8, BOTH), (INT8.astype(np.int64), COLUMNS), (INT8[:1], ROWS)])
def test_what_is_no_dequantisation_stays(
    weight: NDArray[np.generic], scale: NDArray[np.float32], tmp_path: Path
) -> None:
    """A scale of each number, whole numbers that are no quantised ones, and a product of another shape."""
    path, module = tmp_path / "m.onnx", tmp_path / "m.py"
    rows = max(weight.shape[0], scale.shape[0])
    spelled(path, np.zeros((rows, 4), weight.dtype), scale)
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w_q"))
    onnx.save(model, path)
    generate(path, module, FLOAT)
    loaded, x = pretrained(module), torch.randn(5, rows)
    assert not any(p.shape == (4, rows) for p in loaded.parameters() if p.shape != scale.shape)
    assert np.allclose(loaded(x).detach().numpy(), run(path, x), 1e-5, 1e-5)


def test_an_adapter_is_written_beside_them(tmp_path: Path) -> None:
    path, module = spelled(tmp_path / "m.onnx", INT8, COLUMNS), tmp_path / "m.py"
    generate(path, module, FLOAT)
    model = pretrained(module)
    with torch.no_grad():
        next(p for p in model.parameters() if p.ndim == 2).add_(torch.outer(torch.arange(4.0), torch.ones(6)))
    given = {"onnx": path, "weights": model, "out": tmp_path / "base.onnx", "force": False, "verify": True}
    given |= {"runs": 1, "seed": 0, "rtol": 1e-3, "atol": 1e-5, "plugins": ()}
    report = export_apart(module, **given)
    assert report.changed == report.rounded == [] and not any("scale" in note for note in report.notes)
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(tmp_path / "base.onnx_adapter"))
    options.add_active_adapter(adapter)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    session = onnxruntime.InferenceSession(tmp_path / "base.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], run(path, x), atol=1e-5)
    with_it = session.run(None, {"x": x.numpy()}, options)[0]
    np.testing.assert_allclose(with_it, model(x).detach().numpy(), rtol=1e-4, atol=1e-4)


def rounded(path: Path, model: nn.Module, scale: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Export a model, and return the integers and scales of its file."""
    export(path.with_suffix(".py"), path, model, path.with_name("back.onnx"), verify=False, force=True)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path.with_name("back.onnx")).graph.initializer}
    assert stored["w_scale"].shape == scale.shape and stored["w_q"].dtype == np.int8
    return stored["w_q"], stored["w_scale"]


def test_a_change_below_half_a_step_is_kept_in_the_mean(tmp_path: Path) -> None:
    """As that of an adapter is: to the nearest, nothing would be left of it. What was not trained keeps its bytes."""
    weight, scale = RNG.integers(-90, 90, (400, 40)).astype(np.int8), np.full((1, 40), 0.01, np.float32)
    path = spelled(tmp_path / "m.onnx", weight, scale)
    generate(path, path.with_suffix(".py"), FLOAT)
    model = pretrained(path.with_suffix(".py"))
    (layer,) = (m for m in model.modules() if isinstance(m, nn.Linear))
    with torch.no_grad():
        layer.weight[:20] += 0.002
    integers, scales = rounded(path, model, scale)
    moved = integers.astype(int) - weight
    assert np.array_equal(scales, scale) and not moved[:, 20:].any() and set(np.unique(moved)) == {0, 1}
    assert moved[:, :20].mean() == pytest.approx(0.2, abs=0.02)
    assert np.array_equal(rounded(path, model, scale)[0], integers)


def test_a_value_beyond_the_integers_gets_a_larger_scale(tmp_path: Path) -> None:
    """The scale of its column alone. With --quantized qat training saw it saturate, and so does the file."""
    weight, scale = RNG.integers(-90, 90, (8, 3)).astype(np.int8), np.full((1, 3), 0.01, np.float32)
    path = spelled(tmp_path / "m.onnx", weight, scale)
    for mode, expected in (("float", [0.01, 2.54 / 127, 0.01]), ("qat", [0.01, 0.01, 0.01])):
        generate(path, path.with_suffix(".py"), Options(quantized=mode), force=True)
        model = pretrained(path.with_suffix(".py"))
        with torch.no_grad():
            next(p for p in model.parameters() if p.ndim == 2)[1, 4] = 2.54
        integers, scales = rounded(path, model, scale)
        np.testing.assert_allclose(scales[0], expected, rtol=1e-6)
        assert integers[4, 1] == 127 and np.array_equal(integers[:, [0, 2]], weight[:, [0, 2]])
        wanted = weight[:, 1] * (0.01 / scales[0, 1])
        assert np.abs(integers[:, 1] - wanted)[np.arange(8) != 4].max() <= 1


def test_they_are_compared_as_floats_are(tmp_path: Path) -> None:
    """Nothing is rounded between the operators, so half of a deviation would hide an error."""
    file, module = spelled(tmp_path / "m.onnx", *CASES["columns"][:2]), tmp_path / "m.py"
    generate(file, module, FLOAT)
    report = verify(file, module)
    assert report.agrees and report.runs[0].outputs[0].limit is None
    text = module.read_text()
    module.write_text(text.replace("return self.fc(x)", "return self.fc(x) * 1.01"))
    assert module.read_text() != text and not verify(file, module).agrees
