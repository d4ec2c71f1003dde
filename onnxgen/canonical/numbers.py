"""Whether two modules compute other numbers, in float64 on drawn inputs, and what tells them apart if they don't."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from onnxgen.canonical.terms import without_ones

MODES = ("evaluation", "training")
APART = 1e-6  # of the largest element: what constants of two spellings of a function, rounded to float32, may make
APART_SCALED = 1e-5  # the same with small weights
SMALLEST = 1e-14  # difference: what is smaller may be rounding of larger values on the way
SCALES = (1e-2, 1e-4, 1e-6)  # of all weights: small ones show what is added to a variance
SCALES_OF_INPUTS = (1e-3, 1e-6, 1e8)


@dataclass(frozen=True)
class Counterexample:
    """Inputs on which two modules differ.

    Attributes:
        mode: "evaluation" or "training".
        run: the number of the drawn inputs.
        output: the number of the output.
        difference: the largest difference, as a share of the largest element.
        what: what differs, if it is no output.
    """

    mode: str
    run: int
    output: int
    difference: float
    what: str = ""


class Unrun(Exception):
    """A module does not run. Says which, and why."""

    def __init__(self, text: str, module: nn.Module) -> None:
        super().__init__(text)
        self.module = module


class Untrainable(Unrun):
    """The generated module does not run in training mode: a BatchNorm has no statistics of a single value."""


class Numbers:
    """Two modules with the same weights."""

    def __init__(self, reference: nn.Module, edited: nn.Module, renamed: Mapping[str, str]) -> None:
        self.reference, self.edited, self.renamed = reference, edited, renamed

    def has_same_weights(self) -> bool:
        """Give the edited module the weights of the generated one. Returns False if some have no partner."""
        state = self.reference.state_dict()
        own = self.edited.state_dict()
        wanted = {path: self.renamed.get(path, path) for path in own}
        if any(old not in state for old in wanted.values()):
            return False
        try:
            self.edited.load_state_dict({new: _shaped(state[old], own[new]) for new, old in wanted.items()})
        except RuntimeError:
            return False
        return True

    def differ(
        self, feed: Sequence[Any], mode: str, run: int, scale: float = 1, inputs: float = 1
    ) -> Counterexample | None:
        """Return how outputs, or the buffers that training changes, differ; None also for inputs that train nothing.

        Args:
            feed: inputs.
            mode: of the modules.
            run: the number of the inputs.
            scale: what all weights are multiplied by.
            inputs: what all inputs of floats are multiplied by. Then only finite elements are compared.
        """
        if inputs != 1:
            feed = [a * inputs if isinstance(a, Tensor) and a.is_floating_point() else a for a in map(_wide, feed)]
        said = "" if scale == 1 else f"with all weights times {scale:g}"
        said = f"{said} with all inputs times {inputs:g}".strip() if inputs != 1 else said
        results = []
        for module in (self.reference, self.edited):
            wide = self._wide(module, mode, scale)
            try:
                with torch.no_grad():
                    out = self._outputs(wide, module, feed, run)
            except Untrainable:
                return None
            state = wide.state_dict()
            kept = {self._old(module, n): b for n, b in wide.named_buffers() if n in state and mode == MODES[1]}
            results.append([*out, *(kept[name] for name in sorted(kept))])
            returned = len(out)
        if len(results[0]) != len(results[1]):
            return Counterexample(mode, run, min(map(len, results)), math.inf)
        for number, (a, b) in enumerate(zip(*results, strict=True)):
            apart = difference(a, b if number < returned else _shaped(b, a), inputs != 1)
            if apart > (APART if scale == inputs == 1 else APART_SCALED):
                return Counterexample(mode, run, number, apart, f"output {number} {said}" if said else "")
        return None

    def _old(self, module: nn.Module, name: str) -> str:
        return self.renamed.get(name, name) if module is self.edited else name

    def _wide(self, module: nn.Module, mode: str, scale: float) -> nn.Module:
        try:
            return _wide_module(module, mode, scale)
        except (TypeError, RuntimeError) as error:
            raise Unrun(f"{self._which(module)} can't be copied: {error}", module) from error

    def _which(self, module: nn.Module) -> str:
        return "the generated module" if module is self.reference else "the edited module"

    def _outputs(self, wide: nn.Module, module: nn.Module, feed: Sequence[Any], run: int) -> list[Any]:
        torch.manual_seed(run)
        try:
            with NothingDropped(), WideMasks():  # type: ignore[no-untyped-call]
                out = wide(*(a if isinstance(a, Tensor) and a.requires_grad else _wide(a) for a in feed))
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            kind = Untrainable if module is self.reference and wide.training else Unrun
            raise kind(f"{self._which(module)} does not run in float64: {why}", module) from error
        return [*out] if isinstance(out, (tuple, list)) else [out]

    def elsewhere(self, feed: Sequence[Any], modes: Sequence[str], whole: bool) -> Counterexample | None:
        """Look for a difference in gradients, and with small weights. `whole`: compare gradients themselves, and not
        only which parameters have some."""
        for mode in modes:
            found = self._gradients(feed, mode, whole)
            if found is not None:
                return found
        for scale in SCALES:
            for inputs in (1, scale):
                found = self.differ(feed, MODES[0], 0, scale, inputs)
                if found is not None:
                    return found
        for scale in SCALES_OF_INPUTS:
            found = self.differ(feed, MODES[0], 0, inputs=scale)
            if found is not None:
                return found
        return None

    def _gradients(self, feed: Sequence[Any], mode: str, whole: bool) -> Counterexample | None:
        try:
            one, other = (self._gradients_of(m, feed, mode) for m in (self.reference, self.edited))
        except Untrainable:
            return None
        if not one or one.keys() != other.keys():
            return None
        largest = max(float(g.abs().max()) for g in (*one.values(), *other.values()) if g.numel())
        for name, mine in one.items():
            theirs = _shaped(other[name], mine)
            if not mine.numel() or not largest:
                continue
            sizes = float(mine.abs().max()), float(theirs.abs().max())
            apart = float((mine - theirs).abs().max()) / largest
            if (min(sizes) == 0 and max(sizes) > 1e-9 * largest) or (whole and apart > APART):
                return Counterexample(mode, 0, 0, apart, f"the gradient of {name}")
        return None

    def _gradients_of(self, module: nn.Module, feed: Sequence[Any], mode: str) -> dict[str, Tensor]:
        wide = self._wide(module, mode, 1)
        feed = [
            a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
            for a in map(_wide, feed)
        ]
        outputs = [o for o in self._outputs(wide, module, feed, 0) if isinstance(o, Tensor) and o.is_floating_point()]
        outputs = [o for o in outputs if o.requires_grad]
        names: dict[str, Tensor] = {self._old(module, n): p for n, p in wide.named_parameters() if p.requires_grad}
        names |= {f"input {n}": a for n, a in enumerate(feed) if isinstance(a, Tensor) and a.requires_grad}
        if not outputs or not names:
            return {name: torch.zeros_like(p) for name, p in names.items()}
        draw = torch.Generator().manual_seed(1)
        loss = sum((o.nan_to_num(0, 0, 0) * torch.rand(o.shape, generator=draw, dtype=o.dtype)).sum() for o in outputs)
        try:
            found = torch.autograd.grad(loss, list(names.values()), allow_unused=True)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise Unrun(f"{self._which(module)} has no gradients: {error}", module) from error
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(names.items(), found, strict=True)}


class WideMasks(TorchFunctionMode):
    """Gives attention its mask in the type of its queries: torch reads one of float32 as if it was one of float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            query, key, value, *rest = args
            given = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), rest)), **(kwargs or {})}
            mask = given.get("attn_mask")
            if isinstance(mask, Tensor) and mask.is_floating_point():
                given["attn_mask"] = mask.to(query.dtype)
            return func(query, key, value, **given)
        return func(*args, **(kwargs or {}))


def _shaped(value: Tensor, wanted: Tensor) -> Tensor:
    """Return a tensor in another one's shape, if they differ in axes of size 1 alone."""
    return value.reshape(wanted.shape) if without_ones(value.shape) == without_ones(wanted.shape) else value


class NothingDropped(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets dropout keep everything: it still divides by what it would keep."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "aten::bernoulli_":
            return args[0].fill_(1)
        return func(*args, **(kwargs or {}))


def _wide_module(module: nn.Module, mode: str, scale: float) -> nn.Module:
    """Return a copy of a module in float64."""
    wide = copy.deepcopy(module).double()
    wide.train(mode == MODES[1])
    if scale != 1:
        with torch.no_grad():
            for tensor in {*wide.parameters(), *(b for b in wide.buffers())}:
                if tensor.is_floating_point():
                    tensor.mul_(scale)
    return wide


def difference(one: Any, other: Any, only_finite: bool = False) -> float:
    """Return the largest difference of two outputs, as a share of the largest element; infinite for another shape."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return 0.0 if one == other else math.inf
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else math.inf
    if not only_finite and not torch.equal(one.isfinite(), other.isfinite()):
        return math.inf
    finite = one.isfinite() & other.isfinite()
    one, other = one[finite], other[finite]
    if not one.numel():
        return 0.0
    apart = (one - other).abs().max()
    return float(apart / one.abs().max()) if apart > SMALLEST else 0.0


def _wide(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value
