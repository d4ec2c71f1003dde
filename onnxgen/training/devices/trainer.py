"""What Lightning's `Trainer` is given for a device."""

from __future__ import annotations

from typing import Any

import torch

from onnxgen.errors import OnnxgenError
from onnxgen.training.devices.device import Device
from onnxgen.training.settings import Settings

_LIGHTNINGS = {"cuda": "cuda", "rocm": "cuda", "mps": "mps", "cpu": "cpu"}  # devices it has an accelerator for


def trainer_options(device: Device, settings: Settings) -> dict[str, Any]:
    """Arguments of Lightning's `Trainer`: accelerator, devices, num_nodes, strategy, and precision or plugins.

    Raises:
        OnnxgenError: the device can't do the precision or the strategy, or there are not as many devices.
    """
    check_precision(device, settings.precision)
    processes = settings.devices * settings.nodes
    if device.kind in ("cuda", "rocm", "cpu"):
        options = _by_lightning(device, settings, processes)
    else:
        options = _by_ours(device, settings, processes)
    return {**options, "num_nodes": settings.nodes}


def check_precision(device: Device, precision: str) -> None:
    """See that the device can train in this precision.

    Raises:
        OnnxgenError: it can't; the error says which it can.
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


def _by_lightning(device: Device, settings: Settings, processes: int) -> dict[str, Any]:
    """On what Lightning has an accelerator and several processes for."""
    accelerator, strategy = _LIGHTNINGS[device.kind], _strategy(settings.strategy, processes)
    devices: int | list[int] = settings.devices
    if accelerator == "cuda":
        there = torch.cuda.device_count()
        if device.index + settings.devices > there:
            asked = f"{settings.devices} devices from {device.text} on"
            raise OnnxgenError(f"no {asked}: this machine has {there}", help="ask for fewer")
        devices = list(range(device.index, device.index + settings.devices))
    return {"accelerator": accelerator, "devices": devices, "strategy": strategy, "precision": settings.precision}


def _strategy(name: str, processes: int) -> Any:
    if name == "fsdp" and processes > 1:
        from lightning.pytorch.strategies import (
            ModelParallelStrategy,  # `FSDPStrategy`, of the older API, insists on CUDA
        )

        return ModelParallelStrategy(processes, 1, save_distributed_checkpoint=False)
    return "ddp" if processes > 1 else "auto"


def _by_ours(device: Device, settings: Settings, processes: int) -> dict[str, Any]:
    """On a single device by our own strategy."""
    from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision, Precision

    from onnxgen.training.devices.engine import AnyAccelerator, OneDevice, PlainPrecision

    if processes > 1 or settings.strategy != "auto":
        raise OnnxgenError(
            f"{device.text} trains in one process on one device",
            help="leave devices and nodes at 1 and the strategy at auto, or train on cpu or cuda",
        )
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
