"""The signature that a sidecar records, told from the graph."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxgen.common.digest import file_sha256
from onnxgen.purpose import purpose_of
from onnxgen.record.signature import Port, Signature
from onnxgen.shapes.info import info
from onnxgen.weights.dtypes import TORCH_DTYPES


def signature(model: ir.Model, path: Path) -> Signature:
    """Return the signature of a graph with propagated shapes, read from `path`. External data is not hashed."""
    stored = set(model.graph.initializers)
    inputs = tuple(_described(v) for v in model.graph.inputs if v.name not in stored)
    outputs = tuple(map(_described, model.graph.outputs))
    return Signature(inputs, outputs, path.name, file_sha256(path), purpose_of(model))


def _described(value: ir.Value) -> Port:
    facts = info(value)
    dims = None if facts.shape is None else tuple(d if isinstance(d, int) else str(d) for d in facts.shape)
    dtype = None if facts.dtype is None else TORCH_DTYPES.get(facts.dtype, "str")
    return Port(value.name or "", dtype, dims, facts.kind)
