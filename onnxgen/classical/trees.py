"""Decision trees and forests of ai.onnx.ml: weights of leaves are trained, thresholds are not.

Labels and scores of ensembles that classify are those of onnxruntime. For two classes the standard
does not say what the scores are if there are weights for only one of them. onnxruntime decides it
for each row, by the weights that the row reaches.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen import op
from onnxgen.classical import scores as shapes
from onnxgen.classical.forest import LEAF, MODES, Forest, Nodes, first_of_each, forest, numbered
from onnxgen.classical.scores import ML, TRANSFORMS, as_dtype, elements, labels, rows, second_class, table, transformed
from onnxgen.code.quote import OMIT, unless
from onnxgen.errors import WRITER
from onnxgen.graph.operators import PIECEWISE_CONSTANT
from onnxgen.lowering.builder import Arg, Builder

FLOAT32 = ir.DataType.FLOAT
Ints: TypeAlias = "Sequence[int] | None"
Strings: TypeAlias = "Sequence[str] | None"


def classified(
    ensemble: Ensemble, base: Arg | None, classes: Sequence[int], transform: str, ints: Ints, strings: Strings
) -> list[ast.expr]:
    """Return the expressions of labels and scores; `classes`: the class of each weight."""
    base_count = 0 if base is None else elements(ensemble.b, base).size
    if ensemble.count == 2:
        return _Binary(ensemble, base, base_count, classes, transform).outputs(ints, strings)
    if base_count not in (0, ensemble.count):
        raise ensemble.b.error(f"the node has {base_count} base_values for {ensemble.count} classes", WRITER)
    b = ensemble.b
    sums = ensemble.aggregated("SUM")
    if base is not None:
        sums = b("s + c", s=sums, c=ensemble.base(base))
    scores = b.let(sums, "scores")
    out = as_dtype(b, scores, ensemble.dtype, FLOAT32)
    if ensemble.count == 1:
        if strings:
            raise b.error("the node has one class with a text label", "give it two labels")
        label = b("(s.squeeze(1) > 0).long()", s=scores)
        return [label, transformed(b, out, transform if transform == "PROBIT" else "NONE")]
    compared: Any = scores
    if base is None and not all(ensemble.reached(k) for k in range(ensemble.count)):
        compared = b("s.where(r, low)", s=scores, r=ensemble.reached_at_run_time(), low=float("-inf"))
    return [labels(b, b("s.argmax(1)", s=compared), ints, strings), transformed(b, out, transform)]


class _Binary:
    """Two classes: rows that reach a weight of the second one, and rows that do not."""

    def __init__(
        self, ensemble: Ensemble, base: Arg | None, base_count: int, classes: Sequence[int], transform: str
    ) -> None:
        self.ensemble, self.b, self.base, self.base_count, self.transform = (
            ensemble,
            ensemble.b,
            base,
            base_count,
            transform,
        )
        if base_count > 2:
            raise self.b.error(f"the node has {base_count} base_values for 2 classes", WRITER)
        self.one_class = len(set(classes)) == 1
        self.mixed = not self.one_class or bool((elements(self.b, ensemble.weights) < 0).any())

    def outputs(self, ints: Ints, strings: Strings) -> list[ast.expr]:
        b, second = self.b, self.ensemble.reached(1)
        sums = b.let(self.ensemble.aggregated("SUM"), "scores")
        if second is None:
            if self.base_count == 1:  # onnxruntime does not write all scores of such rows
                raise b.error(
                    "the node has one base value, and only some leaves have weights of the second class",
                    "give a base value for each class",
                )
            is_two = b.let(b("r[:, 1:]", r=self.ensemble.reached_at_run_time()), "has_second")
            (decides, out), (other, alone) = self._two(sums), self._one(sums)
            return self._labelled(b("torch.where(c, x, y)", c=is_two, x=decides, y=other), ints, strings) + [
                b("torch.where(c, x, y)", c=is_two, x=out, y=alone)
            ]
        decides, out = self._two(sums) if second else self._one(sums)
        return [*self._labelled(decides, ints, strings), out]

    def _labelled(self, decides: ast.expr, ints: Ints, strings: Strings) -> list[ast.expr]:
        b = self.b
        limit = 0.5 if self.one_class and not self.mixed else 0
        index = b("(x.squeeze(1) > t).long()", x=decides, t=limit)
        return [labels(b, index, ints if self.one_class else None, strings)]

    def _two(self, sums: Any) -> tuple[ast.expr, ast.expr]:
        """Return the deciding score and both scores, for rows with a weight of the second class."""
        b = self.b
        scores = sums
        if self.base_count == 2 and self.base is not None:
            positive = b.let(b("s[:, :1] + c[1]", s=sums, c=self.ensemble.base(self.base)))
            scores = b.let(b("torch.cat([-x, x], 1)", x=positive))
        elif self.base is not None:
            scores = b.let(b("torch.cat([s[:, :1] + c, s[:, 1:]], 1)", s=sums, c=self.ensemble.base(self.base)))
        if self.base is not None and not self.ensemble.reached(0):  # without a weight the score is 0, as in onnxruntime
            scores = b.let(b("s.where(r, 0.0)", s=scores, r=self.ensemble.reached_at_run_time()))
        out = as_dtype(b, scores, self.ensemble.dtype, FLOAT32)
        return b("s[:, 1:]", s=scores), transformed(b, out, self.transform)

    def _one(self, sums: Any) -> tuple[ast.expr, ast.expr]:
        """Return the same for rows without a weight of the second class."""
        b = self.b
        score = b("s[:, :1]", s=sums)
        if self.base is not None:
            score = b("s + c[:1]", s=score, c=self.ensemble.base(self.base))
        score = b.let(score)
        out = as_dtype(b, score, self.ensemble.dtype, FLOAT32)
        if self.base_count == 2:
            both = b("torch.cat([x, torch.zeros_like(x)], 1)", x=out)
            return score, transformed(b, both, self.transform)
        return score, second_class(b, out, self.transform, self.mixed)


FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
BASES = ("base_values", "base_values_as_tensor")
POST_TRANSFORMS = tuple(TRANSFORMS)


class Ensemble:
    """The expressions of one ensemble.

    Attributes:
        count: the number of targets or classes.
        dtype: the type in which features are compared and weights are added.
    """

    def __init__(self, b: Builder, X: Arg, trees: Forest, weights: Arg, count: int, dtype: ir.DataType) -> None:
        self.b, self.trees, self.count, self.dtype = b, trees, count, dtype
        used = trees.features.max(initial=0)
        if X.shape and isinstance(X.shape[-1], int) and used >= X.shape[-1]:
            raise b.error(f"a tree tests feature {used}, but the input has {X.shape[-1]} features", WRITER)
        self.leaves = b.let(
            b.call(
                "tree_leaves", rows(b, X, dtype), b.buffer(trees.features, "features"),
                b.buffer(trees.thresholds, "thresholds"), b.buffer(trees.children, "ways"),
                b.buffer(trees.roots, "roots"), trees.depth,
                b.buffer(trees.missing, "missing") if trees.missing.any() else OMIT,
            ), "leaves",
        )  # fmt: skip
        self.weights = weights

    def aggregated(self, how: str) -> ast.expr:
        """Return the sum, mean, minimum or maximum of the weights that each row reaches, for each target."""
        if self.trees.is_dense and self.trees.targets.shape[1] == self.count:
            method = {"SUM": "sum", "AVERAGE": "mean", "MIN": "amin", "MAX": "amax"}[how]
            return self.b(f"w[i].{method}(1)", w=self._matrix(), i=self.leaves)
        if how in ("MIN", "MAX"):
            values = self._values(float("-inf") if how == "MAX" else float("inf"))
            return self.b.call("target_extremes", values, self._targets(), self.leaves, self.count, how == "MAX")
        sums = self.b.call("target_sums", self._values(0.0), self._targets(), self.leaves, self.count)
        return self.b("s / n", s=sums, n=len(self.trees.roots)) if how == "AVERAGE" else sums

    def reached(self, target: int) -> bool | None:
        """Return True if every row reaches a weight for a target, None if that depends on the row."""
        held = (self.trees.targets == target).any(1)
        if not held.any():
            return False
        return True if held.all() else None

    def reached_at_run_time(self) -> ast.expr:
        return self.b.call("targets_reached", self._targets(), self.leaves, self.count)

    def _matrix(self) -> ast.expr:
        """Return the weights with one row per leaf."""
        slots = self.trees.slots
        if np.array_equal(slots.reshape(-1), np.arange(elements(self.b, self.weights).size)):
            return self._table(self.weights, "leaf_weights", slots.shape)
        return self.b("w[s]", w=self._table(self.weights, "leaf_weights"), s=self._slots())

    def _values(self, empty: float) -> ast.expr:
        weights = self._table(self.weights, "leaf_weights")
        return self.b.call("leaf_weights", weights, self._slots(), self.leaves, unless(empty, 0))

    def _table(self, arg: Arg, hint: str, shape: tuple[int, ...] | None = None) -> ast.expr:
        parameter = table(self.b, arg, shape or (elements(self.b, arg).size,), hint)
        return as_dtype(self.b, parameter, arg.dtype, self.dtype)

    def base(self, values: Arg) -> ast.expr:
        """Return the numbers to begin with, one per target."""
        return self._table(values, "base_values")

    def _slots(self) -> ast.expr:
        return self.b.buffer(self.trees.slots, "slots")

    def _targets(self) -> ast.expr:
        return self.b.buffer(self.trees.targets, "targets")


def _given(b: Builder, values: Any, tensor: Any, what: str) -> Any:
    """Return the one of two attributes that is given: a list, or a tensor."""
    if values is not None and tensor is not None:
        raise b.error(f"the node has both attributes {what} and {what}_as_tensor", WRITER)
    return tensor if values is None else values


def _numbers(attributes: dict[str, Any], name: str) -> Any:
    return attributes[name] or []


def _numbered_nodes(b: Builder, dtype: ir.DataType, weights: Sequence[Any], attributes: dict[str, Any]) -> Nodes:
    """Read nodes of versions 1 and 3, which are given by the numbers of trees and of nodes within their tree."""
    trees = _numbers(attributes, "nodes_treeids")
    find = numbered(b, trees, _numbers(attributes, "nodes_nodeids"))
    names = _numbers(attributes, "nodes_modes")
    unknown = sorted(set(names) - {*MODES[:-1], "LEAF"})
    if unknown:
        raise b.error(f"a tree node has the unknown mode {unknown[0]!r}", WRITER)
    kinds = {**{name: i for i, name in enumerate(MODES)}, "LEAF": LEAF}
    values = _given(b, attributes["nodes_values"], attributes["nodes_values_as_tensor"], "nodes_values")
    values = values.numpy() if isinstance(values, ir.TensorProtocol) else np.asarray(values or [], np.float32)
    if values.dtype == np.float64 and dtype != DOUBLE:
        raise b.error("the thresholds are double, but the input is not", "cast the input to double")
    tracks = _numbers(attributes, "nodes_missing_value_tracks_true")
    missing = np.zeros(len(trees), bool)
    missing[: len(tracks)] = np.asarray(tracks[: len(trees)]) == 1
    leaf_trees, leaf_nodes, targets = (w or [] for w in weights)
    leaf_columns = [find(leaf_trees, leaf_nodes), np.asarray(targets, np.int64), np.arange(len(targets))]
    if len({len(f) for f in leaf_columns}) > 1 or (leaf_columns[0] < 0).any():
        raise b.error("a leaf weight is for a node that does not exist", WRITER)
    return Nodes(
        np.array([kinds[name] for name in names], np.int64),
        np.asarray(_numbers(attributes, "nodes_featureids"), np.int64),
        values.astype(dtype.numpy()),
        missing,
        find(trees, _numbers(attributes, "nodes_truenodeids")),
        find(trees, _numbers(attributes, "nodes_falsenodeids")),
        first_of_each(trees),
        np.stack(leaf_columns, 1),
    )


def _regressed(
    ensemble: Ensemble, base_values: Arg | None, aggregate_function: str, post_transform: str, out: ir.DataType
) -> ast.expr:
    b, count = ensemble.b, ensemble.count
    if aggregate_function not in AGGREGATES:
        raise b.error(
            f"attribute 'aggregate_function' must be one of {', '.join(AGGREGATES)}, not {aggregate_function!r}", WRITER
        )
    scores = ensemble.aggregated(aggregate_function)
    if base_values is not None:
        base_count = elements(b, base_values).size
        if base_count not in (1, count):
            raise b.error(f"the node has {base_count} base_values for {count} targets", WRITER)
        if base_count == count:
            scores = b("s + c", s=scores, c=ensemble.base(base_values))
            if count > 1 and not all(ensemble.reached(target) for target in range(count)):
                scores = b("s.where(r, 0.0)", s=scores, r=ensemble.reached_at_run_time())  # as onnxruntime has it
    if count == 1 and post_transform != "PROBIT":
        post_transform = "NONE"  # as in onnxruntime
    if post_transform != "NONE":
        return as_dtype(b, transformed(b, as_dtype(b, scores, ensemble.dtype, FLOAT), post_transform), FLOAT, out)
    return as_dtype(b, scores, ensemble.dtype, out)


@op(
    "TreeEnsembleRegressor",
    domain=ML,
    infer=shapes.regressor,
    tables=("target_weights", "target_weights_as_tensor", *BASES),
    weights="target_weights target_weights_as_tensor",
    still="X",
    flat={"X": PIECEWISE_CONSTANT},
)
def tree_ensemble_regressor(
    b: Builder,
    X: Arg,
    target_weights: Arg | None = None,
    target_weights_as_tensor: Arg | None = None,
    base_values: Arg | None = None,
    base_values_as_tensor: Arg | None = None,
    *,
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    post_transform: str = "NONE",
    target_treeids: list[int] | None = None,
    target_nodeids: list[int] | None = None,
    target_ids: list[int] | None = None,
    nodes_treeids: list[int] | None = None,
    nodes_nodeids: list[int] | None = None,
    nodes_featureids: list[int] | None = None,
    nodes_modes: list[str] | None = None,
    nodes_values: list[float] | None = None,
    nodes_values_as_tensor: ir.TensorProtocol | None = None,
    nodes_truenodeids: list[int] | None = None,
    nodes_falsenodeids: list[int] | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: ir.TensorProtocol | None = None,
) -> ast.expr:
    attributes = dict(locals())
    weights = _given(b, target_weights, target_weights_as_tensor, "target_weights")
    base = _given(b, base_values, base_values_as_tensor, "base_values")
    ensemble = _numbered_ensemble(b, X, (target_treeids, target_nodeids, target_ids), attributes, weights, n_targets)
    return _regressed(ensemble, base, aggregate_function, post_transform, FLOAT)


@op(
    "TreeEnsembleClassifier",
    domain=ML,
    infer=shapes.classifier,
    tables=("class_weights", "class_weights_as_tensor", *BASES),
    weights="class_weights class_weights_as_tensor",
    still="X",
    flat={"X": PIECEWISE_CONSTANT},
)
def tree_ensemble_classifier(
    b: Builder,
    X: Arg,
    class_weights: Arg | None = None,
    class_weights_as_tensor: Arg | None = None,
    base_values: Arg | None = None,
    base_values_as_tensor: Arg | None = None,
    *,
    classlabels_strings: list[str] | None = None,
    classlabels_int64s: list[int] | None = None,
    post_transform: str = "NONE",
    class_treeids: list[int] | None = None,
    class_nodeids: list[int] | None = None,
    class_ids: list[int] | None = None,
    nodes_treeids: list[int] | None = None,
    nodes_nodeids: list[int] | None = None,
    nodes_featureids: list[int] | None = None,
    nodes_modes: list[str] | None = None,
    nodes_values: list[float] | None = None,
    nodes_values_as_tensor: ir.TensorProtocol | None = None,
    nodes_truenodeids: list[int] | None = None,
    nodes_falsenodeids: list[int] | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_hitrates: list[float] | None = None,
    nodes_hitrates_as_tensor: ir.TensorProtocol | None = None,
) -> list[ast.expr]:
    attributes = dict(locals())
    weights = _given(b, class_weights, class_weights_as_tensor, "class_weights")
    base = _given(b, base_values, base_values_as_tensor, "base_values")
    count = len(classlabels_strings or classlabels_int64s or [])
    ensemble = _numbered_ensemble(b, X, (class_treeids, class_nodeids, class_ids), attributes, weights, count)
    return classified(ensemble, base, class_ids or [], post_transform, classlabels_int64s, classlabels_strings)


def _numbered_ensemble(
    b: Builder, X: Arg, leaves: Sequence[Any], attributes: dict[str, Any], weights: Arg | None, count: int
) -> Ensemble:
    dtype = DOUBLE if X.dtype == DOUBLE else FLOAT  # integers are compared as float32
    return _ensemble(b, X, _numbered_nodes(b, dtype, leaves, attributes), weights, count, dtype)


def _ensemble(b: Builder, X: Arg, nodes: Nodes, weights: Arg | None, count: int, dtype: ir.DataType) -> Ensemble:
    if weights is None or elements(b, weights).size != len(nodes.weights):
        raise b.error("the number of leaf weights differs from the number of leaves", WRITER)
    if weights.dtype == DOUBLE and dtype != DOUBLE:
        raise b.error("the leaf weights are double, but the input is not", "cast the input to double")
    return Ensemble(b, X, forest(b, nodes, count), weights, count, dtype)


@op(
    "TreeEnsemble", since=5, domain=ML, infer=shapes.regressor, tables=("leaf_weights",), still="X",
    flat={"X": PIECEWISE_CONSTANT},
)  # fmt: skip
def tree_ensemble(
    b: Builder,
    X: Arg,
    leaf_weights: Arg,
    *,
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
    tree_roots: list[int],
    nodes_modes: ir.TensorProtocol,
    nodes_featureids: list[int],
    nodes_splits: ir.TensorProtocol,
    nodes_truenodeids: list[int],
    nodes_trueleafs: list[int],
    nodes_falsenodeids: list[int],
    nodes_falseleafs: list[int],
    leaf_targetids: list[int],
    membership_values: ir.TensorProtocol | None = None,
    nodes_missing_value_tracks_true: list[int] | None = None,
    nodes_hitrates: ir.TensorProtocol | None = None,
) -> ast.expr:
    """Inner nodes and leaves are numbered separately. A tree of a single leaf has a node with two branches to it."""
    attributes = dict(locals())
    if not 0 <= aggregate_function < len(AGGREGATES) or not 0 <= post_transform < len(POST_TRANSFORMS):
        raise b.error("attribute 'aggregate_function' or 'post_transform' has an unknown value", WRITER)
    if post_transform in (1, 2):  # onnxruntime 1.31 swaps them
        raise b.error(
            f"post_transform {post_transform} is {POST_TRANSFORMS[post_transform]} in the standard and "
            f"{POST_TRANSFORMS[3 - post_transform]} in onnxruntime",
            "put a node of that operator after it",
        )
    nodes = _nodes_and_leaves(b, np.asarray(tree_roots, np.int64), leaf_targetids, attributes)
    nodes.members = _members(nodes.modes, membership_values)
    ensemble = _ensemble(b, X, nodes, leaf_weights, n_targets, X.dtype or FLOAT)
    aggregate, transform = AGGREGATES[aggregate_function], POST_TRANSFORMS[post_transform]
    return _regressed(ensemble, None, aggregate, transform, ensemble.dtype)


def _nodes_and_leaves(b: Builder, roots: Any, targets: list[int], attributes: dict[str, Any]) -> Nodes:
    """Read nodes of version 5; leaves follow the inner nodes."""
    modes = attributes["nodes_modes"].numpy().reshape(-1).astype(np.int64)
    if (modes >= LEAF).any():
        raise b.error(f"a tree node has the unknown mode {modes.max()}", WRITER)
    inner, leaves = len(modes), len(targets)
    true, false = (
        np.asarray(attributes[f"nodes_{way}nodeids"], np.int64)
        + inner * (np.asarray(attributes[f"nodes_{way}leafs"], np.int64) != 0)
        for way in ("true", "false")
    )
    nothing = np.zeros(leaves, np.int64)
    splits = attributes["nodes_splits"].numpy().reshape(-1)
    missing = np.asarray(attributes["nodes_missing_value_tracks_true"] or [0] * inner) == 1
    own = inner + np.arange(leaves)
    return Nodes(
        np.concatenate([modes, np.full(leaves, LEAF)]),
        np.concatenate([np.asarray(attributes["nodes_featureids"], np.int64), nothing]),
        np.concatenate([splits, nothing.astype(splits.dtype)]),
        np.concatenate([missing, nothing.astype(bool)]),
        np.concatenate([true, own]),
        np.concatenate([false, own]),
        roots,
        np.stack([own, np.asarray(targets, np.int64), np.arange(leaves)], 1),
    )


def _members(modes: np.ndarray[Any, Any], values: ir.TensorProtocol | None) -> dict[int, Any]:
    """Return the values of each node that tests membership; NaN separates those of different nodes."""
    array = np.zeros(0) if values is None else values.numpy().reshape(-1)
    parts = np.split(array, np.flatnonzero(np.isnan(array)))
    asking = [int(node) for node in np.flatnonzero(modes == MODES.index("BRANCH_MEMBER"))]
    empty = array[:0]
    return {node: (parts[i] if i < len(parts) else empty) for i, node in enumerate(asking)}
