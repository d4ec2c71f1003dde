"""The signature of a generated module: its inputs and outputs, and the ONNX file that it was made from.

It is in the sidecar's metadata, where edits of the module do not reach it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onnxgen.common.json_text import json_object
from onnxgen.record.purpose import Purpose

KEY = "signature"  # in the sidecar's metadata


@dataclass(frozen=True)
class Port:
    """One input or output of a graph.

    Attributes:
        name: in the ONNX file. The arguments of `forward` have the same order.
        dtype: torch's name of the element type ("float32", "int64"), "str" for text, None if unknown.
        dims: for each axis a number or the text of a symbolic size; None if the rank is unknown.
        kind: "tensor", "sequence", "optional", "map", or "maps" for a list of maps. `dtype` and `dims` are those of the
            elements or the map's values.
    """

    name: str
    dtype: str | None
    dims: tuple[int | str, ...] | None
    kind: str = "tensor"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs in graph order; `source` is the ONNX file's name (no folder), `sha256` that of its bytes.

    `purpose` says what the network is for; None in sidecars of versions that did not record it.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    source: str = ""
    sha256: str = ""
    purpose: Purpose | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Raises `ValueError` for anything that `to_json` did not write."""
        try:
            found = json_object(text)
            ports = [[_port(p) for p in found[side]] for side in ("inputs", "outputs")]
            purpose = None if found.get("purpose") is None else Purpose.from_dict(found["purpose"])
            return cls(tuple(ports[0]), tuple(ports[1]), str(found["source"]), str(found["sha256"]), purpose)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no signature: {error}") from None


def recorded(metadata: Mapping[str, str]) -> Signature | None:
    """Return the signature in a sidecar's metadata, or None."""
    try:
        return Signature.from_json(metadata[KEY])
    except (KeyError, ValueError):
        return None


def _port(found: Mapping[str, Any]) -> Port:
    dims = found["dims"]
    dims = None if dims is None else tuple(d if isinstance(d, int) else str(d) for d in dims)
    return Port(str(found["name"]), found["dtype"], dims, str(found["kind"]))
