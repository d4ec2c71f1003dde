"""Lists the devices that this machine can train on.

from onnxgen.training import devices
for device in devices(test=True):
    print(device.text, device.name, device.verdict)
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxgen._callable import callable_module
from onnxgen.training.devices import probe
from onnxgen.training.devices.choice import choose, tested
from onnxgen.training.devices.prepared import prepare_for
from onnxgen.training.devices.probe import FEATURES, Device
from onnxgen.training.devices.trainer import trainer_options

__all__ = ["FEATURES", "Device", "choose", "devices", "prepare_for", "trainer_options"]


def devices(imports: Sequence[str] = (), *, test: bool = False) -> list[Device]:
    """Return all devices, in the order in which `choose("auto")` prefers them; the CPU is last.

    Args:
        imports: modules to import first, which register devices.
        test: run the self-test for each device in a process of its own. The first time it takes seconds per device.

    Raises:
        OnnxgenError: one of `imports` can't be imported.
    """
    probe.import_plugins(imports)
    probe.load_plugins()
    available = list(probe.found())
    return [tested(device, imports) for device in available] if test else available


callable_module(__name__, devices)
