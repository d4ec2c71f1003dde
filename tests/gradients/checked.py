"""A generated module in float64, as a function of all numbers that it is fed and stores, through `gradcheck`.

Large Jacobians are looked at through random linear maps: of `FREE` numbers to all elements of the inputs, and of all
elements of an output to `SEEN` numbers. So every element counts, and an error of any of them shows. With
`ONNXGEN_ALL_GRADIENTS=1` there are more of them, each of which costs two runs of the module.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

from onnxgen.options import Options
from tests.gradients.cases import Case, Value
from tests.gradients.values import LARGE, off_kinks
from tests.ops import harness

FREE, SEEN = (64, 32) if "ONNXGEN_ALL_GRADIENTS" in os.environ else (24, 12)
WIDE = [
    (r"(?<!\.view\()torch\.(float32|float16|bfloat16)\b", "torch.float64"),  # bits are not read as another type
    (r"\.(float|half|bfloat16)\(\)", ".double()"),
]


@dataclass
class Leaf:
    """One tensor of floating point that goes in: `origin` is a graph's input, or a name of the module's state."""

    origin: str
    base: Tensor
    weights: Tensor
    places: Tensor
    free: Tensor

    def value(self, free: Tensor) -> Tensor:
        """The tensor when `free` is added through the map."""
        return self.base + self.weights * free[self.places]


def check(case: Case, held: frozenset[str] = frozenset()) -> dict[str, bool]:
    """Compare gradients with differences of the function; for each origin whether a gradient is not zero.

    Args:
        held: origins that are not varied.

    Raises:
        AssertionError: where they differ (`gradcheck` says how).
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _check(case, held)
    finally:
        torch.set_default_dtype(default)


def _check(case: Case, held: frozenset[str]) -> dict[str, bool]:
    function, all_leaves = as_function(case, in_double(case), held)
    free = tuple(leaf.free for leaf in all_leaves)
    fixed = [leaf.origin in held for leaf in all_leaves]
    varied = tuple(f for f, is_fixed in zip(free, fixed) if not is_fixed)
    if varied and function(*free):

        def of_varied(*given: Tensor) -> tuple[Tensor, ...]:
            rest = iter(given)
            return function(*(f.detach() if is_fixed else next(rest) for f, is_fixed in zip(free, fixed)))

        assert gradcheck(of_varied, varied, check_undefined_grad=False)
    found: dict[str, bool] = {}
    for leaf, grad in zip(all_leaves, _gradients(function, free)):
        found[leaf.origin] = found.get(leaf.origin, False) or bool((grad != 0).any())
    return found


def _gradients(function: Callable[..., tuple[Tensor, ...]], free: tuple[Tensor, ...]) -> Sequence[Tensor]:
    """Of a weighted sum of all results; zeros where none flows."""
    torch.default_generator.manual_seed(0)
    results = [made for made in function(*free) if made.requires_grad]
    if not results:
        return [torch.zeros_like(f) for f in free]
    weights = [torch.rand_like(made) + 0.5 for made in results]
    return torch.autograd.grad(results, free, weights, materialize_grads=True)


def in_double(case: Case) -> torch.nn.Module:
    """The module that is generated, with float64 in place of every other type of floating point."""
    generated = harness.generate(case.model, Options(nchwc_block=8))
    source = generated.source
    for pattern, wide in WIDE:
        source = re.sub(pattern, wide, source)
    return harness.instantiate(dataclasses.replace(generated, source=source)).double()


def as_function(
    case: Case, module: torch.nn.Module, held: frozenset[str]
) -> tuple[Callable[..., tuple[Tensor, ...]], list[Leaf]]:
    """A function of the free numbers of some leaves to the (mapped) outputs of floating point, and these leaves."""
    stored = {i.name for i in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in stored]
    values = {name: _prepared(case, name, i, name in held) for i, name in enumerate(names)}
    given = [(name, t) for name in names for t in _tensors(values[name])]
    stored_ones = [(key, p.detach()) for key, p in module.named_parameters()]
    most = max(4, FREE // max(len(given) + len(stored_ones), 1))
    leaves = [leaf(name, t, most) for name, t in given]
    state = {key: leaf(key, p, most) for key, p in stored_ones}

    def function(*free: Tensor) -> tuple[Tensor, ...]:
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` also notes the stack for each kind of device: slow
        moved = iter([at.value(f) for at, f in zip(leaves, free)])
        arguments = [_refilled(values[n], moved) for n in names]
        weights = {key: at.value(f) for (key, at), f in zip(state.items(), free[len(leaves) :])}
        made = functional_call(module, weights, tuple(arguments))
        return tuple(folded(t) for t in _tensors(list(made) if isinstance(made, tuple) else made))

    return function, [*leaves, *state.values()]


def leaf(origin: str, base: Tensor, most: int) -> Leaf:
    """A tensor with its map of at most so many numbers: the identity if it has no more elements."""
    count = base.numel()
    most = min(count, most)
    generator = torch.Generator().manual_seed(count)
    places = torch.arange(count) if count == most else torch.randint(0, most, (count,), generator=generator)
    weights = torch.ones(count) if count == most else torch.rand(count, generator=generator) - 0.5
    weights = weights.reshape(base.shape) * (base.abs() < LARGE)
    return Leaf(origin, base, weights, places.reshape(base.shape), torch.zeros(most, requires_grad=True))


def folded(x: Tensor) -> Tensor:
    """An output, or `SEEN` sums of its elements with random weights; what is not finite counts as 0."""
    x = torch.where(x.isfinite(), x, 0.0)
    if x.numel() <= SEEN:
        return x
    weights, places = _sums(x.numel())
    return torch.zeros(SEEN).scatter_add(0, places, x.flatten() * weights)


@cache
def _sums(count: int) -> tuple[Tensor, Tensor]:
    """The weight of each of `count` elements, and the sum that it goes into."""
    generator = torch.Generator().manual_seed(count)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) - 0.5
    return weights, torch.randint(0, SEEN, (count,), generator=generator)


def _prepared(case: Case, name: str, number: int, held: bool) -> Any:
    """What a graph's input is fed, off kinks unless it is held, as torch takes it in float64."""

    def moved(value: Value) -> Value:
        if isinstance(value, list):
            return [moved(v) for v in value]
        if isinstance(value, dict):
            return {key: moved(v) for key, v in value.items()}
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            value = value.astype(np.float64) if held else off_kinks(case.operator[1], value, seed=number)
        return harness.to_torch(value)

    return moved(case.feeds[name])


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of floating point in a value, in order."""
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _tensors(element)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Tensor) and value.dtype == torch.float64:
        yield value


def _refilled(value: Any, given: Iterator[Tensor]) -> Any:
    """A value with its tensors of floating point replaced by the next ones."""
    if isinstance(value, list):
        return [_refilled(element, given) for element in value]
    if isinstance(value, dict):
        return {key: _refilled(element, given) for key, element in value.items()}
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        return next(given)
    return value
