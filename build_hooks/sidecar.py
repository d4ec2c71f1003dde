"""Check that the files of a sidecar fit a module, by their headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import index_path, read_header, sidecar_files
from onnxgen.record.signature import recorded


def belongs(weights: Path, fingerprint: str, source: str, data: str) -> bool:
    """Return True if the sidecar at `weights` is complete, has the module's fingerprint, and was made of this content.

    Args:
        weights: the sidecar, whether it is one file or an index and its shards.
        fingerprint: the module's.
        source: SHA-256 of the ONNX file.
        data: digest of its external data, as a build recorded it; "" if there is none.
    """
    return any(_all_fit(place, fingerprint, source, data) for place in (weights, index_path(weights)))


def _all_fit(place: Path, *content: str) -> bool:
    try:
        return all(_content(read_header(path)[0]) == content for path in sidecar_files(place))
    except OnnxgenError:
        return False


def _content(metadata: Mapping[str, str]) -> tuple[str, ...]:
    signature = recorded(metadata)
    source = "" if signature is None else signature.sha256
    return metadata.get("fingerprint", ""), source, metadata.get("data", "")


def files_of(weights: Path) -> tuple[Path, ...]:
    """Return the files of a sidecar, including its index; the single file if nothing exists yet."""
    try:
        found = sidecar_files(weights)
        return (weights,) if found == [weights] else (*found, index_path(weights))
    except OnnxgenError:
        return (weights,)
