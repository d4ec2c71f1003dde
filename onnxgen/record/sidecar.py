"""Find a sidecar's files and read their headers, with nothing but the standard library.

`onnxgen/weights/sidecar.py` describes the format, and writes it. In memory, a module's file says
where its weights are. `space` is the names in the file.
"""

from __future__ import annotations

import base64
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, TypeVar

from onnxgen.common.built import json_object
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError

INDEX = ".index.json"
TRAINED = "preprocessing"  # a key that the metadata of trained weights have: how the inputs were prepared
MARK = {"format": "pt", "generator": "onnxgen"}  # loaders of the Hugging Face layout require "format"
MAX_HEADER = 100_000_000  # bytes; limit of the safetensors library
SIZES = {  # bytes of an element of each type
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


class Entry(NamedTuple):
    """A tensor in a safetensors file: dtype by its safetensors name, shape, and its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def sidecar_files(path: Path) -> list[Path]:
    """Return the safetensors files of the sidecar at `path`: the file itself, or the shards of its index. `path` may
    also be the index.

    Raises `OnnxgenError` if `path` names an index that is missing, or if the index is broken.
    """
    base = path.with_name(path.name.removesuffix(INDEX))
    index = index_path(base)
    if base == path and (path.is_file() or not index.is_file()):
        return [path]
    try:
        names = sorted(set(json_object(index.read_bytes())["weight_map"].values()))
        if not names or not all(shard_pattern(base).fullmatch(name) for name in names):
            raise ValueError("the index names files that are not its shards")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OnnxgenError(f"{index} is not an index of weights: {error}") from error
    return [path.with_name(name) for name in names]


def index_path(path: Path) -> Path:
    """Return the path of the index of the sidecar at `path`, used if it is sharded."""
    return path.parent / f"{path.name}{INDEX}"  # `with_name` fails on "."


def shard_pattern(path: Path) -> re.Pattern[str]:
    return re.compile(re.escape(path.stem) + r"-\d{5,}-of-\d{5,}" + re.escape(path.suffix))


def embedded_header(text: str) -> dict[str, Any]:
    """Return the header of the weights in the constant `WEIGHTS` of a module (`--embed`).

    Raises `ValueError` if they are damaged.
    """
    data = base64.b85decode("".join(text.split()))
    return json_object(data[8 : 8 + int.from_bytes(data[:8], "little")])


def read_header(path: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Read the metadata and the tensors' entries of one safetensors file.

    Raises:
        OnnxgenError: the file is not a safetensors file, is cut short, or has an invalid header.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise ValueError("the header is cut short")
            header = json_object(file.read(length))
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("the metadata is not a map of strings")
        entries = {key: _entry(key, description, 8 + length) for key, description in header.items()}
        _check_offsets(entries, 8 + length, size)
        return metadata, entries
    except OSError as error:
        raise OnnxgenError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise OnnxgenError(f"{path} is not a safetensors file: {error}") from error


def _entry(key: str, description: Any, begin: int) -> Entry:
    """Return the entry of a tensor in a header. The bytes of all tensors begin at `begin`."""
    if not isinstance(description, dict):
        raise ValueError(f"tensor {printable(key)!r} has no description")
    dtype, shape, offsets = description.get("dtype"), description.get("shape"), description.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ValueError(f"tensor {printable(key)!r} has an unknown type")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {printable(key)!r} has no sizes")
    if math.prod(shape) * SIZES[dtype] != offsets[1] - offsets[0] or max(shape, default=0) >= 2**63:
        raise ValueError(f"tensor {printable(key)!r} is cut short")
    return Entry(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _check_offsets(entries: Mapping[str, Entry], begin: int, size: int) -> None:
    """Check that tensors fill the file behind its header, in any order. The library reads no other file."""
    end = begin
    for key, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.start < end:
            raise ValueError(f"tensor {printable(key)!r} lies over another")
        if entry.start > end:
            raise ValueError(f"{entry.start - end} bytes before tensor {printable(key)!r} are of no tensor")
        end = entry.stop
        if end > size:
            raise ValueError(f"tensor {printable(key)!r} is cut short")
    if end < size:
        raise ValueError(f"{size - end} bytes behind its tensors are of no tensor")


def header_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of the sidecar at `path`. Raises `OnnxgenError` if it is missing or broken."""
    return read_header(sidecar_files(path)[0])[0]


def metadata_at(path: Path) -> dict[str, str]:
    """Return the metadata of the sidecar at `path`; {} if it is missing or broken."""
    try:
        return header_metadata(path)
    except OnnxgenError:
        return {}


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the sidecar at `path`. Raises `OnnxgenError` if it is missing or broken."""
    return {key: entry.shape for file in sidecar_files(path) for key, entry in read_header(file)[1].items()}


def followed(path: Path) -> Path:
    """Return the file to replace at a path: the target if the path is a link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def entries(path: Path, key: str) -> Iterator[str]:
    """Yield an entry of the metadata of each file that a sidecar at `path` has, also in the other layout."""
    for file in stale(followed(path), []):
        with suppress(OnnxgenError, KeyError):
            yield read_header(file)[0][key]


def is_ours(path: Path, broken: bool) -> bool:
    """Return True if onnxgen wrote this file. `broken`: the answer for an unreadable weights file."""
    try:
        if path.suffix == ".json":
            metadata = json_object(path.read_bytes()).get("metadata", {})
        else:
            metadata = read_header(path)[0]
        return bool(metadata.get("generator") == MARK["generator"])
    except (OSError, ValueError, AttributeError, OnnxgenError):
        return broken and path.suffix in (".safetensors", ".json")


def files_there(path: Path) -> list[Path]:
    """Return the files of a sidecar that are there, in either layout: the file itself, the index, the shards."""
    pattern, folder = shard_pattern(path), path.parent
    shards = sorted(file for file in folder.iterdir() if pattern.fullmatch(file.name)) if folder.is_dir() else []
    return [file for file in (path, index_path(path), *shards) if file.is_file()]


def stale(path: Path, targets: list[Path]) -> list[Path]:
    """Return the files that an earlier write left at this path in the other layout (one file, or shards and index)."""
    return sorted(file for file in files_there(path) if file not in targets and is_ours(file, broken=False))


METADATA = "__metadata__"  # key in a header, and in a module made by `load`, which has no sidecar
Found = TypeVar("Found")


def space_of(model: object) -> Mapping[str, Any]:
    """Return the names in the file of a model's class; empty if it is of none."""
    return vars(sys.modules[type(model).__module__]) if type(model).__module__ in sys.modules else {}


def sidecar_of(space: Mapping[str, Any]) -> Path | None:
    """Return the weights file of a generated file, or None if it embeds them (`--embed`) or was not generated."""
    weights = space.get("WEIGHTS")
    return weights.with_name(weights.name.removesuffix(INDEX)) if isinstance(weights, Path) else None


def noted(space: Mapping[str, Any], key: str, parse: Callable[[str], Found]) -> Found | None:
    """Return an entry of the metadata of a generated file's weights, or None if it has none."""
    try:
        return parse(metadata_of(space)[key])
    except (OnnxgenError, KeyError, TypeError, ValueError):
        return None


def metadata_of(space: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the metadata of a generated file's weights; empty if it has none.

    Raises:
        OnnxgenError: the weights are damaged.
    """
    if METADATA in space:
        return dict(space[METADATA])
    sidecar = sidecar_of(space)
    return _embedded(space).get(METADATA, {}) if sidecar is None else header_metadata(sidecar)


def shapes_of(space: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a generated file's weights. Raises `OnnxgenError` if they are broken."""
    sidecar = sidecar_of(space)
    if sidecar is not None:
        return shapes_in(sidecar)
    return {key: tuple(e["shape"]) for key, e in _embedded(space).items() if key != METADATA}


def _embedded(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of the weights that a generated file embeds (`--embed`)."""
    text = space.get("WEIGHTS")
    if not isinstance(text, str):
        return {}
    try:
        return embedded_header(text)
    except ValueError as error:
        raise OnnxgenError(f"the weights in the module are damaged: {printable(str(error), 300)}") from None
