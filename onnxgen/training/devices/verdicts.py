"""Runs the self-test of a device in a process of its own, since a broken driver may crash or hang.

A test that passed is cached for this device, driver and PyTorch. One that failed is run again the next time.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import torch

from onnxgen import __version__
from onnxgen.common.cache import Cache
from onnxgen.training.devices import probe
from onnxgen.training.devices.child import python
from onnxgen.training.devices.device import Device

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
            said = json.loads(line)
            if isinstance(said, dict) and "verdict" in said:
                return str(said["verdict"]), tuple(said["works"])
    return f"the test {_ended(done.returncode)}: {' '.join(done.stderr.split())[-300:] or 'no message'}", ()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _versions() -> tuple[str, ...]:
    """Return the versions of everything that a verdict depends on besides the device."""
    cuda = [str(part) for part in (torch.version.cuda, getattr(torch.version, "hip", None)) if part]
    driver = (
        probe.quietly(lambda: str(torch._C._cuda_getDriverVersion()), "")  # type: ignore[attr-defined]
        if torch.cuda.is_available()
        else ""
    )
    directml = probe.quietly(lambda: importlib.metadata.version("torch-directml"), "")
    return (__version__, torch.__version__, *cuda, driver, directml)
