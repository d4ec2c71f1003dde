"""The numpy kernels of the check that every generation makes, against ONNX's own node tests."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxgen.graph.operators import card, operators
from onnxgen.paranoid.picture import Made, take
from onnxgen.shapes import usual
from tests.support.onnx_cases import node_cases

INNER = {name for domain, name in operators() if card(domain, name).rules.inner is not None}  # composed of others
EVERY = {name for domain, name in operators() if usual.has(domain, name)} - INNER - {"Constant", "Dropout"}


@cache
def cases() -> dict[str, list[tuple[Made, list[Any], list[Any], str]]]:
    """Return single nodes with inputs and the stated first output, by operator."""
    found: dict[str, list[tuple[Made, list[Any], list[Any], str]]] = defaultdict(list)
    for case in node_cases():
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in EVERY and not case.model.graph.initializer:
            model = ir.from_proto(case.model)
            made = take(model).nodes[model.graph[0]]
            made = replace(made, outputs=made.outputs[:1]) if made.op == "LayerNormalization" else made
            names = [value.name for value in model.graph.inputs]
            for given, stated in case.data_sets:
                by_name = dict(zip(names, map(_array, given)))
                inputs = [None if v is None else by_name[v.name] for v in made.inputs]
                found[made.op].append((made, inputs, [_array(stated[0])], case.name))
    return found


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def test_they_compute_what_onnx_states() -> None:
    told, wrong = set(), []
    for made, inputs, stated, name in itertools.chain(*cases().values()):
        try:
            with np.errstate(all="ignore"):
                got = usual.run(made, inputs, wide=False)
        except usual.Unusual:
            continue
        told.add(made.op)
        try:
            for one, wanted in zip(got, stated):
                assert one.shape == wanted.shape and one.dtype == wanted.dtype
                np.testing.assert_allclose(one, wanted, rtol=1e-3, atol=1e-5)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert wrong == []
    assert told == EVERY


def test_floats_are_wide_where_that_is_asked() -> None:
    made, inputs, _, _ = next(case for case in cases()["Cast"] if case[3] == "test_cast_DOUBLE_to_FLOAT")
    assert usual.run(made, inputs, wide=True)[0].dtype == np.float64


def test_an_older_meaning_is_left_to_others() -> None:
    """Tile-1 takes one number of times, and an axis."""
    node = onnx.helper.make_node("Tile", ["x", "tiles", "axis"], ["y"])
    ports = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("x", "tiles", "axis", "y")]
    graph = onnx.helper.make_graph([node], "g", ports[:3], ports[3:])
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 5)]))
    made = take(model).nodes[model.graph[0]]
    with pytest.raises(usual.Unusual):
        usual.run(made, [np.ones((2, 3)), np.array(2.0), np.array(1.0)], wide=False)
