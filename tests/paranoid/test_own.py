"""The checker's definitions of onnxgen's own operators are torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import Lowering, card, operators
from onnxgen.helpers.affine import LearnableAffine
from onnxgen.helpers.fake_quant import fake_quantize, fake_quantize_dynamic, fake_quantize_float
from onnxgen.helpers.rotary import rotate_half, rotate_pairs

X = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
W = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def reference(name: str) -> Lowering:
    found = card(DOMAIN, name).reference
    assert found is not None
    return found


MASK = torch.tensor([[True, False, False, True], [False] * 4, [True] * 4, [False, True, True, False]])
SDPA = F.scaled_dot_product_attention

# operator, inputs, attributes, what torch computes of the inputs
Case: TypeAlias = tuple[str, list[Tensor], dict[str, Any], Callable[..., Any]]
CASES: list[Case] = [
    ("Standardize", [X], {"epsilon": 0.1}, lambda x: F.batch_norm(x, None, None, training=True, eps=0.1)),
    ("Standardize", [X[:1], Y[0, :, 0], Y[1, :, 0]], {"epsilon": 1e-3, "shape": [4, 2, 3]},
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=1e-3).reshape(4, 2, 3)),
    ("Standardize", [X, Y[0, 0, :2]], {"epsilon": 1e-3, "shape": [2, 4, 6]},
     lambda x, w: F.batch_norm(x.reshape(1, 2, -1), None, None, w, training=True, eps=1e-3).reshape_as(x)),
    ("WeightNorm", [X, Y[:, :1, :1]], {"dim": 0}, torch._weight_norm),
    ("WeightNorm", [X, Y[:1, :1]], {"dim": 2}, lambda v, g: torch._weight_norm(v, g, 2)),
    ("WeightNorm", [X, Y[0, 0, 0]], {"dim": -1}, lambda v, g: torch._weight_norm(v, g, -1)),
    ("Linear", [X, W], {}, lambda x, w: x @ w),
    ("Linear", [X, W, W[0]], {}, lambda x, w, b: F.linear(x, w.T, b)),
    ("Glu", [X], {"axis": 1}, lambda x: F.glu(x, 1)),
    ("Softplus", [X], {"beta": 2.5}, lambda x: F.softplus(x, 2.5, 40)),
    ("LogSigmoid", [X], {}, F.logsigmoid),
    ("Rsqrt", [X.abs()], {}, torch.rsqrt),
    ("Log10", [X.abs()], {}, torch.log10),
    ("Log2", [X.abs()], {}, torch.log2),
    ("Normalize", [X], {"axis": 2, "p": 1, "epsilon": 4.0}, lambda x: F.normalize(x, 1, 2, 4.0)),
    ("Normalize", [X], {"axis": 1, "p": 2, "epsilon": 1e-12}, lambda x: F.normalize(x, 2, 1)),
    ("CosineSimilarity", [X, Y], {"axis": 1, "epsilon": 1e-8}, lambda x, y: F.cosine_similarity(x, y, 1)),
    ("Variance", [X], {"axes": [0, 2], "keepdims": 1}, lambda x: x.var((0, 2), keepdim=True)),
    ("Deviation", [X], {"axes": [1], "keepdims": 0}, lambda x: x.std(1)),
    ("Attention", [X, Y, Y], {"scale": 0.3}, lambda q, k, v: SDPA(q, k, v, scale=0.3)),
    ("Attention", [X, Y, Y], {"scale": 0.3, "is_causal": 1}, lambda q, k, v: SDPA(q, k, v, is_causal=True, scale=0.3)),
    ("Attention", [X, Y, X, MASK], {"scale": 0.3}, lambda q, k, v, m: SDPA(q, k, v, m, scale=0.3)),
    ("Attention", [X, Y, X, Y[:, :, :4]], {"scale": 0.3}, lambda q, k, v, m: SDPA(q, k, v, m, scale=0.3)),
    ("Unbind", [X], {"axis": 1}, lambda x: x.unbind(1)),
    ("Stack", [X, Y], {"axis": 2}, lambda x, y: torch.stack([x, y], 2)),
    ("Roll", [X], {"shifts": [1, -2], "axes": [1, 2]}, lambda x: torch.roll(x, (1, -2), (1, 2))),
    ("RepeatInterleave", [X], {"repeats": 3, "axis": 1}, lambda x: x.repeat_interleave(3, 1)),
    ("Positions", [X > 0], {}, torch.nonzero),
    ("Chosen", [X, X[:, :, 0] > 0], {}, lambda x, mask: x[mask]),
    ("RotateHalf", [X], {}, rotate_half),
    ("RotatePairs", [X], {}, rotate_pairs),
    ("FakeQuantizeDynamic", [X], {}, fake_quantize_dynamic),
    ("FakeQuantize", [X, torch.tensor(0.1).double(), torch.tensor(3.0).double()], {"low": 0, "high": 9},
     lambda x, s, z: fake_quantize(x, s, z, 0, 9)),
    ("FakeQuantize", [X, W[:, 0].abs()], {"axis": 2, "low": -4, "high": 3},
     lambda x, s: fake_quantize(x, s, 0, -4, 3)),
    ("FakeQuantize", [X, X[:, :2].abs()], {"axis": 1, "block": 2, "low": -4, "high": 3},
     lambda x, s: fake_quantize(x, s.repeat_interleave(2, 1), 0, -4, 3)),
    ("FakeQuantize", [300 * X, torch.tensor(0.3).double()], {"to": int(ir.DataType.FLOAT8E4M3FN)},
     lambda x, s: fake_quantize_float(x, s, torch.float8_e4m3fn)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "original"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_own_operators(op: str, inputs: list[Tensor], attributes: dict[str, Any], original: Callable[..., Any]) -> None:
    made = reference(op)(*(t.numpy() for t in inputs), **attributes)
    expected = original(*inputs)
    pairs = zip(made, expected) if isinstance(made, list) else [(made, expected)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), 1e-9, 1e-12)


def test_every_own_operator_has_a_definition() -> None:
    assert [name for domain, name in operators() if domain == DOMAIN and card(DOMAIN, name).reference is None] == []


def test_text_is_numbered_in_its_order() -> None:
    words = np.array([["b", "a"], ["b", "c"]], object)
    table, codes = reference("TextCodes")(words)
    assert list(table) == ["a", "b", "c"] and codes.tolist() == [[1, 0], [1, 2]]
    assert reference("TextAt")(table, codes).tolist() == words.tolist()


# ---- shapes at the edge: without axes, of one, with axes of size 0 and 1 ---------------------------------------------

EDGES = [(), (1,), (3,), (0,), (1, 1), (4, 0), (0, 4), (2, 6), (1, 6), (2, 1), (2, 4, 6), (2, 0, 6), (2, 4, 1, 6)]
WITHOUT_SIZE_0 = ("Standardize", "WeightNorm")  # torch ends the process on empty ones


def learnable_affine(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    layer = LearnableAffine(torch.float64)
    with torch.no_grad():
        layer.scale.copy_(scale.reshape(1))
        layer.bias.copy_(bias.reshape(1))
        return layer(x)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def batch_normed(x: Tensor, w: Tensor | None = None, b: Tensor | None = None) -> Tensor:
    return F.batch_norm(x, None, None, w, b, training=True, eps=0.1)


def of_axis(axis: int, shape: tuple[int, ...]) -> Iterator[Case]:
    """What takes an axis."""
    x, sizes = drawn(*shape), [n if i == axis % max(1, len(shape)) else 1 for i, n in enumerate(shape)]
    yield "Glu", [x], {"axis": axis}, lambda x: F.glu(x, axis)
    yield "Normalize", [x], {"axis": axis, "p": 2, "epsilon": 1e-12}, lambda x: F.normalize(x, 2, axis)
    yield ("CosineSimilarity", [x, x.exp()], {"axis": axis, "epsilon": 1e-8},
           lambda x, y: F.cosine_similarity(x, y, axis))  # fmt: skip
    yield "Variance", [x], {"axes": [axis], "keepdims": 1}, lambda x: x.var((axis,), keepdim=True)
    yield "Deviation", [x], {"axes": [axis], "keepdims": 0}, lambda x: x.std((axis,))
    yield "Unbind", [x], {"axis": axis}, lambda x: x.unbind(axis)
    yield "Stack", [x, x], {"axis": axis}, lambda x, y: torch.stack([x, y], axis)
    yield "Roll", [x], {"shifts": [2], "axes": [axis]}, lambda x: torch.roll(x, (2,), (axis,))
    yield "RepeatInterleave", [x], {"repeats": 3, "axis": axis}, lambda x: x.repeat_interleave(3, axis)
    yield "WeightNorm", [x, drawn(*sizes)], {"dim": axis}, lambda v, g: torch._weight_norm(v, g, axis)


def of_shape(shape: tuple[int, ...]) -> Iterator[Case]:
    x, one, last = drawn(*shape), drawn(), shape[-1] if shape else 1
    yield from (case for axis in {0, -1, len(shape) - 1} for case in of_axis(axis, shape))
    yield "Affine", [x, one, one], {}, learnable_affine
    yield "Affine", [x, drawn(1), drawn(1)], {}, learnable_affine
    yield "Softplus", [x * 40], {"beta": 2.5}, lambda x: F.softplus(x, 2.5, 40)
    yield "LogSigmoid", [x * 40], {}, F.logsigmoid
    yield "Rsqrt", [x], {}, torch.rsqrt
    yield "Log10", [x], {}, torch.log10
    yield "Log2", [x], {}, torch.log2
    yield "Variance", [x], {"axes": [], "keepdims": 0}, lambda x: x.var(())
    yield "Deviation", [x], {"axes": [], "keepdims": 1}, lambda x: x.std((), keepdim=True)
    yield "RotateHalf", [x], {}, rotate_half
    yield "RotatePairs", [x], {}, rotate_pairs
    yield "FakeQuantizeDynamic", [x], {}, fake_quantize_dynamic
    yield "FakeQuantize", [x, one.abs()], {"low": -4, "high": 3}, lambda x, s: fake_quantize(x, s, 0, -4, 3)
    for bias in ((5,), (1,), (), (6,), (2, 5)):
        yield ("Linear", [x, drawn(last, 5), drawn(*bias)], {},
               lambda x, w, b: F.linear(x, w.T, b))  # fmt: skip
    yield "Linear", [x, drawn(last, 1), drawn(5)], {}, lambda x, w, b: F.linear(x, w.T, b)
    yield "Standardize", [x], {"epsilon": 0.1}, batch_normed
    if len(shape) > 1:
        yield "Standardize", [x, drawn(shape[1]), drawn(shape[1])], {"epsilon": 0.1}, batch_normed


def of_attention() -> Iterator[Case]:
    for queries, keys in ((4, 4), (4, 1), (1, 4), (4, 0), (7, 4)):
        for lead in ((), (2,), (2, 3), (0, 3)):
            q, k, v = drawn(*lead, queries, 6), drawn(*lead, keys, 6), drawn(*lead, keys, 2)
            yield (
                "Attention",
                [q, k, v],
                {"scale": 0.3, "is_causal": 1},
                lambda q, k, v: SDPA(q, k, v, is_causal=True, scale=0.3),
            )
            scores = drawn(queries, keys)
            hidden = torch.full((queries, keys), -torch.inf, dtype=torch.float64)
            for mask in (None, scores, scores > 0, scores[:1] > 0, scores > 99, hidden, scores[0], drawn(2, 1, 1, 1)):
                given = [] if mask is None else [mask]
                yield (
                    "Attention",
                    [q, k, v, *given],
                    {"scale": 0.3},
                    lambda q, k, v, m=None: SDPA(q, k, v, m, scale=0.3),
                )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [*EDGES, None], ids=str)
def test_definitions_are_the_layers_at_the_edges(shape: tuple[int, ...] | None) -> None:
    """Where the layer gives something, so does the definition, or it refuses. Where it refuses, the definition does."""
    compared = 0
    for op, inputs, attributes, layer in of_attention() if shape is None else of_shape(shape):
        if op in WITHOUT_SIZE_0 and shape and 0 in shape:
            continue
        where = f"{op} {[tuple(t.shape) for t in inputs]} {attributes}"
        try:
            made = reference(op)(*(t.numpy() for t in inputs), **attributes)
        except Exception:
            continue
        ours = made if isinstance(made, list) else [made]
        try:
            found = layer(*inputs)
        except Exception as error:
            pytest.fail(f"{where}: the layer refuses: {error}")
        theirs = [found] if isinstance(found, Tensor) else found
        assert [np.shape(a) for a in ours] == [tuple(b.shape) for b in theirs], where
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b.numpy(), 1e-9, 1e-12, err_msg=where)
        compared += 1
    assert compared > 10
