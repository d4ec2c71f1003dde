"""Splits off samples for validation and test if the data has no such parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import column_of, subset
from onnxgen.training.data.draw import bits
from onnxgen.training.data.layout import PARTS
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.runs.folder import HELD_BACK
from onnxgen.training.settings import Settings


def split(source: DataSource, target: str, settings: Settings, batch: int = 1) -> None:
    """Move samples from "train" to a missing "val" or "test" part, by the shares in `settings`.

    The split is stratified if `target` holds class indices. It depends only on `settings.seed`. The new parts have a
    multiple of `batch` samples, for a model with a fixed batch size. A note tells the sizes.

    Raises:
        OnnxgenError: there are too few samples.
    """
    shares = {"val": settings.val, "test": settings.test}
    train = source.parts.get("train")
    stream = stream_of(train)
    missing = {part: share for part, share in shares.items() if train and share > 0 and part not in source.parts}
    if train is not None and missing:
        if len(train) <= len(missing) * batch:
            what = f"{source.name} has too few samples to split: {len(train)}"
            raise OnnxgenError(what, help="use all samples for training with --val 0")
        if stream is not None:
            source.parts |= stream.divided(missing, settings.seed)
        else:
            groups = _groups(source, target)
            for part, chosen in _drawn(groups, missing, settings.seed, batch).items():
                source.parts[part] = subset(train, chosen)
    counts = ", ".join(f"{len(source.parts[p]):,} {p}" for p in PARTS if p in source.parts)
    how = f"; {' and '.join(missing)} drawn from train with seed {settings.seed}" if missing else ""
    if missing and stream is None:
        how += f": {HELD_BACK} of the run lists them"
    source.notes.append(f"samples: {counts}{how}")


def _groups(source: DataSource, target: str) -> list[NDArray[np.int64]]:
    """Return the indices of each class, or all indices as one group if there are no classes."""
    train = source.parts["train"]
    labels = column_of(train, target) if target and train.fields[target].classes else None
    if labels is None or labels.ndim != 1:
        return [np.arange(len(train))]
    found = labels.numpy()
    return [np.flatnonzero(found == value) for value in np.unique(found)]


def _drawn(
    groups: list[NDArray[np.int64]], shares: dict[str, float], seed: int, batch: int
) -> dict[str, NDArray[np.int64]]:
    """Return the indices for each part, and the remaining ones as "train", in ascending order."""
    total = sum(map(len, groups))
    key = bits(seed, np.arange(total), 1)[:, 0]
    # Sort by each sample's relative position within its class: any slice has the same share of every class.
    place, drawn = np.empty(total), np.argsort(key, kind="stable")
    rank = np.empty(total, dtype=np.int64)
    rank[drawn] = np.arange(total)
    for group in groups:
        order = group[np.argsort(rank[group], kind="stable")]
        place[order] = (np.arange(len(order)) + 0.5) / len(order)
    order = np.lexsort((rank, place))
    found, start = {}, 0
    for part, share in shares.items():
        count = batch * max(1, round(share * total / batch))
        found[part] = np.sort(order[start : start + count])
        start += count
    found["train"] = np.sort(order[start:])
    return found
