"""Types of maps, which onnx_ir cannot represent: the types that the file declares for its inputs and outputs.

Only classical models (ai.onnx.ml) have them. At run time they are dicts; keys and values are text or numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onnxgen.graph.annotations import MAP


@dataclass(frozen=True)
class MapType:
    """The types of a map's keys and values. `listed`: the value is a sequence of such maps."""

    key: ir.DataType
    value: ir.DataType
    listed: bool = False

    @property
    def kind(self) -> str:
        return "maps" if self.listed else "map"


def map_types(graph: onnx.GraphProto) -> dict[str, MapType]:
    """Return the types of a graph's inputs and outputs that are maps, by name."""
    found = {info.name: _map_type(info.type) for info in (*graph.input, *graph.output)}
    return {name: kind for name, kind in found.items() if kind is not None}


def _map_type(kind: onnx.TypeProto) -> MapType | None:
    listed = kind.WhichOneof("value") == "sequence_type"
    if listed:
        kind = kind.sequence_type.elem_type
    if kind.WhichOneof("value") != "map_type":
        return None
    key, value = kind.map_type.key_type, kind.map_type.value_type.tensor_type.elem_type
    return MapType(ir.DataType(key), ir.DataType(value), listed)


def note_maps(graph: ir.Graph, types: Mapping[str, MapType]) -> None:
    """Record the types of maps in the values' `meta`."""
    for value in (*graph.inputs, *graph.outputs):
        if (value.name or "") in types:
            MAP.set(value, types[value.name or ""])
