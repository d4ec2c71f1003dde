"""Write BatchNorms that `--restore-batchnorm` restored as nodes of the file, each after its convolution.

A norm without a matching convolution in the file is folded in again (`provenance.Fold`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxgen.common.names import Namer
from onnxgen.export.places import Array, places
from onnxgen.export.shared import declare, drop_unused, used_names
from onnxgen.graph.catalogue import having_all
from onnxgen.graph.traits import PRODUCT, SAMPLES
from onnxgen.reader.protos import inner_uses, opset_of, put, uses
from onnxgen.record.way_back import parts

MIN_OPSET = 9  # oldest opset in which BatchNormalization is in evaluation mode by default and has one output
_Fold = Mapping[str, Any]  # a `provenance.Fold`, as recorded


class Norms:
    """The norms that can be separate nodes in a file.

    Args:
        model: the file's protobuf.
        tensors: how each ONNX tensor is made of the state dict (`provenance.way_back`).

    Attributes:
        tensors: the same for the file with these norms as nodes.
        folded: the paths of the norms that stay folded in.
    """

    def __init__(self, model: onnx.ModelProto, tensors: Mapping[str, Any]) -> None:
        self.model = model
        self.passed_on = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Identity"}
        folds: dict[str, list[tuple[str, _Fold]]] = {}
        for name, entries in tensors.items():
            for part in parts(entries):
                if "fold" in part:
                    folds.setdefault(part["fold"]["norm"], []).append((name, part["fold"]))
        self.layers = {path: self._layers(found) for path, found in folds.items()}
        self.epsilons = {path: found[0][1]["epsilon"] for path, found in folds.items()}
        self.folded = [path for path, layers in self.layers.items() if not layers]
        self.without_bias = {
            path for path, found in folds.items() if any(fold["part"] == "norm bias" for _, fold in found)
        }
        unfolded = {name: self._unfolded(entries) for name, entries in tensors.items()}
        self.tensors = {name: entry for name, entry in unfolded.items() if entry}

    def _layers(self, found: list[tuple[str, _Fold]]) -> list[onnx.NodeProto]:
        """Return the convolutions of the graph that have the norm folded in; none if the norm cannot follow all of
        them.
        """
        weights = {name for name, fold in found if fold["part"] == "weight"}
        biases = {name for name, fold in found if fold["part"] != "weight"}
        layers = [
            n for n in self.model.graph.node if n.op_type != "Identity" and weights & set(map(self._stored, n.input))
        ]
        fits = all(
            node.op_type in having_all(PRODUCT, SAMPLES)
            and node.domain in ("", "ai.onnx")
            and len(node.input) == 3
            and self._stored(node.input[1]) in weights
            and self._stored(node.input[2]) in biases
            for node in layers
        )
        is_alone = len(weights) == 1 and not weights & inner_uses(self.model.graph)
        return layers if fits and is_alone and opset_of(self.model) >= MIN_OPSET else []

    def _stored(self, name: str) -> str:
        """Return the stored tensor that a value is. Identity nodes pass on tensors that torch's older exporter
        shares.
        """
        while name in self.passed_on:
            name = self.passed_on[name]
        return name

    def _unfolded(self, entries: Any) -> Any:
        """Return a tensor's record without the separate norms; empty if it was a bias that only the norm had."""
        if isinstance(entries, str):
            return entries
        found: list[Any] = []
        for entry in entries if isinstance(entries, list) else [entries]:
            kept = [] if isinstance(entry, str) else [self._part(part) for part in entry["parts"]]
            rest = [part for part in kept if part is not None]
            if isinstance(entry, str) or len(rest) == len(kept):
                found.append(entry if isinstance(entry, str) else {**entry, "parts": rest})
            elif rest:
                found.append({**entry, "parts": rest, "partial": True})
        return found if isinstance(entries, list) and len(found) > 1 else next(iter(found), None)

    def _part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        fold = part.get("fold")
        if fold is None or not self.layers[fold["norm"]]:
            return part
        return None if fold["part"] == "norm bias" else {key: value for key, value in part.items() if key != "fold"}

    def insert(self, model: onnx.ModelProto, state: Mapping[str, Array]) -> list[str]:
        """Add the norms to a file whose tensors are as `self.tensors` says. Returns the names of the norms' tensors."""
        old, namer, added = uses(model.graph), Namer(used_names(model.graph)), []
        after: dict[str, onnx.NodeProto] = {}
        of_output = {node.output[0]: node for node in model.graph.node if node.output}
        kinds = {place.name: place.tensor.data_type for place in places(model) if place.tensor is not None}
        for path, layers in self.layers.items():
            values: list[str] = []
            for node in (of_output[layer.output[0]] for layer in layers):
                for key in () if values else ("weight", "bias", "running_mean", "running_var"):
                    values.append(namer.take(f"{path}.{key}"))
                    kind = helper.tensor_dtype_to_np_dtype(kinds[self._stored(node.input[1])])
                    array = np.asarray(state[f"{path}.{key}"]).astype(kind, copy=False)
                    declare(model, numpy_helper.from_array(np.ascontiguousarray(array), values[-1]))
                result = node.output[0]
                if path in self.without_bias:
                    del node.input[2:]
                node.output[0] = namer.take(f"{result}.conv")
                norm = helper.make_node("BatchNormalization", [node.output[0], *values], [result])
                norm.attribute.append(helper.make_attribute("epsilon", self.epsilons[path]))
                after[node.output[0]] = norm
            added += values
        pairs = ((node, after.get(next(iter(node.output), ""))) for node in model.graph.node)
        put(model.graph.node, [node for pair in pairs for node in pair if node is not None])
        drop_unused(model.graph, old)
        return added
