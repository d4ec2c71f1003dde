"""Lightning's accelerator, strategy and precision for devices that it does not know."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.fabric.utilities.types import _DEVICE
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.optim import Optimizer

from onnxgen.training.devices.prepared import single
from onnxgen.training.devices.probe import Device

_CPU = torch.device("cpu")


class AnyAccelerator(Accelerator):
    """An accelerator for any device. The strategy knows which one."""

    def setup_device(self, device: torch.device) -> None:
        """Do nothing: tensors are moved to the device by its name."""

    def teardown(self) -> None:
        """Do nothing."""

    def get_device_stats(self, device: _DEVICE) -> dict[str, Any]:
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return []

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True  # `choose` found it

    @staticmethod
    def name() -> str:
        return "onnxgen_any"


class OneDevice(SingleDeviceStrategy):
    """Trains on one device of any kind. Checkpoints hold CPU tensors, which load anywhere.

    If the device has no float64, model and batches are converted to float32 before they are moved to it.
    """

    strategy_name = "onnxgen_one_device"

    def __init__(self, device: Device, accelerator: Accelerator | None = None) -> None:
        super().__init__(device.torch_device, accelerator=accelerator)
        self._float64 = device.float64

    def model_to_device(self) -> None:
        if not self._float64 and self.model is not None:
            self.model._apply(single)  # type: ignore[no-untyped-call]
        super().model_to_device()

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        if not self._float64:
            batch = apply_to_collection(batch, Tensor, single, allow_frozen=True)
        return super().batch_to_device(batch, device, dataloader_idx)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = move_data_to_device(super().lightning_module_state_dict(), _CPU)
        return state

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        state: dict[str, Tensor] = move_data_to_device(super().optimizer_state(optimizer), _CPU)
        return state


class PlainPrecision(Precision):
    """Trains in float32, and clips gradients without foreach kernels."""

    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: int | float) -> None:
        torch.nn.utils.clip_grad_norm_(self.main_params(optimizer), clip_val, foreach=False)
