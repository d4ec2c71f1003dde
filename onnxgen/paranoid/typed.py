"""Check `--dtype`: the same network in another floating point type.

No value can be compared, since each is rounded otherwise. But what had one type in a node has one type again, the
network's inputs, outputs and weights have the new one, and no number is another one but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.traits import RESAMPLES
from onnxgen.paranoid.picture import Made, Picture

RTOL, LEAST = {ir.DataType.FLOAT16: 1e-3, ir.DataType.BFLOAT16: 8e-3}, 1e-7  # of a rounded number; below are zeros
SINGLE_RTOL = 1e-6  # of any other type


def mistyped(before: Picture, after: Picture, dtype: ir.DataType, most: int | None = None) -> Iterator[str]:
    """Yield what is wrong with a graph whose floats are to have a type. `most`: elements of a tensor that is read."""
    if before.graphs != after.graphs or before.nodes.keys() != after.nodes.keys():
        yield "it changed the graph"
        return
    inputs, outputs = after.graphs[next(iter(after.graphs))]
    for value in (*inputs, *outputs):
        if before.facts[value].dtype in FLOATS and after.facts[value].dtype != dtype:
            yield f"{after.names[value]!r} is {after.facts[value].dtype}"
    for node, made in after.nodes.items():
        yield from _of_node(before, after, before.nodes[node], made)
    for value, tensor in after.stored.items():
        old = before.stored.get(value, tensor)
        if old.dtype not in FLOATS:
            continue
        if tensor.dtype != after.facts[value].dtype or is_trained(value) and tensor.dtype != dtype:
            yield f"{after.names[value]!r} is stored as {tensor.dtype}"
        elif tensor is not old and (most is None or tensor.size <= most) and not _same_numbers(old, tensor):
            yield f"{after.names[value]!r} has other numbers"


def _of_node(before: Picture, after: Picture, old: Made, made: Made) -> Iterator[str]:
    if (old.inputs, old.op, old.domain) != (made.inputs, made.op, made.domain):
        yield f"it changed {made.name!r}"
    found: dict[Any, set[Any]] = {}
    for i, value in enumerate((*made.inputs, *made.outputs)):
        if value is None or (made.op == "Cast" and not made.domain) or is_a(made.node, RESAMPLES) and i > 0:
            continue
        if before.facts[value].dtype in FLOATS and not _is_number(before, value):
            found.setdefault(before.facts[value].dtype, set()).add(after.facts[value].dtype)
    if any(len(types) > 1 for types in found.values()):
        yield f"{made.name!r} has floats of several types"
    made_of = after.facts[made.outputs[0]].dtype if made.outputs else None
    for name, attribute in made.attributes.items():
        given = old.attributes.get(name)
        if name in ("to", "dtype") and made_of in FLOATS and attribute.value != made_of:
            yield f"{made.name!r} makes {made_of} of another name"
        elif attribute.type == ir.AttributeType.TENSOR and given is not None and given.type == attribute.type:
            if not _same_numbers(given.value, attribute.value):
                yield f"{made.name!r} has other numbers"


def _is_number(picture: Picture, value: ir.Value) -> bool:
    """Return True for a single number that is not trained: torch takes these beside a tensor of any type."""
    maker, shape = picture.maker.get(value), picture.facts[value].shape
    is_stored = value in picture.stored or maker is not None and maker.op == "Constant"
    return is_stored and shape is not None and all(n == 1 for n in shape) and not is_trained(value)


def _same_numbers(old: ir.TensorProtocol, new: ir.TensorProtocol) -> bool:
    """Return True if one tensor is the other one, rounded. Finite numbers stay finite, a single one is not 0."""
    if old is new or old.dtype not in FLOATS:
        return old is new or old.dtype == new.dtype and np.array_equal(old.numpy(), new.numpy())
    a, b = (np.asarray(tensor.numpy()).astype(np.float64) for tensor in (old, new))
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    if a.size == 1 and a.any() != b.any():
        return False
    most = float(ml_dtypes.finfo(ir.DataType(new.dtype).numpy()).max)  # type: ignore[no-untyped-call]
    finite = np.isfinite(a)
    a = np.where(finite, np.clip(a, -most, most), a)
    return bool(np.allclose(a, b, RTOL.get(ir.DataType(new.dtype), SINGLE_RTOL), LEAST, equal_nan=True))
