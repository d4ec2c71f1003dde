"""Devices are found and chosen, whatever the drivers do."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.training import devices
from onnxgen.training.devices import Device, choice, choose, prepare_for, probe, trainer_options
from onnxgen.training.settings import Settings

GPU = SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: 2,
    get_device_name=lambda i: f"Card {i}",
    get_device_properties=lambda i: SimpleNamespace(total_memory=8 << 30),
)
CPU = probe.cpu()
DIRECTML = Device("directml", 0, "stand-in", None, torch.device("cpu"))


def raising(error: BaseException) -> Any:
    def ask(*arguments: Any) -> Any:
        raise error

    return ask


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let every device pass its self-test. Return the list of tested devices."""
    asked: list[str] = []

    def verdict(text: str, name: str, imports: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        asked.append(text)
        return "ok", ("lerp", "foreach", "recurrent")

    monkeypatch.setattr(choice, "_verdict", verdict)
    return asked


def test_the_cpu_is_always_listed_and_not_tested(passing: list[str]) -> None:
    there = devices()
    assert there[-1].kind == "cpu" and there[-1].memory and there[-1].name
    assert choose("cpu") == there[-1] and not passing


def test_auto_without_accelerators_takes_the_untested_cpu(passing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "found", lambda: iter([CPU]))
    assert choose() == CPU and not passing


def test_the_order_of_auto(passing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    directml = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1, device=lambda i: "cpu", device_name=lambda i: "Arc\0"
    )
    monkeypatch.setattr(torch, "cuda", GPU)
    monkeypatch.setattr(torch, "xpu", GPU)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    monkeypatch.setitem(sys.modules, "torch_directml", directml)
    monkeypatch.setattr(probe, "_other_types", lambda: ["mtia"])
    monkeypatch.setattr(torch, "mtia", GPU)
    order = ["cuda:0", "cuda:1", "xpu:0", "xpu:1", "mps", "directml:0", "mtia:0", "mtia:1", "cpu"]
    assert [d.text for d in devices()] == order
    assert choose().text == "cuda:0" and passing == ["cuda:0"]
    assert (devices()[0].name, devices()[0].memory) == ("Card 0", 8 << 30)
    assert [d.name for d in devices() if d.kind == "directml"] == ["Arc"]


def test_rocm_has_its_own_name_and_can_be_chosen_as_cuda(passing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", GPU)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    for text in ("rocm:1", "cuda:1", "CUDA:1"):
        device = choose(text)
        assert (device.text, device.torch_device) == ("rocm:1", torch.device("cuda", 1))


# ---- drivers that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("no adapter"), OSError("libd3d12.so"), ValueError(), KeyError("x")])
def test_a_directml_that_raises_is_skipped(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimpleNamespace(is_available=raising(error), device_count=raising(error))
    monkeypatch.setitem(sys.modules, "torch_directml", broken)
    assert "directml" not in [d.kind for d in devices()]
    half = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, device=raising(error))
    monkeypatch.setitem(sys.modules, "torch_directml", half)
    assert "directml" not in [d.kind for d in devices()]


BROKEN = [
    "raise OSError('libd3d12.so: no such file')",
    "import no_such_module",
    "1 /",
    "import os\ndef is_available():\n    os.abort()\n",  # as the true one does without a driver
]


@pytest.mark.parametrize("text", BROKEN)
def test_a_directml_that_fails_or_crashes_is_skipped(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_directml.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_directml", raising=False)
    probe._directml_answers.cache_clear()
    assert devices()[-1].kind == "cpu" and "directml" not in [d.kind for d in devices()]


def test_an_accelerator_that_raises_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=raising(RuntimeError("driver too old"))))
    monkeypatch.setattr(torch, "xpu", SimpleNamespace())
    monkeypatch.setattr(torch, "accelerator", SimpleNamespace(current_accelerator=raising(RuntimeError())), False)
    assert [d.kind for d in devices()] == ["cpu"]


def test_older_torch_has_no_torch_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "accelerator", raising=False)
    assert devices()[-1].kind == "cpu"


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_auto_skips_failing_devices_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", GPU)
    verdict = {"cuda:0": "the gradient of conv.weight is missing", "cuda:1": "ok"}
    monkeypatch.setattr(choice, "_verdict", lambda text, name, imports: (verdict[text], ()))
    with pytest.warns(UserWarning, match=r"cuda:0 \(Card 0\) fails .* skipped: the gradient of conv.weight"):
        assert choose().text == "cuda:1"


def test_a_named_device_that_fails_is_used_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", GPU)
    monkeypatch.setattr(choice, "_verdict", lambda text, name, imports: ("it hangs", ()))
    with pytest.warns(UserWarning, match="cuda:0 .* fails its self-test: it hangs; training on it"):
        assert choose("cuda").text == "cuda:0"


# ---- unknown devices, plug-ins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["cuda:7", "vulkan", "gpu0", "meta", "cpu:3"])
def test_an_unknown_device_is_refused_with_a_list(text: str) -> None:
    with pytest.raises(OnnxgenError, match=f"no device {text} on this machine -> there is: .*cpu"):
        choose(text)


@pytest.mark.parametrize("text", ["", "cuda:", "cuda:x", ":1", "a b", "auto:1"])
def test_malformed_device_names(text: str) -> None:
    with pytest.raises(OnnxgenError, match="is not a device"):
        choose(text)


def test_an_import_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_backend.py").write_text("raise OSError('no\\ndriver')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, message in (("no_such_backend", "No module named"), ("broken_backend", "OSError: no driver")):
        with pytest.raises(OnnxgenError, match=f"{name!r} can't be imported: .*{message}") as caught:
            choose("auto", imports=(name,))
        assert "\n" not in str(caught.value)


def test_entry_points_are_loaded_by_kind(passing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is imported, and a function is called; the function here registers a back end in torch's form."""
    (tmp_path / "npu_plug.py").write_text(
        "import torch\nfrom types import SimpleNamespace\n"
        "def register():\n    torch.fake_npu = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("cuda", "npu_plug:register", probe.GROUP),
        EntryPoint("broken", "no_such_plug", probe.GROUP),
    ]
    monkeypatch.setattr(probe, "entry_points", lambda *, group: [p for p in points if p.group == group])
    monkeypatch.setattr(torch, "fake_npu", None, raising=False)
    monkeypatch.setattr(probe, "_other_types", list)
    with pytest.raises(OnnxgenError, match="no device cuda:0"):
        choose("cuda:0")
    assert isinstance(torch.fake_npu, SimpleNamespace)  # type: ignore[attr-defined]
    with pytest.raises(OnnxgenError, match="plug-in 'broken' .*ModuleNotFoundError"):
        choose("broken:0")
    with pytest.warns(UserWarning, match="plug-in 'broken' .* is skipped"):
        assert choose().kind == "cpu"


# ---- what Lightning is given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device, settings, message",
    [
        (CPU, Settings(precision="16-mixed"), "no autocast to float16 on the CPU.*bf16-mixed"),
        (DIRECTML, Settings(precision="bf16-mixed"), "DirectML trains in 32-true only"),
        (DIRECTML, Settings(precision="64-true"), "DirectML trains in 32-true only"),
        (DIRECTML, Settings(devices=2), "directml:0 trains in one process"),
        (DIRECTML, Settings(strategy="ddp"), "directml:0 trains in one process"),
        (Device("mps", 0, "M1", None, torch.device("mps", 0)), Settings(precision="64-true"), "MPS trains in 32-true"),
        (Device("mps", 0, "M1", None, torch.device("mps", 0)), Settings(precision="bf16-true"), "MPS trains in"),
        (Device("mps", 0, "M1", None, torch.device("mps", 0)), Settings(nodes=2), "mps trains in one process"),
        (
            Device("cuda", 0, "Card", None, torch.device("cuda", 0)),
            Settings(devices=2),
            "2 devices from cuda:0 on are too many",
        ),
        (Device("meta", 0, "x", None, torch.device("meta")), Settings(precision="bf16-mixed"), "no autocast for meta"),
    ],
)
def test_unsupported_settings_of_a_device_are_refused(device: Device, settings: Settings, message: str) -> None:
    with pytest.raises(OnnxgenError, match=message) as caught:
        trainer_options(device, settings)
    assert "\n" not in str(caught.value)


def test_several_processes_on_the_cpu_use_ddp() -> None:
    assert trainer_options(CPU, Settings()) == {
        "accelerator": "cpu",
        "devices": 1,
        "strategy": "auto",
        "precision": "32-true",
        "num_nodes": 1,
    }
    assert trainer_options(CPU, Settings(devices=2))["strategy"] == "ddp"
    assert trainer_options(CPU, Settings(nodes=2))["strategy"] == "ddp"


def test_several_cuda_devices_start_at_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    second = Device("cuda", 1, "Card", None, torch.device("cuda", 1))
    assert trainer_options(second, Settings())["devices"] == [1]
    options = trainer_options(second, Settings(devices=3))
    assert (options["accelerator"], options["devices"], options["strategy"]) == ("cuda", [1, 2, 3], "ddp")
    rocm = Device("rocm", 0, "Card", None, torch.device("cuda", 0))
    assert trainer_options(rocm, Settings())["accelerator"] == "cuda"


# ---- prepare_for -----------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.register_buffer("table", torch.arange(4, dtype=torch.float64))
        self.register_buffer("index", torch.arange(4))


def test_float64_becomes_float32_on_devices_without_it() -> None:
    for device in (DIRECTML, Device("mps", 0, "M1", None, torch.device("mps", 0))):
        model = Net()
        with pytest.warns(UserWarning, match="trained in float32"):
            assert prepare_for(model, device) is model
        assert {k: v.dtype for k, v in model.state_dict().items() if k in ("scale", "table", "index")} == {
            "scale": torch.float32,
            "table": torch.float32,
            "index": torch.int64,
        }
        assert type(model.rnn).__module__.startswith("onnxgen") == (device is DIRECTML)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "xpu"])
def test_models_are_not_changed_for_devices_with_all_kernels(kind: str) -> None:
    model = prepare_for(Net(), Device(kind, 0, "x", None, torch.device(kind, 0)))
    assert type(model.rnn) is nn.LSTM and model.scale.dtype == torch.float64


def test_models_for_an_unknown_back_end_follow_its_self_test() -> None:
    other = Device("ocl", 0, "x", None, torch.device("cpu"), works=("recurrent", "float64"), verdict="ok")
    model = prepare_for(Net(), other)
    assert type(model.rnn) is nn.LSTM and model.scale.dtype == torch.float64
    less = Device("ocl", 0, "x", None, torch.device("cpu"), works=("lerp",), verdict="ok")
    with pytest.warns(UserWarning, match="float32"):
        prepare_for(model, less)
    assert type(model.rnn) is not nn.LSTM and model.scale.dtype == torch.float32


def test_the_devices_package_is_callable() -> None:
    assert isinstance(devices, ModuleType) and devices()[-1].kind == "cpu"


def test_importing_the_self_test_tests_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest", "no such device"])
    importlib.reload(importlib.import_module("onnxgen.training.devices.selftest"))
