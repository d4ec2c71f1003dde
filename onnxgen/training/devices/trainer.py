"""The arguments of Lightning's `Trainer` for a device."""

from __future__ import annotations

from typing import Any

import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices.probe import Device
from onnxgen.training.launch import in_pods
from onnxgen.training.settings import Settings


def trainer_options(device: Device, settings: Settings) -> dict[str, Any]:
    """Return arguments of Lightning's `Trainer`: accelerator, devices, num_nodes, strategy, precision or plugins.

    Raises:
        OnnxgenError: the device does not support the precision or the strategy, or there are too few devices.
    """
    check_precision(device, settings.precision)
    options = _options_of_lightning if device.kind in ("cuda", "rocm", "cpu") else _own_options
    return {**options(device, settings), "num_nodes": settings.nodes}


def check_precision(device: Device, precision: str) -> None:
    """Check that the device supports the precision.

    Raises:
        OnnxgenError: it does not (the error names one that it supports).
    """
    mixed, way_out = precision.endswith("-mixed"), "--precision 32-true"
    if device.kind == "directml" and precision != "32-true":
        raise OnnxgenError(f"DirectML trains in 32-true only, not in {precision}", help=way_out)
    if device.kind == "cpu" and precision == "16-mixed":
        raise OnnxgenError("Lightning has no autocast to float16 on the CPU", help="--precision bf16-mixed")
    if device.kind == "mps" and not (mixed or precision == "32-true"):
        raise OnnxgenError(f"MPS trains in 32-true, bf16-mixed or 16-mixed, not in {precision}", help=way_out)
    if precision == "64-true" and not device.float64:
        raise OnnxgenError(f"{device.text} has no float64", help=way_out)
    if mixed and not torch.amp.is_autocast_available(device.type):
        raise OnnxgenError(f"PyTorch {torch.__version__} has no autocast for {device.text}", help=way_out)


def _options_of_lightning(device: Device, settings: Settings) -> dict[str, Any]:
    """Return options for the devices on which Lightning itself can run one or several processes."""
    from lightning.fabric.plugins.environments.kubeflow import KubeflowEnvironment

    devices: int | list[int] = settings.devices
    if device.kind != "cpu":
        there = torch.cuda.device_count()
        if device.index + settings.devices > there:
            what = f"{settings.devices} devices from {device.text} on are too many: this machine has {there}"
            raise OnnxgenError(what, help="use fewer --devices")
        devices = list(range(device.index, device.index + settings.devices))
    strategy: Any = "ddp" if settings.processes > 1 else "auto"
    if settings.strategy == "fsdp":  # also one process: it may go on from several, and several from it
        from onnxgen.training.sharded.strategy import Sharded

        strategy = Sharded(settings.processes)
    options = {"accelerator": device.type, "devices": devices, "strategy": strategy, "precision": settings.precision}
    return {**options, "plugins": [KubeflowEnvironment()]} if in_pods() else options


def _own_options(device: Device, settings: Settings) -> dict[str, Any]:
    """Return options for a single device with our own strategy."""
    from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision, Precision

    from onnxgen.training.devices.engine import AnyAccelerator, OneDevice, PlainPrecision

    if settings.processes > 1 or settings.strategy != "auto":
        way = "leave devices and nodes at 1 and the strategy at auto, or train on cpu or cuda"
        raise OnnxgenError(f"{device.text} trains in one process on one device", help=way)
    accelerator = None if device.kind == "mps" else AnyAccelerator()
    options: dict[str, Any] = {"devices": 1, "strategy": OneDevice(device, accelerator)}
    if device.kind == "mps":
        return {**options, "accelerator": "mps", "precision": settings.precision}
    if settings.precision == "64-true":
        return {**options, "precision": settings.precision}
    plugin: Precision = PlainPrecision() if device.plain_optimizers else Precision()
    if settings.precision.endswith("-mixed"):
        plugin = MixedPrecision(settings.precision, device.type)  # type: ignore[arg-type]
    elif settings.precision != "32-true":
        plugin = HalfPrecision(settings.precision)  # type: ignore[arg-type]
    return {**options, "plugins": [plugin]}
