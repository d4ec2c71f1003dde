"""Annotations of values in Python signatures."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.info import Info

_KINDS = {"sequence": "list[Tensor]", "optional": "Tensor | None"}


def annotation(facts: Info) -> str:
    """Return the annotation of an argument or a result inside the network."""
    if facts.kind in ("map", "maps"):
        one = f"dict[{'str' if facts.key == ir.DataType.STRING else 'int'}, {_held(facts)}]"
        return one if facts.kind == "map" else f"list[{one}]"
    return _KINDS.get(facts.kind, "Tensor")


def argument_annotation(facts: Info) -> str:
    """Return the annotation of an argument that is given from outside, where text is a numpy array."""
    is_text = facts.dtype == ir.DataType.STRING and facts.kind == "tensor"
    return "np.ndarray" if is_text else annotation(facts)


def _held(facts: Info) -> str:
    """Return the type of a map's values. Numbers come as they are, and leave as tensors, for gradients."""
    if facts.dtype == ir.DataType.STRING:
        return "str"
    return "Tensor" if facts.kind == "maps" else "float | Tensor"
