"""Finds the devices of this machine. It never raises: absent or broken drivers are skipped."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from onnxgen.training.devices.child import python
from onnxgen.training.devices.device import Device

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
    said = quietly(lambda: python("-c", question, timeout=120.0).stdout, "")
    return "answers" in said


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
