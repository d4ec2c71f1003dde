"""The nodes whose gradients are checked: ONNX's own tests, one of each set of attributes, and what `made` adds.

`ONNXGEN_ALL_GRADIENTS=1` in the environment takes all of ONNX's tests instead of one of each kind.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.test.loader import DATA_DIR

from tests.gradients.values import LARGE
from tests.ops import harness

Value = Any  # an array, a list or dict of arrays (a sequence, a map) or None
Name = tuple[str, str]  # domain and name of an operator

# how long axes may be, of operators that take as long for each element of their tests' large inputs
LONGEST = {"AveragePool": 12, "Conv": 16, "Erf": 8, "LpPool": 12, "MaxPool": 12, "Mish": 100}


@dataclass(frozen=True)
class Case:
    """A model of one node, and what it is fed by name of its graph's inputs."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Value]

    @property
    def operator(self) -> Name:
        """The operator of its last node; those before it only make its inputs."""
        node = self.model.graph.node[-1]
        return node.domain if node.domain != "ai.onnx" else "", node.op_type


@cache
def by_operator() -> dict[Name, list[Case]]:
    """All cases that a number of floating point goes into, by operator."""
    from tests.gradients.made import made

    found: dict[Name, list[Case]] = defaultdict(list)
    seen = set()
    for case in [*_onnx_cases(), *_exported(), *made()]:
        if not any(array.dtype.kind == "f" for value in case.feeds.values() for array in leaves(value)):
            if not case.model.graph.initializer and case.operator[0] != "ai.onnx.ml":
                continue
        kind = _kind(case)
        if kind not in seen or "ONNXGEN_ALL_GRADIENTS" in os.environ:
            found[case.operator].append(case)
        seen.add(kind)
    return dict(found)


def leaves(value: Value) -> Iterator[np.ndarray]:
    """The arrays of a value: of a sequence or map all."""
    if isinstance(value, (list, dict)):
        for element in value.values() if isinstance(value, dict) else value:
            yield from leaves(element)
    elif isinstance(value, np.ndarray):
        yield value


def _onnx_cases() -> Iterator[Case]:
    for case in harness._cases():
        if "_expanded" not in case.name:
            inputs = map(_array, case.data_sets[0][0])
            names = [i.name for i in case.model.graph.input]
            yield _cut(Case(case.name, case.model, dict(zip(names, inputs))))


def _exported() -> Iterator[Case]:
    """ONNX's tests that PyTorch exported: small layers with stored weights, of old opsets."""
    for folder in sorted(Path(DATA_DIR).glob("pytorch-*/test_*")):
        model = onnx.load(folder / "model.onnx")
        stored = {i.name for i in model.graph.initializer}
        names = [i.name for i in model.graph.input if i.name not in stored]
        tensors = [onnx.load_tensor(folder / "test_data_set_0" / f"input_{i}.pb") for i in range(len(names))]
        feeds = {name: _set(_array(tensor)) for name, tensor in zip(names, tensors)}
        case = Case(folder.name, model, feeds)
        yield case if case.operator[1] == "MaxPool" else _cut(case)  # whose windows reach further than the limit


def _set(array: Value) -> Value:
    """Some of their numbers were never set."""
    return np.where(np.abs(array) < LARGE, array, 1).astype(array.dtype) if array.dtype.kind == "f" else array


def _cut(case: Case) -> Case:
    """A case of such an operator with no axis longer than its limit."""
    limit = LONGEST.get(case.operator[1])
    if limit is None or all(max(a.shape, default=0) <= limit for v in case.feeds.values() for a in leaves(v)):
        return case
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = min(dim.dim_value, limit)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    feeds = {name: value[tuple(slice(limit) for _ in value.shape)] for name, value in case.feeds.items()}
    return Case(case.name, model, feeds)


def _array(value: Any) -> Value:
    """A test's input; a scalar of numpy's as an array, too."""
    value = harness.as_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _kind(case: Case) -> tuple[Any, ...]:
    """What two cases that check the same have in common: attributes, ranks, and all numbers that are not floats."""
    nodes = [
        (node.domain, node.op_type, _attributes(node), tuple(map(bool, node.input)), tuple(map(bool, node.output)))
        for node in case.model.graph.node
    ]
    fed = [
        array.ndim if array.dtype.kind == "f" else (array.shape, array.tolist().__repr__())
        for value in case.feeds.values()
        for array in leaves(value)
    ]
    return repr(nodes), repr(fed), len(case.model.graph.initializer)


def _attributes(node: onnx.NodeProto) -> str:
    return repr(sorted((a.name, repr(helper.get_attribute_value(a))) for a in node.attribute))
