"""Random tree ensembles as ONNX has them: versions 1 and 3 (numbers of trees and nodes), and 5."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"]
MEMBER = 6
# thresholds and inputs, so that they meet; onnxruntime cuts numbers off before it looks for them among members
GRID, WHOLE = np.array([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0]), np.array([-3.0, -1.0, 0.0, 1.0, 2.0, 5.0, 30.0, 31.0, 40.0])


class Trees:
    """Trees of random shape; leaves are numbered through all trees.

    Attributes:
        nodes: of each inner node (tree, mode, feature, threshold, missing track, ways); a way is ("node" or "leaf", n).
        roots: of each tree a way.
    """

    def __init__(self, seed: int, trees: int, depth: int, features: int, modes: list[int]) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.leaves: list[int] = []
        self.features, self.modes = features, modes
        self.grid = WHOLE if MEMBER in modes else GRID
        self.roots = [self._grow(tree, depth) for tree in range(trees)]

    def _grow(self, tree: int, depth: int) -> tuple[str, int]:
        if depth == 0 or (self.rng.random() < 0.2 and self.leaves):
            self.leaves.append(tree)
            return "leaf", len(self.leaves) - 1
        place = len(self.nodes)
        self.nodes.append(None)
        mode, feature = int(self.rng.choice(self.modes)), int(self.rng.integers(self.features))
        members = sorted({float(v) for v in self.rng.choice(self.grid, 3)})
        ways = self._grow(tree, depth - 1), self._grow(tree, depth - 1)
        self.nodes[place] = (tree, mode, feature, members, int(self.rng.random() < 0.5), ways)
        return "node", place

    def inputs(self, rows: int, dtype: Any = np.float32, nan: bool = False) -> np.ndarray[Any, Any]:
        x = self.rng.choice(self.grid, (rows, self.features)).astype(dtype)
        if nan:
            x[self.rng.random(x.shape) < 0.2] = np.nan
        return x

    def old(self, prefix: str, targets: list[list[tuple[int, float]]], tracks: bool, double: bool) -> dict[str, Any]:
        """The attributes of TreeEnsembleRegressor (`prefix` "target") or -Classifier ("class").

        `targets`: of each leaf its pairs of target and weight.
        """
        rows: list[Any] = []
        weights: list[Any] = []
        for tree, root in enumerate(self.roots):
            numbers: dict[Any, int] = {}
            ways = [root]
            for way in ways:
                numbers[way] = len(numbers)
                if way[0] == "node":
                    ways += self.nodes[way[1]][5]
            for way, number in numbers.items():
                if way[0] == "leaf":
                    rows.append((tree, number, "LEAF", 0, 0.0, 0, 0, 0))
                    weights += [(tree, number, target, weight) for target, weight in targets[way[1]]]
                else:
                    _, mode, feature, members, missing, (true, false) = self.nodes[way[1]]
                    rows.append(
                        (tree, number, MODES[mode], feature, members[0], missing, numbers[true], numbers[false])
                    )
        names = "treeids nodeids modes featureids values missing_value_tracks_true truenodeids falsenodeids".split()
        found = {f"nodes_{name}": list(column) for name, column in zip(names, zip(*rows))}
        if not tracks:
            del found["nodes_missing_value_tracks_true"]
        ids = dict(zip(("treeids", "nodeids", "ids", "weights"), map(list, zip(*weights))))
        found |= {f"{prefix}_{name}": values for name, values in ids.items()}
        if double:
            for name in ("nodes_values", f"{prefix}_weights"):
                found[f"{name}_as_tensor"] = stored(found.pop(name), TensorProto.DOUBLE)
        return found

    def new(self, targets: list[tuple[int, float]], tracks: bool, kind: int) -> dict[str, Any]:
        """The attributes of TreeEnsemble; `kind`: the type of its tables."""
        nodes = list(self.nodes)
        roots = []
        for how, number in self.roots:
            if how == "leaf":  # a node whose ways both lead to it
                nodes.append((0, 0, 0, [0.0], 0, (("leaf", number), ("leaf", number))))
            roots.append(number if how == "node" else len(nodes) - 1)
        members = [v for n in nodes if n[1] == MEMBER for v in [*n[3], np.nan]]
        found: dict[str, Any] = {
            "tree_roots": roots,
            "nodes_modes": stored([n[1] for n in nodes], TensorProto.UINT8),
            "nodes_featureids": [n[2] for n in nodes],
            "nodes_splits": stored([n[3][0] for n in nodes], kind),
            "leaf_targetids": [t for t, _ in targets],
            "leaf_weights": stored([w for _, w in targets], kind),
        }
        for i, name in enumerate(("true", "false")):
            found[f"nodes_{name}nodeids"] = [n[5][i][1] for n in nodes]
            found[f"nodes_{name}leafs"] = [int(n[5][i][0] == "leaf") for n in nodes]
        if members:
            found["membership_values"] = stored(members, kind)
        if tracks:
            found["nodes_missing_value_tracks_true"] = [n[4] for n in nodes]
        return found


def stored(values: list[Any], kind: int) -> TensorProto:
    return helper.make_tensor("t", kind, [len(values)], values)
