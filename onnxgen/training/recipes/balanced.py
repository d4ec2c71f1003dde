"""`--sampler balanced`: an order of samples in which every class is as frequent as any other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import column_of
from onnxgen.training.data.samples import Samples
from onnxgen.training.goals.goal import Goal
from onnxgen.training.losses import Objective


def balanced_order(classes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return as many indices of samples as there are, each class equally often (or once more).

    In a class no sample comes a second time before all of them came once.

    Args:
        classes: the class of each sample [n], integers.
    """
    kinds = [np.flatnonzero(classes == kind) for kind in random.permutation(np.unique(classes))]
    shares = [len(part) for part in np.array_split(np.arange(len(classes)), len(kinds))]
    drawn = []
    for members, share in zip(kinds, shares, strict=True):
        rounds = [random.permutation(members) for _ in range(-(-share // len(members)))]
        drawn.append(np.concatenate([members[:0], *rounds])[:share])
    return random.permutation(np.concatenate(drawn))


def classes_of(samples: Samples, objectives: Sequence[Goal]) -> np.ndarray:
    """Return the class of each training sample [n] by the first classifier.

    Raises:
        OnnxgenError: there is none with a class for each sample, or the classes can't be told without reading all.
    """
    way = "leave out --sampler balanced"
    classifiers = [o for o in objectives if isinstance(o, Objective) and o.classes]
    found = next((o for o in classifiers if samples.fields[o.column].shape in ((), (1,))), None)
    if found is None:
        raise OnnxgenError("--sampler balanced needs a class for each sample", help=way)
    column = column_of(samples, found.column)
    if column is None:
        what = f"the classes of column {found.column!r} can't be told without reading every sample"
        raise OnnxgenError(what, help=way)
    return column.flatten().numpy()
