"""Finds the device that a text such as "cuda:1" names, and tests it.

The self-test of a device runs in a process of its own, since a broken driver may crash or hang. A test that passed is
cached for this device, driver and PyTorch. One that failed is run again the next time.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import signal
import subprocess
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import torch

from onnxgen import __version__
from onnxgen.common.cache import Cache
from onnxgen.errors import OnnxgenError
from onnxgen.training.devices import probe
from onnxgen.training.devices.probe import Device, python


def choose(text: str = "auto", imports: Sequence[str] = ()) -> Device:
    """Return the device that `text` names.

    "auto" takes the first device that passes its self-test, in the order cuda (NVIDIA and ROCm), xpu, mps, DirectML,
    any other accelerator of PyTorch, cpu. A device that fails is skipped with a warning. A device that is named is
    taken even if it fails, with a warning. The CPU is not tested.

    Args:
        text: "auto", "cpu", "cuda", "cuda:1", "xpu", "mps", "directml", or a plug-in's device ("ocl:0").
        imports: modules to import first, which register devices.

    Raises:
        OnnxgenError: there is no such device (the error lists all), or a module can't be imported.
    """
    kind, _ = _parsed(text)
    probe.import_plugins(imports)
    if kind == "auto":
        probe.load_plugins()
        return _best(imports)
    device = named(text)
    if device.kind == "cpu":
        return device
    device = tested(device, imports)
    if device.verdict not in (None, "ok"):
        what = f"{device.text} ({device.name}) fails its self-test: {device.verdict}"
        warnings.warn(f"{what}; training on it, since you chose it", stacklevel=2)
    return device


def named(text: str) -> Device:
    """Return the device with this name, untested. Raises `OnnxgenError`: there is no such device."""
    kind, index = _parsed(text)
    if (kind, index) == ("cpu", 0):
        return probe.cpu()
    probe.load_plugins(kind)
    there = list(probe.found())
    for device in there:
        if kind in (device.kind, device.type) and index == device.index:
            return device
    unlisted = probe.named(kind, index) if kind not in {d.kind for d in there} else None
    if unlisted is None:
        names = ", ".join(d.text for d in there)
        way = f"there is: {names}; a device of another back end may need its module (--import)"
        raise OnnxgenError(f"no device {text.strip()} on this machine", help=way)
    return unlisted


def _parsed(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([A-Za-z_]\w*)(?::(\d+))?", text.strip())
    if match is None or text.strip().lower().startswith("auto:"):
        raise OnnxgenError(f"{text!r} is not a device", help="devices are named like auto, cpu, cuda or cuda:1")
    return match[1].lower(), int(match[2] or 0)


def _best(imports: Sequence[str]) -> Device:
    for device in probe.found():
        if device.kind == "cpu":
            return device
        device = tested(device, imports)
        if device.verdict == "ok":
            return device
        what = f"{device.text} ({device.name}) fails its self-test and is skipped: {device.verdict}"
        warnings.warn(what, stacklevel=3)
    return probe.cpu()


TIMEOUT = 180.0  # seconds; a first run may compile kernels


def tested(device: Device, imports: Sequence[str] = ()) -> Device:
    """Return the device with the result of its self-test."""
    verdict, works = _verdict(device.text, device.name, tuple(imports))
    return replace(device, verdict=verdict, works=works)


@cache
def _verdict(text: str, name: str, imports: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    key = " | ".join((text, name, *imports, *_versions()))
    if isinstance(known := Cache().get("selftest", key), list):
        return "ok", tuple(map(str, known))
    verdict, works = _run(text, imports)
    if verdict == "ok":
        Cache().put("selftest", key, works)
    return verdict, works


def _run(text: str, imports: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    try:
        done = python("-m", "onnxgen.training.devices.selftest", text, *imports, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"it did not finish within {TIMEOUT:.0f} seconds", ()
    except OSError as error:
        return f"no process could be started to test it: {error}", ()
    for line in reversed(done.stdout.splitlines()):
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and "verdict" in answer:
                return str(answer["verdict"]), tuple(answer["works"])
    return f"the test {_ended(done.returncode)}: {' '.join(done.stderr.split())[-300:] or 'no message'}", ()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _versions() -> tuple[str, ...]:
    """Return the versions of everything that a verdict depends on besides the device."""
    cuda, driver = [str(part) for part in (torch.version.cuda, getattr(torch.version, "hip", None)) if part], ""
    if torch.cuda.is_available():
        driver = probe.quietly(lambda: str(torch._C._cuda_getDriverVersion()), "")  # type: ignore[attr-defined]
    directml = probe.quietly(lambda: importlib.metadata.version("torch-directml"), "")
    return (__version__, torch.__version__, *cuda, driver, directml)
