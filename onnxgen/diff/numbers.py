"""How far the outputs of two networks are apart, in float64 on drawn inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.canonical.numbers import difference
from onnxgen.canonical.prove import Feeds
from onnxgen.diff.side import Side
from onnxgen.errors import OnnxgenError
from onnxgen.verify.check import Check
from onnxgen.verify.convert import to_torch

EQUAL = 1e-6  # of the largest element: what constants of two spellings, rounded to float32, may make
NARROW = 1e-4  # the same, if a network runs in its own type only
FAR = 1e-3  # of the largest element: what no rounding makes
SIZE = 2  # of a free dim of a module of which there is no ONNX file


@dataclass
class Apart:
    """The largest difference, as a share of the largest element; None if it is not known, and why. Up to `equal`, it
    may be rounding."""

    largest: float | None = None
    runs: int = 0
    why: str = ""
    equal: float = EQUAL


def feeds(one: Side, other: Side, alike: bool, runs: int, seed: int) -> Iterator[list[list[Any]]]:
    """Yield drawn inputs of both. Raises `OnnxgenError`.

    Args:
        alike: they take the same inputs. Else those of the second have the first's values under the same names.
    """
    if alike:
        for feed in _feeds(one if one.generated is not None or other.generated is None else other, runs, seed):
            yield [[*feed.values()]] * 2
        return
    for first, second in zip(*(_feeds(side, runs, seed) for side in (one, other)), strict=False):
        shared = {name: value for name, value in first.items() if _form(second.get(name)) == _form(value)}
        yield [[*first.values()], [*{**second, **shared}.values()]]


def _form(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)


def _feeds(side: Side, runs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield inputs by name that the ONNX file accepts, or else of the recorded shapes."""
    if side.generated is not None:
        check = Check(side.path, side.options, rtol=1e-3, atol=1e-5)
        check.prepare({})
        for answer in check.answers(runs, seed, None):
            yield {name: to_torch(value) for name, value in answer.feeds.items()}
        return
    signature = side.signature
    if signature is None:
        raise OnnxgenError(f"{side.path} has no weights beside it that name its inputs")
    generator = torch.Generator().manual_seed(seed)
    for _ in range(runs):
        feed = {}
        for port in signature.inputs:
            if port.dims is None or port.kind != "tensor" or not hasattr(torch, port.dtype or ""):
                raise OnnxgenError(f"inputs like {port.name} are not drawn")
            dtype = getattr(torch, port.dtype or "")
            shape = [dim if isinstance(dim, int) else SIZE for dim in port.dims]
            values = torch.randn(shape, generator=generator)
            feed[port.name] = values.to(dtype) if dtype.is_floating_point else (values > 0).to(dtype)
        yield feed


def apart(one: Side, other: Side, inputs: Feeds) -> Apart:
    """Compare outputs in float64, or else in the types of the files. What differs by far is enough."""
    found = _apart([side.wide().eval() for side in (one, other)], inputs, True)
    return found if found.largest is not None else _apart([one.module, other.module], inputs, False)


def _apart(modules: Sequence[nn.Module], inputs: Feeds, wide: bool) -> Apart:
    worst, equal, runs = 0.0, EQUAL if wide else NARROW, 0
    outputs: list[list[Any]] = []
    try:
        for run, both in enumerate(inputs.all()):
            outputs, runs = [], run + 1
            for module, feed in zip(modules, both, strict=True):
                torch.manual_seed(run)
                with torch.no_grad():
                    outputs.append(flat(module(*(map(_wide, feed) if wide else feed))))
            if len(outputs[0]) != len(outputs[1]):
                return Apart(math.inf, runs, f"{len(outputs[0])} outputs and {len(outputs[1])}")
            worst = max([worst, *(difference(a, b) for a, b in zip(*outputs, strict=True))])
            if worst > FAR:
                break
    except OnnxgenError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        fails = not wide and len(outputs) == 1  # and the first does not
        return Apart(math.inf, 0, f"the second fails on a drawn input: {why}") if fails else Apart(None, 0, why)
    return Apart(worst, runs, equal=equal)


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [v for each in value.values() for v in flat(each)]
    return [v for each in value for v in flat(each)] if isinstance(value, (tuple, list)) else [value]


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
