"""Compares what options name with the network's inputs. Nothing here imports torch.

It refuses only what is certain. All of it is checked again, and more, where the data is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.record.signature import Port
from onnxgen.training.config import parse_size
from onnxgen.training.data.recipes import recipes
from onnxgen.training.data.scales import by_input, parse_scale
from onnxgen.training.settings import Settings

_WORDS = ("auto", "none", "")
_CHANNELS = (1, 3, 4)


def check_words(settings: Settings, problems: Problems) -> None:
    """Add what is wrong with settings that are small languages: --size, --normalize and --augment."""
    with problems.gathered():
        recipes(settings.augment, False)
    for text, read in ((settings.size, parse_size), (settings.normalize, _read_scale)):
        for part in (part.rpartition("=")[2].strip() for part in text.split(";")):
            if part not in _WORDS:
                with problems.gathered():
                    read(part)


def _read_scale(text: str) -> None:
    parse_scale(text, max(part.count("/") + 1 for part in text.split(",")))


def check_ports(ports: Sequence[Port], settings: Settings, problems: Problems) -> None:
    """Add the names of inputs that the network does not have, and a size that is not its own."""
    names = [port.name for port in ports]
    has = listed(names)
    for name in {**settings.inputs, **settings.const}:
        if name not in names:
            problems.add(f"the model has no input {legible(name)!r} (it has {has})")
    for text in (settings.size, settings.normalize):
        with problems.gathered():
            by_input(text, names)
    with problems.gathered():
        _check_sizes(ports, settings)


def _check_sizes(ports: Sequence[Port], settings: Settings) -> None:
    for name, size in by_input(settings.size, [port.name for port in ports]).items():
        port = next(port for port in ports if port.name == name)
        dims = port.dims or ()
        if size == "auto" or len(dims) != 4 or dims[1] not in _CHANNELS:
            continue
        pairs = zip(dims[2:], parse_size(size))
        if any(isinstance(dim, int) and dim != side for dim, side in pairs):
            raise OnnxgenError(f"size {size}: input {name!r} is {_shown(port)}", help="leave --size out")


def _shown(port: Port) -> str:
    return f"[{', '.join(map(str, port.dims or ()))}]"
