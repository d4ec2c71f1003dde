"""Infer dtypes and shapes of operators that keep a shape, or broadcast several."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.dims import Call, Dim, Sym, atoms, known_less
from onnxgen.shapes.info import Info, Shape
from onnxgen.shapes.node_facts import Contradiction, NodeFacts, Unknown, tensor

BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT


def broadcast(n: NodeFacts, shapes: list[Shape], output: int = 0, offset: int = 0) -> Shape:
    """Return the common shape by numpy's rules (ONNX "Broadcasting in ONNX")."""
    rank = max(map(len, shapes), default=0)
    return tuple(
        _common(n, [s[axis - rank + len(s)] for s in shapes if axis >= rank - len(s)], axis + offset, output)
        for axis in range(rank)
    )


def _common(n: NodeFacts, dims: list[Dim], axis: int, output: int) -> Dim:
    different: list[Dim] = []
    for dim in dims:
        if dim != 1 and dim not in different:
            different.append(dim)
    if len(different) < 2:
        return different[0] if different else 1
    sure = [d for d in different if d == 0 or known_less(1, d)]
    if len({d for d in sure if isinstance(d, int)}) > 1:
        raise Contradiction(f"dims {dims} do not broadcast")
    if len(different) == 2 and not sure:
        for dim, other in (different, reversed(different)):
            if _is_clipped(other, dim):
                return dim
    # dims that cannot be 1 must be equal for the node to run, so take the simplest one
    return min(sure, key=lambda d: (not isinstance(d, int), len(str(d)))) if sure else n.fresh(axis, output)


def _is_clipped(other: Dim, dim: Dim) -> bool:
    """Return True if `other` is min(c, dim) with c > 1. Then both are equal, or the node fails at run time."""
    found = list(atoms(other))
    call = found[-1] if found else None
    return (
        isinstance(call, Call)
        and call.function == "min"
        and other == Sym(((((call, 1),), 1),))
        and all(a == dim or (isinstance(a, int) and a > 1) for a in call.args)
    )


def _broadcasting(n: NodeFacts) -> Shape:
    if n.opset < 7 and n.int_("broadcast"):  # opsets 1 to 6: b broadcasts to the shape of a
        return n.shape(0)
    return broadcast(n, [n.shape(i) for i in range(len(n.inputs))])


def _guarded(n: NodeFacts) -> Shape | None:
    try:
        return _broadcasting(n)
    except Unknown:
        return None


def arithmetic(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(*range(len(n.inputs))), _guarded(n))]


def comparison(n: NodeFacts) -> list[Info]:
    return [tensor(BOOL, _guarded(n))]


def power(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), _guarded(n))]


def where(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(1, 2), _guarded(n))]


def cast(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType(n.int_("to")), n.input(0).shape)]


def cast_like(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(1), n.input(0).shape)]


def unchanged(n: NodeFacts) -> list[Info]:
    return [n.input(0)]


def same(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), n.input(0).shape)]


def same_bool(n: NodeFacts) -> list[Info]:
    return [tensor(BOOL, n.input(0).shape)]


def dropout(n: NodeFacts) -> list[Info]:
    mask = BOOL if n.opset >= 10 else n.dtype(0)
    return [tensor(n.dtype(0), n.input(0).shape), tensor(mask, n.input(0).shape)]


def batch_norm(n: NodeFacts) -> list[Info]:
    channels = n.input(1).shape
    if n.opset >= 14:
        statistics = [tensor(n.dtype(i), channels) for i in (3, 4)]
    else:
        statistics = [tensor(n.dtype(0), channels) for _ in range(4)]
    return [tensor(n.dtype(0), n.input(0).shape), *statistics]


def layer_norm(n: NodeFacts) -> list[Info]:
    shape = n.input(0).shape
    stash = ir.DataType(n.int_("stash_type", FLOAT.value))
    statistics = None
    if shape is not None:
        axis = n.axis(len(shape), -1)
        statistics = [d if i < axis else 1 for i, d in enumerate(shape)]
    return [tensor(n.dtype(0), shape), tensor(stash, statistics), tensor(stash, statistics)]


def standardize(n: NodeFacts) -> list[Info]:
    return [tensor(n.dtype(0), n.ints("shape") or n.input(0).shape)]


def like(n: NodeFacts) -> list[Info]:
    """Infer EyeLike, RandomNormalLike, ...: the shape of the input, and the dtype of the attribute or the input."""
    default = n.dtype(0)
    dtype = ir.DataType(n.int_("dtype")) if n.int_("dtype") else default
    return [tensor(dtype, n.input(0).shape)]


def quantize(n: NodeFacts) -> list[Info]:
    chosen = n.int_("output_dtype")
    dtype = n.dtype(2) if n.has(2) else ir.DataType(chosen) if chosen else ir.DataType.UINT8
    return [tensor(dtype, n.input(0).shape)]


def dequantize(n: NodeFacts) -> list[Info]:
    chosen = n.int_("output_dtype")
    return [tensor(ir.DataType(chosen) if chosen else n.dtype(1), n.input(0).shape)]


def dynamic_quantize(n: NodeFacts) -> list[Info]:
    return [tensor(ir.DataType.UINT8, n.input(0).shape), tensor(FLOAT, ()), tensor(ir.DataType.UINT8, ())]


hardmax = cumsum = same
