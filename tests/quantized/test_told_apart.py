"""A wrong module of a quantised file is told from a right one, or else `verify` says that it can't be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgen import Options, export, generate, verify
from onnxgen.cli import run as command
from onnxgen.verify import VerifyReport
from tests.conftest import SHARED

MODES = ["float", "qat"]
REAL = SHARED / "models" / "ort" / "conv_qdq_s8s8_perchannel.onnx"
IMAGES = [4, 3, 12, 12]
RNG = np.random.default_rng(11)
WEIGHT = RNG.integers(-127, 128, (6, 3, 3, 3)).astype(np.int8)
STEP = np.float32(0.004)  # of the weights; a sum of 27 products of them deviates by some 1.5 of its input's deviation
INPUT = 140.0  # what inputs are quantised up to: far more than the deviation of 1 that is drawn for any other file


class File:
    """Nodes and stored tensors of a graph of x, which is quantised at once."""

    def __init__(self, shape: list[int], largest: float = INPUT) -> None:
        self.shape, self.nodes, self.stored, self.last = shape, [], {}, "x"  # type: ignore[var-annotated]
        self.rounded(largest)

    def add(self, kind: str, inputs: str, **attributes: Any) -> None:
        """A node of what came last, for which `.` stands."""
        made = f"v{len(self.nodes)}"
        names = [self.last if name == "." else name for name in inputs.split()]
        self.nodes.append(helper.make_node(kind, names, [made], **attributes))
        self.last = made

    def rounded(self, largest: float, low: int = -128) -> File:
        """Quantise to 8 bits and back, from about `-largest`, or from 0 with a zero point of -128."""
        n = len(self.nodes)
        zero, step = (-128, largest / 255) if low == 0 else (0, largest / 127)
        self.stored |= {f"s{n}": np.float32(step), f"z{n}": np.int8(zero)}
        self.add("QuantizeLinear", f". s{n} z{n}")
        self.add("DequantizeLinear", f". s{n} z{n}")
        return self

    def conv(self, weight: np.ndarray[Any, Any] = WEIGHT) -> File:
        n = len(self.nodes)
        self.stored |= {f"w{n}": weight, f"t{n}": STEP}
        before = self.last
        self.add("DequantizeLinear", f"w{n} t{n}")
        self.add("Conv", f"{before} .", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        return self

    def save(self, path: Path) -> Path:
        self.add("Identity", ".")
        self.nodes[-1].output[0] = "y"
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in self.stored.items()]
        graph = helper.make_graph(self.nodes, "g", [x], [y], tensors)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
        return path


def one_layer(path: Path) -> Path:
    """Conv and ReLU, which the quantiser left to the output's zero point."""
    return File(IMAGES).conv().rounded(500, 0).save(path)


def two_layers(path: Path) -> Path:
    second = RNG.integers(-127, 128, (5, 6, 3, 3)).astype(np.int8)
    return File(IMAGES).conv().rounded(500, 0).conv(second).rounded(1000).save(path)


def viewed(path: Path) -> Path:
    """The input is quantised behind a Reshape."""
    file = File(IMAGES)
    file.nodes.insert(0, helper.make_node("Reshape", ["x", "shape"], ["image"]))
    file.nodes[1].input[0], file.shape = "image", [4, 3 * 144]
    file.stored["shape"] = np.array(IMAGES)
    return file.conv().rounded(500, 0).save(path)


def integers(path: Path) -> Path:
    """The output is what DequantizeLinear would take."""
    model = onnx.load(one_layer(path))
    del model.graph.node[-2:]
    model.graph.node[-1].output[0] = "y"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    onnx.save(model, path)
    return path


FILES: dict[str, Callable[[Path], Path]] = {"one": one_layer, "two": two_layers, "viewed": viewed, "integers": integers}
WRONG = {"constant": "({}) * 0 + 0.37", "zero": "({}) * 0", "order": "({}).flip(1)", "smaller": "({}) * 0.7"}
EDITS = {**WRONG, "larger": "({}) * 3"}


def edited(module: Path, wrong: str) -> Path:
    """The module with what `forward` returns, or its ReLU, changed."""
    text = module.read_text(encoding="utf-8")
    if wrong == "no ReLU":
        assert "F.relu(" in text
        changed = text.replace("F.relu(", "(")
    else:
        start = text.rindex("def forward(")
        changed = text[:start] + re.sub(
            r"return (.*)", lambda found: f"return {EDITS[wrong].format(found[1])}", text[start:], count=1
        )
    assert changed != text
    module.write_text(changed, encoding="utf-8")
    return module


def told_apart(path: Path, mode: str, folder: Path) -> None:
    """The right module is equal; each wrong one is different, and the command says so."""
    module, options = folder / "m.py", Options(quantized=mode)
    generate(path, module, options)
    right = verify(path, module, options=options)
    assert right.agrees, right.problems() or right.untold
    generated = module.read_text(encoding="utf-8")
    for wrong in [*WRONG, *["no ReLU"] * ("F.relu(" in generated)]:
        report = verify(path, edited(module, wrong), options=options)
        assert report.differs and any(o.why for run in report.runs for o in run.outputs), wrong
        module.write_text(generated, encoding="utf-8")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("file", FILES)
def test_a_wrong_module_is_different(file: str, mode: str, tmp_path: Path) -> None:
    told_apart(FILES[file](tmp_path / "m.onnx"), mode, tmp_path)


@pytest.mark.skipif(not REAL.is_file(), reason="needs the shared models")
@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_module_of_a_real_file_is_different(mode: str, tmp_path: Path) -> None:
    told_apart(REAL, mode, tmp_path)


def test_a_relu_is_among_what_is_edited(tmp_path: Path) -> None:
    for make in FILES.values():
        generate(make(tmp_path / "m.onnx"), tmp_path / "m.py", Options(quantized="float"), force=True)
        assert "F.relu(" in (tmp_path / "m.py").read_text()


def untold(report: VerifyReport) -> None:
    assert not report.agrees and not report.differs and not report.problems()
    assert list(report.untold) == ["y"] and "a wrong module could pass" in report.untold["y"]


@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_the_file_rounds_away_tell_nothing(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of a right module nor of a wrong one; the command says what to do, and fails."""
    path, module, options = one_layer(tmp_path / "m.onnx"), tmp_path / "m.py", Options(quantized=mode)
    generate(path, module, options)
    faint = {"x": RNG.standard_normal(IMAGES).astype(np.float32)}
    untold(verify(path, module, options=options, feeds=[faint]))
    np.savez(tmp_path / "faint.npz", **faint)
    assert command(["verify", str(path), str(module), "--inputs", str(tmp_path / "faint.npz")]) == 1
    said = capsys.readouterr().out
    assert "not told apart: output y: rounding may change this output" in said and "--inputs FILE.npz" in said
    assert said.endswith("NOT TOLD APART\n")
    good = {"x": (50 * RNG.standard_normal(IMAGES)).astype(np.float32)}
    assert verify(path, module, options=options, feeds=[good]).agrees
    assert verify(path, module, options=options, feeds=[faint, good]).agrees  # one run that tells is enough


@pytest.mark.parametrize("mode", MODES)
def test_an_output_of_few_steps_is_not_told_apart(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the inputs. What is exported is written all the same, and the command says that it is not known."""
    path, module = File(IMAGES).conv().rounded(30_000).save(tmp_path / "m.onnx"), tmp_path / "m.py"
    generate(path, module, Options(quantized=mode))
    untold(verify(path, module))
    report = export(module, path, out=tmp_path / "back.onnx")
    assert report.verified is not None
    untold(report.verified)
    assert command(["export", str(module), "--onnx", str(path), "-o", str(tmp_path / "again.onnx")]) == 0
    said = capsys.readouterr().out
    assert "not told apart" in said and "warning: output y: rounding may change this" in said and "equal" not in said


def test_an_output_that_is_saturated_throughout_is_not_told_apart(tmp_path: Path) -> None:
    """It is the same number whatever comes in, and so is that of any module that is large enough."""
    file = File(IMAGES).conv()
    file.stored["up"] = np.float32(1e5)
    file.add("Add", ". up")
    path, module = file.rounded(10).save(tmp_path / "m.onnx"), tmp_path / "m.py"
    generate(path, module, Options(quantized="float"))
    untold(verify(path, module))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("file", [one_layer, integers])
def test_a_changed_module_is_exported_anew(file: Callable[[Path], Path], mode: str, tmp_path: Path) -> None:
    """Also where it computes more than the old file could hold, and where the old file has integers."""
    path = file(tmp_path / "m.onnx")
    module = path.with_suffix(".py")
    generate(path, module, Options(quantized=mode))
    report = export(edited(module, "larger"), path, out=tmp_path / "tuned.onnx")
    assert report.method == "exported anew" and report.verified is not None and report.verified.agrees


@pytest.mark.parametrize("mode", MODES)
def test_one_number_is_told_by_how_it_varies_from_run_to_run(mode: str, tmp_path: Path) -> None:
    file = File([1, 6])
    file.stored |= {"w": RNG.integers(-127, 128, (6, 1)).astype(np.int8), "t": STEP}
    before = file.last
    file.add("DequantizeLinear", "w t")
    file.add("MatMul", f"{before} .")
    path, module, options = file.rounded(300).save(tmp_path / "m.onnx"), tmp_path / "m.py", Options(quantized=mode)
    generate(path, module, options)
    assert verify(path, module, options=options).agrees
    assert verify(path, edited(module, "zero"), options=options).differs


def test_the_table_has_the_root_mean_square_and_its_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, module = one_layer(tmp_path / "m.onnx"), tmp_path / "m.py"
    generate(path, module, Options(quantized="float"))
    assert command(["verify", str(path), str(module)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"largest difference +root mean square +limit", said) and "relative" not in said
    assert "equal, to what 2 roundings to 8 bits may change, or 0.5 of an output's standard deviation" in said
    (output,) = verify(path, module).runs[0].outputs
    assert output.relative is None and output.rms is not None and output.limit is not None
    assert 0 < output.rms < output.limit and f"{output.rms:.3g}  " in said and f"{output.limit:.3g} " in said
