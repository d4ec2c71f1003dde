"""Checkpoint and weight files are complete or absent, whatever happens."""

import errno
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training.checkpoint.identity import own_part, peek
from onnxgen.training.checkpoint.store import Store
from onnxgen.training.checkpoint.weights import finite, save_weights
from tests.training.runs import state, train


@pytest.fixture
def store(tmp_path):
    lines = []
    found = Store(tmp_path / "checkpoints", lines.append)
    found.lines = lines
    return found


def save(store, number):
    store.save_checkpoint({"number": number, "weights": torch.full((1000,), float(number))}, store.last)


def test_the_last_and_the_previous_checkpoint_are_kept(store):
    assert store.read() is None
    for number in range(3):
        save(store, number)
    assert store.read()["number"] == 2
    assert sorted(path.name for path in store.folder.iterdir()) == ["last.ckpt", "previous.ckpt"]
    store.last.unlink()
    assert store.read()["number"] == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_the_previous_checkpoint_replaces_a_damaged_one(store, damage):
    save(store, 0), save(store, 1)
    content = bytearray(store.last.read_bytes())
    at = content.index(torch.full((9,), 1.0).numpy().tobytes())  # in a tensor, where torch itself sees nothing
    content[at] ^= 1
    changed = {"cut": content[: len(content) // 2], "flipped": content, "empty": b"", "other": b"no checkpoint"}
    store.last.write_bytes(changed[damage])
    assert store.read()["number"] == 0
    assert len(store.lines) == 1 and "last.ckpt is damaged" in store.lines[0]
    assert "continuing from previous.ckpt" in store.lines[0]
    (store.folder / "previous.ckpt").write_bytes(b"")
    with pytest.raises(OnnxgenError, match=r"last.ckpt is damaged.*previous.ckpt is damaged.*without --resume"):
        store.read()


def test_code_in_a_checkpoint_is_not_run(store, tmp_path):
    class Bad:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    save(store, 0)
    torch.save({"bad": Bad()}, store.last)
    with pytest.raises(OnnxgenError, match="damaged"):
        store.read()
    assert not (tmp_path / "made").exists()


def test_unsafe_torch_versions_read_no_checkpoint(store, monkeypatch):
    """CVE-2025-32434: before 2.6 `weights_only=True` was no protection."""
    save(store, 0)
    for version in ("2.5.1+cu124", "2.4.1"):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(OnnxgenError, match=f"torch {version[:5]}.*install torch 2.6 or newer"):
            store.read()
        assert peek(store.folder) == {}
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    assert store.read()["number"] == 0


@pytest.mark.parametrize("found", [{}, {"onnxgen": 5}, {"onnxgen": {}}, {"onnxgen": {"identity": []}}])
def test_a_checkpoint_of_another_program_is_refused(found):
    with pytest.raises(OnnxgenError, match="the checkpoint was not written by onnxgen"):
        own_part(found)


@pytest.mark.parametrize("call", ["fsync", "replace", "link"])
def test_system_errors_keep_the_old_checkpoints(store, call, monkeypatch):
    save(store, 0), save(store, 1)

    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    save(store, 2)
    monkeypatch.undo()
    if call == "link":  # a file system without hard links
        assert (store.read()["number"], store.lines) == (2, [])
        return
    assert store.read()["number"] == 1
    assert store.lines == ["no checkpoint was written: No space left on device (make room); the one before it is kept"]
    assert sorted(path.name for path in store.folder.iterdir()) == ["last.ckpt", "previous.ckpt"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_the_checkpoint_and_training_goes_on(small_disk, tmp_path):
    lines = []
    train(small_disk / "run", max_epochs=2, say=lines.append)
    before = state(small_disk / "run")
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_bsize))
    with pytest.raises(OnnxgenError, match="the trained weights could not be written: No space left on device"):
        train(small_disk / "run", max_epochs=4, resume=True, say=lines.append, minutes=0)
    assert any("no checkpoint was written: No space left" in line for line in lines)
    assert state(small_disk / "run") == before
    (small_disk / "ballast").unlink()
    train(small_disk / "run", max_epochs=4, resume=True)
    train(tmp_path / "whole", max_epochs=4)
    assert state(small_disk / "run") == state(tmp_path / "whole")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("view", torch.arange(10.0)[2:5])
        self.turned = nn.Parameter(torch.randn(3, 5).T)


def test_weights_load_into_another_model_of_the_class(tmp_path):
    model, other = Tied(), Tied()
    save_weights(model, tmp_path / "new/weights.safetensors")
    other.load_state_dict(load_file(tmp_path / "new/weights.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_weights_of_a_compiled_model_have_the_original_names(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    save_weights(torch.compile(model), tmp_path / "weights.safetensors")
    assert load_file(tmp_path / "weights.safetensors").keys() == model.state_dict().keys()


def test_finite():
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2,), float("-inf")))
    assert finite(model)
    model.bias.data[0] = float("nan")
    assert not finite(model)
    model.bias.requires_grad_(False)
    assert finite(model)
