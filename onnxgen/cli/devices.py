"""`onnxgen devices`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxgen.cli.say import progress, table, tell_json

if TYPE_CHECKING:
    from onnxgen.training.devices import Device


def devices_command(*, imports: tuple[str, ...], test: bool, quiet: bool, verbose: bool, as_json: bool) -> int:
    """Print the devices to train on. Returns the exit code: 1 if a self-test fails."""
    from onnxgen.runtime.load import need_torch

    need_torch("devices")
    from onnxgen.training.devices import devices

    with progress("testing devices", quiet or as_json or not test):
        found = devices(imports, test=test)
    if as_json:
        tell_json([_as_json(device) for device in found])
    elif not quiet:
        _print(found, test, verbose)
    failed = [device for device in found if device.verdict not in (None, "ok")]
    return 1 if failed else 0


def _print(found: list[Device], test: bool, verbose: bool) -> None:
    from onnxgen.training.devices import FEATURES

    columns = ("device", "name", "memory", "works", "self-test")
    rows = [(d.text, d.name, _size(d.memory), " ".join(d.works), d.verdict or "not run") for d in found]
    kept = len(columns) if test else 3
    table("Devices, in the order of --device auto", columns[:kept], [row[:kept] for row in rows])
    if verbose and test:
        table("What works", ("", "means"), list(FEATURES.items()))


def _size(memory: int | None) -> str:
    return "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"


def _as_json(device: Device) -> dict[str, object]:
    plain = {name: getattr(device, name) for name in ("kind", "index", "name", "memory")}
    return {"device": device.text, **plain, "works": list(device.works), "self_test": device.verdict}
