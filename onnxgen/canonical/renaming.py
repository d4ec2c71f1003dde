"""The weights of a generated module under the names of an edited one, with the record that `export` needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import header_metadata, sidecar_files
from onnxgen.record.way_back import QUANTISED, TENSORS
from onnxgen.weights.sidecar import read_tensors, write_pair

USES = "uses"


def rename(module: Path, weights: Path, renamed: Mapping[str, str]) -> list[Path]:
    """Write a module's sidecar again with other names. Returns the files.

    Args:
        module: the edited file.
        weights: its sidecar, with the names that were generated.
        renamed: for each new name, the old one.

    Raises:
        OnnxgenError: the sidecar can't be read or written, or it has names that neither module has.
    """
    new = {old: name for name, old in renamed.items()}
    tensors = read_tensors(weights)
    metadata = header_metadata(sidecar_files(weights)[0])
    if not any(key in new for key in tensors):
        raise OnnxgenError(
            f"{weights} has no tensor that was renamed", help=f"generate it again: onnxgen MODEL -o {module}"
        )
    tensors = {new.get(key, key): value.copy() for key, value in tensors.items()}  # the file itself is written
    return write_pair(module, None, weights, tensors, renamed_record(metadata, new), force=True)


def renamed_record(metadata: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a sidecar with other names of its tensors. `new`: by the old name."""
    result = dict(metadata)
    for entry in (TENSORS, QUANTISED):
        if entry in result:
            result[entry] = json.dumps(_values(json.loads(result[entry]), new))
    if USES in result:
        uses = json.loads(result[USES])
        result[USES] = json.dumps({t: {new.get(k, k): v for k, v in keys.items()} for t, keys in uses.items()})
    return result


def _values(value: Any, new: Mapping[str, str]) -> Any:
    """Return a record by ONNX tensor with other names of what it is made of."""
    return {tensor: _made(part, new) for tensor, part in value.items()}


def _made(part: Any, new: Mapping[str, str]) -> Any:
    if isinstance(part, str):
        return new.get(part, part)
    if isinstance(part, list):
        return [_made(p, new) for p in part]
    if isinstance(part, dict):
        return {k: _made(v, new) if k in ("key", "parts") or not isinstance(v, str) else v for k, v in part.items()}
    return part
