"""The devices of this machine: the facts about each, and how they are found.

Finding never raises: absent or broken drivers are skipped. Plug-ins register further devices: modules by name, and
entry points of the group `onnxgen.devices`. Code that may crash or hang runs in a separate Python process (`python`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import torch

from onnxgen.errors import OnnxgenError, typed

# PyTorch itself has recurrent kernels for these devices. For any other device the self-test finds out.
RECURRENT_KERNELS = ("cpu", "cuda", "rocm", "xpu", "mps")
# The features that the self-test looks for (`Device.works`), and what they are needed for.
FEATURES = {
    "float64": "double precision",
    "bf16": "autocast to bfloat16 (precision bf16-mixed)",
    "fp16": "autocast to float16 (precision 16-mixed)",
    "lerp": "torch's own optimizer kernels; without it Adam and similar optimizers compute the same without lerp",
    "foreach": "optimizers that update all parameters in few calls",
    "recurrent": "LSTM, GRU and RNN kernels; without them these layers are unrolled",
    "distributed": "several processes (a torch.distributed back end for it is built in)",
}


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        kind: "cuda", "rocm" (of torch type "cuda"), "xpu", "mps", "directml", "cpu", or the name of another back end.
        index: its number among the devices of its kind.
        name: the driver's name for it.
        memory: bytes of its own memory; None if the driver doesn't tell.
        torch_device: the device for tensors.
        works: the `FEATURES` that passed the self-test; empty if it was not tested.
        verdict: "ok", or why the self-test failed; None if it was not tested.
    """

    kind: str
    index: int
    name: str
    memory: int | None
    torch_device: torch.device
    works: tuple[str, ...] = ()
    verdict: str | None = None

    @property
    def text(self) -> str:
        """The name to choose it by: "cuda:0"; "cpu" and "mps" have no number."""
        return self.kind if self.kind in ("cpu", "mps") else f"{self.kind}:{self.index}"

    @property
    def type(self) -> str:
        """The type of its torch device: "cuda" also for ROCm, "privateuseone" for DirectML."""
        return self.torch_device.type

    @property
    def float64(self) -> bool:
        """True if float64 may be used. An untested device is assumed to have it, except MPS and DirectML."""
        if self.kind in ("mps", "directml"):
            return False
        return "float64" in self.works or (self.verdict is None or not self.works)

    @property
    def recurrent(self) -> bool:
        """True if it has kernels for LSTM, GRU and RNN."""
        return self.kind in RECURRENT_KERNELS or (self.kind != "directml" and "recurrent" in self.works)

    @property
    def plain_optimizers(self) -> bool:
        """True if optimizers must not use lerp, foreach and fused kernels."""
        return self.kind == "directml" or (bool(self.works) and not {"lerp", "foreach"} <= set(self.works))


UNNAMED = "privateuseone"  # PyTorch's name for an external back end without its own name, such as DirectML


def found() -> Iterator[Device]:
    """Yield all devices, in the order in which `auto` prefers them; the CPU is always there, and last.

    It is a generator, so that modules for later devices are imported only if they are needed.
    """
    yield from _of_torch("rocm" if getattr(torch.version, "hip", None) else "cuda", torch.cuda)
    yield from _of_torch("xpu", getattr(torch, "xpu", None))
    yield from _mps()
    yield from _directml()
    for type_ in _other_types():
        yield from _of_torch(type_, getattr(torch, type_, None))
    yield cpu()


def named(type_: str, index: int) -> Device | None:
    """Return a device that is not listed, if PyTorch can hold tensors on it, else None."""
    try:
        device = torch.device(type_, index)
        kept = torch.ones(1).to(device)
        if kept.device.type != type_ or kept.cpu().item() != 1:
            return None
    except Exception:
        return None
    return Device(type_, index, type_, None, device)


def cpu() -> Device:
    memory = quietly(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Device("cpu", 0, _cpu_name(), memory, torch.device("cpu"))


def quietly(ask: Callable[[], Any], otherwise: Any = None) -> Any:
    """Return the result of `ask`, or `otherwise` if it raises: drivers may raise any exception."""
    try:
        return ask()
    except Exception:
        return otherwise


def _of_torch(kind: str, module: Any) -> Iterator[Device]:
    """Yield the devices of a module with torch's usual functions: `is_available`, `device_count`, and so on."""
    if not _ask(module, "is_available"):
        return
    type_ = "cuda" if kind == "rocm" else kind
    for index in range(_ask(module, "device_count") or 0):
        name = _ask(module, "get_device_name", index) or kind
        memory = getattr(_ask(module, "get_device_properties", index), "total_memory", None)
        yield Device(kind, index, str(name), memory, torch.device(type_, index))


def _mps() -> Iterator[Device]:
    if _ask(torch.backends.mps, "is_available"):
        # torch reads this when it first needs an operator that Metal lacks, which then runs on the CPU.
        os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
        memory = _ask(torch.mps, "recommended_max_memory")
        yield Device("mps", 0, platform.processor() or "Apple GPU", memory, torch.device("mps", 0))


def _directml() -> Iterator[Device]:
    """Yield DirectML's devices. Without a driver, `torch_directml.is_available()` raises or kills the process."""
    if "torch_directml" not in sys.modules and not _directml_answers():
        return
    module = quietly(lambda: importlib.import_module("torch_directml"))
    if not _ask(module, "is_available"):
        return
    for index in range(_ask(module, "device_count") or 0):
        device = _ask(module, "device", index)
        if device is not None:
            name = str(_ask(module, "device_name", index) or "DirectML").rstrip("\0 ")
            yield Device("directml", index, name, None, torch.device(device))  # it tells only the memory in use


@cache
def _directml_answers() -> bool:
    """Return True if DirectML's devices can be listed without a crash. A separate process tries it."""
    if quietly(lambda: importlib.util.find_spec("torch_directml")) is None:
        return False
    question = "import torch_directml as d; print('answers', d.is_available() and d.device_count())"
    output = quietly(lambda: python("-c", question, timeout=120.0).stdout, "")
    return "answers" in output


def _ask(module: Any, function: str, *arguments: Any) -> Any:
    """Return the result of a module's function; None if it raises or does not exist."""
    return quietly(lambda: getattr(module, function)(*arguments))


def _other_types() -> list[str]:
    """Return the device types of PyTorch's other back ends: built in, or external with their own name."""
    types = []
    accelerator = getattr(torch, "accelerator", None)  # from torch 2.6 on
    if accelerator is not None:
        types.append(quietly(lambda: accelerator.current_accelerator().type))
    types.append(quietly(torch._C._get_privateuse1_backend_name))
    return [t for t in dict.fromkeys(types) if t and t not in ("cpu", "cuda", "xpu", "mps", UNNAMED)]


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


GROUP = "onnxgen.devices"


def import_plugins(names: Iterable[str]) -> None:
    """Import modules that register devices. Raises `OnnxgenError`: a module can't be imported."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            what = f"the module {name!r} can't be imported: {typed(error)}"
            raise OnnxgenError(what, help="install it, or put its folder on PYTHONPATH") from None


def load_plugins(kind: str | None = None) -> None:
    """Load all entry points, or only the one of a kind: a module to import, or a function to call.

    Raises:
        OnnxgenError: the entry point of `kind` fails. When all are loaded, those that fail are skipped with a warning.
    """
    for point in entry_points(group=GROUP):
        if kind is not None and point.name != kind:
            continue
        try:
            loaded = point.load()
            if callable(loaded) and not isinstance(loaded, ModuleType):
                loaded()
        except Exception as error:
            text = f"the plug-in {point.name!r} ({point.value}) does not load: {typed(error)}"
            if kind is not None:
                raise OnnxgenError(text, help="reinstall the package it comes with") from None
            warnings.warn(f"{text}; it is skipped", stacklevel=3)


def python(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and this process's import path.

    Raises:
        subprocess.TimeoutExpired: it did not end within `timeout` seconds.
        OSError: it could not be started.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
