"""Count a file's contents before protobuf parses it, which may need 85 bytes of memory per byte of a hostile file.

The wire format (https://protobuf.dev/programming-guides/encoding) is walked in Python, through the fields that hold
messages. Invalid protobuf ends the walk; the parser refuses it at the same place.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx

from onnxgen.common.limits import Limits
from onnxgen.errors import OnnxgenError

Table = dict[int, Any]  # maps the tag byte of each field that holds messages to the table of that message type
DEFAULTS = Limits()


@dataclass
class Survey:
    """Counts of a file's contents. Counting ends at the first limit that is exceeded."""

    fields: int = 0
    nodes: int = 0
    initializers: int = 0

    @property
    def is_small(self) -> bool:
        """Return True if no count exceeds a default limit, whatever the caller allows."""
        return all(DEFAULTS.past(name, found, "") is None for name, found in vars(self).items())


def survey(data: bytes, limits: Limits) -> Survey:
    """Count the fields, nodes and stored tensors of a serialised `ModelProto`.

    Raises:
        OnnxgenError: a count exceeds its limit.
    """
    found = Survey()
    with suppress(IndexError):  # the file is truncated
        _walk(data, limits, found)
    if found.fields > limits.fields:  # counting stopped at the limit
        what = f"the file has more than {limits.fields:,} fields"
        raise OnnxgenError(limits.past("fields", 2 * limits.fields, what) or what)
    for name, number in vars(found).items():
        if problem := limits.past(name, number, f"the file has {number:,} {name}"):
            raise OnnxgenError(problem)
    return found


def _walk(data: bytes, limits: Limits, found: Survey) -> None:
    model, node, graph, tensor = _tables()
    around: list[tuple[int, Table]] = []
    position, end, table = 0, len(data), model
    most = limits.fields
    count = 0
    try:
        while True:
            while position >= end:
                if not around:
                    return
                end, table = around.pop()
            count += 1
            if count > most:
                return
            tag, position = _varint(data, position) if data[position] & 128 else (data[position], position + 1)
            kind = tag & 7
            if kind == 2:
                size, position = _varint(data, position) if data[position] & 128 else (data[position], position + 1)
                inner: Table | None = table.get(tag)
                if position + size > end:
                    return
                if inner is None:
                    position += size
                    continue
                found.nodes += inner is node
                found.initializers += inner is tensor and table is graph
                around.append((end, table))
                end, table = position + size, inner
            elif kind == 0:
                while data[position] & 128:
                    position += 1
                position += 1
            elif kind in (1, 5):
                position += 8 if kind == 1 else 4
    finally:  # also where the file is cut off in the middle of a field
        found.fields = count


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 128 and shift < 70:
        value |= (data[position] & 127) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1


@cache
def _tables() -> tuple[Table, Table, Table, Table]:
    """Return the tables of a model, a node, a graph and a tensor."""
    made: dict[str, Table] = {}

    def table(message: Any) -> Table:
        if message.full_name not in made:
            own = made[message.full_name] = {}
            own.update({f.number << 3 | 2: table(f.message_type) for f in message.fields if f.message_type is not None})
        return made[message.full_name]

    kinds = (onnx.ModelProto, onnx.NodeProto, onnx.GraphProto, onnx.TensorProto)
    model, node, graph, tensor = (table(kind.DESCRIPTOR) for kind in kinds)
    return model, node, graph, tensor
