"""Assigns columns to inputs and targets: as the settings say, or in the only possible way; it never guesses."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import Problem, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.fed import arrangement, fed
from onnxgen.training.data.samples import Data, Feeding, Samples
from onnxgen.training.data.source import target_called
from onnxgen.training.data.text.roles import BRANCH
from onnxgen.training.goals.choice import TaskKind, task_kind
from onnxgen.training.settings import Settings

_WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")  # types without a gradient


def feed(data: Data, model: nn.Module, settings: Settings, *, targets: bool = True) -> Feeding:
    """Return the column of each input and target.

    An input gets the column that `settings.inputs` names, else the column with its own name. If one input and one
    column are left, or one of images among others, they belong together. An output's target is the column that
    `settings.target` names, else the column with its name. A single output gets the data's target (`label`, `y`, ...),
    or the only column left. Outputs without a target are not trained.

    Args:
        settings: only `inputs` and `target` are read.
        targets: False if only inputs are needed (to predict).

    Raises:
        OnnxgenError: a name is unknown, or an assignment is open. The message lists the names and the option.
    """
    settings = data.text.applied(settings) if data.text is not None else settings
    ports = fed(model, settings.const)
    found = matched(next(iter(data.parts.values())), data.target, ports, settings, targets)
    return replace(found, arrangement=arrangement(model))


def matched(
    samples: Samples, known: str, ports: Signature, settings: Settings, targets: bool, images: Collection[str] = ()
) -> Feeding:
    """Like `feed`, for samples whose target is `known` ("" if it isn't), and whose columns `images` hold images."""
    columns = list(samples.fields)
    if (kind := task_kind(settings.task)) is not None:
        return _for_task(kind, columns, known, ports, settings, targets, images)
    problems = Problems()
    inputs = _inputs_named(columns, ports, settings, problems)
    outputs = _targets_named(columns, ports, settings, problems, targets)
    problems.raise_if_any()
    conventional = known or target_called(columns)
    reserved = {*outputs.values(), *([] if outputs else [conventional])}
    left = [c for c in columns if c not in inputs.values() and c not in reserved]
    open_inputs = [port.name for port in ports.inputs if port.name not in inputs]
    if len(open_inputs) == 1 and len(sure := _of_images(left, images)) == 1:
        inputs[open_inputs.pop()] = sure[0]
        left.remove(sure[0])
    if targets and not outputs and (only := _only_output(ports)) is not None:
        if conventional and conventional not in inputs.values():
            outputs[only] = conventional
        elif not conventional and len(left) == 1:
            outputs[only] = left.pop()
    if open_inputs:
        problems.add(_open(open_inputs, ports, columns))
    if targets and not outputs and (left or settings.teacher is None):  # a teacher needs no target
        problems.add(no_target(ports, columns))
    problems.raise_if_any()
    return _feeding(inputs, ports, dict(sorted(outputs.items())) if targets else {})


def _feeding(
    inputs: Mapping[str, str], ports: Signature, targets: Mapping[int, str], others: Sequence[str] = ()
) -> Feeding:
    columns = tuple(inputs[port.name] for port in ports.inputs)
    once = frozenset(inputs[port.name] for port in ports.inputs if port.name == BRANCH and port.dims == (1,))
    return Feeding(columns, targets, tuple(others), once)


def _of_images(columns: list[str], images: Collection[str]) -> list[str]:
    """Return those of the columns that hold images, which no other is mistaken for; if none does, all of them."""
    return [column for column in columns if column in images] or columns


def _for_task(
    kind: TaskKind,
    columns: list[str],
    known: str,
    ports: Signature,
    settings: Settings,
    targets: bool,
    images: Collection[str],
) -> Feeding:
    """Return the columns of the inputs, and those that a task reads (see `TaskKind.reads`)."""
    problems, reads = Problems(), kind.reads if targets else ""
    inputs = _inputs_named(columns, ports, settings, problems)
    said = settings.target if isinstance(settings.target, (str, type(None))) else next(iter(settings.target.values()))
    if reads == "target" and said is not None and said not in columns:
        problems.add(f"--target {legible(said)}: the data has no such column (it has {listed(columns)})")
        problems.raise_if_any()
    usual = next((column for column in kind.columns if column in columns), "")
    target = said or known or usual or target_called(columns)
    left = [column for column in columns if column not in (*inputs.values(), target)]
    open_inputs = [port.name for port in ports.inputs if port.name not in inputs]
    sure = _of_images(left, images)
    if len(open_inputs) == 1 and (len(sure) == 1 or reads == "rest"):
        inputs |= {open_inputs.pop(): sure[0]} if sure else {}
    if open_inputs:
        problems.add(_open(open_inputs, ports, columns))
    left = [column for column in columns if column not in inputs.values()]
    aims = [target] if target in columns else left[:1] if len(left) == 1 else []
    labels = [reads] if reads in columns else []
    others = {"rest": left, "target": aims, "labels": labels}.get(reads, [])
    if reads == "target" and not others:
        problems.add(no_target(ports, columns))
    if reads == "labels" and not others:
        what = f"--task {settings.task} needs text, but the data's columns are {listed(columns)}"
        problems.add(what, help="name the column of text for the token ids: --inputs INPUT=COLUMN")
    problems.raise_if_any()
    return _feeding(inputs, ports, {}, others)


def _inputs_named(columns: list[str], ports: Signature, settings: Settings, problems: Problems) -> dict[str, str]:
    """Return the columns that the settings name for inputs, and those with an input's name."""
    names = [port.name for port in ports.inputs]
    found = {name: name for name in names if name in columns}
    for name, column in settings.inputs.items():
        if name not in names:
            problems.add(f"the model has no input {legible(name)!r} (it has {_ports(ports.inputs)})")
        elif column not in columns:
            problems.add(f"--inputs {name}={legible(column)}: the data has no such column (it has {listed(columns)})")
        else:
            found[name] = column
    for port in ports.inputs:
        if port.kind != "tensor" or port.dtype == "str":
            kind = "text" if port.dtype == "str" else f"of kind {port.kind}"
            what = f"input {port.name!r} is {kind}, but a column holds tensors"
            problems.add(what, help="wrap the model in one that takes tensors")
    return found


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
    only = _only_output(ports)
    if isinstance(settings.target, str) and only is None:
        help = f"--target {','.join(f'{name}=COLUMN' for name in names[:2])}"
        problems.add(f"the model has {len(names)} outputs ({_ports(ports.outputs)})", help=help)
        return {}
    said: Mapping[str, str] = settings.target if isinstance(settings.target, Mapping) else {}
    given = {only or 0: settings.target} if isinstance(settings.target, str) else {}
    for name, column in said.items():
        if name in names:
            given[names.index(name)] = column
        elif not names and (number := re.fullmatch(r"output(\d+)", name)):
            given[int(number[1])] = column
        elif not names and not given:
            given[0] = column
        else:
            problems.add(f"the model has no output {legible(name)!r} (it has {_ports(ports.outputs)})")
    for column in given.values():
        if needed and column not in columns:
            problems.add(f"--target {legible(column)}: the data has no such column (it has {listed(columns)})")
    for place in given if needed else ():
        if place < len(names) and (kind := _untrainable(ports.outputs[place])) is not None:
            what = f"output {legible(names[place])!r} is {kind}, and no gradient comes through it"
            problems.add(what, help=f"--target {legible(names[able[0]])}={legible(given[place])}")
    return given or {place: names[place] for place in able if names[place] in columns}


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


def _open(names: list[str], ports: Signature, columns: list[str]) -> Problem:
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
