"""A sidecar that is not the module's own, or not whole, and a checkpoint that does not fit, are errors that say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors import SafetensorError  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from onnxgen.errors import OnnxgenError  # noqa: E402
from onnxgen.options import Options  # noqa: E402
from onnxgen.pipeline import generate  # noqa: E402
from onnxgen.runtime.load import from_pretrained, imported  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.integrity.pairs import ONE, SHARDS, network  # noqa: E402

State = dict[str, Any]


def make(folder: Path, seed: int = 1, options: Options = ONE, **more: Any) -> Path:
    """A folder with a generated pair; returns the module."""
    path = network(folder / str(seed) / "net.onnx", seed, **more)
    generate(path, folder / "model.py", options)
    return folder / "model.py"


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    with imported(make(tmp_path)) as found:
        yield found


def another(data: bytes) -> bytes:
    """The same file with one digit of its fingerprint changed."""
    begin = data.index(b'"fingerprint":"') + 15
    return data[:begin] + (b"1" if data[begin : begin + 1] == b"0" else b"0") + data[begin + 1 :]


@pytest.mark.parametrize("options", [ONE, SHARDS], ids=["one", "shards"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:40],
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b'"fingerprint":"', b'"fingerprint":"0', 1),
    ],
)
def test_a_damaged_file(tmp_path: Path, options: Options, damage: Callable[[bytes], bytes]) -> None:
    """Of several files the message names the one; of one file, onnxgen's own commands do."""
    with imported(make(tmp_path, options=options)) as module:
        for file in sorted(tmp_path.glob("model*.safetensors")):
            good = file.read_bytes()
            file.write_bytes(damage(good))
            with pytest.raises((SafetensorError, ValueError), match="deserializing header") as caught:
                module.Model.from_pretrained()
            assert options is ONE or f"{file} can't be loaded: " in str(caught.value)
            with pytest.raises(
                OnnxgenError, match=f"{tmp_path / 'model.py'}: the weights in model.safetensors.* can't be loaded: "
            ):
                from_pretrained(module, tmp_path / "model.py")
            file.write_bytes(good)
        module.Model.from_pretrained()


@pytest.mark.parametrize(
    ("options", "says"),
    [(ONE, "does not belong here: generate both again"), (SHARDS, "of another run or module: generate all again")],
)
def test_another_fingerprint(tmp_path: Path, options: Options, says: str) -> None:
    with imported(make(tmp_path, options=options)) as module:
        for file in sorted(tmp_path.glob("model*.safetensors")):
            good = file.read_bytes()
            file.write_bytes(another(good))
            with pytest.raises(ValueError, match=f"{file} .*{says}"):
                module.Model.from_pretrained()
            file.write_bytes(good)


def test_the_sidecar_of_another_model(tmp_path: Path) -> None:
    other = make(tmp_path / "other", width=9)
    with imported(make(tmp_path)) as module:
        shutil.copy(other.with_suffix(".safetensors"), tmp_path)
        with pytest.raises(ValueError, match="model.safetensors does not belong here: generate both again"):
            module.Model.from_pretrained()


def test_a_missing_file(tmp_path: Path) -> None:
    with imported(make(tmp_path, options=SHARDS)) as module:
        for file in [*tmp_path.glob("model-*.safetensors"), tmp_path / "model.safetensors.index.json"]:
            file.rename(tmp_path / "away")
            with pytest.raises(FileNotFoundError, match=file.name):
                module.Model.from_pretrained()
            (tmp_path / "away").rename(file)


def test_a_shard_of_another_training(tmp_path: Path) -> None:
    """Names, shapes and fingerprint are the same; only a part of the new files was copied."""
    other = make(tmp_path / "other", seed=2, options=SHARDS)
    with imported(make(tmp_path, options=SHARDS)) as module:
        assert other.read_text() == (tmp_path / "model.py").read_text()
        shards = sorted(path.name for path in tmp_path.glob("model-*.safetensors"))
        assert len(shards) > 1
        for name in [*shards, "model.safetensors.index.json"]:
            shutil.copy(tmp_path / name, tmp_path / "away")
            shutil.copy(other.with_name(name), tmp_path)
            with pytest.raises(ValueError, match="of another run or module: generate all again"):
                module.Model.from_pretrained()
            shutil.copy(tmp_path / "away", tmp_path / name)
        for name in [*shards, "model.safetensors.index.json"]:
            shutil.copy(other.with_name(name), tmp_path)
        expected = {key: t.numpy() for name in shards for key, t in load_file(other.with_name(name)).items()}
        for key, value in module.Model.from_pretrained().state_dict().items():
            np.testing.assert_array_equal(value, expected[key])


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "\xff"])
def test_a_broken_index(tmp_path: Path, index: str) -> None:
    with imported(make(tmp_path, options=SHARDS)) as module:
        file = tmp_path / "model.safetensors.index.json"
        file.write_text(index, encoding="latin-1")
        with pytest.raises(ValueError, match="index.json can't be loaded: "):
            module.Model.from_pretrained()


def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    with imported(make(tmp_path / "in", options=SHARDS)) as module:
        save_file({"layers.0.weight": torch.zeros(8, 8)}, tmp_path / "secret.safetensors")
        file = tmp_path / "in" / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        index["weight_map"]["layers.0.weight"] = "../secret.safetensors"
        file.write_text(json.dumps(index))
        with pytest.raises(ValueError, match="index.json can't be loaded: "):
            module.Model.from_pretrained()


def changed(module: ModuleType, path: Path, change: Callable[[State], object]) -> Path:
    state = {key: value.clone() for key, value in load_file(module.WEIGHTS).items()}
    change(state)
    save_file(state, path)
    return path


KEY = "layers.1.weight"


def wrong(key: str, found: str, wanted: str) -> str:
    """What is said of a tensor that has another dtype, as a pattern."""
    return rf"^{key} is torch.{found} in .*other.safetensors, not torch.{wanted}$"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop(KEY), r'Missing key\(s\) in state_dict: "layers.1.weight". $'),
        (lambda s: s.update(more=torch.zeros(2)), r'Unexpected key\(s\) in state_dict: "more". $'),
        (lambda s: s.update({KEY: torch.zeros(8, 9)}), "size mismatch for layers.1.weight"),
        (
            lambda s: s.update({KEY: torch.zeros(8, 8, dtype=torch.int32)}),
            '"layers.1.weight".*Only Tensors of floating',
        ),
    ],
)
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_checkpoint_that_does_not_fit(
    module: ModuleType, tmp_path: Path, change: Callable[[State], object], says: str, dtype: Any
) -> None:
    path = changed(module, tmp_path / "other.safetensors", change)
    with pytest.raises(RuntimeError, match=f"(?s){says}"):
        module.Model.from_pretrained(path, dtype=dtype)


def test_floats_of_another_width_are_converted_where_asked(module: ModuleType, tmp_path: Path) -> None:
    path = changed(module, tmp_path / "other.safetensors", lambda s: s.update({KEY: s[KEY].double()}))
    with pytest.raises(TypeError, match=wrong(KEY, "float64", "float32")):
        module.Model.from_pretrained(path)
    own = module.Model.from_pretrained().state_dict()
    for dtype in (torch.float32, torch.float16):
        state = module.Model.from_pretrained(path, dtype=dtype).state_dict()
        assert all(torch.equal(value, own[key].to(dtype)) for key, value in state.items())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_network_of_another_width(tmp_path: Path, dtype: str) -> None:
    wanted = getattr(torch, dtype)
    with imported(make(tmp_path, options=Options(dtype=dtype))) as module:
        assert {value.dtype for value in module.Model.from_pretrained().state_dict().values()} == {wanted}
        path = changed(module, tmp_path / "other.safetensors", lambda s: s.update({KEY: s[KEY].float()}))
        with pytest.raises(TypeError, match=wrong(KEY, "float32", dtype)):
            module.Model.from_pretrained(path)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16])
@pytest.mark.parametrize(("key", "there"), [("norm1.running_mean", "int32"), ("norm1.num_batches_tracked", "float64")])
def test_statistics_and_counters_of_another_dtype(tmp_path: Path, key: str, there: str, dtype: Any) -> None:
    """torch itself would take them: they are no parameters. `dtype=` is about floats that stay floats."""
    generate(ROOT / "samples" / "mnist" / "mnist.onnx", tmp_path / "model.py")
    floats = str(dtype or torch.float32).removeprefix("torch.")
    wanted, found = (floats, there) if there == "int32" else ("int64", floats if dtype else there)
    with imported(tmp_path / "model.py") as module:
        kind = getattr(torch, there)
        path = changed(module, tmp_path / "other.safetensors", lambda s: s.update({key: s[key].to(kind)}))
        with pytest.raises(TypeError, match=wrong(key, found, wanted)):
            module.Model.from_pretrained(path, dtype=dtype)


def test_the_default_dtype_of_torch_does_not_matter(module: ModuleType) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert module.Model.from_pretrained().state_dict()[KEY].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_embedded_weights(tmp_path: Path) -> None:
    out = make(tmp_path, options=Options(embed=True))
    text = out.read_text()
    with imported(out) as module:
        own = module.Model.from_pretrained().state_dict()
        save_file({key: value + 1 for key, value in own.items()}, tmp_path / "other.safetensors")
        assert torch.equal(module.Model.from_pretrained(tmp_path / "other.safetensors").state_dict()[KEY], own[KEY] + 1)
        save_file({}, tmp_path / "other.safetensors")
        with pytest.raises(RuntimeError, match=rf'Missing key\(s\) in state_dict: .*"{KEY}"'):
            module.Model.from_pretrained(tmp_path / "other.safetensors")
    begin = text.index('WEIGHTS = """') + 14
    out.write_text(text[:begin] + text[begin + 20 :])
    with imported(out) as module, pytest.raises((SafetensorError, ValueError)):
        module.Model.from_pretrained()
