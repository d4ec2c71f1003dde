"""What the inputs and outputs of a causal language model are for, by their names and shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.text.roles import DECODER, DECODER_MASK, IDS, PAST, fixed_length, past_shape, roles_of

WAY = "export it with input_ids, attention_mask and logits; in optimum: --task text-generation-with-past"
_ENCODED = "encoder"  # in names of inputs that come from an encoder
_CACHE = re.compile(r"(?:past|present)(?:_key_values?)?[._](?:(\d+)[._](key|value)|(key|value)[._](\d+))")


@dataclass(frozen=True)
class CausalPorts:
    """The inputs and outputs of a causal language model.

    Attributes:
        roles: of each input, in the order of `forward`: a role of `roles.py`, or the name of a past.
        given: the inputs, in the same order.
        logits: the index of the output with the scores [batch, length, vocabulary].
        layers: for each layer the names of the two pasts, the key's first, and the indices of the outputs that go on
            from them; () if the network has no cache.
    """

    roles: tuple[str, ...]
    given: tuple[Port, ...]
    logits: int
    layers: tuple[tuple[tuple[str, str], tuple[int, int]], ...]

    @property
    def batch(self) -> int | None:
        """The number of texts that the file fixes; None if it is free."""
        dims = self.given[self.roles.index(IDS)].dims
        return dims[0] if dims and isinstance(dims[0], int) else None


def causal_ports(ports: Signature) -> CausalPorts:
    """Return what the inputs and outputs are for.

    Raises `OnnxgenError` if the network lacks an input or an output that a causal language model has, has one of
    another kind, or fixes the number of tokens.
    """
    roles = roles_of(ports, ())
    names = listed(port.name for port in ports.inputs)
    _refuse_encoder(ports)
    if not roles:
        raise OnnxgenError(f"no input takes token ids (the network has {names}), so it generates no text", help=WAY)
    if others := [port for port in ports.inputs if port not in roles.values()]:
        what = f"input {_shown(others[0])} is none that a causal language model has, so no text can be generated"
        raise OnnxgenError(what, help=WAY)
    if fixed_length(roles) is not None:
        what = f"input {_shown(roles[IDS])} fixes the number of tokens, and a text grows while it is generated"
        raise OnnxgenError(what, help="export the network with a free length (dynamic axes)")
    role_of = {port.name: port.name if role.startswith(PAST) else role for role, port in roles.items()}
    pasts = [port for role, port in roles.items() if role.startswith(PAST)]
    in_order = tuple(role_of[port.name] for port in ports.inputs)
    return CausalPorts(in_order, ports.inputs, _logits(ports), _layers(pasts, ports))


def _refuse_encoder(ports: Signature) -> None:
    """Refuse a decoder that reads what an encoder made."""
    for port in ports.inputs:
        if port.name in (DECODER, DECODER_MASK) or _ENCODED in port.name:
            what = f"input {_shown(port)} belongs to an encoder with a decoder; text is generated with a decoder alone"
            raise OnnxgenError(what, help="generate with the ONNX files: optimum's ORTModelForSeq2SeqLM")


def _logits(ports: Signature) -> int:
    named = [i for i, port in enumerate(ports.outputs) if port.name == "logits"]
    floats = [i for i, port in enumerate(ports.outputs) if port.dims is not None and len(port.dims) == 3]
    if not named and len(floats) != 1:
        names = listed(port.name for port in ports.outputs)
        raise OnnxgenError(f"no output has scores of tokens [batch, length, vocabulary] (it has {names})", help=WAY)
    return (named or floats)[0]


def _layers(pasts: list[Port], ports: Signature) -> tuple[tuple[tuple[str, str], tuple[int, int]], ...]:
    """Return the pairs of pasts, and the outputs that go on from them."""
    outputs = {place: i for i, port in enumerate(ports.outputs) if (place := _place(port)) is not None}
    layers: dict[int, dict[str, tuple[str, int]]] = {}
    for port in pasts:
        past_shape(port)
        place, dims = _place(port), port.dims or ()
        if place is None or len(dims) != 4 or not isinstance(dims[2], str):
            what = f"input {_shown(port)} is no past of keys or values [batch, heads, length, size]"
            raise OnnxgenError(what, help=f"export with past_key_values.0.key and so on, or without a cache; {WAY}")
        if place not in outputs:
            what = f"no output goes on from input {legible(port.name)!r}: present.{place[0]}.{place[1]} is missing"
            raise OnnxgenError(what, help=WAY)
        layers.setdefault(place[0], {})[place[1]] = (port.name, outputs[place])
    for number, pair in layers.items():
        if len(pair) < 2:
            what = f"layer {number} has a past for its {next(iter(pair))} alone: {next(iter(pair.values()))[0]}"
            raise OnnxgenError(what, help=WAY)
    pairs = [(layers[number]["key"], layers[number]["value"]) for number in sorted(layers)]
    return tuple(((key[0], value[0]), (key[1], value[1])) for key, value in pairs)


def _place(port: Port) -> tuple[int, str] | None:
    """Return the layer, and "key" or "value"."""
    match = _CACHE.fullmatch(port.name)
    return None if match is None else (int(match[1] or match[4]), match[2] or match[3])


def _shown(port: Port) -> str:
    return f"{legible(port.name)!r}" + ("" if port.dims is None else f" [{', '.join(map(str, port.dims))}]")
