"""A network that somebody changed: exported anew under the original names, unless only one size is another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export import DiffersError, back
from onnxgen.export.report import ANEW, BACK
from tests.support.exported import exported
from tests.support.real import imported


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2, self.drop = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """m.onnx at opset 13 with a dynamic batch, model.py, and model.safetensors."""
    onnx.save(exported(Net().eval(), [torch.randn(2, 6)], "legacy-13", {0: {0: "n"}}), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    return tmp_path


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "model.py").read_text()
    assert old in text
    (folder / "model.py").write_text(text.replace(old, new))


def ran(path: Path, rows: int) -> tuple[Any, Tensor]:
    x = np.random.default_rng(0).standard_normal((rows, 6)).astype(np.float32)
    return ort.InferenceSession(path).run(None, {"i0": x})[0], torch.from_numpy(x)


@pytest.mark.parametrize("rows", [1, 5])
def test_another_head(folder: Path, rows: int) -> None:
    model = imported(folder / "model.py").Model.from_pretrained()
    model.fc2 = nn.Linear(8, 11)
    report = onnxgen.export(folder / "model.py", weights=model.train(), out=folder / "out.onnx")
    assert report.method == BACK and report.why == "only one size was changed, from 3 to 11: fc2.weight, fc2.bias"
    assert report.resized == ["fc2.weight", "fc2.bias"] and model.training
    got, x = ran(folder / "out.onnx", rows)
    with torch.no_grad():
        np.testing.assert_allclose(got, model.eval()(x).numpy(), 1e-4, 1e-6)
    new, old = (onnx.load(folder / name) for name in ("out.onnx", "m.onnx"))
    assert new.opset_import[0].version == old.opset_import[0].version == 13
    assert [v.name for v in (*new.graph.input, *new.graph.output)] == [
        v.name for v in (*old.graph.input, *old.graph.output)
    ]
    dims = [v.type.tensor_type.shape.dim[0].dim_param for v in (*new.graph.input, *new.graph.output)]
    assert dims == ["n", "n"], "the same symbol for the same size"
    assert [n.SerializeToString() for n in new.graph.node] == [n.SerializeToString() for n in old.graph.node]


@pytest.mark.parametrize("rows", [1, 5])
def test_another_head_and_a_layer(folder: Path, rows: int) -> None:
    model = imported(folder / "model.py").Model.from_pretrained()
    model.fc1, model.fc2 = wider()
    report = onnxgen.export(folder / "model.py", weights=model.train(), out=folder / "out.onnx")
    assert report.method == ANEW and "it lacks fc1.bias; it has other shapes: fc2." in report.why
    got, x = ran(folder / "out.onnx", rows)
    assert model.training
    with torch.no_grad():
        np.testing.assert_allclose(got, model.eval()(x).numpy(), 1e-4, 1e-6)
    new, old = (onnx.load(folder / name) for name in ("out.onnx", "m.onnx"))
    assert new.opset_import[0].version == old.opset_import[0].version == 13
    dims = [v.type.tensor_type.shape.dim[0].dim_param for v in (*new.graph.input, *new.graph.output)]
    assert dims == ["n", "n"], "the same symbol for the same size"


def test_another_output(folder: Path) -> None:
    """The new file is compared with the module that it was exported from."""
    edit(folder, "        return self.fc2(", "        y = self.fc2(")
    edit(folder, "\n\n\nWEIGHTS", "\n        return y, y.mean(1)\n\n\nWEIGHTS")
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx")
    assert report.method == ANEW and report.verified is not None and report.verified.agrees
    x = torch.randn(5, 6)
    with torch.no_grad():
        wanted = imported(folder / "model.py").Model.from_pretrained().eval()(x)
    session = ort.InferenceSession(folder / "out.onnx")
    for got, right in zip(session.run(None, {"i0": x.numpy()}), wanted, strict=True):
        np.testing.assert_allclose(got, right.numpy(), 1e-4, 1e-6)


def test_an_output_with_the_name_of_a_value_inside(tmp_path: Path) -> None:
    """torch's newer exporter calls the file's output `linear_1`, and the last layer's result, too, if there is more."""
    onnx.save(exported(Net().eval(), [torch.randn(2, 6)], "dynamo-18", {0: {0: "n"}}), tmp_path / "m.onnx")
    names = [v.name for v in onnx.load(tmp_path / "m.onnx").graph.output]
    assert names == ["linear_1"]
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    edit(tmp_path, "return self.fc2(", "return 2.0 * self.fc2(")
    report = onnxgen.export(tmp_path / "model.py", out=tmp_path / "out.onnx")
    assert report.method == ANEW and report.verified is not None and report.verified.agrees
    onnx.checker.check_model(tmp_path / "out.onnx")
    assert [v.name for v in onnx.load(tmp_path / "out.onnx").graph.output] == names
    new, _ = ran(tmp_path / "out.onnx", 3)
    old, _ = ran(tmp_path / "m.onnx", 3)
    np.testing.assert_allclose(new, 2 * old, 1e-4, 1e-6)


def wider() -> tuple[nn.Module, nn.Module]:
    """A layer without its bias, so that the network has other keys, and another head."""
    return nn.Linear(6, 8, bias=False), nn.Linear(8, 11)


@pytest.mark.parametrize("opset", [13, 18])
def test_inputs_that_nothing_uses_stay(tmp_path: Path, opset: int) -> None:
    model = exported(Net().eval(), [torch.randn(2, 6)], f"legacy-{opset}", {0: {0: "n"}})
    x = onnx.ValueInfoProto.FromString(model.graph.input.pop().SerializeToString())
    sides = [onnx.helper.make_tensor_value_info(name, 7, ["n", 2]) for name in ("mask.1", "old")]
    model.graph.input.extend([sides[0], x, sides[1]])
    onnx.save(model, tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    changed = imported(tmp_path / "model.py").Model.from_pretrained()
    changed.fc1, changed.fc2 = wider()
    report = onnxgen.export(tmp_path / "model.py", weights=changed, out=tmp_path / "out.onnx")
    assert report.method == ANEW
    new = onnx.load(tmp_path / "out.onnx").graph
    assert [v.name for v in new.input] == ["mask.1", x.name, "old"]
    assert new.input[1].type.tensor_type.shape.dim[0].dim_param == "n"
    feeds = {
        "mask.1": np.zeros((3, 2), np.int64),
        x.name: np.ones((3, 6), np.float32),
        "old": np.zeros((3, 2), np.int64),
    }
    got = ort.InferenceSession(tmp_path / "out.onnx").run(None, feeds)[0]
    assert got.shape == (3, 11)


def test_the_newer_exporter_where_it_writes_the_opset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for by name: before torch 2.9, the older one is what `torch.onnx.export` takes."""
    onnx.save(exported(Net().eval(), [torch.randn(2, 6)], "legacy-18", {0: {0: "n"}}), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    model.fc1, model.fc2 = wider()
    right, asked = torch.onnx.export, list[Any]()

    def export(*given: Any, **named: Any) -> Any:
        asked.append(named.get("dynamo"))
        return right(*given, **named)

    monkeypatch.setattr(torch.onnx, "export", export)
    report = onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "out.onnx")
    assert report.notes == ["exported by torch's dynamo exporter at opset 18"] and asked == [True]
    for rows in (1, 5):
        got, x = ran(tmp_path / "out.onnx", rows)
        with torch.no_grad():
            np.testing.assert_allclose(got, model.eval()(x).numpy(), 1e-4, 1e-6)
    new, old = (onnx.load(tmp_path / name).graph for name in ("out.onnx", "m.onnx"))
    assert [v.name for v in (*new.input, *new.output)] == [v.name for v in (*old.input, *old.output)]
    assert new.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_an_edited_file_with_another_size(folder: Path) -> None:
    edit(folder, "nn.Linear(8, 3)", "nn.Linear(8, 4)")
    state = load_file(folder / "model.safetensors") | {"fc2.weight": torch.randn(4, 8), "fc2.bias": torch.randn(4)}
    save_file(state, folder / "best.safetensors")
    report = onnxgen.export(folder / "model.py", weights=folder / "best.safetensors", out=folder / "out.onnx")
    got, x = ran(folder / "out.onnx", 3)
    model = imported(folder / "model.py").Model()
    model.load_state_dict(state)
    with torch.no_grad():
        np.testing.assert_allclose(got, model.eval()(x).numpy(), 1e-4, 1e-6)
    assert report.method == BACK and report.verified is not None and report.verified.agrees


def test_a_layer_more(folder: Path) -> None:
    model = imported(folder / "model.py").Model.from_pretrained()
    model.fc2 = nn.Sequential(model.fc2, nn.Linear(3, 3))
    report = onnxgen.export(folder / "model.py", weights=model, out=folder / "out.onnx", verify=False)
    assert report.method == ANEW and report.verified is None and "fc2.0.weight" in report.why


def test_a_layer_more_that_is_in_two_places(folder: Path) -> None:
    model = imported(folder / "model.py").Model.from_pretrained()
    model.fc3 = model.fc4 = nn.Linear(3, 3)
    report = onnxgen.export(folder / "model.py", weights=model, out=folder / "out.onnx", verify=False)
    assert report.method == ANEW and "it has besides fc3.weight, fc3.bias" in report.why


def test_an_edit_that_computes_something_else(folder: Path) -> None:
    """The keys are what they were, so that the original graph is tried first, and found wrong."""
    edit(folder, "relu(", "silu(")
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx")
    assert report.method == ANEW and "no longer computes" in report.why
    got, x = ran(folder / "out.onnx", 3)
    with torch.no_grad():
        np.testing.assert_allclose(
            got, imported(folder / "model.py").Model.from_pretrained().eval()(x).numpy(), 1e-4, 1e-6
        )


def test_nothing_is_left_of_the_road_not_taken(folder: Path) -> None:
    """The original has its tensors in a file beside it; the new one has not."""
    outside: dict[str, Any] = {"save_as_external_data": True, "location": "m.data", "size_threshold": 0}
    onnx.save(onnx.load(folder / "m.onnx"), folder / "m.onnx", **outside)
    onnxgen.generate(folder / "m.onnx", folder / "model.py", force=True)
    edit(folder, "relu(", "silu(")
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx")
    assert report.method == ANEW and report.wrote == [folder / "out.onnx"]
    assert not (folder / "out.onnx.data").exists() and ran(folder / "out.onnx", 2)


def test_an_edit_without_verifying(folder: Path) -> None:
    edit(folder, "relu(", "silu(")
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx", verify=False)
    assert report.method == BACK
    assert report.notes == ["the network was changed: the original graph may compute something else"]


def test_an_edit_that_computes_the_same(folder: Path) -> None:
    edit(folder, "class ", "HELLO = 1\n\n\nclass ")
    assert onnxgen.export(folder / "model.py", out=folder / "out.onnx").method == BACK


def test_a_wrong_way_back_is_an_error_and_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody changed the network: then it is onnxgen that is wrong, and says so."""
    monkeypatch.setattr(back, "rebuild", lambda record, name, get, *rest: get(record[name]) + 1)
    before = sorted(folder.iterdir())
    with pytest.raises(DiffersError, match="was not written") as caught:
        onnxgen.export(folder / "model.py", out=folder / "out.onnx")
    assert caught.value.exit_code == 1 and "elements differ" in str(caught.value)
    assert sorted(folder.iterdir()) == before
    assert str(folder / "out.onnx") in str(caught.value) and ".onnxgen-export-" not in str(caught.value)


def test_what_no_exporter_takes(folder: Path) -> None:
    model = imported(folder / "model.py").Model.from_pretrained()
    model.fc2 = nn.Linear(8, 4)
    model.fc2.register_forward_hook(lambda *_: sys.exit)  # no output at all
    with pytest.raises(OnnxgenError, match="can't be exported .*TorchScript exporter"):
        onnxgen.export(folder / "model.py", weights=model, out=folder / "out.onnx")
    assert not (folder / "out.onnx").exists()


def test_an_exporter_that_fails_says_it_in_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = imported(folder / "model.py").Model.from_pretrained()
    model.fc2 = nn.Linear(8, 4)
    model.fc2.register_forward_hook(lambda *_: torch.special.bessel_j0(_[2]))  # no operator of ONNX
    capfd.readouterr()
    with pytest.raises(OnnxgenError, match="can't be exported .*TorchScript exporter"):
        onnxgen.export(folder / "model.py", weights=model, out=folder / "out.onnx")
    assert capfd.readouterr().out == ""


def test_an_edit_that_only_training_shows_is_said(folder: Path) -> None:
    """The exporter dropped the Dropout; so the edit adds a new one, which evaluation does not show."""
    edit(folder, "self.fc2(", "self.fc2(nn.functional.dropout(x, 0.25, self.training) if self.training else ")
    text = (folder / "model.py").read_text()
    assert "0.25" in text
    report = onnxgen.export(folder / "model.py", out=folder / "out.onnx")
    assert (
        report.method == BACK and report.why == "the network was changed, and computes the same as the original graph"
    )
    assert any("training alone" in note for note in report.notes)
