"""Training on a CUDA device. Without one, these tests are skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import onnxgen
from onnxgen.training import causal_lm, choose, devices, evaluate, fit
from tests.conftest import ROOT
from tests.training import causal
from tests.training.processes import environment
from tests.training.standin.nets import Net, data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

GIVEN: dict[str, Any] = {"batch_size": 8, "lr": 0.01, "val": 0.25, "workers": 0, "show": "nothing"}


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """TF32 has 10 bits, and results are compared with the CPU's."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    yield


def net() -> nn.Module:
    """Without Dropout: two devices draw different random numbers."""
    torch.manual_seed(0)
    made = Net()
    made.drop.p = made.gru.dropout = 0.0
    return made


def test_the_device_is_listed_and_chosen() -> None:
    found = devices()
    assert found[0].kind in ("cuda", "rocm") and found[0].memory and found[0].name
    chosen = choose("auto")
    assert chosen.type == "cuda" and chosen.verdict == "ok"
    assert {"lerp", "foreach", "recurrent"} <= set(chosen.works)


def test_a_fit_matches_the_cpu(tmp_path: Path) -> None:
    """Adam's eps is large: else it amplifies gradients that are only noise."""
    more = {"epochs": 2, "clip": 1.0, "optimizer_args": {"eps": 1e-2}}
    runs = {d: fit(net(), data(), device=d, out=tmp_path / d, **(GIVEN | more)) for d in ("cpu", "cuda")}
    cpu, cuda = (runs[d].model.state_dict() for d in ("cpu", "cuda"))
    assert {t.device.type for t in cuda.values()} == {"cpu"} and {k: t.dtype for k, t in cpu.items()} == {
        k: t.dtype for k, t in cuda.items()
    }
    for key in cpu:
        torch.testing.assert_close(cuda[key], cpu[key], rtol=1e-3, atol=1e-4, msg=key)
    for ours, theirs in zip(runs["cuda"].history, runs["cpu"].history, strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], abs=1e-3)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"])
def test_every_precision_learns(precision: str, tmp_path: Path) -> None:
    more = {"optimizer_args": {"eps": 1e-4}} if precision == "16-true" else {}  # its default is 0 in float16
    made = fit(net(), data(192), device="cuda", precision=precision, epochs=8, out=tmp_path, **GIVEN, **more)
    assert max(row["val_accuracy"] for row in made.history) > 0.9, made.history
    assert made.model.conv.weight.dtype == torch.float32 and made.model.scale.dtype == torch.float64


def test_a_compiled_fit_learns(tmp_path: Path) -> None:
    made = fit(net(), data(192), device="cuda", compile=True, epochs=6, out=tmp_path, **GIVEN)
    assert max(row["val_accuracy"] for row in made.history) > 0.9, made.history


@pytest.mark.parametrize("optimizer", [{"optimizer_args": {"eps": 1e-2}}, {"optimizer": "sgd", "lr": 0.1}])
def test_fsdp_on_one_device_matches_a_plain_fit(optimizer: dict[str, Any], tmp_path: Path) -> None:
    more = {"epochs": 2, "device": "cuda", **optimizer}
    plain = fit(net(), data(), out=tmp_path / "plain", **(GIVEN | more))
    sharded = fit(net(), data(), out=tmp_path / "fsdp", strategy="fsdp", **(GIVEN | more))
    expected = plain.model.state_dict()
    for key, tensor in sharded.model.state_dict().items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        torch.testing.assert_close(whole.cpu(), expected[key].cpu(), rtol=1e-4, atol=1e-5, msg=key)


def test_fsdp_goes_on_from_a_checkpoint_that_was_written_in_the_background(tmp_path: Path) -> None:
    more = GIVEN | {"optimizer_args": {"eps": 1e-2}, "device": "cuda", "strategy": "fsdp", "epochs": 2}
    whole = fit(net(), data(), out=tmp_path / "whole", **more)
    fit(net(), data(), out=tmp_path / "parts", max_steps=13, checkpoint_minutes=0, **more)  # an epoch has 9 steps
    kept = sorted(path.name for path in (tmp_path / "parts" / "checkpoints").iterdir())
    assert kept == ["last.ckpt", "previous.ckpt"]
    parts = fit(net(), data(), out=tmp_path / "parts", resume=True, **more)
    assert parts.history[-1]["val_loss"] == pytest.approx(whole.history[-1]["val_loss"], abs=1e-4)
    best = [load_file(tmp_path / run / "best.safetensors") for run in ("whole", "parts")]
    for key, tensor in best[0].items():
        torch.testing.assert_close(best[1][key], tensor, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true"])
def test_fsdp_learns_in_half_precision(precision: str, tmp_path: Path) -> None:
    more = {"optimizer_args": {"eps": 1e-4}} if precision == "16-true" else {}
    more |= {"strategy": "fsdp", "precision": precision, "epochs": 8}
    made = fit(net(), data(192), device="cuda", out=tmp_path, **GIVEN, **more)
    assert max(row["val_accuracy"] for row in made.history) > 0.9, made.history


@pytest.mark.parametrize("first, then", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_goes_on_with_another_device(first: str, then: str, tmp_path: Path) -> None:
    more = GIVEN | {"optimizer_args": {"eps": 1e-2}}
    whole = fit(net(), data(), device="cpu", epochs=2, out=tmp_path / "whole", **more)
    fit(net(), data(), device=first, epochs=2, max_steps=9, out=tmp_path / "parts", **more)  # an epoch has 9 steps
    parts = fit(net(), data(), device=then, epochs=2, out=tmp_path / "parts", resume=True, **more)
    assert parts.history[-1]["val_loss"] == pytest.approx(whole.history[-1]["val_loss"], abs=1e-3)


class Wide(nn.Module):
    """x [batch, 64] to logits [batch, 3], by 8 MiB of activations for each sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        for _ in range(4):
            h = torch.tanh(h[:, :, None].expand(-1, -1, 8192) * 1.01).mean(-1)
        logits: Tensor = self.last(h)
        return logits


@pytest.fixture
def little_memory() -> Iterator[None]:
    """256 MiB more than there are in use."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (256 << 20)) / whole)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_a_batch_that_does_not_fit_is_trained_in_parts(little_memory: None, tmp_path: Path) -> None:
    """The device's own allocator refuses, and the weights are those of whole batches on the CPU."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(128, 64, generator=generator), torch.arange(128) % 3
    more = GIVEN | {"batch_size": 64, "optimizer": "sgd", "epochs": 1, "val": 0.0, "lr": 0.5}
    with pytest.warns(UserWarning, match="out of memory with 64 samples at once"):
        ours = fit(Wide(), (x, y), device="cuda", out=tmp_path / "cuda", **more)
    theirs = fit(Wide(), (x, y), device="cpu", out=tmp_path / "cpu", **more)
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_evaluation_splits_what_does_not_fit(little_memory: None) -> None:
    x, y = torch.randn(128, 64, generator=torch.Generator().manual_seed(0)), torch.arange(128) % 3
    with pytest.warns(UserWarning, match="out of memory"):
        ours = evaluate(Wide(), {"test": (x, y)}, batch_size=128, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = evaluate(Wide(), {"test": (x, y)}, batch_size=16, device="cpu")
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_the_whole_road_by_commands(tmp_path: Path) -> None:
    """Generate, train, evaluate, export, verify: the device is found without being asked for."""

    def command(*words: str) -> str:
        args = [sys.executable, "-m", "onnxgen", *words]
        done = subprocess.run(args, capture_output=True, text=True, timeout=300, env=environment(), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    shutil.copy(ROOT / "samples" / "mnist" / "mnist.onnx", tmp_path)
    command("mnist.onnx", "-o", "model.py")
    assert "cuda:0" in command("devices")
    said = command(
        "train", "model.py", "--data", "digits", "--epochs", "2", "--out", "run", "--precision", "bf16-mixed"
    )
    assert "cuda" in said
    command("evaluate", "run")
    command("export", "run", "-o", "trained.onnx")
    command("trained.onnx", "-o", "trained.py")
    command("verify", "trained.onnx", "trained.py")


@pytest.mark.parametrize("cache", ["", "dynamic"])
def test_a_language_model_writes_the_same_tokens(cache: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    more = {} if cache else {"cache": ""}
    path = causal.export(causal.llama(), tmp_path / "net.onnx", **more)
    ids, made = torch.arange(4, 16).reshape(2, 6), []
    for device in ("cpu", "cuda"):
        lm = causal_lm(onnxgen.load(path).to(device))
        mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], device=device)
        made.append(lm.generate(ids.to(device), attention_mask=mask, max_new_tokens=12).cpu())
    assert torch.equal(*made)
