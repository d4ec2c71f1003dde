"""Weights that fit a module in part, and checkpoints of other programs. `torch.load` and `Model()` are the oracles."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import onnxgen
from onnxgen.cli import run
from onnxgen.errors import OnnxgenError
from onnxgen.runtime.checkpoint import without_prefix
from onnxgen.training import fit, open_model
from onnxgen.training.settings import Settings
from tests.integrity.pairs import network
from tests.integrity.test_partial import EDITS, SAID, edit

State = dict[str, Any]


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module of three layers, as it was generated."""
    onnxgen.generate(network(tmp_path / "net.onnx", 1), tmp_path / "model.py")
    return tmp_path / "model.py"


@pytest.fixture
def edited(module: Path) -> Path:
    """The same with another last layer."""
    return edit(module, EDITS)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Thirty samples of five classes."""
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.standard_normal((30, 8)).astype(np.float32), y=np.arange(30) % 5)
    return str(tmp_path / "data.npz")


def stored(module: Path) -> State:
    return load_file(module.with_suffix(".safetensors"))


def equal(model: Any, state: State) -> bool:
    found = model.state_dict()
    return bool(state) and all(torch.equal(found[key], value) for key, value in state.items())


# ---- an edited module ------------------------------------------------------------------------------------------------


def test_what_fits_is_loaded_and_the_rest_is_named(edited: Path) -> None:
    with pytest.raises(
        OnnxgenError, match='Missing .*"out.weight".*Unexpected.*"layers.2.weight".*--partial'
    ) as caught:
        open_model(edited)
    assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match=f"^{SAID}$"):
        model = open_model(edited, strict=False)
    own = stored(edited)
    del own["layers.2.weight"]
    assert equal(model, own) and float(model.out.weight.detach().std()) > 0


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_new_layer_has_the_type_of_the_network(dtype: str, module: Path) -> None:
    onnxgen.generate(module.with_name("net.onnx"), module, onnxgen.Options(dtype=dtype), force=True)
    text = module.read_text()
    module.write_text(text.replace("super().__init__()\n", "super().__init__()\n        self.new = nn.Linear(2, 2)\n"))
    model = open_model(module, strict=False)
    assert {value.dtype for value in model.state_dict().values()} == {getattr(torch, dtype)}
    assert model.new.weight.std() > 0


def test_other_shapes(edited: Path) -> None:
    edit(edited, {"nn.Linear(8, 5)": "nn.Linear(8, 7)", "torch.arange(5)": "torch.arange(7)"})
    own = stored(edited)
    state = {**own, "out.weight": torch.ones(5, 8), "out.bias": torch.ones(7)}
    save_file(state, path := edited.with_name("mine.safetensors"))
    other = r"out.weight \[5, 8\] instead of \[7, 8\]"
    with pytest.raises(OnnxgenError, match=f"mine.safetensors does not fit .*model.py: {other} -> .*ignore_mismatched"):
        open_model(edited, path, strict=False)
    with pytest.warns(UserWarning, match=rf"^newly initialised: out.weight; not used: layers.2.weight \(.*{other}\)$"):
        model = open_model(edited, path, strict=False, ignore_mismatched_sizes=True)
    assert equal(model, {"out.bias": torch.ones(7), "layers.0.weight": own["layers.0.weight"]})


def test_other_shapes_in_its_own_weights(module: Path) -> None:
    """The sidecar must still be the module's own."""
    edit(module, {"for _ in range(3)]": "for _ in range(2)], nn.Linear(8, 4, bias=False)"})
    own = stored(module)
    said = r"newly initialised: layers.2.weight \(of another shape: layers.2.weight \[8, 8\] instead of \[4, 8\]\)"
    with pytest.warns(UserWarning, match=f"^{said}$"):
        model = open_model(module, strict=False, ignore_mismatched_sizes=True)
    del own["layers.2.weight"]
    assert equal(model, own)
    save_file(stored(module), module.with_suffix(".safetensors"), {"fingerprint": "0"})
    with pytest.raises(OnnxgenError, match="does not belong to"):
        open_model(module, strict=False, ignore_mismatched_sizes=True)


def test_nothing_fits(edited: Path) -> None:
    save_file({"theirs": torch.ones(1)}, path := edited.with_name("mine.safetensors"))
    for strict in (True, False):
        with pytest.raises(OnnxgenError, match="has no tensor of the module: it has theirs$"):
            open_model(edited, path, strict=strict)


def test_training(edited: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", str(edited), "--data", data, "--epochs", "1", "--device", "cpu", "--freeze", "layers"]
    assert run([*command, "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "out.weight" in said and "layers.2.weight" in said and "--partial" in said and not (tmp_path / "a").exists()
    assert run([*command, "--out", str(tmp_path / "a"), "--partial"]) == 0
    assert SAID in capsys.readouterr().out
    trained, own = load_file(tmp_path / "a" / "best.safetensors"), stored(edited)
    assert trained.keys() == {"layers.0.weight", "layers.1.weight", "out.weight", "out.bias"}
    assert torch.equal(trained["layers.0.weight"], own["layers.0.weight"])
    assert equal(open_model(edited, tmp_path / "a" / "best.safetensors"), trained)


def test_what_excludes_each_other(edited: Path, data: str) -> None:
    with pytest.raises(OnnxgenError, match="partial and from_scratch exclude each other"):
        Settings(partial=True, from_scratch=True)
    with pytest.raises(OnnxgenError, match="partial= need a model that is given as a file"):
        fit(open_model(edited, from_scratch=True), data, partial=True)


# ---- checkpoints of other programs -----------------------------------------------------------------------------------


def prefixed(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + key: value for key, value in state.items()}


WRAPPED: dict[str, Callable[[State], State]] = {
    "plain.pt": dict,
    "parallel.pth": prefixed("module."),
    "lightning.ckpt": lambda s: {"epoch": 3, "state_dict": prefixed("model.")(s), "optimizer_states": [{}]},
    "compiled.pt": lambda s: {"model": prefixed("module._orig_mod.")(s), "step": torch.tensor(3)},
    "pytorch_model.bin": lambda s: {"model_state_dict": s},
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_files_of_torch(module: Path, tmp_path: Path, name: str, legacy: bool) -> None:
    state = {key: value + 1 for key, value in stored(module).items()}
    torch.save(WRAPPED[name](state), tmp_path / name, _use_new_zipfile_serialization=not legacy)
    assert equal(open_model(module, tmp_path / name), state)
    assert equal(open_model(module, tmp_path / name, strict=False), state)
    out = tmp_path / "tuned.onnx"
    onnxgen.export(module, weights=tmp_path / name, out=out, runs=1)
    onnxgen.generate(out, tmp_path / "again.py")
    assert equal(open_model(tmp_path / "again.py"), state)


def test_tensors_that_share_memory(module: Path, tmp_path: Path) -> None:
    whole = torch.randn(3, 8, 8)
    torch.save({f"layers.{number}.weight": whole[number].T for number in range(3)}, tmp_path / "mine.pt")
    model = open_model(module, tmp_path / "mine.pt")
    assert equal(model, {f"layers.{number}.weight": whole[number].T for number in range(3)})


def test_a_prefix_that_is_the_module_s_own() -> None:
    """Nothing is removed once a key is the module's, or where a key lacks the prefix."""
    assert without_prefix({"model.a": 1, "model.b": 2}, {"model.a"}) == {"model.a": 1, "model.b": 2}
    assert without_prefix({"model.model.a": 1}, {"model.a"}) == {"model.a": 1}
    assert without_prefix({"module.a": 1, "loss": 2}, {"a"}) == {"module.a": 1, "loss": 2}


def test_a_prefix_of_another_program() -> None:
    """It is removed where each rest is a key of the module."""
    assert without_prefix({"net.b.a": 1, "net.b.c": 2}, {"b.a", "b.c"}) == {"b.a": 1, "b.c": 2}
    assert without_prefix({"net.b.a": 1, "net.b.c": 2}, {"a", "c"}) == {"a": 1, "c": 2}
    assert without_prefix({"module.net.a": 1}, {"a"}) == {"a": 1}
    for kept in ({"net.a": 1, "net.x": 2}, {"neta": 1}, {"net.a": 1, "nut.a": 2}):
        assert without_prefix(kept, {"a"}) == kept


class Bad:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(1.5).tobytes())] ^= 1
    path.write_bytes(content)


def code(path: Path) -> None:
    torch.save({"state_dict": {}, "hyper": Bad(path.with_name("made"))}, path)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bad(path.with_name("made")), 2))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "mine.pt is damaged: "),
        (flip, "wrong checksum of"),
        (code, "has more than tensors .*save_file"),
        (pickled, "has more than tensors|is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged: EOFError"),
        (lambda path: path.write_text("hello"), "mine.pt is no checkpoint: it begins with b'h' -> name a file of"),
        (
            lambda path: path.write_bytes(pickle.dumps(Bad(path.with_name("made")))),
            "more than|torch.save did not write",
        ),
        (lambda path: torch.save({"a": torch.ones(2, 2).to_sparse()}, path), "a is not a dense tensor"),
        (lambda path: torch.save({"a": torch.ones(2, device="meta")}, path), "a is not a dense tensor"),
        (lambda path: torch.save([1, 2], path), "has no tensors by key, but a list"),
        (lambda path: torch.save({"net": {"a": torch.ones(1)}}, path), "has no tensors by key, but net"),
        (lambda path: torch.save({"layers.0.weight": torch.ones(8, 8).double()}, path), "does not fit"),
        (lambda path: path.unlink(), "there is no file"),
    ],
)
def test_what_can_not_be_read(
    module: Path,
    data: str,
    tmp_path: Path,
    damage: Callable[[Path], object],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line, exit code 2; no code of the file is run."""
    path = tmp_path / "mine.pt"
    torch.save({key: torch.full_like(value, 1.5) for key, value in stored(module).items()}, path)
    damage(path)
    with pytest.raises(OnnxgenError, match=says) as caught:
        open_model(module, path)
    assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)
    assert run(["train", str(module), "--data", data, "--weights", str(path), "--out", str(tmp_path / "a")]) == 2
    assert run(["export", str(module), "--weights", str(path), "-o", str(tmp_path / "a.onnx")]) == 2
    assert not {"made", "a", "a.onnx"} & {file.name for file in tmp_path.iterdir()}
