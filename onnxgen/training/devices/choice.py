"""Finds the device that a text such as "cuda:1" names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices import plugins, probe
from onnxgen.training.devices.device import Device
from onnxgen.training.devices.verdicts import tested


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
    plugins.import_all(imports)
    if kind == "auto":
        plugins.load()
        return _best(imports)
    device = named(text)
    if device.kind == "cpu":
        return device
    device = tested(device, imports)
    if device.verdict not in (None, "ok"):
        warnings.warn(
            f"{device.text} ({device.name}) fails its self-test: {device.verdict}; training on it, since you chose it",
            stacklevel=2,
        )
    return device


def named(text: str) -> Device:
    """Return the device with this name, untested.

    Raises:
        OnnxgenError: there is no such device.
    """
    kind, index = _parsed(text)
    if (kind, index) == ("cpu", 0):
        return probe.cpu()
    plugins.load(kind)
    there = list(probe.found())
    for device in there:
        if kind in (device.kind, device.type) and index == device.index:
            return device
    unlisted = probe.named(kind, index) if kind not in {d.kind for d in there} else None
    if unlisted is None:
        way = (
            f"there is: {', '.join(d.text for d in there)}; a device of another back end may need its module (--import)"
        )
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
        warnings.warn(
            f"{device.text} ({device.name}) fails its self-test and is skipped: {device.verdict}", stacklevel=3
        )
    return probe.cpu()
