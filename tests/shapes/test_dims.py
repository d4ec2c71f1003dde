"""Symbolic dims: normal forms, exactness against plain integers, text."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from onnxgen.shapes.dims import (
    Call,
    Dim,
    Sym,
    TooComplex,
    as_size,
    atoms,
    call,
    dim_max,
    dim_min,
    evaluate,
    exact_div,
    floordiv,
    int_div,
    known_different,
    known_less,
    modulo,
    nonnegative,
    product,
    scale_size,
    substitute,
    symbol,
    symbols,
)

a, b, h, s = (symbol(name) for name in "abhs")


def test_equal_expressions_are_equal_and_constants_are_ints() -> None:
    assert s + 1 - 1 == s and hash(s + 1 - 1) == hash(s)
    assert s - s == 0 and type(s - s) is int and s * 0 == 0
    assert (a + b) * (a - b) == a * a - b * b
    assert (h - 1) // 2 + 1 == (h + 1) // 2
    assert ((h + 1) // 2 + 1) // 2 == (h + 3) // 4  # two convolutions of stride 2
    assert (s + 8) % 8 == s % 8
    assert s != s + 1 and s != 3 and s != "s"
    assert symbol("s", ("x", 0)) == symbol("s", ("y", 1))


def test_division_is_exact_where_one_divides_the_other() -> None:
    assert (a * b) // b == a
    assert product([a, b, 12, h]) // (b * 4) == 3 * a * h
    assert (a * a - b * b) // (a + b) == a - b
    assert exact_div(a * 12, 12) == a and exact_div(a, 2) is None and exact_div(a, 0) is None
    assert (2 * s) // 4 == s // 2 and (6 * a) // (4 * b) == (3 * a) // (2 * b)
    assert int_div(a * 3, a) == 3
    assert int_div(s, 2) == s // 2  # neither is negative
    assert int_div(s - 4, 2) == call("int_div", s - 4, 2)  # rounds toward zero, which // does not
    assert int_div(-7, 2) == -3 and floordiv(-7, 2) == -4
    with pytest.raises(ZeroDivisionError):
        floordiv(s, 0)
    with pytest.raises(ZeroDivisionError):
        modulo(s, 0)


def test_text() -> None:
    assert str(2 * s + 1) == "2*s + 1"
    assert str((h - 3) // 2) == "(h - 3)//2"
    assert str(3 * ((h + 1) // 2) * a) == "3*a*((h + 1)//2)"
    assert str(-(s // 2)) == "-(s//2)"
    assert str(dim_max(s - 1, 0)) == "max(0, s - 1)"
    assert str((8 - s % 8) % 8) == "(-(s % 8)) % 8"


def test_least_and_greatest() -> None:
    assert dim_min(s, s + 1) == s and dim_max(s, s + 1) == s + 1
    assert dim_max(s, 0) == s and dim_min(s, -1) == -1
    assert dim_max(dim_max(s - 1, 0), 5) == dim_max(5, s - 1)
    assert dim_min(a, b) == dim_min(b, a)
    assert dim_min(3, 4) == 3


def test_facts() -> None:
    assert nonnegative(s) and nonnegative(s * a + 2) and nonnegative((s + 1) // 2) and nonnegative(dim_max(s - 5, 0))
    assert not nonnegative(s - 1) and not nonnegative(-s)
    assert nonnegative(as_size(s - 1)) and nonnegative(as_size(s - 1) + 3) and not nonnegative(as_size(s - 1) - 3)
    assert as_size(s - 1) == s - 1
    assert s * 2 == s + s and s != h
    assert known_less(s, s + 1) and not known_less(s, s) and not known_less(s, 1)
    assert known_different(s, s + 1) and known_different(s + 1, 0) and not known_different(s, 1)


def test_truth_of_a_symbolic_dim_is_refused() -> None:
    with pytest.raises(TypeError):
        bool(s)


def test_walk_and_replace() -> None:
    dim = a * 2 + (h - 1) // b
    assert set(symbols(dim)) == {"a", "h", "b"}
    assert any(isinstance(atom, Call) and atom.function == "floordiv" for atom in atoms(dim))
    assert substitute(dim, {"b": 2}) == a * 2 + (h - 1) // 2
    assert substitute(h // 2, {"h": 2 * s}) == s
    assert evaluate(dim, {"a": 1, "h": 8, "b": 2}) == 5
    with pytest.raises(KeyError):
        evaluate(dim, {"a": 1})


def test_scaled_sizes_are_those_of_float32() -> None:
    assert scale_size(s, 2.0) == 2 * s and scale_size(s, 0.5) == s // 2
    for scale in (0.7, 1.3, 1 / 3, 2.5):
        for n in range(1, 200):
            expected = int(np.floor(np.float32(n) * np.float32(scale)))
            assert scale_size(n, scale) == expected == evaluate(scale_size(s, scale), {"s": n})
    assert scale_size(10, 0.7) == 7


def test_numpy_integers_and_object_arrays() -> None:
    total = np.array([s, 2], dtype=object) * np.int64(3) + 1
    assert list(total) == [3 * s + 1, 7]
    assert np.int64(2) * s == 2 * s and s + np.int64(1) == s + 1
    for function in (floordiv, modulo, int_div):
        made, number = function(s, np.int64(8)), function(np.int64(-9), np.int64(4))
        assert made == function(s, 8) and number == function(-9, 4) and type(number) is int
        with pytest.raises(TypeError):
            function(s, 2.0)


def test_names_from_a_file_are_only_names() -> None:
    odd = symbol("min(a,b)")
    assert odd != dim_min(a, b) and odd + dim_min(a, b) - odd == dim_min(a, b)


def test_growth_is_bounded() -> None:
    with pytest.raises(TooComplex):
        dim: Dim = 1
        for i in range(40):
            dim = dim * (symbol(f"x{i}") + 1)
    with pytest.raises(TooComplex):
        dim = s
        for i in range(10_000):
            dim = (dim + symbol(f"x{i}")) % 7
    with pytest.raises(TooComplex):
        dim = s
        for _ in range(100):
            dim = dim * dim


def random_expression(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice("sha") if rng.random() < 0.7 else str(rng.randint(-5, 9))
    left, right = random_expression(rng, depth - 1), random_expression(rng, depth - 1)
    operation = rng.choice(["+", "-", "*", "//", "%", "min", "max", "int_div"])
    if operation in ("min", "max", "int_div"):
        return f"{operation}({left}, {right})"
    return f"({left} {operation} {right})"


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def test_random_expressions_have_the_value_of_plain_integers() -> None:
    """The expression, its text, and the claim of being >= 0 all hold for concrete numbers."""
    rng = random.Random(0)
    names: dict[str, Any] = {"s": s, "h": h, "a": a, "min": dim_min, "max": dim_max, "int_div": int_div}
    checked = 0
    for _ in range(4000):
        text = random_expression(rng, 4)
        try:
            dim = eval(text, dict(names))
        except (ZeroDivisionError, TooComplex):
            continue
        plain, written = compile(text, "text", "eval"), compile(str(dim), "dim", "eval")
        for _ in range(4):
            values = {name: rng.randint(0, 12) for name in "sha"}
            try:
                expected = eval(plain, {**values, "int_div": truncated})
            except ZeroDivisionError:
                continue
            assert evaluate(dim, values) == expected, (text, str(dim), values)
            assert eval(written, {**values, "int_div": truncated}) == expected, (text, str(dim), values)
            assert expected >= 0 or not nonnegative(dim), (text, str(dim), values)
            checked += 1
    assert checked > 5000
    assert isinstance(s // 2, Sym)
