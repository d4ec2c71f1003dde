"""`onnxgen.reload`: a module in place, a model with the weights that it has by now."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import onnxgen
from onnxgen import OnnxgenError, Options


class Net(nn.Module):
    """A body of `width`, and a head of `classes`."""

    def __init__(self, width: int = 6, classes: int = 3, act: type[nn.Module] = nn.ReLU, norm: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(4, width)
        self.act = act()
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.act(self.body(x))))  # type: ignore[no-any-return]


def write(path: Path, *, seed: int = 0, **kind: Any) -> None:
    """An ONNX file of such a network."""
    torch.manual_seed(seed)
    net = Net(**kind).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(2, 4),), str(path), dynamo=False, input_names=["x"], opset_version=17)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `reloaded` that can be imported, with `net.py` in it."""
    package = tmp_path / "reloaded"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path / "net.onnx")
    onnxgen.generate(tmp_path / "net.onnx", package / "net.py")
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "reloaded"]:
        del sys.modules[name]


@pytest.fixture
def module(folder: Path) -> Any:
    return importlib.import_module("reloaded.net")


def again(folder: Path, **kind: Any) -> None:
    """Train another network and generate the module anew."""
    options = kind.pop("options", Options())
    write(folder / "net.onnx", **kind)
    onnxgen.generate(folder / "net.onnx", folder / "reloaded" / "net.py", options)


# ---- modules ---------------------------------------------------------------------------------------------------------


def test_nothing_changed(module: Any) -> None:
    before = dict(vars(module))
    assert onnxgen.reload(module) is module
    assert vars(module) == before
    model = module.Model()
    assert onnxgen.reload(model) is model


def test_a_module_in_place(folder: Path, module: Any) -> None:
    old, holder = module.Model, sys.modules["reloaded.net"]
    again(folder, classes=5)
    assert onnxgen.reload(module) is module is holder is sys.modules["reloaded.net"]
    assert module.Model is not old and module.Model is module.Net
    assert module.Model.from_pretrained()(torch.zeros(2, 4)).shape == (2, 5)
    assert "Linear(6, 5)" in inspect.getsource(module.Model)
    same = module.Model
    assert onnxgen.reload(module).Model is same


def test_a_change_within_the_same_second_and_size(folder: Path, module: Any) -> None:
    """What Python itself tells a stale `.pyc` by."""
    file = folder / "reloaded" / "net.py"
    sys.dont_write_bytecode, kept = False, sys.dont_write_bytecode
    try:
        importlib.reload(module)
    finally:
        sys.dont_write_bytecode = kept
    stamp, text = file.stat(), file.read_text()
    assert len(list((folder / "reloaded").rglob("net.*.pyc"))) == 1
    file.write_text(text.replace("F.relu(", "F.silu(") if "F.relu(" in text else text.replace("nn.ReLU(", "nn.SiLU("))
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert file.stat().st_size == stamp.st_size and file.read_text() != text
    x = torch.full((1, 4), -1.0)
    old = module.Model.from_pretrained()
    assert not torch.equal(onnxgen.reload(module).Model.from_pretrained()(x), old(x))
    assert "silu" in inspect.getsource(module.Model).lower()


def test_other_weights_only_are_no_other_class(folder: Path, module: Any) -> None:
    old, before = module.Model, module.Model.from_pretrained()
    again(folder, seed=1)
    assert onnxgen.reload(module).Model is old
    after = module.Model.from_pretrained()
    assert not torch.equal(before.head.weight, after.head.weight)


def test_embedded_weights_are_part_of_the_module(folder: Path, module: Any) -> None:
    again(folder, options=Options(embed=True))
    first = onnxgen.reload(module).Model.from_pretrained()
    again(folder, seed=1, options=Options(embed=True))
    second = onnxgen.reload(module).Model.from_pretrained()
    assert not torch.equal(first.head.weight, second.head.weight)


def test_other_names_of_the_sidecar(folder: Path, module: Any) -> None:
    again(folder, options=Options(weights=folder / "reloaded" / "other.safetensors"))
    (folder / "reloaded" / "net.safetensors").unlink()
    assert onnxgen.reload(module).Model.from_pretrained() is not None


@pytest.mark.parametrize("text", ["def broken(:\n", "import no_such_module_anywhere\n", "FINGERPRINT = ''\n1 / 0\n"])
def test_a_broken_file_changes_nothing(folder: Path, module: Any, text: str) -> None:
    before = dict(vars(module))
    (folder / "reloaded" / "net.py").write_text(text)
    with pytest.raises(OnnxgenError, match="reloaded.net can't be reloaded: .*the imported module is unchanged"):
        onnxgen.reload(module)
    assert vars(module) == before
    (folder / "reloaded" / "net.py").unlink()
    again(folder, classes=4)
    assert onnxgen.reload(module).Model.from_pretrained()(torch.zeros(1, 4)).shape == (1, 4)


def test_a_missing_file(folder: Path, module: Any) -> None:
    (folder / "reloaded" / "net.py").unlink()
    with pytest.raises(OnnxgenError, match="reloaded.net"):
        onnxgen.reload(module)


def test_a_module_imported_by_path(folder: Path) -> None:
    spec = spec_from_file_location("by_path", folder / "reloaded" / "net.py")
    assert spec is not None and isinstance(spec.loader, SourceFileLoader)
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    again(folder, classes=7)
    assert onnxgen.reload(module).Model.from_pretrained()(torch.zeros(1, 4)).shape == (1, 7)


def test_tracebacks_show_the_new_lines(folder: Path, module: Any) -> None:
    model = module.Model()
    with pytest.raises(RuntimeError) as failed:
        model(torch.zeros(2, 5))
    assert traceback.extract_tb(failed.value.__traceback__)  # the old lines are cached by now
    again(folder, act=nn.Tanh, norm=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = onnxgen.reload(model)
    with pytest.raises(RuntimeError) as failed:
        model(torch.zeros(2, 5))
    lines = [f.line or "" for f in traceback.extract_tb(failed.value.__traceback__) if f.filename.endswith("net.py")]
    assert lines and all(line in (folder / "reloaded" / "net.py").read_text() for line in lines)
    assert "tanh" in lines[0]


@pytest.mark.parametrize("what", [3, os, ModuleType("empty"), nn.Linear(1, 1), "net.py"])
def test_what_is_not_generated(what: Any) -> None:
    with pytest.raises(OnnxgenError, match="generated by onnxgen|can't be reloaded"):
        onnxgen.reload(what)


def test_what_load_made(folder: Path) -> None:
    model = onnxgen.load(folder / "net.onnx")
    with pytest.raises(OnnxgenError, match="does not come from a file -> .*onnxgen.load"):
        onnxgen.reload(model)


def test_a_class_of_ones_own(folder: Path, module: Any) -> None:
    mine = type("Mine", (module.Model,), {})
    with pytest.raises(OnnxgenError, match="onnxgen did not generate the class Mine"):
        onnxgen.reload(mine())


# ---- models ----------------------------------------------------------------------------------------------------------


def test_a_model_keeps_what_was_trained(folder: Path, module: Any) -> None:
    model = module.Model.from_pretrained().train()
    with torch.no_grad():
        model.body.weight.fill_(0.5)
        model.head.weight.fill_(0.25)
    again(folder, classes=5, seed=2)
    said = r"2 of 4 tensors carried over; not these: head.weight is now \[5, 6\], was \[3, 6\]; head.bias is now \[5\]"
    with pytest.warns(UserWarning, match=said) as warned:
        new = onnxgen.reload(model)
    assert warned[0].filename == __file__
    assert type(new) is module.Model is not type(model)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(folder / "net.onnx").graph.initializer}
    assert torch.equal(new.body.weight, torch.full((6, 4), 0.5))
    assert torch.equal(new.head.weight, torch.from_numpy(stored["head.weight"].copy()))
    assert new.training and all(inner.training for inner in new.modules())
    assert new(torch.zeros(2, 4)).shape == (2, 5)


def test_the_old_model_still_works(folder: Path, module: Any) -> None:
    model, x = module.Model.from_pretrained().eval(), torch.randn(2, 4)
    before = model(x)
    again(folder, classes=5, act=nn.Tanh)
    onnxgen.reload(module)
    assert torch.equal(model(x), before)
    with pytest.warns(UserWarning):
        assert type(onnxgen.reload(model)) is module.Model


def test_an_optimizer_goes_on(folder: Path, module: Any) -> None:
    """The tensors that were carried over are those that the optimizer has."""
    model = module.Model.from_pretrained()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    again(folder, act=nn.Tanh)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # everything agrees: nothing to say
        new = onnxgen.reload(model)
    assert [id(p) for p in new.parameters()] == [id(p) for p in model.parameters()]
    before = new.body.weight.clone()
    new(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(new.body.weight, before)


def test_frozen_half_and_modes(folder: Path, module: Any) -> None:
    """What a person did to a model is done to the new one."""
    model = module.Model.from_pretrained().to(torch.float64).train()
    model.body.requires_grad_(False)
    model.body.eval()
    again(folder, classes=5, norm=True)
    with pytest.warns(UserWarning, match="norm.running_var is new"):
        new = onnxgen.reload(model)
    assert {t.dtype for t in new.state_dict().values() if t.is_floating_point()} == {torch.float64}
    assert not new.body.weight.requires_grad and new.head.weight.requires_grad
    assert not new.body.training and new.head.training and new.norm.training


def test_what_is_gone_is_said(folder: Path, module: Any) -> None:
    again(folder, norm=True)
    model = onnxgen.reload(module).Model.from_pretrained()
    again(folder)
    with pytest.warns(UserWarning, match="4 of 4 tensors carried over; not these: norm.weight is gone"):
        onnxgen.reload(model)


def test_weights_that_are_missing(folder: Path, module: Any) -> None:
    model, x = module.Model.from_pretrained().eval(), torch.randn(2, 4)
    before = model(x)
    again(folder, classes=5)
    sidecar = folder / "reloaded" / "net.safetensors"
    sidecar.rename(folder / "away")
    with pytest.raises(OnnxgenError, match="the weights of reloaded.net can't be loaded: .*net.safetensors"):
        onnxgen.reload(model)
    assert torch.equal(model(x), before)
    (folder / "away").rename(sidecar)
    with pytest.warns(UserWarning):
        assert onnxgen.reload(model)(x).shape == (2, 5)


def test_another_class_name(folder: Path, module: Any) -> None:
    model = module.Model.from_pretrained()
    again(folder, options=Options(class_name="Renamed"))
    assert type(onnxgen.reload(model)).__name__ == "Renamed"


def test_tied_weights_stay_tied(folder: Path, module: Any) -> None:
    """A parameter that the network uses twice is one tensor afterwards, too."""
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self, act: Any) -> None:
            super().__init__()
            self.embed, self.head, self.act = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), act
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.act(self.embed(x)))  # type: ignore[no-any-return]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, x = Tied(nn.Tanh()).eval(), torch.zeros(2, 3, dtype=torch.long)
        torch.onnx.export(net, (x,), str(folder / "net.onnx"), dynamo=True, verbose=False)
    onnxgen.generate(folder / "net.onnx", folder / "reloaded" / "net.py")
    model = onnxgen.reload(module).Model.from_pretrained()
    assert model.embed.weight is model.head.weight, "this file's weights are tied"
    changed = onnx.load(folder / "net.onnx")
    (act,) = (node for node in changed.graph.node if node.op_type == "Tanh")
    act.op_type = "Sigmoid"  # another export would take seconds
    onnx.save(changed, folder / "net.onnx")
    onnxgen.generate(folder / "net.onnx", folder / "reloaded" / "net.py")
    new: Any = onnxgen.reload(model)
    assert "sigmoid" in (folder / "reloaded" / "net.py").read_text().lower()
    assert new.embed.weight is new.head.weight is model.embed.weight
