"""How far the outputs of two networks are apart, in float64 on drawn inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.canonical.numbers import difference
from onnxgen.canonical.prove import drawn
from onnxgen.diff.side import Side
from onnxgen.errors import OnnxgenError

EQUAL = 1e-6  # of the largest element: what constants of two spellings, rounded to float32, may make
NARROW = 1e-4  # the same, if a network runs in its own type only
SIZE = 2  # of a free dim of a module of which there is no ONNX file


@dataclass
class Apart:
    """The largest difference, as a share of the largest element; None if it is not known, and why. Up to `equal`, it
    may be rounding."""

    largest: float | None = None
    runs: int = 0
    why: str = ""
    equal: float = EQUAL


def feeds(one: Side, other: Side, alike: bool, runs: int, seed: int) -> list[list[list[Any]]]:
    """Return drawn inputs of both. Raises `OnnxgenError`.

    Args:
        alike: they take the same inputs. Else those of the second have the first's values under the same names.
    """
    if alike:
        first = _feeds(one if one.generated is not None or other.generated is None else other, runs, seed)[1]
        return [first, first]
    (names, first), (others, second) = (_feeds(side, runs, seed) for side in (one, other))
    for mine, theirs in zip(first, second, strict=False):
        shared = dict(zip(names, mine))
        for number, name in enumerate(others):
            if name in shared and _form(shared[name]) == _form(theirs[number]):
                theirs[number] = shared[name]
    return [first, second]


def _form(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)


def _feeds(side: Side, runs: int, seed: int) -> tuple[list[str], list[list[Any]]]:
    """Return the names of inputs, and values that the ONNX file accepts, or else of the recorded shapes."""
    if side.generated is not None:
        return drawn(side.path, side.options, side.module, runs, seed)
    signature = side.signature
    if signature is None:
        raise OnnxgenError(f"{side.path} has no weights beside it that name its inputs")
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(runs):
        feed = []
        for port in signature.inputs:
            if port.dims is None or port.kind != "tensor" or not hasattr(torch, port.dtype or ""):
                raise OnnxgenError(f"inputs like {port.name} are not drawn")
            dtype = getattr(torch, port.dtype or "")
            shape = [dim if isinstance(dim, int) else SIZE for dim in port.dims]
            values = torch.randn(shape, generator=generator)
            feed.append(values.to(dtype) if dtype.is_floating_point else (values > 0).to(dtype))
        found.append(feed)
    return [port.name for port in signature.inputs], found


def apart(one: Side, other: Side, inputs: Sequence[Sequence[Sequence[Any]]]) -> Apart:
    """Compare outputs in float64, or else in the types of the files."""
    found = _apart([side.wide().eval() for side in (one, other)], inputs, True)
    return found if found.largest is not None else _apart([one.module, other.module], inputs, False)


def _apart(modules: Sequence[nn.Module], inputs: Sequence[Sequence[Sequence[Any]]], wide: bool) -> Apart:
    worst, equal = 0.0, EQUAL if wide else NARROW
    outputs: list[list[Any]] = []
    try:
        for run, both in enumerate(zip(*inputs)):
            outputs = []
            for module, feed in zip(modules, both, strict=True):
                torch.manual_seed(run)
                with torch.no_grad():
                    outputs.append(flat(module(*(map(_wide, feed) if wide else feed))))
            if len(outputs[0]) != len(outputs[1]):
                return Apart(math.inf, run + 1, f"{len(outputs[0])} outputs and {len(outputs[1])}")
            worst = max([worst, *(difference(a, b) for a, b in zip(*outputs, strict=True))])
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fails = not wide and len(outputs) == 1  # and the first does not
        return Apart(math.inf, 0, f"the second fails on a drawn input: {why}") if fails else Apart(None, 0, why)
    return Apart(worst, min(map(len, inputs)), equal=equal)


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [v for each in value.values() for v in flat(each)]
    return [v for each in value for v in flat(each)] if isinstance(value, (tuple, list)) else [value]


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
