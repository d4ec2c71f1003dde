"""Elements that a mask chooses: exporters write their positions."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.ops.harness import assert_same, run_model, run_onnxruntime

PLACES = "places = NonZero(mask)  rows = Transpose<perm = [1, 0]>(places)"


@pytest.mark.parametrize(
    ("inputs", "nodes", "text"),
    [
        ("float[n, m, 2] x", "y = GatherND(x, rows)", "x[mask]"),
        ("float[n, m] x", "y = GatherND(x, rows)", "x[mask]"),
        ("float[n, k, 2] x", "y = GatherND(x, rows)", "mask.nonzero()"),  # of another size, perhaps
        ("float[n, m, 2] x", "y = Cast<to = 1>(rows)", "mask.nonzero().float()"),
    ],
)
def test_chosen_elements(inputs: str, nodes: str, text: str) -> None:
    held(f"{inputs}, bool[n, m] mask", nodes, [(4, 3, 2)[: inputs.count(",") + 1], (4, 3)], text)


@pytest.mark.parametrize("axis", [0, 1])
def test_chosen_places_of_an_axis(axis: int) -> None:
    nodes = f"line = Squeeze<axes = [1]>(rows)  y = Gather<axis = {axis}>(x, line)"
    size = "nm"[axis]
    held(f"float[n, m] x, bool[{size}] mask", nodes, [(4, 3), ((4, 3)[axis],)], ("x[mask]", "x[:, mask]")[axis], 11)
    held("float[n, m] x, bool[k] mask", nodes, [(4, 3), (3,)], "mask.nonzero().squeeze(1)", 11)


def test_numbers_are_no_mask() -> None:
    held("float[n] x, float[n] mask", "y = GatherND(x, rows)", [(4,), (4,)], "mask.nonzero()")


def held(inputs: str, nodes: str, shapes: list[tuple[int, ...]], text: str, opset: int = 17) -> None:
    """The text, and what onnxruntime computes, also of nothing."""
    rank = len(shapes[0]) - len(shapes[1]) + 1 if "GatherND" in nodes else 2
    sizes = ", ".join(f"r{i}" for i in range(rank))
    model = onnx.parser.parse_model(
        f'<ir_version: 7, opset_import: ["": {opset}]> g ({inputs}) => (float[{sizes}] y) {{ {PLACES}  {nodes} }}'
    )
    random = np.random.default_rng(0)
    kind = np.float32 if "float[n] mask" in inputs else bool
    for chance in (0.5, 0.0):
        x = random.standard_normal(shapes[0]).astype(np.float32)
        feed = {"x": x, "mask": (random.random(shapes[1]) < chance).astype(kind)}
        ran = run_model(model, feed)
        assert_same(ran.outputs[0], run_onnxruntime(model, feed)[0])
        assert text in ran.forward and ".T" not in ran.forward
