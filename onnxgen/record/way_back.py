"""How the tensors of the ONNX file are made of the state dict, and where they are in the file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxgen.common.json_text import json_object
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.source import GENERATE_AGAIN

TENSORS, QUANTISED, CUT = "wayback", "quantised", "cut"  # in the sidecar's metadata
# by ONNX tensor and state-dict key: (output of the node, index of its input)
Uses = Mapping[str, Mapping[str, list[tuple[str, int]]]]
# for tensors of local functions: domain, name and overload of the function, and the tensor's name there
Functions = Mapping[str, Sequence[str | None]]
Cut = tuple[Sequence[str], Sequence[str]]  # names of the first and the last values; empty means as in the file


@dataclass(frozen=True)
class WayBack:
    """The weight provenance in the sidecar.

    Attributes:
        tensors: how each ONNX tensor is made (`onnxgen.weights.provenance.way_back`).
        uses: the users of tensors that the file stores once for several keys.
        functions: the local functions of tensors that are not in the graph.
        quantised: the integers that the file has of float tensors (`onnxgen.weights.dequantised`).
        cut: the part of the network that the module is; None if it is the whole.
    """

    tensors: Mapping[str, Any]
    uses: Uses
    functions: Functions
    quantised: Mapping[str, Any] = field(default_factory=dict)
    cut: Cut | None = None

    def to_metadata(self) -> dict[str, str]:
        found = {TENSORS: self.tensors, "uses": self.uses, "functions": self.functions, QUANTISED: self.quantised}
        texts = {key: json.dumps(value) for key, value in found.items() if value or key == TENSORS}
        return texts | ({CUT: json.dumps(dict(zip(("inputs", "outputs"), self.cut)))} if self.cut else {})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> WayBack:
        """Raises `OnnxgenError` if an entry is damaged. Entries that are not there are empty."""
        tensors, uses = _entry(metadata, TENSORS), _entry(metadata, "uses")
        functions, quantised = _entry(metadata, "functions"), _entry(metadata, QUANTISED)
        return cls(tensors, uses, functions, quantised, recorded_cut(metadata))


def parts(entries: Any, shape: tuple[int, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield every part in a tensor's record. A tensor that is a whole state-dict tensor is one part of that `shape`."""
    for entry in entries if isinstance(entries, list) else [entries]:
        whole = {"key": entry, "size": [math.prod(shape)], "stride": [1]}
        yield from [whole] if isinstance(entry, str) else entry["parts"]


def _entry(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    try:
        return json_object(metadata.get(key, "{}"))
    except ValueError:
        raise OnnxgenError(f"entry {key!r} of the weights file is damaged", help=GENERATE_AGAIN) from None


def cut_of(options: Options) -> Cut | None:
    """Return the part that the options ask for, or None for the whole network."""
    return (tuple(options.inputs), tuple(options.outputs)) if options.inputs or options.outputs else None


def recorded_cut(metadata: Mapping[str, str]) -> Cut | None:
    """Return the part that a module was generated from, as its sidecar records it."""
    try:
        found = json_object(metadata[CUT])
        return tuple(map(str, found["inputs"])), tuple(map(str, found["outputs"]))
    except (KeyError, TypeError, ValueError):
        return None
