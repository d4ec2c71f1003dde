"""The way back: trained floats as the integers of the very same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import save_file

from onnxgen import OnnxgenError, Options, export, generate
from onnxgen.cli import run as command
from onnxgen.record.sidecar import read_header
from onnxgen.weights.dequantised import Dequantised
from tests.quantized.nets import CASES, example, generated, pretrained, quantised, rms, run

FLOAT = Options(quantized="float")


def tensors(path: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("case", CASES)
def test_untrained_it_is_the_same_file(case: str, files: Path, tmp_path: Path) -> None:
    path, module = quantised(case, files), generated(case, FLOAT, files)
    report = export(module, path, out=tmp_path / "back.onnx", verify=False)
    assert report.method == "written back" and not report.changed and report.tensors
    assert (tmp_path / "back.onnx").read_bytes() == path.read_bytes()
    assert "quantised" in read_header(module.with_suffix(".safetensors"))[0]  # a name in files of users


@pytest.mark.parametrize("case", CASES)
def test_what_training_changed_is_requantised(case: str, files: Path, tmp_path: Path) -> None:
    """One weight and one bias, and a bit of the weight alone; scales stay."""
    path, module = quantised(case, files), generated(case, FLOAT, files)
    model, x = pretrained(module), example(case.partition("-")[0], 9)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    name = {"cnn": "conv2", "mlp": "fc2"}.get(case.partition("-")[0], "blocks.0.up")
    layer = model.get_submodule(name)
    with torch.no_grad():
        layer.weight[::2] *= 0.9
        layer.bias *= 0.5
        expected = model(x).numpy()
    report = export(module, path, model, tmp_path / "back.onnx")
    assert len(report.changed) == 2
    old, new = tensors(path), tensors(tmp_path / "back.onnx")
    assert {key for key in old if not np.array_equal(old[key], new[key])} == set(report.changed)
    assert all(old[key].dtype == new[key].dtype for key in old)
    changed = before[f"{name}.weight"] != model.state_dict()[f"{name}.weight"]
    assert changed.any() and not changed.all()
    got = run(tmp_path / "back.onnx", x)
    assert rms(got - expected) < rms(run(path, x) - expected)
    generate(tmp_path / "back.onnx", tmp_path / "again.py", FLOAT)
    again = pretrained(tmp_path / "again.py").state_dict()
    for key, value in model.state_dict().items():
        off = (again[key] - value).abs().max()  # half a step
        assert off < 0.03 if key.startswith(name) else torch.equal(again[key], value)


def test_changes_below_a_step_of_the_integers_are_told(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, module = quantised("mlp-QDQ-u8s8", files), tmp_path / "m.py"
    generate(path, module, FLOAT)
    model = pretrained(module)
    with torch.no_grad():
        model.get_submodule("fc1").weight[:, 0] += 1e-6
    report = export(module, path, model, tmp_path / "back.onnx")
    assert report.changed == [] and report.below == ["fc1.weight_quantized"]
    assert (tmp_path / "back.onnx").read_bytes() == path.read_bytes()
    save_file(model.state_dict(), tmp_path / "tuned.safetensors")
    asked = ["export", module, "--onnx", path, "--weights", tmp_path / "tuned.safetensors", "--no-verify"]
    assert command([str(part) for part in asked]) == 0
    assert "tensors changed, 1 more by less than a step of the file's numbers" in capsys.readouterr().out


def test_changes_below_a_step_of_half_precision_are_told(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((2, 3), np.float16), "fc.weight")
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, ["n", None]) for name in "xy"]
    nodes = [onnx.helper.make_node("MatMul", ["x", "fc.weight"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "half.onnx")
    generate(tmp_path / "half.onnx", tmp_path / "m.py", Options(dtype="float32"))
    model = pretrained(tmp_path / "m.py")
    for step, found in ((1e-5, ([], ["fc.weight"])), (1e-2, (["fc.weight"], []))):
        with torch.no_grad():
            next(model.parameters()).add_(step)
        report = export(tmp_path / "m.py", tmp_path / "half.onnx", model, tmp_path / "back.onnx", same_graph=True)
        assert (report.changed, report.below) == found


def test_a_weight_that_is_not_finite_is_refused(files: Path, tmp_path: Path) -> None:
    path, module = quantised("mlp-QDQ-u8s8", files), tmp_path / "m.py"
    generate(path, module, FLOAT)
    model = pretrained(module)
    with torch.no_grad():
        model.get_submodule("fc1").weight[0, 0] = torch.nan
    with pytest.raises(OnnxgenError, match="fc1.weight_quantized cannot be written as integers: .* not finite"):
        export(module, path, model, tmp_path / "back.onnx", verify=False)


RNG = np.random.default_rng(0)
INT32 = RNG.integers(-(2**31), 2**31, 50).astype(np.int32)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_every_integer_comes_back(dtype: str) -> None:
    """Those that no float32 holds, too, and those of a scale of 0."""
    limits = np.iinfo(dtype)
    numbers = INT32 if dtype == "int32" else np.arange(limits.min, limits.max + 1).astype(dtype)
    zero = np.asarray(0 if dtype == "int32" else 3, dtype)
    for scale in (0.1, 1e-30, 3e-6, 0.0):
        stored = {"w": numbers, "s": np.float32(scale), "z": zero}
        how = Dequantised("w", ("s",), "z", numbers.shape)
        get = {key: np.asarray(value) for key, value in stored.items()}.__getitem__
        for kept in (np.float32, np.float16):
            assert np.array_equal(how.integers(how.floats(get).astype(kept), get, get), numbers)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_packed_numbers_come_back(bits: int) -> None:
    rows, columns, block = 3, 21, 16
    packed = RNG.integers(0, 256, (rows, 2, block * bits // 8)).astype(np.uint8)
    zeros = RNG.integers(0, 256, (rows, -(-2 * bits // 8))).astype(np.uint8).reshape(-1)
    stored = {"w": packed, "s": RNG.random(rows * 2).astype(np.float32) + 0.1, "z": zeros}
    how = Dequantised("w", ("s",), "z", (rows, columns), 1, block, "bits", bits)
    floats = how.floats(stored.__getitem__)
    assert np.array_equal(how.integers(floats, stored.__getitem__, stored.__getitem__), packed)
    steps = stored["s"].reshape(rows, 2).repeat(block, 1)[:, :columns]
    made = how.integers(floats + 0.6 * steps, stored.__getitem__, stored.__getitem__)
    moved = how.floats({**stored, "w": made}.__getitem__)
    assert np.allclose(np.minimum(moved, floats + steps), moved) and (moved > floats).mean() > 0.5
    assert not np.array_equal(made, packed)
