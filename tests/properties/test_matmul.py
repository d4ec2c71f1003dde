"""Products: MatMul of every pair of ranks, Gemm, Einsum, MatMulInteger."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.properties.judge import Case, agreement
from tests.properties.strategies import Draw, opsets, placed, whole

SIZE = st.integers(1, 4) | st.integers(0, 4)


@st.composite
def operands(draw: Draw) -> tuple[list[int], list[int]]:
    """Shapes that MatMul takes: vectors, matrices, and batches that broadcast."""
    rows, inner, columns = draw(SIZE), draw(SIZE), draw(SIZE)
    kind = draw(st.sampled_from(["matrices"] * 5 + ["first", "second", "vectors"]))
    batch = draw(st.lists(SIZE, max_size=3))
    sides = [
        [1 if draw(st.sampled_from([True, False, False])) else n for n in batch][draw(st.integers(0, len(batch))) :]
        for _ in range(2)
    ]
    if kind == "first":
        return [inner], [*sides[1], inner, columns]
    if kind == "second":
        return [*sides[0], rows, inner], [inner]
    return ([inner], [inner]) if kind == "vectors" else ([*sides[0], rows, inner], [*sides[1], inner, columns])


@st.composite
def matmul(draw: Draw) -> Case:
    opset, (a, b) = draw(opsets()), draw(operands())
    assume(0 not in a[-1:])  # of no products at all, onnxruntime leaves the sums unwritten
    kinds = ["float32"] * 3 + ["float64"] + (["int32", "int64", "uint32", "uint64"] if opset >= 9 else [])
    dtype = draw(st.sampled_from(kinds))
    return draw(placed("MatMul", [draw(whole(a, dtype)), draw(whole(b, dtype))], {}, opset))


@st.composite
def integer(draw: Draw) -> Case:
    a, b = draw(operands())
    assume(0 not in a[-1:])  # of no products at all, onnxruntime leaves the sums unwritten
    first, second = draw(st.sampled_from(["int8", "uint8"])), draw(st.sampled_from(["int8", "uint8"]))
    inputs: list[Any] = [draw(whole(a, first, -100, 100)), draw(whole(b, second, -100, 100))]
    inputs += [draw(whole([], first)) if draw(st.booleans()) else None]
    per = [[]] + ([[b[-1]]] if len(b) == 2 else [])
    inputs += [draw(whole(draw(st.sampled_from(per)), second)) if draw(st.booleans()) else None]
    return draw(placed("MatMulInteger", inputs, {}, draw(opsets(10))))


@st.composite
def gemm(draw: Draw) -> Case:
    rows, inner, columns = draw(SIZE), draw(SIZE), draw(SIZE)
    attrs: dict[str, Any] = {name: draw(st.integers(0, 1)) for name in ("transA", "transB") if draw(st.booleans())}
    attrs |= {name: draw(st.sampled_from([0.5, 2.0, -1.0, 0.0])) for name in ("alpha", "beta") if draw(st.booleans())}
    opset, dtype = draw(opsets()), draw(st.sampled_from(["float32", "float32", "float64"]))
    inner = max(inner, 1)  # of no products at all, onnxruntime leaves out beta; onnx.reference does not
    a = [inner, rows] if attrs.get("transA") else [rows, inner]
    b = [columns, inner] if attrs.get("transB") else [inner, columns]
    biases = [[rows, columns], [1, columns], [columns], [rows, 1], [1], []]
    bias = draw(whole(draw(st.sampled_from(biases)), dtype)) if opset < 11 or draw(st.booleans()) else None
    return draw(placed("Gemm", [draw(whole(a, dtype)), draw(whole(b, dtype)), bias], attrs, opset))


@st.composite
def einsum(draw: Draw) -> Case:
    """Two or three terms, repeated letters, diagonals, an ellipsis, spaces, with the output spelled out or not."""
    sizes = {letter: draw(st.integers(1, 3)) for letter in "ijkBz"}
    letters = st.sampled_from(list(sizes))
    terms = draw(st.lists(st.lists(letters, max_size=3).map("".join), min_size=1, max_size=3))
    dots = [bool(draw(st.sampled_from([False, False, True]))) for _ in terms]
    more = draw(st.lists(st.integers(1, 3), max_size=2))
    operands, dtype = [], draw(st.sampled_from(["float32", "float32", "float64", "int32", "int64"]))
    for i, (term, dotted) in enumerate(zip(terms, dots)):
        before = draw(st.integers(0, len(term)))
        lead = [1 if draw(st.sampled_from([True, False, False])) else n for n in more] if dotted else []
        shape = [sizes[c] for c in term]
        operands.append(draw(whole([*shape[:before], *lead, *shape[before:]], dtype, -2, 2)))
        terms[i] = f"{term[:before]}...{term[before:]}" if dotted else term
    used = sorted({c for t in terms for c in t if c != "."})
    equation = ",".join(terms)
    if draw(st.sampled_from([True, True, False])):
        kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        equation += "->" + ("..." if any(dots) else "") + "".join(kept)
    if draw(st.booleans()):
        equation = equation.replace(",", ", ").replace("->", " -> ")
    return draw(placed("Einsum", operands, {"equation": equation}, draw(opsets(12))))


test_matmul = agreement(matmul(), 96)
test_matmul_integer = agreement(integer(), 40)
test_gemm = agreement(gemm(), 64)
test_einsum = agreement(einsum(), 64)
