"""How a case is made: of one node, or of a graph in ONNX's textual form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, parser

from tests.gradients.cases import Case
from tests.ops import classical
from tests.ops.harness import Value, node_model

MICROSOFT = "com.microsoft"
Array = np.ndarray[Any, Any]


def node(
    op_type: str,
    *inputs: Value,
    stored: Sequence[int] = (),
    outputs: int | Sequence[str] = 1,
    version: int = 21,
    domain: str = "",
    **attrs: Any,
) -> Case:
    """A node of such inputs (None: left out); `stored` are the indices of those that the file has."""
    model = node_model(op_type, inputs, attrs, version, outputs, frozenset(stored), domain=domain)
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None and n not in stored}
    return Case(f"{op_type} {attrs}", model, feeds)


def fused(op_type: str, *inputs: Value, **kwargs: Any) -> Case:
    """A node of onnxruntime's own."""
    return node(op_type, *inputs, domain=MICROSOFT, **kwargs)


def learned(op_type: str, *inputs: Value, outputs: int = 1, version: int = 1, **attrs: Any) -> Case:
    """A node of ai.onnx.ml."""
    model = classical.ml_model(op_type, inputs, attrs, version, outputs)
    return Case(f"{op_type} {attrs}", model, {f"i{n}": v for n, v in enumerate(inputs)})


def mapped(op_type: str, values: dict[int, Value], **attrs: Any) -> Case:
    """A node of ai.onnx.ml that takes a map."""
    taken = onnx.ValueInfoProto(name="x")
    taken.type.map_type.key_type = onnx.TensorProto.INT64
    taken.type.map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    last = helper.make_node(op_type, ["x"], ["y"], domain=classical.ML, **attrs)
    drawn = helper.make_graph([last], "graph", [taken], [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(classical.ML, 1)]
    return Case(op_type, helper.make_model(drawn, opset_imports=imports, ir_version=10), {"x": values})


def graph(text: str, domain: str = "", **feeds: Value) -> Case:
    """A graph in ONNX's textual form, whose last node is the one that is tested; it may be of another domain."""
    imports = '"" : 18' + (f', "{domain}" : 1' if domain else "")
    model = parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\n{text}")
    return Case(text, model, feeds)


def floats(*shape: int, seed: int = 0) -> Array:
    """Numbers drawn from the normal distribution."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def between(low: float, high: float, *shape: int, seed: int = 0) -> Array:
    """Numbers drawn evenly."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)


def integers(dtype: str, *shape: int, seed: int = 0) -> Array:
    """All that there are, drawn evenly."""
    limits = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(limits.min, limits.max + 1, shape).astype(dtype)


def ints(*values: int, dtype: str = "int64") -> Array:
    return np.array(values, dtype)
