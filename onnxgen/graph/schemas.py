"""Operator schemas of onnx, and attributes as plain Python values."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from onnx import defs

NEWER_RUNTIME = (  # the reason if a node has an input or attribute that its function does not know
    "a newer onnxruntime may have it: update onnxgen, or export the model without it "
    "(or write a plugin for the operator: docs/EXTENDING.md)"
)


@cache
def schema(domain: str, name: str, opset: int) -> defs.OpSchema | None:
    """Return the schema of an operator in version `opset`, or None if onnx does not know the operator."""
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def first_since(name: str, opset: int) -> int:
    """Return the first version from `opset` on that has an operator of the standard.

    The installed onnx may know no such version: `opset` then.
    """
    versions = range(opset, defs.onnx_opset_version() + 1)
    return next((version for version in versions if schema("", name, version)), opset)


def types_of(known: defs.OpSchema, formal: defs.OpSchema.FormalParameter) -> Collection[str]:
    """Return the types that an input or output may have ("tensor(float)"). `formal.types` fails in onnx 1.20."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in known.type_constraints}
    return allowed.get(formal.type_str, [formal.type_str])


def plain(value: Any) -> Any:
    """Convert an attribute's value to plain Python: bytes to text, sequences to lists, tensors to numpy arrays."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
