"""Operator schemas of onnx, and attributes as plain Python values."""

from __future__ import annotations

from functools import cache
from typing import Any

from onnx import defs

NEWER_RUNTIME = (  # why a node of onnxruntime's may have what its function does not know
    "a newer onnxruntime may have it: update onnxgen, or export the model without it "
    "(or write a plugin for the operator: docs/EXTENDING.md)"
)


@cache
def schema(domain: str, name: str, opset: int) -> defs.OpSchema | None:
    """The schema of an operator as `opset` has it, or None for an operator that onnx does not know."""
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def plain(value: Any) -> Any:
    """An attribute's value in plain Python: bytes as text, sequences as lists, tensors as numpy arrays."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
