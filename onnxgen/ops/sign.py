"""Proves from the graph that an integer tensor has no negative elements."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.traits import KEEPS_SIGN, MOVES
from onnxgen.shapes.dims import nonnegative
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

MAX_DEPTH = 32


def never_negative(value: ir.Value | None, trust_inputs: bool = False, depth: int = MAX_DEPTH) -> bool:
    """Return True if that is proven. `trust_inputs`: the graph's inputs are taken for ids, which are not negative."""
    if value is None or depth == 0:
        return False
    data: NDArray[Any] | None = info(value).data
    if data is not None:
        if data.dtype == object:
            return all(nonnegative(d) for d in data.flat)
        return data.dtype.kind in "biuf" and bool((data >= 0).all())
    tensor = stored(value)
    if tensor is not None:
        return tensor.dtype.is_integer() and bool((tensor.numpy() >= 0).all())
    node = value.producer()
    if node is None:
        return trust_inputs and value.is_graph_input()
    if node.domain not in ("", "ai.onnx"):
        return False
    facts = known(node)
    if node.op_type == "TopK" and value is node.outputs[1]:
        return True
    if value is node.outputs[0] and facts.least is not None and facts.least >= 0:
        return True
    places: Collection[int] = {"Clip": (1,), "Range": (0, 2)}.get(node.op_type, facts.data)
    if node.op_type not in ("Clip", "Range"):
        if not is_a(node, MOVES) and not (value is node.outputs[0] and is_a(node, KEEPS_SIGN)):
            return False
    inputs = [v for i, v in enumerate(node.inputs) if i in places and v is not None]
    return bool(inputs) and all(never_negative(i, trust_inputs, depth - 1) for i in inputs)
