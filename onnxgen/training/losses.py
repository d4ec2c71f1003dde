"""The loss of each output: given by its torch name, or chosen by what the model's outputs are.

`stressed` gives the training loss what it stresses beyond that: weights of outputs and classes, and smoothed targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.errors import OnnxgenError, did_you_mean
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Batch, Field, Samples
from onnxgen.training.endings import PROBABILITIES, Ending, Look, ending_of
from onnxgen.training.goals.goal import IGNORED_CLASS, OF_A_MAP, OF_LABELS, Goal, Made, Outputs, Scores, Shown, measured
from onnxgen.training.goals.names import BINARY_LOSSES, CLASS_LOSSES, loss_name
from onnxgen.training.logits import logits_of
from onnxgen.training.settings import Settings

_OF_PROBABILITIES = {"log_softmax": "kl_div", "sigmoid": "binary_cross_entropy"}  # losses of outputs that end in these


@dataclass(frozen=True)
class Objective(Goal):
    """The loss of one output. Calling it with output and target returns the mean loss.

    Attributes:
        output: the output's index.
        name: the output's name in reports; empty if it is the only one.
        column: the data's column with the target.
        loss: torch's name of the loss.
        ending: see `Ending`.
        classes: number of classes; 0 if this is not a classifier. With 2 classes the output may be one number.
        axis: the output's axis along which the classes lie.
        factor: see `Goal`.
        weights: in training each sample's loss is multiplied by the weight of its class. The mean is over the number
            of samples (as in Keras), not over the sum of their weights (as torch has it), so that parts of a batch
            add up to the batch.
        smoothing: in training this share of each target is spread over all classes (Szegedy et al. 1512.00567).
        labels: the numbers of one sample, if they are no map: labels that hold or don't, or several target numbers.
        several: True if a sample has a class at each of several places, of which some may be ignored.
        of_map: True if the output has a number at each pixel: most pixels may be of one class, so the mean IoU decides.
        metrics: names of torchmetrics' classes that an evaluation computes, too.
        masked: True if some targets of yes or no are ignored, as those behind the end of a sequence.
    """

    output: int
    name: str
    column: str
    loss: str
    ending: Ending = Ending()
    classes: int = 0
    axis: int = 1
    factor: float = 1.0
    weights: tuple[float, ...] = ()
    smoothing: float = 0.0
    labels: int = 1
    metrics: tuple[str, ...] = ()
    several: bool = False
    of_map: bool = False
    masked: bool = False

    @property
    def counts(self) -> bool:
        return self.several or self.masked

    @property
    def needs_logits(self) -> bool:
        return self.loss == "binary_cross_entropy"

    @property
    def is_binary(self) -> bool:
        """True if each number of the output says yes or no."""
        return self.loss in BINARY_LOSSES

    @property
    def monitor(self) -> str:  # type: ignore[override]
        return "loss" if not self.classes else "mean_iou" if self.of_map else "accuracy"

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.column,)

    def compute(self, outputs: Outputs, batch: Batch, training: bool = False) -> Made:
        """Return the mean loss, the output and the target."""
        output, target = outputs[self.output], batch[self.column]
        return self(output, target, training), output, target

    def row(self, loss: Tensor, output: Tensor, target: Tensor, chosen: Tensor | None) -> list[Tensor | int]:
        count = self.count(target)
        if chosen is None:
            return [loss, count]
        decided = count if self.loss in CLASS_LOSSES or self.masked else target.numel()
        return [loss, count, (chosen == target.view(chosen.shape).long()).sum(), decided]

    def scores(self) -> Scores | None:
        return measured(self) if self.metrics else None

    def weight(self, batch: Batch) -> Tensor | int:
        return self.count(batch[self.column])

    def __call__(self, output: Tensor, target: Tensor, training: bool = False) -> Tensor:
        """Return the mean loss. With nll_loss, the result of a softmax is taken as probabilities."""
        weights = output.new_tensor(self.weights) if training and self.weights else None
        loss = self._of_classes if self.loss in CLASS_LOSSES else self._of_values
        return loss(output, target, weights, self.smoothing if training else 0.0)

    def _of_classes(self, output: Tensor, target: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        function: Any = getattr(F, self.loss)
        output = output.movedim(self.axis, 1) if output.ndim > 1 else output
        target = target.to(output.dtype) if target.shape == output.shape else target
        if self.loss == "nll_loss" and self.ending.kind == "softmax":
            output = output.clamp_min(torch.finfo(output.dtype).tiny).log()
        options: dict[str, Any] = {} if weights is None else {"weight": weights}
        if smoothing:  # of log-probabilities, cross_entropy is nll_loss
            function, options["label_smoothing"] = F.cross_entropy, smoothing
        several = self.loss != "multi_margin_loss" and target.ndim > 1 and not target.is_floating_point()
        if weights is None and not several:
            mean: Tensor = function(output, target, **options)
            return mean
        # torch's mean is NaN for a batch in which every element is ignored.
        total: Tensor = function(output, target, reduction="sum", **options)
        count = self.count(target)
        return total / (count.clamp_min(1) if isinstance(count, Tensor) else count)

    def _of_values(self, output: Tensor, target: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
        function: Any = getattr(F, self.loss)
        if self.loss == "binary_cross_entropy" and (logits := logits_of(output)) is not None:
            output, function = logits, F.binary_cross_entropy_with_logits
        target = target.view_as(output)  # torch would broadcast [batch] and [batch, 1] to [batch, batch]
        if function is F.binary_cross_entropy and self.ending.seen:  # torch refuses 1.0000001
            output = output.clamp(0, 1)
        if self.masked:
            kept = target != IGNORED_CLASS
            output, target = output[kept], target[kept]
            if not len(target):  # torch's mean of nothing is NaN
                return output.sum()
        options = {} if weights is None else {"weight": torch.where(target > 0.5, weights[1], weights[0])}
        target = target if self.loss == "multilabel_margin_loss" else target.to(output.dtype)
        target = target * (1 - smoothing) + smoothing / 2 if smoothing else target
        mean: Tensor = function(output, target, reduction="batchmean" if self.loss == "kl_div" else "mean", **options)
        return mean

    def count(self, target: Tensor) -> Tensor | int:
        """Return the number of elements in the mean: the weight of this batch in a mean over batches."""
        if self.masked or (self.loss in CLASS_LOSSES and not target.is_floating_point()):
            return (target != IGNORED_CLASS).sum()
        return target.shape[0]

    def compared(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return what metrics compare: probabilities (or numbers) and targets, with the classes along axis 1."""
        if self.ending.kind in PROBABILITIES and self.ending.seen:  # torchmetrics takes what exceeds 1 for logits
            output = output.clamp(0, 1)
        if not self.classes or self.is_binary:
            shape = (len(output), self.labels) if self.labels > 1 else (-1,)
            output = output.sigmoid() if self.is_binary and self.ending.kind not in PROBABILITIES else output
            target, output = target.reshape(shape), output.reshape(shape)
            if self.masked:
                output, target = output[target != IGNORED_CLASS], target[target != IGNORED_CLASS]
            return output.float(), target.long() if self.is_binary else target.float()
        scores = output.float().movedim(self.axis, 1)
        if self.ending.kind != "softmax":  # of log-probabilities, softmax is exp
            scores = scores.softmax(1)
        return scores, target

    def shown(self, outputs: Outputs, batch: Batch, place: int, names: Sequence[str]) -> Shown | None:
        output, target = outputs[self.output][place : place + 1], batch[self.column][place]
        if not self.classes:
            truth, predicted = (", ".join(f"{x:.3g}" for x in y.flatten().tolist()[:4]) for y in (target, output))
            return Shown(truth, predicted) if target.numel() <= 4 else None
        chosen = self.chosen(output)[0]
        target = target.reshape(chosen.shape).long()
        if output.ndim == 4:
            truth_map, predicted_map = (x if x.ndim == 2 else x[0] for x in (target, chosen))
            return Shown(maps=(truth_map, predicted_map))
        if chosen.numel() > 1 and self.labels == 1:
            return None  # a class at each position of a sequence
        truth, predicted = (self._words(x.flatten(), names) for x in (target, chosen))
        return Shown(truth, predicted, truth == predicted)

    def _words(self, classes: Tensor, names: Sequence[str]) -> str:
        """Return the names of classes, or of the labels that hold."""
        indices = classes.nonzero().flatten() if self.labels > 1 else classes
        return ", ".join(names[i] if i < len(names) else str(i) for i in indices.tolist()) or "none"

    def chosen(self, output: Tensor) -> Tensor:
        """Return the class index that a classifier predicts for each target."""
        if self.loss in BINARY_LOSSES:
            threshold = 0.5 if self.ending.kind in PROBABILITIES else 0.0
            return (output > threshold).long()
        return output.argmax(self.axis)


def objective(
    index: int,
    name: str,
    output: Tensor,
    column: str,
    field: Field,
    target: Tensor,
    asked: str,
    look: Look | None = None,
    dims: tuple[int | str, ...] | None = None,
) -> Objective:
    """Return the objective of one output.

    Args:
        index, name: the output's index and name.
        output: its value for a few samples, with autograd's history.
        column, field, target: the name of the target's column, its `Field`, and its values for those samples.
        asked: the name of a loss, or "auto".
        dims: of the output, as the graph names them: an axis of any size is not that of the classes.
        look: tells what the output is on more of the data; without it, the output's last operation decides.

    Raises:
        OnnxgenError: no loss fits, the given loss does not fit, or the shapes leave open which axis is the classes'.
    """
    _refuse_untrainable(output, name or str(index))
    ending = _ending(index, output, column, field, target, look)
    if asked == "auto":
        loss = _fitting(ending, output, target, field, name)
    else:
        loss = loss_name(asked)
        _refuse_wrong(loss, ending, name)
    chosen = Objective(index, name, column, loss, ending, of_map=output.ndim == 4)
    if loss in CLASS_LOSSES:
        return _of_classes(chosen, output, target, dims)
    if not _is_in_order(output, target):
        what = f"{loss}: output {name or index} is {list(output.shape)}, its target {column!r} {list(target.shape)}"
        way = "if these are classes, store them as whole numbers or text" if asked == "auto" else ""
        raise OnnxgenError(what, help=way if target.is_floating_point() else "")
    labels = output.numel() // len(output) if output.ndim == 2 else 1
    chosen = replace(chosen, masked=loss in BINARY_LOSSES and labels == 1 and field.ignored)
    if loss not in BINARY_LOSSES or (target.is_floating_point() and len(field.classes) != 2):
        return replace(chosen, labels=labels)
    metrics = OF_LABELS if labels > 1 else OF_A_MAP if chosen.of_map else ()
    return replace(chosen, classes=2, labels=labels, metrics=metrics)


def _is_in_order(output: Tensor, target: Tensor) -> bool:
    """Return True if the elements are in one order, apart from flattened axes and axes of size 1."""
    sizes, wanted = ([size for size in x.shape if size != 1] for x in (target, output))
    return output.numel() == target.numel() and (sizes == wanted or len(sizes) != len(wanted))


def _of_classes(chosen: Objective, output: Tensor, target: Tensor, dims: tuple[int | str, ...] | None) -> Objective:
    """Complete the objective of an output whose loss is one of classes."""
    if output.shape == target.shape and output.ndim == 2 and chosen.loss == "cross_entropy":
        return chosen  # the target holds probabilities
    if not _holds_classes(target):
        raise OnnxgenError(f"{chosen.loss} needs class indices, but column {chosen.column!r} holds {target.dtype}")
    axis = _class_axis(output, target, chosen.ending, chosen.name, dims)
    metrics = OF_A_MAP if chosen.of_map else ()
    return replace(chosen, classes=output.shape[axis], axis=axis, metrics=metrics, several=target.ndim > 1)


def _refuse_untrainable(output: Any, name: str) -> None:
    """Refuse what no loss is computed of. The module may have been edited."""
    if not isinstance(output, Tensor) or output.is_meta:
        kind = "nothing" if output is None else f"a {type(output).__name__}"
        what = "a tensor on the device meta" if isinstance(output, Tensor) else kind
        raise OnnxgenError(f"output {name} is {what}, and no tensor with values", help="mend `forward` of the module")
    if not output.is_floating_point():
        what = f"output {name} is {str(output.dtype).removeprefix('torch.')}: only real numbers can be trained"
        raise OnnxgenError(what, help="name a target of another output: --target OUTPUT=COLUMN")


def _ending(index: int, output: Tensor, column: str, field: Field, target: Tensor, look: Look | None) -> Ending:
    """Return what an output is. Numbers with a target of numbers are numbers, whatever their range is."""
    alike = output.numel() == target.numel()
    yes_or_no = alike and _is_binary(target, field)
    if look is None or not (yes_or_no or (_holds_classes(target) and not alike)):
        return ending_of(output)
    return look.ending(index, output, column, yes_or_no)


def _holds_classes(target: Tensor) -> bool:
    return not target.is_floating_point() and target.dtype != torch.bool


def _is_binary(target: Tensor, field: Field) -> bool:
    return target.dtype == torch.bool or len(field.classes) == 2


def _fitting(ending: Ending, output: Tensor, target: Tensor, field: Field, name: str) -> str:
    """Return the name of the loss that fits a model's ending and its target."""
    if _holds_classes(target) and output.numel() != target.numel():
        if ending.kind == "sigmoid":
            ends = f"holds {ending}, each for itself," if ending.seen else "ends in a sigmoid"
            what = f"output {name or 0} {ends} of {list(output.shape)}, but its target holds class indices"
            way = "name the loss with --loss" + (" (cross_entropy if these are scores)" if ending.seen else "")
            raise OnnxgenError(what, help=way)
        return "nll_loss" if ending.kind else "cross_entropy"
    if ending.kind in _OF_PROBABILITIES:
        return _OF_PROBABILITIES[ending.kind]
    if _is_binary(target, field):
        return "binary_cross_entropy" if ending.kind == "softmax" else "binary_cross_entropy_with_logits"
    if _holds_classes(target) and output.ndim == 4 and target.ndim > 2:
        what = f"output {name or 0} is one number for each pixel, but its target holds whole numbers: classes"
        way = "--replace-head N for N classes; two classes as bool; or numbers as floats (or --loss mse)"
        raise OnnxgenError(what, help=way)
    return "mse_loss"


def _refuse_wrong(loss: str, ending: Ending, name: str) -> None:
    """Refuse a loss that can be computed on this ending, but does not train towards the target."""
    wrong = {
        "nll_loss": (ending.kind not in ("log_softmax", "softmax"), "log-probabilities", "cross_entropy"),
        "binary_cross_entropy": (ending.kind not in ("sigmoid", "softmax"), "probabilities", "bce_with_logits"),
        "binary_cross_entropy_with_logits": (ending.kind in ("sigmoid", "softmax", "log_softmax"), "logits", "bce"),
        "cross_entropy": (ending.kind in ("sigmoid", "softmax"), "logits", "nll_loss"),
        "multi_margin_loss": (ending.kind == "log_softmax", "scores", "nll_loss"),
        "kl_div": (ending.kind != "log_softmax", "log-probabilities", "cross_entropy"),
    }
    is_wrong, wants, instead = wrong.get(loss, (False, "", ""))
    if ending.seen and ending.kind == "sigmoid" and loss == "cross_entropy":
        return  # scores of classes may have bounds, too
    if is_wrong:
        ends = "holds" if ending.seen else "ends in"
        raise OnnxgenError(f"{loss} needs {wants}, but output {name or 0} {ends} {ending}", help=f"use {instead}")


def _class_axis(output: Tensor, target: Tensor, ending: Ending, name: str, dims: tuple[int | str, ...] | None) -> int:
    """Return the axis that the output has and its target lacks."""
    shape, wanted = list(output.shape), list(target.shape)
    fits = [axis for axis in range(1, output.ndim) if shape[:axis] + shape[axis + 1 :] == wanted]
    if ending.axis in fits:
        fits = [ending.axis]
    if len(fits) > 1 and dims is not None and len(dims) == len(shape):
        fits = [axis for axis in fits if isinstance(dims[axis], int)] or fits
    if len(fits) == 1:
        return fits[0]
    if fits:
        what = f"output {name or 0} is {shape}, its target {wanted}: any of the axes {fits} could be the classes"
        raise OnnxgenError(what, help="use a batch or sizes that differ, so that only one axis fits")
    what = f"output {name or 0} is {shape} for {shape[0]} samples, and its target {wanted}"
    way = "give a class index for each sample (or position), or name another loss with --loss"
    raise OnnxgenError(what, help=way)


def stressed(objectives: Sequence[Goal], samples: Samples, settings: Settings) -> list[Goal]:
    """Return the objectives with the weights and the smoothing that the settings ask for.

    Args:
        samples: the training samples; `class_weights="balanced"` counts their classes.

    Raises:
        OnnxgenError: a name is unknown, no output is a classifier, or the classes can't be counted.
    """
    names = [goal.name for goal in objectives]
    for name in settings.loss_weights:
        if name not in names or len(names) == 1:
            what = f"--loss-weights names {name!r}, which is no output with a target of its own"
            raise OnnxgenError(what, help=f"the outputs are {', '.join(filter(None, names)) or 'a single one'}")
    asked = settings.class_weights != "none" or settings.label_smoothing > 0
    if asked and not any(goal.classes for goal in objectives):
        raise OnnxgenError("--class-weights and --label-smoothing need a classifier", help="leave them out")
    return [_stressed(goal, samples, settings) if isinstance(goal, Objective) else goal for goal in objectives]


def _stressed(goal: Objective, samples: Samples, settings: Settings) -> Objective:
    goal = replace(goal, factor=settings.loss_weights.get(goal.name, 1.0))
    if not goal.classes:
        return goal
    if settings.label_smoothing and goal.loss == "multi_margin_loss":
        raise OnnxgenError("multi_margin_loss has no smoothed targets", help="leave out --label-smoothing")
    classes = 2 if goal.loss in BINARY_LOSSES else goal.classes
    return replace(goal, weights=_weights(goal, classes, samples, settings), smoothing=settings.label_smoothing)


def _weights(goal: Objective, classes: int, samples: Samples, settings: Settings) -> tuple[float, ...]:
    """Return the weight of each class; () if all are equal."""
    asked = settings.class_weights
    if isinstance(asked, str):
        return _balanced(goal, classes, samples) if asked == "balanced" else ()
    known = settings.classes or samples.fields[goal.column].classes
    names = [known[i] if i < len(known) else str(i) for i in range(classes)]
    for name in asked:
        if name not in names:
            what = f"--class-weights names {name!r}, which is no class"
            raise OnnxgenError(what, help=did_you_mean(name, names[:50]))
    return tuple(asked.get(name, 1.0) for name in names)


def _balanced(goal: Objective, classes: int, samples: Samples) -> tuple[float, ...]:
    """Return weights with which every class counts as much as any other: n / (classes * count), as scikit-learn's.

    Their mean over the samples is 1. A class without samples has weight 0.
    """
    column = column_of(samples, goal.column)
    if column is None:
        what = f"the classes of column {goal.column!r} can't be counted without reading every sample"
        raise OnnxgenError(what, help="give their weights: --class-weights 0=1,1=5")
    values = column.flatten().long()
    counts = torch.bincount(values[values != IGNORED_CLASS], minlength=classes).double()
    shares = counts.sum() / (int((counts > 0).sum()) * counts)
    return tuple(torch.where(counts > 0, shares, 0.0).tolist())
