"""What this machine can train on.

from onnxgen.training import devices
for device in devices(test=True):
    print(device.text, device.name, device.verdict)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnxgen._callable import callable_module
from onnxgen.training.devices import plugins, probe
from onnxgen.training.devices.choice import choose
from onnxgen.training.devices.device import FEATURES, Device

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.training.settings import Settings

__all__ = ["FEATURES", "Device", "choose", "devices", "prepare", "trainer_options"]


def devices(imports: Sequence[str] = (), *, test: bool = False) -> list[Device]:
    """Every device there is, in the order in which `choose("auto")` prefers them; the CPU is last.

    Args:
        imports: modules to import first, which bring devices of their own.
        test: run the self-test on each, in a process of its own: seconds a device, the first time.

    Raises:
        OnnxgenError: one of `imports` can't be imported.
    """
    from onnxgen.training.devices.verdicts import tested

    plugins.import_all(imports)
    plugins.load()
    found = list(probe.found())
    return [tested(device, imports) for device in found] if test else found


def prepare(model: nn.Module, device: Device) -> nn.Module:
    """The model as `device` can train it, under the same state-dict keys; see `prepared.prepare`."""
    from onnxgen.training.devices.prepared import prepare

    return prepare(model, device)


def trainer_options(device: Device, settings: Settings) -> dict[str, Any]:
    """What Lightning's `Trainer` is given so that it trains on `device`; see `trainer.trainer_options`."""
    from onnxgen.training.devices.trainer import trainer_options

    return trainer_options(device, settings)


callable_module(__name__, devices)
