"""Which column feeds which input, and which one is a target, by their names. Nothing here imports torch."""

from __future__ import annotations

import re
from collections.abc import Collection

from onnxgen.common.names import legible, listed
from onnxgen.errors import Problem, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.source import target_called
from onnxgen.training.settings import Settings

_WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")  # types without a gradient


def named_columns(
    columns: list[str], known: str, ports: Signature, settings: Settings, targets: bool, images: Collection[str] = ()
) -> tuple[dict[str, str], dict[int, str]]:
    """Return the column of each input, and of each output that has a target. See `feeding.feed`.

    Args:
        known: the target, if the data says so; else "".
        targets: False if only inputs are needed.
        images: the columns that hold images.

    Raises:
        OnnxgenError: a name is unknown, or an assignment is open.
    """
    problems = Problems()
    inputs = inputs_named(columns, ports, settings, problems)
    outputs = _targets_named(columns, ports, settings, problems, targets)
    problems.raise_if_any()
    conventional = known or target_called(columns)
    reserved = {*inputs.values(), *(outputs.values() if outputs else [conventional])}
    left = [column for column in columns if column not in reserved]
    open_inputs = fill_open(inputs, left, ports, images)
    if targets and not outputs:
        outputs = _only_target(conventional, left, ports, inputs)
    if open_inputs:
        problems.add(open_told(open_inputs, ports, columns))
    if targets and not outputs and (left or settings.teacher is None):  # a teacher needs no target
        problems.add(no_target(ports, columns))
    problems.raise_if_any()
    return inputs, outputs


def fill_open(
    inputs: dict[str, str], left: list[str], ports: Signature, images: Collection[str], first: bool = False
) -> list[str]:
    """Give the only input without a column the only one that is left, or the only one left of images among others.

    `first`: the first one, if several are left. Return the inputs that stay open.
    """
    open_inputs = [port.name for port in ports.inputs if port.name not in inputs]
    sure = [column for column in left if column in images] or left
    if len(open_inputs) == 1 and (len(sure) == 1 or (first and sure)):
        inputs[open_inputs.pop()] = sure[0]
        left.remove(sure[0])
    return open_inputs


def _only_target(conventional: str, left: list[str], ports: Signature, inputs: dict[str, str]) -> dict[int, str]:
    """Return the target of the only output: the column with the usual name, else the only one that is left."""
    only, column = _only_output(ports), conventional or (left[0] if len(left) == 1 else "")
    return {only: column} if only is not None and column and column not in inputs.values() else {}


def inputs_named(columns: list[str], ports: Signature, settings: Settings, problems: Problems) -> dict[str, str]:
    """Return the columns that the settings name for inputs, and those with an input's name."""
    names = [port.name for port in ports.inputs]
    inputs = {name: name for name in names if name in columns}
    for name, column in settings.inputs.items():
        if name not in names:
            problems.add(f"the model has no input {legible(name)!r} (it has {_ports(ports.inputs)})")
        elif column not in columns:
            problems.add(f"--inputs {name}={legible(column)}: the data has no such column (it has {listed(columns)})")
        else:
            inputs[name] = column
    for port in ports.inputs:
        if port.kind != "tensor" or port.dtype == "str":
            kind = "text" if port.dtype == "str" else f"of kind {port.kind}"
            what = f"input {port.name!r} is {kind}, but a column holds tensors"
            problems.add(what, help="wrap the model in one that takes tensors")
    return inputs


def _targets_named(
    columns: list[str], ports: Signature, settings: Settings, problems: Problems, needed: bool
) -> dict[int, str]:
    """Return the columns that the settings name as targets, else those with an output's name.

    If they are not `needed` (to predict), the data may lack them.
    """
    names = [port.name for port in ports.outputs]
    able = [place for place, port in enumerate(ports.outputs) if _untrainable(port) is None]
    if names and not able and needed:
        kinds = ", ".join(f"{legible(port.name)} ({_untrainable(port)})" for port in ports.outputs)
        way = "generate it up to a tensor of numbers before them: onnxgen FILE.onnx --outputs NAME"
        problems.add(f"no output of the model can be trained: {kinds}", help=way)
        return {}
    if isinstance(settings.target, str) and _only_output(ports) is None:
        help = f"--target {','.join(f'{name}=COLUMN' for name in names[:2])}"
        problems.add(f"the model has {len(names)} outputs ({_ports(ports.outputs)})", help=help)
        return {}
    targets = _targets_asked(ports, settings, problems)
    if needed:
        _check_targets(targets, columns, ports, able, problems)
    return targets or {place: names[place] for place in able if names[place] in columns}


def _check_targets(
    targets: dict[int, str], columns: list[str], ports: Signature, able: list[int], problems: Problems
) -> None:
    for column in targets.values():
        if column not in columns:
            problems.add(f"--target {legible(column)}: the data has no such column (it has {listed(columns)})")
    for place, column in targets.items():
        if place < len(ports.outputs) and (kind := _untrainable(ports.outputs[place])) is not None:
            what = f"output {legible(ports.outputs[place].name)!r} is {kind}, and no gradient comes through it"
            problems.add(what, help=f"--target {legible(ports.outputs[able[0]].name)}={legible(column)}")


def _targets_asked(ports: Signature, settings: Settings, problems: Problems) -> dict[int, str]:
    """Return the columns that the settings name, by the index of their output. It may have no name but `output0`."""
    if isinstance(settings.target, str):
        return {_only_output(ports) or 0: settings.target}
    names = [port.name for port in ports.outputs]
    targets: dict[int, str] = {}
    for name, column in (settings.target or {}).items():
        if name in names:
            targets[names.index(name)] = column
        elif not names and (number := re.fullmatch(r"output(\d+)", name)):
            targets[int(number[1])] = column
        elif not names and not targets:
            targets[0] = column
        else:
            problems.add(f"the model has no output {legible(name)!r} (it has {_ports(ports.outputs)})")
    return targets


def _untrainable(port: Port) -> str | None:
    """Return what an output holds that can't be trained, as it is no tensor of numbers with a gradient; else None."""
    if port.kind != "tensor":
        return f"of kind {port.kind}"
    if port.dtype == "str":
        return "text"
    return port.dtype if port.dtype in _WHOLE else None


def _only_output(ports: Signature) -> int | None:
    """Return the output that a target belongs to unless it names one: the only one, or the only one of the graph."""
    able = [n for n, port in enumerate(ports.outputs) if _untrainable(port) is None]
    own = [n for n in able if ports.outputs[n].dims is not None or ports.outputs[n].dtype is not None]
    return 0 if not ports.outputs else able[0] if len(able) == 1 else own[0] if len(own) == 1 else None


def _ports(ports: tuple[Port, ...]) -> str:
    return listed(port.name for port in ports)


def open_told(names: list[str], ports: Signature, columns: list[str]) -> Problem:
    what = f"which column feeds {listed(names)}? The model's inputs are {_ports(ports.inputs)}"
    numbers = [legible(port.name) for port in ports.inputs if port.name in names and port.dims == ()]
    way = f"--inputs {','.join(f'{legible(name)}=COLUMN' for name in names)}"
    way += f"; a number for all samples: --const {numbers[0]}=0" if numbers else ""
    return Problem(f"{what}; the data's columns are {listed(columns)}", help=way)


def no_target(ports: Signature, columns: list[str]) -> Problem:
    """Return the problem that no column is known to be the target."""
    several = [f"{legible(port.name)}=COLUMN" for port in ports.outputs if _untrainable(port) is None]
    outputs = _ports(ports.outputs) or "not named"
    return Problem(
        f"which column is the target? The model's outputs are {outputs}; the data's columns are {listed(columns)}",
        help=f"--target {','.join(several) if len(several) > 1 else 'COLUMN'}",
    )
