"""What an output is trained towards: losses by their torch names, and the one that fits what a model ends in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.byname import near
from onnxgen.training.data.samples import Field

IGNORED = -100  # a class index that counts neither in the loss nor in the accuracy: torch's own default
SHORT = {
    "bce": "binary_cross_entropy",
    "bce_with_logits": "binary_cross_entropy_with_logits",
    "ce": "cross_entropy",
    "huber": "huber_loss",
    "kl": "kl_div",
    "l1": "l1_loss",
    "mae": "l1_loss",
    "mse": "mse_loss",
    "nll": "nll_loss",
    "smooth_l1": "smooth_l1_loss",
}
OF_CLASSES = ("cross_entropy", "nll_loss", "multi_margin_loss")
OF_CHANCES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
# every loss of torch.nn.functional that takes an output and a target and nothing else
NAMES = (
    *OF_CLASSES,
    *OF_CHANCES,
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
)
PROBABILITIES = ("sigmoid", "softmax")  # endings from 0 to 1
_ENDINGS = {"LogSoftmaxBackward0": "log_softmax", "SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
# what rearranges or picks elements, or copies them; the classes may lie along another axis then
_VIEWS = {*"View UnsafeView Reshape Squeeze Unsqueeze Alias Clone ToCopy Transpose Permute T Cat Stack".split()}
_VIEWS |= {*"Select Slice Narrow Split SplitWithSizes Unbind Index IndexSelect Expand Flip Roll".split()}
_BOUNDED = {"Clamp", "ClampMin", "ClampMax"}


@dataclass(frozen=True)
class Ending:
    """The last thing that a model does: `kind` is "log_softmax", "softmax", "sigmoid" or "" (anything else).

    `axis` is that of the softmax; None where what follows it moves elements.
    """

    kind: str = ""
    axis: int | None = None

    def __str__(self) -> str:
        return self.kind or "no activation that belongs to a loss"


def ending_of(output: Tensor) -> Ending:
    """What made an output, as autograd recorded it (nothing without a gradient)."""
    return _ending(output.grad_fn, output, moved=False)


def _ending(step: Any, output: Tensor, moved: bool) -> Ending:
    if step is None:
        return Ending()
    name = step.name()
    before = [inner for inner, _ in step.next_functions if inner is not None]
    if name == "LogBackward0" and before and before[0].name() == "SoftmaxBackward0":
        return Ending("log_softmax", None if moved else _axis(before[0], output))
    if name in _ENDINGS:
        return Ending(_ENDINGS[name], None if moved or name == "SigmoidBackward0" else _axis(step, output))
    short = name.rpartition("Backward")[0]
    if not before or short not in _VIEWS | _BOUNDED:
        return Ending()
    found = {_ending(inner, output, moved or short in _VIEWS) for inner in before}
    return found.pop() if len(found) == 1 else Ending()


def _axis(step: Any, output: Tensor) -> int:
    axis = int(step._saved_dim)
    axis = axis - (1 << 64) if axis >= 1 << 63 else axis  # torch saves a negative dim as an unsigned number
    return axis % output.ndim


@dataclass(frozen=True)
class Objective:
    """What one output is trained towards. Called with output and target it gives the loss, a mean.

    Attributes:
        output: its index.
        name: what it is called in reports; empty if it is the only one.
        column: of the data.
        loss: torch's name of it.
        ending: see `Ending`.
        classes: how many classes are told apart; 0 if it is no classifier. With 2, the output may be one number.
        axis: along which the classes lie in the output.
    """

    output: int
    name: str
    column: str
    loss: str
    ending: Ending = Ending()
    classes: int = 0
    axis: int = 1

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss. A softmax's result is taken as probabilities, of which the logarithm is the loss's input."""
        if self.loss in OF_CLASSES:
            output = output.movedim(self.axis, 1) if output.ndim > 1 else output
            target = target.to(output.dtype) if target.shape == output.shape else target
            if self.loss == "nll_loss" and self.ending.kind == "softmax":
                output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
            if self.loss != "multi_margin_loss" and target.ndim > 1 and not target.is_floating_point():
                # The mean of a batch in which everything is ignored is NaN in torch.
                return _FUNCTIONS[self.loss](output, target, reduction="sum") / (target != IGNORED).sum().clamp_min(1)
        else:  # [batch] for [batch, 1], which torch would broadcast to [batch, batch]
            target = target.view_as(output)
            target = target if self.loss == "multilabel_margin_loss" else target.to(output.dtype)
        if self.loss == "kl_div":
            return F.kl_div(output, target, reduction="batchmean")
        found: Tensor = _FUNCTIONS[self.loss](output, target)
        return found

    def count(self, target: Tensor) -> Tensor | int:
        """How many elements the mean is taken over, by which means of several batches are put together."""
        if self.loss in OF_CLASSES and not target.is_floating_point():
            return (target != IGNORED).sum()
        return target.shape[0]

    def share(self, part: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> float:
        """The weight of a part's mean in that of the whole batch."""
        return float(self.count(part[self.column])) / max(float(self.count(whole[self.column])), 1.0)

    def chosen(self, output: Tensor) -> Tensor:
        """The class that a classifier's output says, an index for each target."""
        if self.loss in OF_CHANCES:
            threshold = 0.5 if self.ending.kind in PROBABILITIES else 0.0
            return (output > threshold).long()
        return output.argmax(self.axis)


_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {name: getattr(F, name) for name in NAMES}


def loss_name(text: str) -> str:
    """A loss by torch's name, whatever its case, with or without `_loss`. Raises `OnnxgenError` naming near ones."""
    name = text.strip().lower()
    name = SHORT.get(name, name)
    for candidate in (name, f"{name}_loss"):
        if candidate in NAMES:
            return candidate
    likely = near(name, [*NAMES, *SHORT])
    way_out = f"did you mean {' or '.join(likely)}?" if likely else f"one of {', '.join(NAMES)}"
    raise OnnxgenError(f"no loss is called {text!r}", help=way_out)


def objective(
    index: int, name: str, output: Tensor, column: str, field: Field, target: Tensor, asked: str
) -> Objective:
    """What one output is trained towards.

    Args:
        index, name: of the output.
        output: computed from a few samples, with its gradient's history.
        column, field, target: of the data: its name, what is known of it, and those samples' values.
        asked: a loss's name, or "auto".

    Raises:
        OnnxgenError: no loss fits, the one asked for does not, or shapes leave open where the classes lie.
    """
    ending = ending_of(output)
    of_classes = not target.is_floating_point() and target.dtype != torch.bool
    if asked == "auto":
        loss = _fitting(ending, output, target, field, name)
    else:
        loss = loss_name(asked)
        _refuse_wrong(loss, ending, name)
    if loss in OF_CLASSES:
        if output.shape == target.shape and output.ndim == 2 and loss == "cross_entropy":
            return Objective(index, name, column, loss, ending)  # chances instead of a class
        if not of_classes:
            raise OnnxgenError(f"{loss} needs class indices, and column {column!r} holds {target.dtype}")
        axis = _class_axis(output, target, ending, name)
        return Objective(index, name, column, loss, ending, output.shape[axis], axis)
    if not _same_layout(output, target):
        what = f"{loss}: output {name or index} is {list(output.shape)}, its target {column!r} {list(target.shape)}"
        way = "if these are classes, store them as whole numbers or text" if asked == "auto" else ""
        raise OnnxgenError(what, help=way if target.is_floating_point() else "")
    binary = loss in OF_CHANCES and (of_classes or target.dtype == torch.bool or len(field.classes) == 2)
    return Objective(index, name, column, loss, ending, 2 if binary else 0)


def _same_layout(output: Tensor, target: Tensor) -> bool:
    """Whether a target's elements are in an output's order, but for axes of size 1 and flattened ones."""
    given, wanted = ([size for size in x.shape if size != 1] for x in (target, output))
    return output.numel() == target.numel() and (given == wanted or len(given) != len(wanted))


def _fitting(ending: Ending, output: Tensor, target: Tensor, field: Field, name: str) -> str:
    of_classes = not target.is_floating_point() and target.dtype != torch.bool
    if of_classes and output.numel() != target.numel():
        if ending.kind == "sigmoid":
            raise OnnxgenError(
                f"output {name or 0} ends in a sigmoid of {list(output.shape)}, its target holds class indices",
                help="name the loss with --loss",
            )
        return "nll_loss" if ending.kind else "cross_entropy"
    if ending.kind == "log_softmax":
        return "kl_div"
    if ending.kind == "sigmoid":
        return "binary_cross_entropy"
    if not (target.dtype == torch.bool or len(field.classes) == 2):
        return "mse_loss"
    return "binary_cross_entropy" if ending.kind == "softmax" else "binary_cross_entropy_with_logits"


def _refuse_wrong(loss: str, ending: Ending, name: str) -> None:
    """What computes something, but nothing that learns."""
    wrong = {
        "nll_loss": (ending.kind not in ("log_softmax", "softmax"), "log-probabilities", "cross_entropy"),
        "binary_cross_entropy": (ending.kind not in ("sigmoid", "softmax"), "probabilities", "bce_with_logits"),
        "binary_cross_entropy_with_logits": (ending.kind in ("sigmoid", "softmax", "log_softmax"), "logits", "bce"),
        "cross_entropy": (ending.kind in ("sigmoid", "softmax"), "logits", "nll_loss"),
        "multi_margin_loss": (ending.kind == "log_softmax", "scores", "nll_loss"),
        "kl_div": (ending.kind != "log_softmax", "log-probabilities", "cross_entropy"),
    }
    is_wrong, wants, instead = wrong.get(loss, (False, "", ""))
    if is_wrong:
        raise OnnxgenError(f"{loss} needs {wants}, but output {name or 0} ends in {ending}", help=f"use {instead}")


def _class_axis(output: Tensor, target: Tensor, ending: Ending, name: str) -> int:
    """The axis of the output that its target lacks."""
    shape, wanted = list(output.shape), list(target.shape)
    fits = [axis for axis in range(1, output.ndim) if shape[:axis] + shape[axis + 1 :] == wanted]
    if ending.axis in fits:
        fits = [ending.axis]
    if len(fits) == 1:
        return fits[0]
    if fits:
        what = f"output {name or 0} is {shape}, its target {wanted}: any of the axes {fits} could be the classes"
        raise OnnxgenError(what, help="use a batch or sizes that differ, so that only one axis fits")
    raise OnnxgenError(
        f"output {name or 0} is {shape} for {shape[0]} samples, and its target {wanted}",
        help="give a class index for each sample (or position), or name another loss with --loss",
    )
