"""Chains of products and sums, taken apart."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onnxgen.options import Options
from onnxgen.passes.pattern import MAX_NODES, as_product, as_sum
from onnxgen.shapes import propagate


@pytest.mark.parametrize("operator", ["Mul", "Add"])
def test_no_more_operators_are_taken_apart_than_an_idiom_has(operator: str) -> None:
    """Else each node of a long chain would take apart all that is before it."""
    for count in (2, MAX_NODES, MAX_NODES + 1, 3 * MAX_NODES):
        ports = ", ".join(f"float[n] x{i}" for i in range(count + 1))
        chain = "  ".join(f"y{i + 1} = {operator} (y{i}, x{i + 1})" for i in range(1, count))
        text = f"net ({ports}) => (float[n] y{count}) {{ y1 = {operator} (x0, x1)  {chain} }}"
        model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))
        propagate(model.graph, Options())
        (y,) = model.graph.outputs
        parts = as_product(y).factors if operator == "Mul" else as_sum(y).terms
        assert len(parts) == min(count, MAX_NODES) + 1, count
