"""What the outputs of a model are: probabilities, their logarithms, or any numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from onnxgen.surgery.ports import evaluating
from onnxgen.training.data.streaming.stream import leading, stream_of
from onnxgen.training.goals.goal import IGNORED_CLASS
from onnxgen.training.model import as_tuple, fixed_batch

if TYPE_CHECKING:
    from onnxgen.training.data.samples import Batch, Feeding, Samples

PROBABILITIES = ("sigmoid", "softmax")  # endings whose values lie between 0 and 1
_AT_ONCE, _MOST = 8, 128  # samples that are looked at
_ENDINGS = {"LogSoftmaxBackward0": "log_softmax", "SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
# Operations that copy, rearrange or select elements. After them the classes may lie along another axis.
VIEWS = {*"View UnsafeView Reshape Squeeze Unsqueeze Alias Clone ToCopy Transpose Permute T Cat Stack".split()}
VIEWS |= {*"Select Slice Narrow Split SplitWithSizes Unbind Index IndexSelect Expand Flip Roll".split()}
_BOUNDED = {"Clamp", "ClampMin", "ClampMax"}


@dataclass(frozen=True)
class Ending:
    """The last operation of a model: `kind` is "log_softmax", "softmax", "sigmoid" or "" (any other).

    Attributes:
        axis: of the softmax, or None if a later operation moves elements.
        seen: why the values are as those of `kind`, if the last operation is another; else "".
    """

    kind: str = ""
    axis: int | None = None
    seen: str = ""

    def __str__(self) -> str:
        what = "logarithms of probabilities" if self.kind == "log_softmax" else "probabilities"
        return f"{what} ({self.seen})" if self.seen else self.kind or "no activation that decides the loss"


def ending_of(output: Tensor) -> Ending:
    """Return the operation that made an output, as autograd recorded it. Without a gradient its kind is ""."""
    return _ending(output.grad_fn, output, moved=False)


def _ending(step: Any, output: Tensor, moved: bool) -> Ending:
    if step is None:
        return Ending()
    name = step.name()
    before = [inner for inner, _ in step.next_functions if inner is not None]
    kind, softmax = _ENDINGS.get(name), step
    if name == "LogBackward0" and [inner.name() for inner in before] == ["SoftmaxBackward0"]:
        kind, softmax = "log_softmax", before[0]
    if kind is not None:
        return Ending(kind, None if moved or kind == "sigmoid" else _axis(softmax, output))
    short = name.rpartition("Backward")[0]
    if not before or not (short in VIEWS | _BOUNDED or _of_one(step, short)):
        return Ending()
    endings = {_ending(inner, output, moved or short not in _BOUNDED) for inner in before}
    return endings.pop() if len(endings) == 1 else Ending()


def _of_one(step: Any, short: str) -> bool:
    """Return True for a mean or a sum of single elements, which are what they were."""
    if short not in ("Mean", "Sum") or not hasattr(step, "_saved_dim"):
        return False
    sizes, axes = step._saved_self_sym_sizes, step._saved_dim or ()
    axes = [axis - (1 << 64) if axis >= 1 << 63 else axis for axis in axes]
    return all(sizes[axis] == 1 for axis in axes or range(len(sizes)))


def _axis(step: Any, output: Tensor) -> int:
    axis = int(step._saved_dim)
    axis = axis - (1 << 64) if axis >= 1 << 63 else axis  # torch saves a negative dim as an unsigned number
    return axis % output.ndim


def summed(values: Sequence[Tensor], axes: Iterable[int] | None = None) -> Ending:
    """Return the ending of values that are probabilities of classes, or their logarithms, whatever made them.

    Logits never add up to 1 in every sample, so a few samples decide.

    Args:
        values: of one output, a tensor for each batch.
        axes: that may be the classes'; default: all but the first.
    """
    first = values[0]
    if not first.is_floating_point() or first.ndim < 2:
        return Ending()
    places = [axis for axis in (range(1, first.ndim) if axes is None else axes) if first.shape[axis] > 1]
    kinds: dict[str, Callable[[Tensor], Tensor]] = {"softmax": lambda x: x, "log_softmax": torch.exp}
    for kind, probabilities in kinds.items():
        fits = [axis for axis in places if all(_add_up(probabilities(x.detach().double()), x, axis) for x in values)]
        if fits:
            seen = "they add up to 1" if kind == "softmax" else "their exponentials add up to 1"
            return Ending(kind, fits[0] if len(fits) == 1 else None, seen)
    return Ending()


def _add_up(probabilities: Tensor, values: Tensor, axis: int) -> bool:
    least = _rounding(values)
    return within(probabilities, least) and bool(((probabilities.sum(axis) - 1).abs() <= least).all())


def within(values: Tensor, least: float) -> bool:
    """Return True if all values lie between 0 and 1, apart from rounding."""
    return bool(((values >= -least) & (values <= 1 + least)).all())


def _rounding(values: Tensor) -> float:
    return max(1e-4, 8 * torch.finfo(values.dtype).eps)


def read_ending(output: Tensor, axes: Iterable[int] | None = None) -> Ending:
    """Return the ending as autograd recorded it, else as the values tell: for goals that know what the output is."""
    ending = ending_of(output)
    return ending if ending.kind else summed([output], axes)


def _spread(samples: Samples, count: int) -> list[int]:
    """Return the indices of samples from all over the data; of a stream its first ones."""
    if stream_of(samples) is not None:
        return leading(samples, count)
    return torch.linspace(0, len(samples) - 1, count).long().tolist()


class Look:
    """Looks at what a model says on more of the training data, and with other weights, when it is asked."""

    def __init__(self, model: nn.Module, samples: Samples, feeding: Feeding, batch: Batch, seed: int) -> None:
        """`batch` has a few samples, for the pass with other weights."""
        self.model, self.samples, self.feeding, self.batch, self.seed = model, samples, feeding, batch, seed
        self._seen: list[tuple[Batch, tuple[Tensor, ...]]] | None = None

    def ending(self, index: int, output: Tensor, column: str, yes_or_no: bool) -> Ending:
        """Return the ending of output number `index`, whose target holds classes, or says yes or no.

        Args:
            output: its value for `batch`, with autograd's history.
            column: of the target.
            yes_or_no: True if each number of the output has a target of 0 or 1.
        """
        recorded = ending_of(output)
        if recorded.kind not in ("", "sigmoid") or (recorded.kind and yes_or_no):
            return recorded
        if summed([output]).kind and (added := summed([outputs[index] for _, outputs in self.seen])).kind:
            return added
        if recorded.kind or not self._bounded(index, output):
            return recorded
        if self._always(index, _rounding(output)):
            return Ending("sigmoid", None, "they lie between 0 and 1, whatever the weights are")
        if yes_or_no and self._informed(index, column):
            return Ending("sigmoid", None, "they lie between 0 and 1, and fit the targets as such")
        return recorded

    def _bounded(self, index: int, output: Tensor) -> bool:
        """Return True if an output lies between 0 and 1 with the weights that it has."""
        if not output.is_floating_point() or not within(output, least := _rounding(output)):
            return False
        return all(within(outputs[index], least) for _, outputs in self.seen)

    @property
    def seen(self) -> list[tuple[Batch, tuple[Tensor, ...]]]:
        """Batches of the data, and the outputs for them."""
        if self._seen is None:
            size, batches = fixed_batch(self.model) or _AT_ONCE, []
            count = max(min(len(self.samples), _MOST) // size, 1) * size
            taken = _spread(self.samples, count)
            for start in range(0, len(taken) - size + 1 or 1, size):
                batch = self.samples.take(taken[start : start + size], self.seed)
                batches.append((batch, self._outputs(batch)))
            self._seen = batches
        return self._seen

    def _outputs(self, batch: Batch, weights: dict[str, Tensor] | None = None) -> tuple[Tensor, ...]:
        device = next(self.model.parameters()).device
        inputs = tuple(self.feeding.arguments(batch, device))
        with evaluating(self.model), torch.no_grad():
            return as_tuple(self.model(*inputs) if weights is None else functional_call(self.model, weights, inputs))

    def _always(self, index: int, least: float) -> bool:
        """Return True if an output lies between 0 and 1 also with random weights: its operations bound it."""
        outputs = [self._outputs(self.batch, weights)[index] for weights in self._drawn()]
        finite = [output for output in outputs if bool(output.isfinite().all())]
        return len(finite) >= len(outputs) / 2 and all(within(output, least) for output in finite)

    def _drawn(self) -> Iterator[dict[str, Tensor]]:
        """Yield random weights, some of them large."""
        random = torch.Generator().manual_seed(0)
        for size in (1, 1, 1, 1, 4, 4, 4, 4, 16, 16, 16, 16):
            weights = {}
            for name, p in self.model.named_parameters():
                if p.is_floating_point():
                    usual = float(p.detach().double().square().mean().sqrt()) or 1.0
                    noise = torch.randn(p.shape, generator=random).to(p.device, p.dtype)
                    weights[name] = noise * (size * usual)
            yield weights

    def _informed(self, index: int, column: str) -> bool:
        """Return True if an output fits its targets better as probabilities than as logits, and than a constant."""
        output = torch.cat([outputs[index].double().flatten().cpu() for _, outputs in self.seen]).clamp(1e-6, 1 - 1e-6)
        target = torch.cat([batch[column].double().flatten() for batch, _ in self.seen])
        output, target = (x[target != IGNORED_CLASS] for x in (output, target))
        entropy = nn.functional.binary_cross_entropy
        prior = target.mean().clamp(1e-6, 1 - 1e-6).expand_as(target)
        losses = [float(entropy(values, target)) for values in (output, output.sigmoid(), prior)]
        return all(math.isfinite(loss) for loss in losses) and losses[0] < min(losses[1:])
