"""For which sizes of the inputs a comparison holds, and at which others two networks have to be compared again.

A capture holds for all sizes that answer the questions of the module's Python as the example does. There may be other
sizes that the network takes: they are looked for around the numbers in these questions.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.canonical.capture import Captured
from onnxgen.canonical.deciding import decided, following
from onnxgen.canonical.rules import NotFollowed
from onnxgen.record.sidecar import metadata_of, space_of
from onnxgen.record.signature import recorded

LARGEST = 1025  # size that inputs are drawn with
GROWN = (2, 3, 4)  # sizes that are tried in the place of 1
MOST = 8  # comparisons at other sizes
FEW = 12  # numbers of which sums are tried, too
LARGER = 4  # times the elements of the example that others may have
TRIED = 40  # sizes of an axis
SYMBOL = re.compile(r"\binput(\d+)_(\d+)\b")
NAMES: dict[str, Any] = {"floor": math.floor, "ceiling": math.ceil, "math": math, "Mod": operator.mod}
NAMES |= {"Max": max, "Min": min, "max": max, "min": min}  # that are in the text of a guard
Axes = tuple[tuple[int, int], ...]  # of inputs: number, axis


def groups_of(reference: nn.Module, arguments: Sequence[Tensor]) -> list[Axes]:
    """Return the axes that have any size in the file; those with one name, together."""
    signature = recorded(metadata_of(space_of(reference)))
    dims = [port.dims for port in signature.inputs] if signature is not None else []
    found: dict[Any, list[tuple[int, int]]] = {}
    for number, argument in enumerate(arguments):
        known = dims[number] if number < len(dims) else None
        for axis in range(argument.dim()):
            dim = known[axis] if known is not None and len(known) == argument.dim() else None
            if not isinstance(dim, int):
                found.setdefault(dim or (number, axis), []).append((number, axis))
    return [tuple(axes) for axes in found.values()]


def enlarged(reference: nn.Module, arguments: Sequence[Tensor], groups: Sequence[Axes]) -> list[Tensor]:
    """Return an example in which a free axis has a size of 1 only if the network runs with no larger one."""
    now = list(arguments)
    small = [axes for axes in groups if any(now[n].shape[a] < 2 for n, a in axes)]
    if any(now[n].shape[a] < 1 for axes in small for n, a in axes):
        raise NotFollowed("an input was drawn without elements")
    for axes in (*small, tuple(itertools.chain(*small))):
        for size in GROWN if any(now[n].shape[a] < 2 for n, a in axes) else ():
            larger = resized(now, axes, size)
            if runs(reference, larger):
                now = larger
                break
    return now


def resized(arguments: Sequence[Tensor], axes: Axes, size: int) -> list[Tensor]:
    """Return inputs with another size of some axes, made of the same elements."""
    found = list(arguments)
    for number, axis in axes:
        value = found[number]
        found[number] = value.index_select(axis, torch.arange(size) % value.shape[axis])
    return found


def runs(module: nn.Module, arguments: Sequence[Tensor]) -> bool:
    """Whether a module takes these inputs."""
    return any(True for _ in paths(module, arguments))


def trains(module: nn.Module, arguments: Sequence[Tensor]) -> bool:
    """Whether a module takes these inputs in training mode: a BatchNorm needs more than one value of each channel."""
    trained = copy.deepcopy(module).train()
    try:
        trained(*arguments)
    except Exception:
        return False
    return True


def paths(module: nn.Module, arguments: Sequence[Tensor]) -> Iterator[tuple[bool, ...]]:
    """Yield what a module may be answered to its questions about values of tensors so that it runs on these sizes."""
    modes = {part: part.training for part in module.modules()}
    answers: list[bool] | None = []
    while answers is not None:
        module.eval()
        try:
            with torch.no_grad(), decided(module, answers) as decisions:
                module(*arguments)
            yield tuple(decisions.answers or ())
        except Exception as error:
            if isinstance(error, NotFollowed):
                raise
        finally:
            for part, training in modes.items():
                part.training = training
        answers = following(decisions.answers or ())


class Region:
    """The sizes for which one comparison holds.

    Attributes:
        path: the answers to what the networks ask of the values of tensors.
        conditions: what has to be true of the sizes, as Python of the inputs `L`.
    """

    def __init__(self, path: tuple[bool, ...]) -> None:
        self.path, self.conditions = path, set[str]()

    def narrow(self, captured: Captured, groups: Sequence[Axes], asked: Sequence[Any]) -> None:
        """Add the conditions of a capture. `asked`: sizes that the networks asked to be 1, and that are not."""
        known = {str(size): f"L[{n}].size()[{a}]" for n, a, size in _sizes(captured) if not isinstance(size, int)}
        free = {place for axes in groups for place in axes}
        fixed = {(n, a): size for n, a, size in _sizes(captured) if isinstance(size, int) and (n, a) in free}
        self.conditions |= {*captured.guards, *(f"L[{n}].size()[{a}] == {size}" for (n, a), size in fixed.items())}
        self.conditions |= {"1 != " + SYMBOL.sub(r"L[\1].size()[\2]", str(size)) for size in asked}
        for name, (low, high) in captured.ranges.items():
            if low > 1 and name in known:
                self.conditions.add(f"{known[name]} >= {low}")
            if name in known and high < LARGEST:
                self.conditions.add(f"{known[name]} <= {high}")

    def holds(self, path: tuple[bool, ...], arguments: Sequence[Tensor]) -> bool:
        return path == self.path and all(is_true(condition, arguments) for condition in self.conditions)


def _sizes(captured: Captured) -> Iterator[tuple[int, int, Any]]:
    for number, shape in enumerate(captured.inputs):
        yield from ((number, axis, size) for axis, size in enumerate(shape))


def is_true(condition: str, arguments: Sequence[Tensor]) -> bool:
    """Whether inputs are of the sizes that a condition asks for. One that can't be read is not."""
    try:
        return bool(eval(condition, {"__builtins__": {}}, {"L": arguments, **NAMES}))  # torch's own text of a guard
    except Exception:
        return False


def numbers_in(conditions: Iterable[str]) -> set[int]:
    """Return the numbers in the text of conditions, apart from those of inputs and axes."""
    return {int(number) for condition in conditions for number in re.findall(r"(?<![\w\[.])\d+", condition)}


def others(arguments: Sequence[Tensor], groups: Sequence[Axes], regions: Sequence[Region]) -> Iterator[list[Tensor]]:
    """Yield inputs of other sizes: those in the conditions of a region, beside them, and those of the other axes."""
    numbers = numbers_in(condition for region in regions for condition in region.conditions)
    numbers |= {a + b for a in numbers for b in numbers} if len(numbers) <= FEW else set()
    most = LARGER * sum(argument.numel() for argument in arguments)
    for axes in groups:
        now = arguments[axes[0][0]].shape[axes[0][1]]
        alike = {arguments[n].shape[a] for other in groups for n, a in other}
        wanted = {1, 2, 3, 4, now - 1, now + 1, 2 * now} | alike | {n + step for n in numbers for step in (-1, 0, 1)}
        for size in sorted(size for size in wanted - {now} if 0 < size <= LARGEST)[:TRIED]:
            larger = resized(arguments, axes, size)
            if sum(argument.numel() for argument in larger) <= most:
                yield larger
