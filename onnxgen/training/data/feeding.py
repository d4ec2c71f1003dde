"""Assigns columns to inputs and targets, as the settings say or in the only possible way.

It never guesses. `fed` says what data feeds of a model's inputs: all but those with `--const`, each
with its batch axis in front. `arrangement` makes the arguments of a call from the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data.matching import fill_open, inputs_named, named_columns, no_target, open_told
from onnxgen.training.data.samples import Data, Feeding, Samples
from onnxgen.training.data.source import aim_of
from onnxgen.training.data.text.roles import BRANCH
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of


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
    feeding = matched(data.first, data.target, fed(model, settings.const), settings, targets)
    return replace(feeding, arrangement=arrangement(model))


def matched(
    samples: Samples, known: str, ports: Signature, settings: Settings, targets: bool, images: Collection[str] = ()
) -> Feeding:
    """Like `feed`, for samples whose target is `known` ("" if it isn't), and whose columns `images` hold images."""
    columns = list(samples.fields)
    if card_of(settings.task).reads:
        return _for_task(columns, known, ports, settings, targets, images)
    inputs, outputs = named_columns(columns, known, ports, settings, targets, images)
    return _feeding(inputs, ports, dict(sorted(outputs.items())) if targets else {})


def _feeding(
    inputs: Mapping[str, str], ports: Signature, targets: Mapping[int, str], others: Sequence[str] = ()
) -> Feeding:
    columns = tuple(inputs[port.name] for port in ports.inputs)
    once = frozenset(inputs[port.name] for port in ports.inputs if port.name == BRANCH and port.dims == (1,))
    return Feeding(columns, targets, tuple(others), once)


def _for_task(
    columns: list[str], known: str, ports: Signature, settings: Settings, targets: bool, images: Collection[str]
) -> Feeding:
    """Return the columns of the inputs, and those that a task reads (see `Card.reads`)."""
    card, problems = card_of(settings.task), Problems()
    reads = card.reads if targets else ""
    inputs = inputs_named(columns, ports, settings, problems)
    asked = aim_of(settings.target, "", (), ())
    if reads == "target" and asked and asked not in columns:
        problems.add(f"--target {legible(asked)}: the data has no such column (it has {listed(columns)})")
        problems.raise_if_any()
    target = aim_of(asked, known, card.columns, columns)
    left = [column for column in columns if column not in (*inputs.values(), target)]
    if open_inputs := fill_open(inputs, left, ports, images, first=reads == "rest"):
        problems.add(open_told(open_inputs, ports, columns))
    left = [column for column in columns if column not in inputs.values()]
    aims = [target] if target in columns else left * (len(left) == 1)
    others = {"rest": left, "target": aims, "labels": [reads] * (reads in columns)}.get(reads, [])
    if reads == "target" and not others:
        problems.add(no_target(ports, columns))
    elif reads == "labels" and not others:
        what = f"--task {settings.task} needs text, but the data's columns are {listed(columns)}"
        problems.add(what, help="name the column of text for the token ids: --inputs INPUT=COLUMN")
    problems.raise_if_any()
    return _feeding(inputs, ports, {}, others)


EACH = "each"  # stands in front of the axes of an input without a batch, of which each sample is run by itself
_CONSTANTS: WeakKeyDictionary[nn.Module, Mapping[str, float]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Constant:
    """A number that fills an input.

    Attributes:
        sizes: of its axes; None is the batch axis.
    """

    value: float
    dtype: torch.dtype
    sizes: tuple[int | None, ...]

    def tensor(self, count: int, device: torch.device) -> Tensor:
        """Return the input for `count` samples."""
        sizes = [count if size is None else size for size in self.sizes]
        return torch.full(sizes, self.value, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Arrangement:
    """How the columns that feed inputs, each with its batch axis in front, become the arguments of `forward`.

    Attributes:
        axes: the batch axis of each column's input.
        constants: the inputs that have no column, by the number of their argument.
    """

    axes: tuple[int, ...]
    constants: Mapping[int, Constant]

    def arguments(self, columns: Sequence[Tensor]) -> list[Tensor]:
        count, device = len(columns[0]), columns[0].device
        arguments = [x.movedim(0, axis) for x, axis in zip(columns, self.axes, strict=True)]
        for place, constant in sorted(self.constants.items()):
            arguments.insert(place, constant.tensor(count, device))
        return arguments


def set_constants(model: nn.Module, constants: Mapping[str, float]) -> None:
    """Remember for this very object the numbers that fill some inputs, by their names; also those that were found. The
    number of a state is where it begins (see `Stepwise`).

    Raises `OnnxgenError` if there is no such input, its shape is not known, or the number is not of its type.
    """
    over = vars(model).get("forward")
    constants = {**getattr(over, "found", {}), **constants}
    constants = {name: value for name, value in constants.items() if name not in getattr(over, "carried", ())}
    if constants == _CONSTANTS.get(model, {}):
        return
    ports = batched(model).inputs
    known = {port.name: port for port in ports}
    for name in constants:
        if name not in known:
            has = ", ".join(legible(other) for other in known)
            raise OnnxgenError(f"the model has no input {legible(name)!r} (it has {has})")
        _constant(known[name], constants[name], batch_axis(known[name], batch_name(ports)))
    if len(constants) == len(ports):
        raise OnnxgenError("--const fills all inputs, so no data would reach the model", help="leave one to the data")
    _CONSTANTS[model] = dict(constants)


def batched(model: nn.Module) -> Signature:
    """Return the signature of a model; of one that takes one sample (see `Singly`) that of its batches."""
    signature: Signature | None = getattr(vars(model).get("forward"), "signature", None)
    return signature or signature_of(model)


def fed(model: nn.Module, constants: Mapping[str, float] | None = None) -> Signature:
    """Return the signature of a model as data sees it: without constants, the batch axis of each input in front.

    `constants`: set these first (see `set_constants`).
    """
    if constants is not None:
        set_constants(model, constants)
    whole = batched(model)
    filled, batch = _CONSTANTS.get(model, {}), batch_name(whole.inputs)
    left = (port for port in whole.inputs if port.name not in filled)
    return replace(whole, inputs=tuple(_in_front(port, batch_axis(port, batch)) for port in left))


def arrangement(model: nn.Module) -> Arrangement | None:
    """Return how columns become arguments; None if they are the arguments, as they are."""
    ports, constants = batched(model).inputs, _CONSTANTS.get(model, {})
    batch = batch_name(ports)
    axes = tuple(batch_axis(port, batch) for port in ports if port.name not in constants)
    filled = {
        n: _constant(p, constants[p.name], batch_axis(p, batch)) for n, p in enumerate(ports) if p.name in constants
    }
    return Arrangement(axes, filled) if any(axes) or filled else None


def batch_name(ports: Sequence[Port]) -> str:
    """Return the name of the batch's size: the one that says so, else the first axis of most inputs; "" if none has."""
    names = [dim for port in ports for dim in dict.fromkeys(port.dims or ()) if isinstance(dim, str)]
    if named := [name for name in names if says_batch(name)]:
        return Counter(named).most_common(1)[0][0]
    first = [port.dims[0] for port in ports if port.dims and isinstance(port.dims[0], str)]
    return Counter(first).most_common(1)[0][0] if first else ""


def says_batch(name: str) -> bool:
    """Return True for the name of a size that is that of a batch."""
    return name.lower() in ("n", "b", "bs") or "batch" in name.lower()


def batch_axis(port: Port, batch: str) -> int:
    """Return the batch axis of an input: the only one with the batch's size, if the first one has another."""
    dims = port.dims or ()
    if not dims or dims[0] == batch or dims.count(batch) != 1:
        return 0
    return dims.index(batch) if isinstance(dims[0], int) or says_batch(batch) else 0


def _in_front(port: Port, axis: int) -> Port:
    dims = port.dims
    return port if dims is None or not axis else replace(port, dims=(dims[axis], *dims[:axis], *dims[axis + 1 :]))


def _constant(port: Port, value: float, axis: int) -> Constant:
    name = legible(port.name)
    if port.dims is None or port.dtype in (None, "str") or port.kind != "tensor":
        raise OnnxgenError(f"--const {name}: the input is no tensor of a known shape", help="wrap the model")
    dtype: torch.dtype = getattr(torch, str(port.dtype))
    if not dtype.is_floating_point and value != int(value):
        what = f"--const {name}={value:g}: the input takes whole numbers"
        raise OnnxgenError(what, help=f"--const {name}={value:.0f}")
    sizes = [None if n == axis and isinstance(dim, str) else dim for n, dim in enumerate(port.dims)]
    known = [dim for dim in sizes if not isinstance(dim, str)]
    if len(known) < len(sizes):
        dims = ", ".join(map(str, port.dims))
        what = f"--const {name}: the sizes of [{dims}] are not known"
        raise OnnxgenError(what, help="fix them: generate the model with --input-shape")
    return Constant(value, dtype, tuple(known))
