"""What training stresses beyond the plain losses: outputs, classes, and smoothed targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from onnxgen.errors import OnnxgenError, did_you_mean
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Samples
from onnxgen.training.goals.goal import Goal
from onnxgen.training.goals.measured import IGNORED_CLASS
from onnxgen.training.goals.names import BINARY_LOSSES
from onnxgen.training.losses import Objective
from onnxgen.training.settings import Settings


def stressed(objectives: Sequence[Goal], samples: Samples, settings: Settings) -> list[Goal]:
    """Return the objectives with the weights and the smoothing that the settings ask for.

    Args:
        samples: the training samples; `class_weights="balanced"` counts their classes.

    Raises:
        OnnxgenError: a name is unknown, no output is a classifier, or the classes can't be counted.
    """
    names = [made.name for made in objectives]
    for name in settings.loss_weights:
        if name not in names or len(names) == 1:
            what = f"--loss-weights names {name!r}, which is no output with a target of its own"
            raise OnnxgenError(what, help=f"the outputs are {', '.join(filter(None, names)) or 'a single one'}")
    asked = settings.class_weights != "none" or settings.label_smoothing > 0
    if asked and not any(made.classes for made in objectives):
        raise OnnxgenError("--class-weights and --label-smoothing need a classifier", help="leave them out")
    return [_stressed(made, samples, settings) if isinstance(made, Objective) else made for made in objectives]


def _stressed(made: Objective, samples: Samples, settings: Settings) -> Objective:
    made = replace(made, factor=settings.loss_weights.get(made.name, 1.0))
    if not made.classes:
        return made
    if settings.label_smoothing and made.loss == "multi_margin_loss":
        raise OnnxgenError("multi_margin_loss has no smoothed targets", help="leave out --label-smoothing")
    classes = 2 if made.loss in BINARY_LOSSES else made.classes
    return replace(made, weights=_weights(made, classes, samples, settings), smoothing=settings.label_smoothing)


def _weights(made: Objective, classes: int, samples: Samples, settings: Settings) -> tuple[float, ...]:
    """Return the weight of each class; () if all are equal."""
    asked = settings.class_weights
    if isinstance(asked, str):
        return _balanced(made, classes, samples) if asked == "balanced" else ()
    known = settings.classes or samples.fields[made.column].classes
    names = [known[i] if i < len(known) else str(i) for i in range(classes)]
    for name in asked:
        if name not in names:
            what = f"--class-weights names {name!r}, which is no class"
            raise OnnxgenError(what, help=did_you_mean(name, names[:50]))
    return tuple(asked.get(name, 1.0) for name in names)


def _balanced(made: Objective, classes: int, samples: Samples) -> tuple[float, ...]:
    """Return weights with which every class counts as much as any other: n / (classes * count), as scikit-learn's.

    Their mean over the samples is 1. A class without samples has weight 0.
    """
    column = column_of(samples, made.column)
    if column is None:
        what = f"the classes of column {made.column!r} can't be counted without reading every sample"
        raise OnnxgenError(what, help="give their weights: --class-weights 0=1,1=5")
    values = column.flatten().long()
    counts = torch.bincount(values[values != IGNORED_CLASS], minlength=classes).double()
    shares = counts.sum() / (int((counts > 0).sum()) * counts)
    return tuple(torch.where(counts > 0, shares, 0.0).tolist())
