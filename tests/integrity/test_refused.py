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

from safetensors.torch import load_file, save_file  # noqa: E402

from onnxgen.options import Options  # noqa: E402
from onnxgen.pipeline import generate  # noqa: E402
from onnxgen.runtime.load import imported  # noqa: E402
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


@pytest.mark.parametrize("options", [ONE, SHARDS], ids=["one", "shards"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "is damaged"),
        (lambda data: data + b"\0", "is damaged"),
        (lambda data: data[:40], "is damaged"),
        (lambda data: b"", "is damaged"),
        (lambda data: b"\xff" * len(data), "is damaged"),
        (lambda data: data.replace(b'"fingerprint":"', b'"fingerprint":"0', 1), "is damaged"),
        (lambda data: data.replace(b'"fingerprint"', b'"fingerprin_"', 1), "does not belong to model.py"),
    ],
)
def test_a_damaged_file(tmp_path: Path, options: Options, damage: Callable[[bytes], bytes], says: str) -> None:
    with imported(make(tmp_path, options=options)) as module:
        for file in sorted(tmp_path.glob("model*.safetensors")):
            good = file.read_bytes()
            file.write_bytes(damage(good))
            with pytest.raises(ValueError, match=says) as caught:
                module.Model.from_pretrained()
            assert str(file) in str(caught.value)
            file.write_bytes(good)
        module.Model.from_pretrained()


def test_the_sidecar_of_another_model(tmp_path: Path) -> None:
    other = make(tmp_path / "other", width=9)
    with imported(make(tmp_path)) as module:
        shutil.copy(other.with_suffix(".safetensors"), tmp_path)
        with pytest.raises(ValueError, match="model.safetensors does not belong to model.py: generate both again"):
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
            with pytest.raises(ValueError, match="has the weights of another run"):
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
        with pytest.raises(ValueError, match="index.json is damaged"):
            module.Model.from_pretrained()


def test_an_index_leads_nowhere_else(tmp_path: Path) -> None:
    with imported(make(tmp_path / "in", options=SHARDS)) as module:
        save_file({"layers.0.weight": torch.zeros(8, 8)}, tmp_path / "secret.safetensors")
        file = tmp_path / "in" / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        index["weight_map"]["layers.0.weight"] = "../secret.safetensors"
        file.write_text(json.dumps(index))
        with pytest.raises(ValueError, match="index.json is damaged"):
            module.Model.from_pretrained()


def changed(module: ModuleType, path: Path, change: Callable[[State], object]) -> Path:
    state = {key: value.clone() for key, value in module.load_weights(module.WEIGHTS).items()}
    change(state)
    save_file(state, path)
    return path


KEY = "layers.1.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop(KEY), r"other.safetensors: missing keys \['layers.1.weight'\], unexpected keys \[\]$"),
        (lambda s: s.update(more=torch.zeros(2)), r"missing keys \[\], unexpected keys \['more'\]$"),
        (lambda s: s.update({KEY: torch.zeros(8, 9)}), "size mismatch for layers.1.weight"),
        (
            lambda s: s.update({KEY: torch.zeros(8, 8, dtype=torch.int32)}),
            "layers.1.weight is torch.int32, not torch.float32$",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_checkpoint_that_does_not_fit(
    module: ModuleType, tmp_path: Path, change: Callable[[State], object], says: str, dtype: Any
) -> None:
    path = changed(module, tmp_path / "other.safetensors", change)
    with pytest.raises((ValueError, RuntimeError), match=f"(?s){says}"):
        module.Model.from_pretrained(path, dtype=dtype)


def test_floats_of_another_width_are_converted_where_asked(module: ModuleType, tmp_path: Path) -> None:
    path = changed(module, tmp_path / "other.safetensors", lambda s: s.update({KEY: s[KEY].double()}))
    with pytest.raises(
        ValueError, match="other.safetensors: layers.1.weight is torch.float64, not torch.float32; dtype= casts it$"
    ):
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
        with pytest.raises(ValueError, match=f"{KEY} is torch.float32, not torch.{dtype}"):
            module.Model.from_pretrained(path)


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
        module.Model.from_pretrained()
        save_file({}, tmp_path / "other.safetensors")
        with pytest.raises(ValueError, match=r"other.safetensors: missing keys \[.*, .*\], unexpected keys \[\]$"):
            module.Model.from_pretrained(tmp_path / "other.safetensors")
    begin = text.index('WEIGHTS = """') + 14
    out.write_text(text[:begin] + text[begin + 20 :])
    with imported(out) as module, pytest.raises(ValueError, match="model.py is damaged"):
        module.Model.from_pretrained()
