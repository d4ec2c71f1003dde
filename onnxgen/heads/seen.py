"""What a graph computes of every point behind the raw maps, for maps of zeros, of ones and of drawn numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxgen.heads.decoding import Array
from onnxgen.heads.response import Response

SEED = 0  # of the drawn maps


@dataclass(frozen=True)
class Grid:
    """Rows, columns and anchors of each level of a head, from the finest to the coarsest."""

    sizes: tuple[tuple[int, int], ...]
    anchors: tuple[int, ...]

    @property
    def counts(self) -> list[int]:
        """Return the number of points of each level."""
        return [height * width * anchors for (height, width), anchors in zip(self.sizes, self.anchors)]

    def orders(self) -> Iterator[Array]:
        """Yield the orders in which a graph may have the points: where each point is, in the order of `decoding`."""
        starts = np.cumsum([0, *self.counts])
        parts = [np.arange(a, b) for a, b in zip(starts, starts[1:])]
        turned = [
            part.reshape(anchors, -1).T.ravel() for part, anchors in zip(parts, self.anchors)
        ]  # anchors come first in the graph
        yield np.concatenate(parts)
        if max(self.anchors) > 1:
            yield np.concatenate(turned)
        if len(parts) > 1:
            ends = [part + starts[-1] - start - stop for part, start, stop in zip(parts, starts, starts[1:])]
            yield np.concatenate(ends)
            if max(self.anchors) > 1:
                moved = [end[part - part.min()] for end, part in zip(ends, turned)]
                yield np.concatenate(moved)


@dataclass(frozen=True)
class Seen:
    """A value, or one of each level, as [points, columns] for the three kinds of maps."""

    name: str
    zeros: Array
    ones: Array
    drawn: Array

    def ordered(self, order: Array) -> Seen:
        """Return it with other rows."""
        return replace(self, zeros=self.zeros[order], ones=self.ones[order], drawn=self.drawn[order])


class Probe:
    """Asks a graph once for each kind of maps.

    Attributes:
        maps: the drawn maps by name.
    """

    def __init__(self, response: Response) -> None:
        drawn = np.random.default_rng(SEED)
        shapes = response.shapes
        self.maps = {name: drawn.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        feeds = ({n: np.full(shape, fill, np.float32) for n, shape in shapes.items()} for fill in (0, 1))
        with np.errstate(all="ignore"):
            self.values = [response(feed) for feed in (*feeds, self.maps)]
        self.names = [name for name in response.names if name in self.values[2]]

    def seen(self, counts: Sequence[int]) -> list[Seen]:
        """Return what has a row for each point of levels with so many points. Values of the whole graph come last."""
        joined, whole = list[Seen](), [self._one(name, sum(counts)) for name in self.names]
        if len(counts) > 1:
            each = [[one for name in self.names if (one := self._one(name, count)) is not None] for count in counts]
            for parts in zip(*each) if len(set(counts)) == len(counts) and len({len(e) for e in each}) == 1 else ():
                if len({part.drawn.shape[1] for part in parts}) == 1:
                    tables = (np.concatenate([getattr(p, kind) for p in parts]) for kind in ("zeros", "ones", "drawn"))
                    joined.append(Seen(parts[0].name, *tables))
        return joined + [one for one in whole if one is not None]

    def _one(self, name: str, points: int) -> Seen | None:
        tables = [_table(value[name], points) for value in self.values]
        return Seen(name, *tables) if all(table is not None for table in tables) else None  # type: ignore[arg-type]


def _table(value: Array, points: int) -> Array | None:
    """Return a value as [points, columns], or None."""
    found = np.squeeze(value)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or found.shape[0] == found.shape[1] or points not in found.shape:
        return None
    return (found if found.shape[0] == points else found.T).astype(np.float64)
