"""Constants as code: each form is the array bit for bit, and reads as a person would write it."""

from __future__ import annotations

import ast
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxgen.code.literals import linspace, tensor_literal
from onnxgen.helpers.detection import make_grid
from onnxgen.helpers.windows import relative_positions
from onnxgen.verify.convert import to_numpy
from tests.support.tiers import drawn

F, D, H, L, B = np.float32, np.float64, np.float16, np.int64, np.bool_


def text(array: np.ndarray[Any, Any]) -> str | None:
    """The code for an array, after checking that it makes exactly that array, also where all else is made on meta."""
    made = tensor_literal(array, ir.DataType.from_numpy(array.dtype), ast.Constant("cpu"))
    if made is None:
        return None
    source = ast.unparse(made)
    scope = {"torch": torch, "relative_positions": relative_positions, "make_grid": make_grid}
    with torch.device("meta"):
        tensor = eval(source, scope)
    got = to_numpy(tensor)
    assert got.shape == array.shape and got.dtype == array.dtype, source
    assert got.tobytes() == np.ascontiguousarray(array).tobytes(), source
    return source.replace(", device='cpu'", "")


def causal(n: int, value: float, dtype: Any = F) -> np.ndarray[Any, Any]:
    return np.where(np.triu(np.ones((n, n), bool), 1), value, 0).astype(dtype)


def centres(h: int, w: int, stride: float = 1, offset: float = 0.5) -> np.ndarray[Any, Any]:
    """The points of a feature map as detectors have them, x before y."""
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return ((torch.stack([x, y], -1).reshape(-1, 2).float() + offset) * stride).numpy()


PIXELS = (2 * torch.arange(28) + 1) / 28 - 1
ALIBI = 2.0 ** -np.arange(1, 5, dtype=F)
LEVELS = np.concatenate([centres(8, 4, 8), centres(4, 2, 16)])


def window(h: int, w: int) -> np.ndarray[Any, Any]:
    """torchvision's way to write it."""
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    flat = torch.stack([y, x]).flatten(1)
    away = (flat[:, :, None] - flat[:, None, :]).permute(1, 2, 0).contiguous()
    away += torch.tensor([h - 1, w - 1])
    away[:, :, 0] *= 2 * w - 1
    return away.sum(-1).numpy()


FORMS: list[tuple[Any, str | None]] = [
    (np.arange(32), "torch.arange(32)"),
    (np.arange(32)[None], "torch.arange(32)[None]"),
    (np.arange(32)[:, None], "torch.arange(32)[:, None]"),
    (np.arange(3, 40, 2, dtype=np.int32), "torch.arange(3, 41, 2, dtype=torch.int32)"),
    (np.arange(9, 0, -1), "torch.arange(9, 0, -1)"),
    (np.arange(40, dtype=F), "torch.arange(40, dtype=torch.float32)"),
    (np.arange(40, dtype=H), "torch.arange(40, dtype=torch.float16)"),
    (np.broadcast_to(np.arange(8), (6, 8)), "torch.arange(8).repeat(6, 1)"),
    (np.broadcast_to(np.arange(8)[:, None], (8, 6)), "torch.arange(8)[:, None].repeat(1, 6)"),
    (np.broadcast_to(np.arange(8)[None, :, None], (2, 8, 6)), "torch.arange(8)[:, None].repeat(2, 1, 6)"),
    (np.arange(64) // 8, "torch.arange(64) // 8"),
    (np.arange(64) % 8, "torch.arange(64) % 8"),
    (np.arange(40, dtype=F) * F(0.1), "torch.arange(40) * 0.1"),
    ((np.arange(40, dtype=F) + F(0.5)) * F(0.025), "(torch.arange(40) + 0.5) * 0.025"),
    (torch.linspace(0, 1, 12).numpy(), "torch.linspace(0.0, 1.0, 12)"),
    (torch.linspace(0.5, -3, 33).numpy(), "torch.linspace(0.5, -3.0, 33)"),
    ((torch.arange(40) / 40).numpy(), "torch.arange(40) / 40"),
    (((torch.arange(7) + 0.5) / 7).numpy(), "(torch.arange(7) + 0.5) / 7"),
    (PIXELS.numpy(), "(2 * torch.arange(28) + 1) / 28 - 1.0"),
    ((torch.arange(50) * 0.3 + 0.7).numpy(), "torch.arange(50) * 0.3 + 0.7"),
    ((torch.arange(20) * 1.7 - 1).numpy(), "torch.arange(20) * 1.7 - 1.0"),  # the ends do not give the step exactly
    (np.arange(40) / 40, "torch.arange(40, dtype=torch.float64) / 40"),
    (np.linspace(0, 1, 40, dtype=F) ** 2, None),
    (centres(3, 4, 8), "make_grid(3, 4, 8)"),
    (centres(3, 4, 8, 0), "make_grid(3, 4, 8, offset=0)"),
    (
        centres(5, 4) / F(7),
        "make_grid(5, 4) / 7",
    ),
    (
        np.concatenate([centres(5, 4), centres(1, 4)]),
        "torch.cat([make_grid(5, 4), make_grid(1, 4)])",
    ),
    (centres(5, 5, 1, 0), "make_grid(5, 5, offset=0)"),
    (centres(5, 5, 1, 0).astype(L), "torch.cartesian_prod(torch.arange(5), torch.arange(5)).flip(-1)"),
    (
        LEVELS.T[None],
        "torch.cat([make_grid(8, 4, 8), make_grid(4, 2, 16)]).T[None]",
    ),
    (
        centres(6, 7).reshape(6, 7, 2)[..., ::-1],
        "(torch.cartesian_prod(torch.arange(6), torch.arange(7)) + 0.5).reshape(6, 7, 2)",
    ),
    (
        np.stack(np.meshgrid(PIXELS.numpy(), np.arange(3, dtype=F))),
        "torch.cartesian_prod(torch.tensor([0.0, 1.0, 2.0]), (2 * torch.arange(28) + 1) / 28 - 1.0)"
        ".flip(-1).T.reshape(2, 3, 28)",
    ),
    (
        np.repeat(np.array([8, 16, 32], F), [64, 16, 4]),
        "torch.tensor([8.0, 16.0, 32.0]).repeat_interleave(torch.tensor([64, 16, 4]))",
    ),
    (np.repeat([3, 5], 40), "torch.tensor([3, 5]).repeat_interleave(40)"),
    (np.eye(9, dtype=F) * F(0.1), "torch.eye(9) * 0.1"),
    (np.eye(8, dtype=F)[[3, 1, 1, 7, 0]], "torch.eye(8)[torch.tensor([3, 1, 1, 7, 0])]"),
    (np.arange(8)[:, None] - np.arange(8), "torch.arange(8)[:, None] - torch.arange(8)"),
    (np.arange(8)[:, None] * 8 + np.arange(8), "torch.arange(0, 64, 8)[:, None] + torch.arange(8)"),
    (np.arange(5, 13)[:, None] + 2 * np.arange(8), "torch.arange(5, 13)[:, None] + torch.arange(0, 16, 2)"),
    (ALIBI[:, None] * np.arange(16, dtype=F), "torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None] * torch.arange(16)"),
    (np.arange(0, -40, -1, F) / F(40), "-torch.arange(40) / 40"),
    (np.arange(0, -40, -1, F)[:, None] * F(0.1), "(-torch.arange(40) * 0.1)[:, None]"),
    (np.tril(np.ones((9, 9), bool))[None, None], "torch.ones(9, 9, dtype=torch.bool).tril()[None, None]"),
    (np.tril(np.ones((9, 9), F), -2), "torch.ones(9, 9).tril(-2)"),
    (np.triu(np.ones((9, 7), F), 2), "torch.ones(9, 7).triu(2)"),
    (causal(8, -np.inf), "torch.full((8, 8), float('-inf')).triu(1)"),
    (causal(8, np.finfo(F).min), "torch.full((8, 8), torch.finfo(torch.float32).min).triu(1)"),
    (causal(8, -np.inf, H), "torch.full((8, 8), float('-inf'), dtype=torch.float16).triu(1)"),
    (np.eye(8, dtype=F), "torch.eye(8)"),
    (np.eye(8, 6, dtype=bool), "torch.eye(8, 6, dtype=torch.bool)"),
    (np.zeros((3, 4), F), "torch.zeros(3, 4)"),
    (np.zeros((3, 4), L), "torch.zeros(3, 4, dtype=torch.int64)"),
    (np.full((2, 2), -0.0, F), "torch.tensor([[-0.0, -0.0], [-0.0, -0.0]])"),
    (np.full((3, 4), 7), "torch.full((3, 4), 7)"),
    (np.full((3,), 0.1, F), "torch.full((3,), 0.1)"),
    (np.ones((2, 2), bool), "torch.full((2, 2), True)"),
    (np.array([[1.5, 2.5]] * 40, F), "torch.tensor([1.5, 2.5]).repeat(40, 1)"),
    (np.array([0.1, 1e-5, 1 / 3], F), "torch.tensor([0.1, 1e-5, 0.33333334])"),
    (np.array([0.1], D), "torch.tensor([0.1], dtype=torch.float64)"),
    (window(3, 4), "relative_positions(3, 4)"),
    (window(7, 7), "relative_positions(7, 7)"),
    (np.full((6, 2), np.nan, F), None),
    (np.random.default_rng(0).permutation(64), None),
    (np.random.default_rng(0).permutation(9), None),
    (np.array([3, 1, 4, 1, 5, 9, 2, 6]), "torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])"),
    (np.random.default_rng(0).standard_normal((3, 3)), None),
]  # fmt: skip


@pytest.mark.parametrize(("array", "expected"), FORMS, ids=[str(e)[:60] for _, e in FORMS])
def test_forms(array: Any, expected: str | None) -> None:
    assert text(array) == expected


def test_a_vector_without_a_form_is_listed_while_it_is_short() -> None:
    """Up to 32 numbers, here as the slopes of lines; longer ones stay in the file of the weights."""
    slopes = np.random.default_rng(0).integers(3, 9999, 33).astype(F)
    short, long = (text(slopes[:n, None] * np.arange(16, dtype=F)) for n in (32, 33))
    assert short is not None and short.startswith("torch.tensor([") and long is None


def rounded(exact: Fraction) -> float:
    """The float32 that is nearest, of two the even one."""
    near = F(float(exact))
    some = (np.nextafter(near, F(-np.inf)), near, np.nextafter(near, F(np.inf)))
    return float(min(some, key=lambda n: (abs(Fraction(float(n)) - exact), int(n.view(np.int32)) % 2)))


def test_linspace_is_torchs_whether_a_product_is_rounded_or_not() -> None:
    generator = np.random.default_rng(0)
    for size in (1e-12, 1e-10, 1e-8, 1e-6, 1e-3, 1.0, 1e5):
        start, end, count = F(generator.normal() * size), F(generator.normal()), 41
        apart, fused = (linspace(float(start), float(end), count, way) for way in (False, True))
        found = torch.linspace(float(start), float(end), count).numpy()
        assert ((found == apart) | (found == fused)).all()
        step = (end - start) / F(count - 1)
        exact = [Fraction(float(start)) + Fraction(float(step)) * i for i in range(count // 2)]
        exact += [Fraction(float(end)) - Fraction(float(step)) * (count - 1 - i) for i in range(count // 2, count)]
        assert fused.tolist() == list(map(rounded, exact))


@st.composite
def arrays(draw: Any) -> np.ndarray[Any, Any]:
    """Arrays that have one of the forms, or nearly."""
    n, m = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    start, step = (
        draw(st.sampled_from([0, 1, -5, 120, 0.5, 0.1, 2**24 - 3, 1e-3])),
        draw(st.sampled_from([1, 2, -3, 0.5, 0.1, -0.1, 1e-3, 2**20])),
    )
    dtype = draw(st.sampled_from([F, D, H, L, np.int32, np.uint8, np.int8, B, ml_dtypes.bfloat16]))
    grid = np.add.outer(np.arange(n), -np.arange(m))
    value = draw(st.sampled_from([1, 3, -1e4, 0.1]))
    made = draw(
        st.sampled_from(
            [
                np.arange(n * m) * step + start,
                (np.arange(n * m) + 0.5) * step,
                np.where(grid >= draw(st.integers(-8, 8)), value, 0),
                np.where(grid <= draw(st.integers(-8, 8)), value, 0),
                np.eye(n, m) * value,
                np.arange(n * m) // m * step,
                np.broadcast_to(np.arange(m) * step, (n, 3, m)),
                np.full((n, m), value),
                torch.linspace(start, start + step * m, n * m).numpy(),
                (torch.arange(n * m) + 0.5).numpy() / m * step + start,
                centres(n, m, step, start),
                np.concatenate([centres(n, m, step), centres(m, n, start)]).T,
                np.add.outer(np.arange(n) * step, np.arange(m)),
                np.multiply.outer(np.arange(n) * F(step), np.arange(m, dtype=F)),
                np.eye(m)[np.arange(n) % m] * step,
                np.repeat(np.arange(n) * step, np.arange(n) + m),
            ]
        )
    )
    with np.errstate(all="ignore"):
        array = np.asarray(made).astype(np.float64).astype(dtype) if dtype not in (L, B) else made.astype(dtype)
    if draw(st.booleans()):
        array = array.copy()
        array.reshape(-1)[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from([0, 1, 7]))
    return array[(None,) * draw(st.integers(0, 2))]


@given(arrays())
@settings(max_examples=drawn(400), deadline=None)
def test_any_form_is_the_array(array: np.ndarray[Any, Any]) -> None:
    text(array)
