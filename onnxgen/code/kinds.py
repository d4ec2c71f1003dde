"""What a value is in a signature of Python."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.shapes.info import Info

_KINDS = {"sequence": "list[Tensor]", "optional": "Tensor | None"}


def annotation(facts: Info) -> str:
    """The annotation of an argument or a result."""
    if facts.kind in ("map", "maps"):
        one = f"dict[{'str' if facts.key == ir.DataType.STRING else 'int'}, {_held(facts)}]"
        return one if facts.kind == "map" else f"list[{one}]"
    return _KINDS.get(facts.kind, "Tensor")


def _held(facts: Info) -> str:
    """What a map holds: numbers come as they are, and go as tensors, through which gradients flow."""
    if facts.dtype == ir.DataType.STRING:
        return "str"
    return "Tensor" if facts.kind == "maps" else "float | Tensor"
