"""The rules of an operator in other rooms: `@op("Transpose", **rules("transpose"))` takes those of that name."""

from __future__ import annotations

from typing import Any

from onnxgen.passes.batch import arithmetic, layout
from onnxgen.shapes import elements, equal, infer_layout, infer_math, ranges, usual
from onnxgen.weights import stored

ROOMS = {
    "infer": (infer_math, infer_layout),
    "elements": (elements,),
    "kernel": (usual,),
    "batch": (arithmetic, layout),
    "equal": (equal,),
    "view": (stored,),
}


def rules(name: str, **others: Any) -> dict[str, Any]:
    """Return what has a name in the rooms of rules, by what it is a rule of, and other rules beside it.

    Raises `LookupError` if no room has such a rule.
    """
    functions: dict[str, Any] = {
        rule: function
        for rule, rooms in ROOMS.items()
        for room in rooms
        if (function := vars(room).get(name)) is not None and function.__module__ == room.__name__
    }
    functions |= {"ranges": vars(ranges)[name]} if name in vars(ranges) else {}
    if not functions:
        raise LookupError(f"no room has a rule of the name {name}")
    return {**functions, **others}
