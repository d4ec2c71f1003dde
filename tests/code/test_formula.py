"""Numbers that a person computed are written as formulas, if these give the very same float32."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnxgen.code.quote import NAMED, computed, formula
from onnxgen.validate import Difference, specify, validate
from tests.ops.harness import run_node
from tests.structure.test_structure import made
from tests.validate.flat import flat
from tests.zoo.export import Case

F = np.float32


def text(number: float) -> str | None:
    """The formula for a float32 number that is written with few digits; None if it stays a number."""
    made = formula(ast.Constant(abs(computed(float(str(F(number)))))))
    return None if made is None else ast.unparse(made)


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (math.sqrt(32), "math.sqrt(32)"),
        (-math.sqrt(768), "math.sqrt(768)"),
        (96**-0.5, "1 / math.sqrt(96)"),
        (1 / 255, "1 / 255"),
        (1 / 6, "1 / 6"),
        (math.pi, "math.pi"),
        (2 * math.pi, "2 * math.pi"),
        (0.5 * math.log(2 * math.pi), "0.5 * math.log(2 * math.pi)"),
        (math.sqrt(2 / math.pi), "math.sqrt(2 / math.pi)"),
        (8.0, None),  # sqrt(64)
        (0.25, None),
        (1.5, None),
        (3.14159, None),  # typed
        (0.333333, None),
        (1.4142, None),
        (1.2345678, None),
        (0.0, None),
        (math.inf, None),
        (-math.inf, None),
        (math.nan, None),
        (3.4028234663852886e38, None),
        (1.1754943508222875e-38, None),
        (1e-45, None),
    ],
)
def test_formulas(number: float, written: str | None) -> None:
    assert text(number) == written
    assert np.array_equal(F(computed(float(str(F(number))))), F(number), equal_nan=True)


def test_a_formula_is_its_number() -> None:
    for written, value in NAMED.items():
        assert eval(written, {"math": math}) == value, written
        found = text(value)
        assert found is not None and eval(found, {"math": math}) == value, found


@pytest.mark.parametrize("value", NAMED.values())
def test_another_library_rounds_to_the_same_float32(value: float) -> None:
    """Logarithms may differ in the last bits of a float64 on another machine."""
    for steps in (-4, 4):
        assert F(value + steps * math.ulp(value)) == F(value)


def test_neighbours_have_no_formula() -> None:
    """A number that differs from what a formula gives in its last bit stays a number."""
    for square in (2, 3, 5, 32, 48, 63, 96, 128, 200, 384, 768, 1000, 4095):
        number = F(math.sqrt(square))
        assert text(float(number)) == f"math.sqrt({square})"
        assert text(float(number)) is not None
        for other in (np.nextafter(number, F(0)), np.nextafter(number, F(1e9))):
            assert text(float(other)) is None, other


@pytest.mark.parametrize("op", ["Mul", "Div", "Add", "Sub", "Max", "Greater", "Pow"])
@pytest.mark.parametrize("number", [math.sqrt(48), -(48**-0.5), 1 / 3, 2 * math.pi, -math.log(10000)])
def test_bits(op: str, number: float) -> None:
    """The formula stands beside a tensor, and the result has the bits that the number gives."""
    x = np.abs(np.random.default_rng(3).normal(size=(64, 65)).astype(F)) + F(0.1)
    ran = run_node(op, [x, np.array(number, F)], initializers={1})
    assert "math." in ran.forward or "1 / 3" in ran.forward
    function = {"Max": torch.maximum, "Greater": torch.gt}.get(op) or getattr(torch, op.lower())
    expected = function(torch.from_numpy(x), torch.tensor(number, dtype=torch.float32))
    assert torch.equal(torch.as_tensor(ran.outputs[0]), expected)


class Block(nn.Module):
    def __init__(self, root: int) -> None:
        super().__init__()
        self.fc, self.root = nn.Linear(6, 6), root

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x)) * self.root**-0.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = Block(5), Block(5), Block(5), Block(7)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.third(x) - self.second(self.first(x)))


def vectors(batch: int = 2) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 6, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("case", [Case("legacy", 17, False), Case("dynamo", 18, False)], ids=str)
def test_arguments_and_defaults_of_a_class(case: Case, tmp_path: Path) -> None:
    source = made(Net, tmp_path, vectors, case)
    assert "1 / math.sqrt(5)" in source and "1 / math.sqrt(7)" in source
    assert source.count("nn.Linear(") == 1 and "0.4" not in source and "0.3" not in source


@pytest.mark.parametrize(
    ("written", "is_same"),
    [
        ("math.sqrt(8)", True),
        ("2.8284271247461903", True),
        ("8**0.5", True),
        ("math.sqrt(7)", False),
        ("math.log(8)", False),
        ("math.exp(8)", False),
        ("math.sqrt(x)", False),
        ("math.sqrt(-8)", False),
        ("math.pi", False),
        ("np.sqrt(8)", False),
        ("2.828427", False),
    ],
)
def test_the_checker_computes_formulas(written: str, is_same: bool) -> None:
    wanted = specify(flat({"x": [2, 3]}, {}, f"return x * {math.sqrt(8)!r}"))
    source = f"""
import math

import numpy as np
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x * {written}
"""
    found = validate(wanted, ast.parse(source), "Net")
    assert (found is None) is is_same and (found is None or isinstance(found, Difference))
