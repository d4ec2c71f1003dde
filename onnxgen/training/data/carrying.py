"""Which inputs of a network hold a state that goes on from step to step, and which outputs they go on from.

Names and shapes say it, or `--carry`. Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training.settings import Settings

RATES = ("sr", "rate", "fs", "sample_rate", "sampling_rate", "samplerate")  # names of an input for a sound's rate in Hz
# What names have beside that of the state: of an input that it is the one before, of an output that it is the next one.
_BEFORE, _NEXT = "in|input|prev|previous|past|old|init|initial", "out|output|new|next|present|final|last"
_NUMBER = r"(?=[_.]?\d+$)"  # behind the word: cache_in_0
_ENDS = {
    False: re.compile(rf"^(?:{_BEFORE})[_.]|[_.](?:{_BEFORE}|0)$|[_.](?:{_BEFORE}){_NUMBER}|0$"),
    True: re.compile(rf"^(?:{_NEXT})[_.]|[_.](?:{_NEXT}|n|1)$|[_.](?:{_NEXT}){_NUMBER}|[nN1]$"),
}


def carried(ports: Signature, settings: Settings, columns: Collection[str]) -> dict[str, str]:
    """Return for each input that holds a state the output that it goes on from; {} if the network carries none.

    What `--carry` names counts. Else it is what names and shapes leave no doubt of, unless all such inputs have
    numbers (`--const`) or columns of the data.

    Raises:
        OnnxgenError: `--carry` names what there isn't, or what does not fit.
    """
    if settings.carry:
        return _asked(ports, settings.carry)
    pairs = sure_pairs(ports)
    given = {*settings.const, *settings.inputs, *columns}
    return {name: output for name, output in pairs.items() if name not in given}


def sure_pairs(ports: Signature) -> dict[str, str]:
    """Return the inputs and outputs of one type and shape whose names say that they are one state: h and hn.

    A state has the same size at each step: of its axes only that of the batch may be open.
    """
    pairs: dict[str, str] = {}
    for port in ports.inputs:
        goes_on = [other for other in ports.outputs if is_next(port.name, other.name) and not unlike(port, other)]
        if len(goes_on) == 1 and len(sizes := port.dims or ()) > 1 and sum(isinstance(size, str) for size in sizes) < 2:
            pairs[port.name] = goes_on[0].name
    others = len(pairs) < min(len(ports.inputs), len(ports.outputs))  # what is fed, and what is trained
    return pairs if others and len({*pairs.values()}) == len(pairs) else {}


def is_next(name: str, output: str) -> bool:
    """Return True if an output is called as the next value of an input: state and stateN, h0 and hn, c_in and c_out."""
    return name != output and not _bare(name, False).isdisjoint(_bare(output, True))


def _bare(name: str, of_output: bool) -> set[str]:
    """Return a name, and what is left of it without a word at its start or its end."""
    found = _ENDS[of_output].finditer(name)
    cut = (name[: match.start()] + name[match.end() :] for match in found)
    return {text.lower() for text in (name, *cut) if re.search("[^\\W\\d_]", text)}  # in_0 and out_0 name no state


def unlike(port: Port, output: Port) -> str:
    """Return why an output can't be the next value of an input; "" if it can."""
    if port.kind != "tensor" or output.kind != "tensor" or port.dims is None or output.dims is None:
        return "one of them is no tensor of a known rank"
    if port.dtype != output.dtype:
        return f"they are {port.dtype} and {output.dtype}"
    pairs = zip(port.dims, output.dims)
    clash = any(isinstance(one, int) and isinstance(other, int) and one != other for one, other in pairs)
    if len(port.dims) != len(output.dims) or clash:
        return f"they are [{', '.join(map(str, port.dims))}] and [{', '.join(map(str, output.dims))}]"
    return ""


def _asked(ports: Signature, carry: Mapping[str, str]) -> dict[str, str]:
    inputs, outputs = ({port.name: port for port in some} for some in (ports.inputs, ports.outputs))
    for name, output in carry.items():
        option = f"--carry {legible(name)}={legible(output)}"
        if name not in inputs:
            raise OnnxgenError(f"{option}: the model has no such input (it has {listed(inputs)})")
        if output not in outputs:
            raise OnnxgenError(f"{option}: the model has no such output (it has {listed(outputs)})")
        if why := unlike(inputs[name], outputs[output]):
            raise OnnxgenError(f"{option}: the output can't be the next value of the input, since {why}")
    if len({*carry.values()}) < len(carry):
        raise OnnxgenError(
            "--carry names an output for two inputs", help="each state goes on from an output of its own"
        )
    return dict(carry)
