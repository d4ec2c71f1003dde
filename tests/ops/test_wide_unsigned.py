"""uint16, uint32 and uint64, for which torch lacks many kernels: operators that move, pick, compare and add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onnxgen.errors import OnnxgenError
from tests.ops.harness import run_node

TYPES = [np.uint16, np.uint32, np.uint64]
Array = np.ndarray[Any, Any]


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def drawn(kind: type, *shape: int) -> Array:
    """Numbers of the whole range: some are negative as signed ones."""
    return np.random.default_rng(0).integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)


def nodes(kind: type) -> Iterator[tuple[str, list[Array], dict[str, Any]]]:
    x, y, image = drawn(kind, 2, 3, 4), drawn(kind, 3, 2, 4).reshape(2, 3, 4), drawn(kind, 1, 4, 6, 6)
    large, small = np.array(np.iinfo(kind).max - 2, kind), np.array(3, kind)
    for axes in ([2], [1, 2], [-1, 0]):
        for start, step in ((-1, -1), (-2, -2), (-9, -1)):
            count = len(axes)
            bounds = [i64(*[start] * count), i64(*[-99] * count), i64(*axes), i64(*[step] * count)]
            yield "Slice", [x, *bounds], {}
    for op in ("Add", "Mul", "Sub", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Less", "Greater", "LessOrEqual"):
        yield op, [x, y], {}
        yield op, [x, large], {}
    for op in ("Max", "Min", "Mod", "Div"):
        yield op, [x, large], {}
    for op in ("Sign", "Abs", "BitwiseNot", "Flatten", "NonZero", "Transpose", "Trilu"):
        yield op, [x], {}
    yield "Clip", [x, small, large], {}
    yield "Where", [x > y, x, large], {}
    yield "Gather", [x, i64(2, -1)], {"axis": 1}
    yield "GatherElements", [x, i64(0, -1, 1, 2, 0, 0).reshape(1, 3, 2)], {"axis": 2}
    yield "GatherND", [x, i64(0, 1, 1, 2).reshape(2, 2)], {}
    yield "ScatterND", [x, i64(0, 1, 1, 2).reshape(2, 2), y[0, :2]], {}
    yield "ReverseSequence", [drawn(kind, 4, 4), i64(1, 2, 3, 4)], {}
    yield "Tile", [x, i64(1, 2, 1)], {}
    yield "Expand", [x, i64(2, 2, 3, 4)], {}
    yield "Concat", [x, y], {"axis": 1}
    yield "DepthToSpace", [image], {"blocksize": 2}
    yield "TopK", [x, i64(2)], {}
    yield "ArgMax", [x], {"axis": 1}


CASES = [(kind, i, node) for kind in TYPES for i, node in enumerate(nodes(kind))]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("kind, i, node", CASES, ids=[f"{k.__name__}-{n[0]}-{i}" for k, i, n in CASES])
def test_as_in_onnxruntime(kind: type, i: int, node: tuple[str, list[Array], dict[str, Any]], stored: bool) -> None:
    op, inputs, attributes = node
    initializers = set(range(1, len(inputs))) if stored else set()
    if stored and not initializers:
        pytest.skip("it has one input")
    try:
        run_node(op, inputs, attributes, outputs=2 if op == "TopK" else 1, initializers=initializers)
    except Exception as error:
        if "NOT_IMPLEMENTED" not in str(error):
            raise
        pytest.skip("onnxruntime has no such kernel")


@pytest.mark.parametrize("kind", [np.int64, *TYPES])
@pytest.mark.parametrize("stored", [{1, 2}, {1}, set()])
def test_pad_with_any_number(kind: type, stored: set[int]) -> None:
    """torch takes the number to pad with for a float."""
    x, value = np.arange(6).reshape(2, 3).astype(kind), np.array(np.iinfo(kind).max - 2, kind)
    expected = np.pad(x, ((1, 0), (0, 2)), constant_values=value)
    run_node("Pad", [x, i64(1, 0, 0, 2), value], {}, initializers=stored, expected=[expected])


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_pad_with_its_own_elements(kind: type, mode: str) -> None:
    x = drawn(kind, 3, 4)
    run_node(
        "Pad", [x, i64(1, 0, 1, 2)], {"mode": mode}, initializers={1}, expected=[np.pad(x, ((1, 1), (0, 2)), mode)]
    )


@pytest.mark.parametrize("kind", [*TYPES, np.int32, np.int64])
def test_gemm_of_integers(kind: type) -> None:
    """onnxruntime has none: exact in numpy, which wraps alike."""
    a, w, c = drawn(kind, 2, 3), drawn(kind, 4, 3), drawn(kind, 4)
    for stored in (set[int](), {1, 2}):
        run_node("Gemm", [a, w, c], {"transB": 1}, initializers=stored, expected=[a @ w.T + c])
        scaled = {"transB": 1, "alpha": 2.0, "beta": 3.0}
        run_node("Gemm", [a, w, c], scaled, initializers=stored, expected=[kind(2) * (a @ w.T) + kind(3) * c])


def test_what_torch_has_of_floats_only() -> None:
    x = drawn(np.uint16, 1, 1, 4, 4)
    for op, inputs in (
        ("GridSample", [x, np.zeros((1, 2, 2, 2), np.float32)]),
        ("Col2Im", [x[0], i64(3, 3), i64(2, 2)]),
        ("Gemm", [x[0, 0], x[0, 0]]),
    ):
        with pytest.raises(OnnxgenError, match="floats only|by a fraction"):
            run_node(op, inputs, {"alpha": 0.5} if op == "Gemm" else {}, initializers={1, 2} & set(range(len(inputs))))
