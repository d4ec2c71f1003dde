"""What the inputs of a network that reads text are for, by their usual names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature

IDS, MASK, TYPES, POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
DECODER, DECODER_MASK, PAST = "decoder_input_ids", "decoder_attention_mask", "past"
BRANCH = "use_cache_branch"  # bool [1], of optimum's merged decoders: False without a past
_ALSO = {"input_mask": MASK, "segment_ids": TYPES}  # as the first BERT called them
_PAST = re.compile(r"past\b|past_key|past_value")


def roles_of(ports: Signature, columns: Sequence[str]) -> dict[str, Port]:
    """Return the inputs by role; each past of an attention has the role "past NAME". {} if no input takes token ids.

    Without an input called `input_ids`, it is the only input of whole numbers [batch, length] without a column of its
    own name.
    """
    roles: dict[str, Port] = {}
    for port in ports.inputs:
        name = _ALSO.get(port.name, port.name)
        if name in (IDS, MASK, TYPES, POSITIONS, DECODER, DECODER_MASK, BRANCH):
            roles[name] = port
        elif _PAST.match(port.name):
            roles[f"{PAST} {port.name}"] = port
    if IDS not in roles:
        left = [port for port in ports.inputs if port not in roles.values() and port.name not in columns]
        whole = [port for port in left if port.dtype in ("int64", "int32") and len(port.dims or (0, 0)) == 2]
        roles |= {IDS: whole[0]} if len(whole) == 1 else {}
    return roles if IDS in roles else {}


def past_shape(port: Port) -> tuple[int, ...]:
    """Return the shape of an empty past for one sample. Raises `OnnxgenError` if its length is fixed in the file."""
    dims = port.dims or ()
    if len(dims) < 3 or not any(isinstance(dim, str) for dim in dims[1:]):
        what = f"input {legible(port.name)!r} {list(dims)} takes a past of a fixed length, and texts have none"
        way = "export the network without its past (use_cache=False; in optimum: --task text-generation)"
        raise OnnxgenError(what, help=way)
    return tuple(dim if isinstance(dim, int) else 0 for dim in dims[1:])


def fixed_length(roles: Mapping[str, Port], role: str = IDS) -> int | None:
    """Return the number of tokens that the file fixes; None if it is free."""
    dims = roles[role].dims
    return dims[1] if dims and len(dims) == 2 and isinstance(dims[1], int) else None
