"""One number that a file repeats where a layer has weights: TensorFlow's LayerNorm is a BatchNorm over the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.harness import generate as _generate
from tests.whole.test_random_graphs import hold
from tests.whole.test_small_graphs import case

# Keras' LayerNorm, and behind it a GELU whose one is the same stored number
NORM = """(float[N, 4, 3, 3] x) => (float[] y)
    <float "%s" = {1}, float[4] mean = {1, 2, 3, 4}, float[4] var = {1, 4, 9, 2}, float half = {0.5},
     float[4] zeros = {0, 0, 0, 0}, float root = {0.70710677}, int64[1] four = {4}> {
    n = Shape<start = 1, end = 2>(x) ones = Expand("%s", %s)
    b = BatchNormalization<epsilon = 0.001>(x, ones, zeros, mean, var)
    e = Mul(b, root) f = Erf(e) g = Add("%s", f) h = Mul(half, b) y = Mul(h, g) }"""


@pytest.mark.parametrize(
    ("name", "size", "is_gelu"),
    [("const_1", "n", True), ("const_1", "four", False), ("bn.weight", "n", False)],
)
def test_what_the_input_repeats_is_no_parameter(name: str, size: str, is_gelu: bool, tmp_path: Path) -> None:
    """But for one that is repeated as often as the file says, or is named like a parameter."""
    graph = case(NORM % (name, name, size, name))
    assert hold(graph, tmp_path)
    assert ("F.gelu(" in _generate(graph.model, pretty=True).source) == is_gelu
