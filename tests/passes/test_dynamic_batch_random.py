"""Random graphs with a fixed batch: made free they agree with stacked single runs, or they are refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest

from onnxgen import OnnxgenError, Options, verify
from onnxgen.pipeline import generate
from tests.support.graph_layers import make

SEEDS, CHUNK = 48, 12


def free(seed: int, size: int, folder: Path) -> bool:
    """Fix the batch `N` of one graph at `size`, free it and compare; False where that is refused, or there is none."""
    model = make(seed).model
    shapes, axes = {}, {}
    for value in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        shapes[value.name] = tuple({"N": size, "L": 3}.get(d, d) for d in dims)
        axes[value.name] = dims.index("N") if "N" in dims else None
    onnx.save(model, folder / "m.onnx")
    options = Options(input_shapes=shapes, dynamic_batch=True, batch_axes=axes)
    try:
        generate(folder / "m.onnx", folder / "model.py", options, force=True)
        report = verify(folder / "m.onnx", folder / "model.py", options=options, runs=2)
    except OnnxgenError:  # or onnxruntime does not run the graph at these sizes
        return False
    assert report.agrees, f"seed {seed}, batch {size}: {report.problems()}"
    return bool(report.runs[0].sizes)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_free_or_refused(first: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        freed = sum(free(seed, size, tmp_path) for seed in range(first, first + CHUNK) for size in (1, 2))
    assert freed >= 3, "too few of these graphs were made free to say much"
