"""What is known of a value before anything runs is so: for each of ONNX's node tests, whatever is known of its inputs.

The oracle is the output that the test states, and ONNX's own inference for what must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import onnx
import pytest

from tests.ops.harness import all_cases, as_array
from tests.shapes.agreeing import hold_elements, hold_sizes, hold_types

PARTS = 8
parts = pytest.mark.parametrize("part", range(PARTS))


def data(part: int) -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any], list[Any]]]:
    """Every eighth test with its name, model, inputs and outputs."""
    for case in all_cases()[part::PARTS]:
        names = [value.name for value in case.model.graph.input]
        for inputs, outputs in case.data_sets:
            yield case.name, case.model, dict(zip(names, map(as_array, inputs))), [*map(as_array, outputs)]


def wrong(hold: Callable[[onnx.ModelProto, dict[str, Any], list[Any]], None], among: Iterable[Any]) -> list[str]:
    """The tests for which it does not hold."""
    found = []
    for name, *one in among:
        try:
            hold(*one)
        except Exception as error:
            found.append(f"{name}: {error!r}")
    return found


@parts
def test_sizes(part: int) -> None:
    assert wrong(hold_sizes, data(part)) == []


@parts
def test_types(part: int) -> None:
    single = [(name, *one) for name, *one in data(part) if len(one[0].graph.node) == 1]
    assert wrong(hold_types, single) == []


@parts
def test_elements(part: int) -> None:
    assert wrong(hold_elements, data(part)) == []
