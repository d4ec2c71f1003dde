"""`verify --partial`: an edited module is compared as far as its weights are those of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import onnxgen
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from tests.integrity.pairs import network
from tests.integrity.test_partial import EDITS, SAID, edit


@pytest.fixture
def module(tmp_path: Path) -> Path:
    onnxgen.generate(network(tmp_path / "net.onnx", 1), tmp_path / "model.py")
    return tmp_path / "model.py"


def verified(module: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    """The exit code and what is said, on stdout and stderr."""
    code = run(["verify", str(module.with_name("net.onnx")), str(module), "--runs", "1", *more])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_other_layers(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(module, EDITS)
    code, said = verified(module, capsys)
    assert code == 2 and '"out.weight"' in said and '"layers.2.weight"' in said and "--partial" in said
    code, said = verified(module, capsys, "--partial")
    assert code == 0 and f"loaded in part: {SAID}\n" in said and "2 of 4 tensors of the module come from" in said
    assert ", 5]" in said
    assert "differs: " in said and said.strip().endswith("outputs may differ, because layers do")
    code, said = verified(module, capsys, "--partial", "--json")
    report = json.loads(said)
    assert code == 0 and report["partial"] == SAID and report["agrees"] and report["problems"] == []
    assert report["runs"][0]["outputs"][0]["why"]


def test_an_output_that_is_equal(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One more output: the file's own is compared, and the number is noted."""
    edit(module, {"super().__init__()": "super().__init__()\n        self.out = nn.Linear(8, 5)"})
    edit(module, {"return self.layers(x)": "y = self.layers(x)\n        return y, self.out(y)"})
    code, said = verified(module, capsys, "--partial")
    assert code == 0 and "newly initialised: out.weight, out.bias\n" in said
    assert "forward returned 2 outputs, the graph has 1" in said and "  ok" in said and "differs: " not in said


def test_weights_that_are_not_the_file_s(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(module, EDITS)
    sidecar = module.with_suffix(".safetensors")
    with safe_open(sidecar, "pt") as file:
        metadata = file.metadata()
    state = load_file(sidecar)
    state["layers.0.weight"][0, 0] += 1
    save_file(state, sidecar, metadata)
    code, said = verified(module, capsys, "--partial")
    assert code == 1 and "weights: layers.0.weight differs from the tensor in the file" in said and "NOT EQUAL" in said


def test_a_module_that_changes_what_it_loads(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(module, EDITS)
    edit(module, {"    return model\n": "    model.layers[1].weight.data.add_(1)\n    return model\n"})
    code, said = verified(module, capsys, "--partial")
    assert code == 1 and "weights: layers.1.weight differs" in said


@pytest.mark.parametrize(
    ("new", "code", "says"),
    [
        ("self.layers(x)", 0, "equal, to"),
        ("self.layers(x) * 2", 1, "NOT EQUAL"),
    ],
)
def test_where_all_fits_outputs_and_gradients_count(
    module: Path, new: str, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(module, {"self.layers(x)": new})
    found = verified(module, capsys, "--partial")
    assert found[0] == code and says in found[1] and "gradients: " in found[1]


def test_a_module_that_does_not_run(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(module, {**EDITS, "return self.layers(x)": "return self.out(x[0])[9]"})
    code, said = verified(module, capsys, "--partial")
    assert code == 1 and "forward raised IndexError" in said


def test_what_can_not_be_compared_in_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnxgen.generate(network(tmp_path / "net.onnx", 1), tmp_path / "model.py", Options(embed=True))
    code, said = verified(edit(tmp_path / "model.py", EDITS), capsys, "--partial")
    assert code == 2 and "the weights are in the module itself" in said
    with pytest.raises(OnnxgenError, match="partial excludes integrity and locate"):
        onnxgen.verify(tmp_path / "net.onnx", tmp_path / "model.py", partial=True, locate=True)
    with pytest.raises(OnnxgenError, match="give the path of the generated module"):
        onnxgen.verify(tmp_path / "net.onnx", nn.Linear(8, 8), partial=True)
