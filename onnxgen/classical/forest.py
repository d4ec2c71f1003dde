"""Tree ensembles of all versions of ONNX in one form.

Every inner node tests `x[feature] <= threshold`; NaN takes the true branch if the node says so. Other tests are
converted: `<` to the next smaller threshold, `>` to swapped branches, `==` and membership to a search among the ends of
the values. Leaves come first, so that the number of a leaf is that of its row of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxgen.errors import WRITER
from onnxgen.lowering.builder import Builder

Array = NDArray[Any]
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
LEAF = 7


@dataclass
class Nodes:
    """The nodes of all trees, in the order of the file.

    Attributes:
        modes: numbers as above. `features`, `thresholds`, `missing` (NaN takes the true branch), `true` and `false`
            have no meaning for leaves.
        roots: the root of each tree.
        weights: one row per weight: its leaf, its target, and its position in the attribute.
        members: the values of nodes that test membership.
    """

    modes: Array
    features: Array
    thresholds: Array
    missing: Array
    true: Array
    false: Array
    roots: Array
    weights: Array
    members: dict[int, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Forest:
    """The form that the module's docstring describes.

    `children` are the true and the false branches; those of a leaf lead to itself. `slots` has the positions of the
    weights of each leaf and `targets` what they are added to, both filled up with -1.
    """

    features: Array
    thresholds: Array
    missing: Array
    children: Array
    roots: Array
    depth: int
    slots: Array
    targets: Array

    @property
    def is_dense(self) -> bool:
        """True if every leaf has one weight per target, in order."""
        return bool((self.targets == np.arange(self.targets.shape[1])).all())


def forest(b: Builder, nodes: Nodes, count: int) -> Forest:
    """Convert the trees; `count`: the number of targets."""
    _check(b, nodes, count)
    _only_lower_or_equal(nodes)
    number = len(nodes.modes)
    leaves = np.flatnonzero(nodes.modes == LEAF)
    slots, targets = _weights(b, nodes, leaves, count)
    order = np.argsort(slots[:, 0], kind="stable")
    leaves, slots, targets = leaves[order], slots[order], targets[order]
    places = np.concatenate([leaves, np.flatnonzero(nodes.modes != LEAF)])
    new = np.empty(number, np.int64)
    new[places] = np.arange(number)
    inner = places[len(leaves) :]
    own = np.arange(len(leaves))
    children = np.stack([np.concatenate([own, new[way[inner]]]) for way in (nodes.true, nodes.false)])
    nothing = np.zeros(len(leaves), np.int64)
    roots = new[nodes.roots]
    return Forest(
        np.concatenate([nothing, nodes.features[inner]]),
        np.concatenate([nothing.astype(nodes.thresholds.dtype), nodes.thresholds[inner]]),
        np.concatenate([nothing.astype(bool), nodes.missing[inner]]),
        children, roots, _depth(b, children, roots, len(leaves)), slots, targets,
    )  # fmt: skip


def _check(b: Builder, nodes: Nodes, count: int) -> None:
    number, inner = len(nodes.modes), nodes.modes != LEAF
    lists: tuple[Array, ...] = (nodes.features, nodes.thresholds, nodes.missing, nodes.true, nodes.false)
    if any(len(a) != number for a in lists) or not len(nodes.roots):
        raise b.error("the nodes_* attributes are empty or differ in length", WRITER)
    if any(((way[inner] < 0) | (way[inner] >= number)).any() for way in (nodes.true, nodes.false)):
        raise b.error("a branch of a tree leads to a node that does not exist", WRITER)
    if (nodes.features[inner] < 0).any():
        raise b.error("a tree node has a negative feature index", WRITER)
    if count < 1 or ((nodes.weights[:, 1] < 0) | (nodes.weights[:, 1] >= count)).any():
        raise b.error(f"a leaf weight is for a target outside the {count} targets", WRITER)


def _only_lower_or_equal(nodes: Nodes) -> None:
    """Convert every test to `<=`, with further nodes if necessary."""
    for other, plain in ((GT, LEQ), (GTE, LT), (NEQ, EQ)):
        at = nodes.modes == other
        nodes.true, nodes.false = np.where(at, nodes.false, nodes.true), np.where(at, nodes.true, nodes.false)
        nodes.missing = nodes.missing ^ at if other != NEQ else nodes.missing & ~at  # NaN is not equal to anything
        never = at & np.isnan(nodes.thresholds) & (other != NEQ)  # nothing is greater than NaN
        nodes.thresholds[never] = np.inf
        nodes.modes = np.where(never, LEQ, np.where(at, plain, nodes.modes))
    at = nodes.modes == LT
    nodes.thresholds = np.where(at, below(nodes.thresholds), nodes.thresholds)
    nodes.modes = np.where(at, LEQ, nodes.modes)
    for node in np.flatnonzero((nodes.modes == EQ) | (nodes.modes == MEMBER)):
        values = nodes.members.get(int(node), nodes.thresholds[node : node + 1])
        _search(nodes, int(node), np.unique(values[~np.isnan(values)]))


def below(thresholds: Array) -> Array:
    """Return the next smaller numbers; NaN if there is none, since no number is `<=` NaN."""
    with np.errstate(all="ignore"):
        smaller = np.nextafter(thresholds, np.asarray(-np.inf, thresholds.dtype))
    return np.where(np.isneginf(thresholds), np.nan, smaller).astype(thresholds.dtype)


def _search(nodes: Nodes, node: int, values: Array) -> None:
    """Replace a node that tests whether x is one of the (sorted) values by a binary search among their ends."""
    true, false, missing = int(nodes.true[node]), int(nodes.false[node]), bool(nodes.missing[node])
    ends = np.stack([below(values), values], 1).reshape(-1)
    splits: list[tuple[float, bool, int, int]] = []  # threshold, whether NaN takes the true branch, true, false
    first = len(nodes.modes)

    def between(low: int, high: int) -> int:
        """Return the node that finds the ends between which x is, from `low` to `high`."""
        if low == high:
            return true if low % 2 else false
        middle = (low + high) // 2
        place = node if not splits else first + len(splits) - 1
        splits.append((0.0, False, 0, 0))
        mine = len(splits) - 1
        last = middle == len(ends) - 1  # NaN takes the branch of the greatest value
        splits[mine] = (ends[middle], missing and last, between(low, middle), between(middle + 1, high))
        return place

    if not len(values):  # never true: no number is `<=` NaN
        splits.append((np.nan, missing, true, false))
    else:
        between(0, len(ends))
    columns = list(zip(*splits))
    for name in ("modes", "features", "thresholds", "missing", "true", "false"):
        setattr(nodes, name, np.pad(getattr(nodes, name), (0, len(splits) - 1)))
    where = np.array([node, *range(first, first + len(splits) - 1)])
    nodes.modes[where], nodes.features[where] = LEQ, nodes.features[node]
    nodes.thresholds[where] = np.array(columns[0], nodes.thresholds.dtype)
    nodes.missing[where], nodes.true[where], nodes.false[where] = columns[1:]


def _weights(b: Builder, nodes: Nodes, leaves: Array, count: int) -> tuple[Array, Array]:
    """Return the positions and targets of each leaf's weights.

    Weights of inner nodes have no meaning. With a single target, only the first weight of a leaf counts.
    """
    row = np.full(len(nodes.modes), -1)
    row[leaves] = np.arange(len(leaves))
    weights = nodes.weights[row[nodes.weights[:, 0]] >= 0]
    rows = row[weights[:, 0]]
    order = np.argsort(rows, kind="stable")
    rows, weights = rows[order], weights[order]
    held = np.bincount(rows, minlength=len(leaves))
    if not len(leaves) or (held == 0).any():
        raise b.error("a leaf of a tree has no weight", WRITER)
    column = np.arange(len(rows)) - np.repeat(np.cumsum(held) - held, held)
    if count == 1:
        rows, weights, column = rows[column == 0], weights[column == 0], column[column == 0]
    slots, targets = (np.full((len(leaves), int(column.max()) + 1), -1) for _ in range(2))
    slots[rows, column], targets[rows, column] = weights[:, 2], weights[:, 1]
    return slots, targets


def _depth(b: Builder, children: Array, roots: Array, leaves: int) -> int:
    """Return the number of tests on the longest path."""
    frontier, depth = np.unique(roots), 0
    while (frontier := frontier[frontier >= leaves]).size:
        frontier = np.unique(children[:, frontier])
        depth += 1
        if depth > children.shape[1]:
            raise b.error("a tree has a cycle", WRITER)
    return depth


# ------------------------------------------------------------------------------------------------ nodes of a file


def numbered(
    b: Builder, trees: Sequence[int], numbers: Sequence[int]
) -> Callable[[Sequence[int], Sequence[int]], Array]:
    """Return a function that finds nodes by tree and number (versions 1 and 3 of the operators); -1 if not found."""
    places = {key: place for place, key in enumerate(zip(trees, numbers))}
    if len(places) < len(trees):
        raise b.error("two tree nodes have the same id", WRITER)
    return lambda trees, numbers: np.array([places.get(key, -1) for key in zip(trees, numbers)], np.int64)


def first_of_each(trees: Sequence[int]) -> Array:
    """Return the roots: the first of consecutive nodes of one tree."""
    array = np.asarray(trees)
    return np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]])) if len(array) else array
