"""What export refuses: in a line, with the way out, and nothing is written."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

import onnxgen
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.export.state import read_state
from onnxgen.options import Options
from tests.conftest import ROOT

MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The sample's original, its module and weights, and an empty folder `out`."""
    (tmp_path / "mnist.onnx").write_bytes(MNIST.read_bytes())
    onnxgen.generate(tmp_path / "mnist.onnx", tmp_path / "model.py")
    (tmp_path / "out").mkdir()
    return tmp_path


def refused(folder: Path, message: str, **given: Any) -> None:
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    with pytest.raises(OnnxgenError, match=message) as caught:
        onnxgen.export(folder / "model.py", **{"out": folder / "out" / "tuned.onnx", **given})
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_the_original_is_gone(folder: Path) -> None:
    (folder / "mnist.onnx").rename(folder / "elsewhere.onnx")
    refused(folder, "was generated from mnist.onnx, which is not in the same folder -> name the file with --onnx")
    assert onnxgen.export(folder / "model.py", folder / "elsewhere.onnx", out=folder / "t.onnx").wrote


def test_the_project_says_where_the_original_is(folder: Path) -> None:
    (folder / "nets").mkdir()
    (folder / "mnist.onnx").rename(folder / "nets" / "net.onnx")
    entries = '[[tool.onnxgen.models]]\nsource = "a.onnx"\noutput = "other.py"\n'
    entries += '[[tool.onnxgen.models]]\nsource = "nets/net.onnx"\noutput = "model.py"\n'
    (folder / "pyproject.toml").write_text(entries)
    assert onnxgen.export(folder / "model.py", out=folder / "t.onnx").model == str(folder / "nets" / "net.onnx")
    (folder / "pyproject.toml").write_text("tool = [")
    refused(folder, "pyproject.toml can't be read")


@pytest.mark.parametrize("named", [True, False])
def test_another_file_under_the_same_name(folder: Path, named: bool) -> None:
    with open(folder / "mnist.onnx", "ab") as file:
        file.write(b"\x32\x00")
    refused(folder, "is not the file that .* was generated from", onnx=folder / "mnist.onnx" if named else None)


def change_keys(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["fc3.weight"] = state.pop("fc2.weight")
    return state


def change_shape(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**state, "fc2.bias": torch.zeros(11)}


def change_name(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**state, "fc3\n\x1b[1m": torch.zeros(1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_name, r"does not fit the module: has besides fc3\?\?\[1m"),
        (change_keys, "does not fit the module: lacks fc2.weight; it has besides fc3.weight"),
        (change_shape, r"does not fit the module: has other shapes: fc2.bias \[11\] instead of \[10\]"),
    ],
)
def test_weights_of_another_network(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], message: str
) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "best.safetensors")
    refused(folder, message, weights=folder / "best.safetensors")


def test_weights_that_are_none(folder: Path) -> None:
    refused(folder, "there is no file", weights=folder / "best.safetensors")
    torch.save({"state_dict": {}}, folder / "last.ckpt")
    refused(folder, "last.ckpt has no tensors by key, but state_dict -> ", weights=folder / "last.ckpt")
    (folder / "text").write_text("hello")
    refused(folder, "is not a safetensors file", weights=folder / "text")


@pytest.mark.parametrize("target", ["mnist.onnx", "model.py", "model.safetensors", "best.safetensors", "out", "no/x"])
def test_places_that_are_not_written_to(folder: Path, target: str) -> None:
    save_file(load_file(folder / "model.safetensors"), folder / "best.safetensors")
    refused(folder, "cannot write", weights=folder / "best.safetensors", out=folder / target)


def test_a_module_without_a_record(folder: Path) -> None:
    fingerprint = next(
        line.split('"')[1] for line in (folder / "model.py").read_text().splitlines() if line.startswith("FINGERPRINT")
    )
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", {"fingerprint": fingerprint})
    refused(folder, "do not name the ONNX file that they came from -> generate module and weights again")


def test_without_onnxruntime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "onnxruntime" else find(n, *a))
    refused(folder, "needs onnxruntime -> .*--no-verify")
    assert onnxgen.export(folder / "model.py", out=folder / "t.onnx", verify=False).verified is None


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({**state, "fc2.bias": state["fc2.bias"] + 1}, folder / "best.safetensors")
    command = ["export", str(folder / "model.py"), "--weights", str(folder / "best.safetensors")]
    command += ["--onnx", str(folder / "mnist.onnx"), "-o", str(folder / "out" / "tuned.onnx")]
    assert run(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"wrote {folder / 'out' / 'tuned.onnx'}" and "written back" in said[1]
    assert said[2] == "  1 of 18 tensors changed" and "verified against the module in 3 runs" in said[3]
    assert run([*command, "--json", "--runs", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changed"] == ["fc2.bias"] and found["verified"]["agrees"] and found["method"] == "written back"
    assert run([*command, "-q", "--no-verify"]) == 0 and capsys.readouterr() == ("", "")
    assert run([*command, "-v", "--no-verify"]) == 0 and "changed: fc2.bias" in capsys.readouterr().out
    assert run(["export", str(folder / "nothing.py"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_a_header_whose_length_begins_like_a_pickle(tmp_path: Path) -> None:
    """A safetensors header of 640 bytes begins with the two bytes that torch's old checkpoints begin with."""
    header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(640)
    file = tmp_path / "best.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\x80?")
    assert file.read_bytes()[:2] == b"\x80\x02" and float(read_state(file)["x"][0]) == 1.0


@pytest.mark.parametrize("name", ["tuned.onnx", "tuned.onnx.data"])
@pytest.mark.parametrize("theirs", [b"", b"my table", b"\x08\x07"])
def test_what_is_there_and_is_no_earlier_export(folder: Path, name: str, theirs: bytes) -> None:
    (folder / "out" / name).write_bytes(theirs)
    refused(folder, f"{name} exists and is not an earlier export|{name}: it exists and is not an earlier export")
    assert onnxgen.export(folder / "model.py", out=folder / "out" / "tuned.onnx", force=True).wrote


def test_another_network_is_there(folder: Path) -> None:
    model = onnx.load(MNIST)
    model.graph.output[0].name = model.graph.node[-1].output[0] = "other"
    onnx.save(model, folder / "out" / "tuned.onnx")
    refused(folder, "is not an earlier export of this model -> name another file with -o, or overwrite it with --force")


def test_an_earlier_export_is_written_over(folder: Path) -> None:
    for _ in range(2):
        assert onnxgen.export(folder / "model.py", out=folder / "out" / "tuned.onnx").wrote


def test_a_size_that_no_input_has_is_told_as_a_dim(tmp_path: Path) -> None:
    """An eighth of the width, which only the file's own Shape can tell."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 3, width] x, float[4, 3, 8] w) => (float[1, 8, out] y) <int64[1] two = {2}, int64[2] start = {1, 4}>
        {
            c = Conv<kernel_shape=[8], strides=[8], pads=[0, 7]>(x, w)
            s = Shape(c)
            n = Gather<axis=0>(s, two)
            to = Concat<axis=0>(start, n)
            z = ConstantOfShape(to)
            y = Concat<axis=1>(c, z)
        }""")
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3, 8), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "m.py", Options(dynamic_batch=True))
    report = onnxgen.export(tmp_path / "m.py", out=tmp_path / "back.onnx")
    assert "the batch stays fixed at 1: no input has the size (width + 7)//8" in report.notes
