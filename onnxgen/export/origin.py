"""Find the module to export, what its sidecar recorded, and the ONNX file that it was generated from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgen.record.module import metadata_of, sidecar_of
from onnxgen.record.sidecar import sidecar_files
from onnxgen.record.signature import Signature, recorded
from onnxgen.record.source import source_of
from onnxgen.record.way_back import TENSORS, WayBack


@dataclass(frozen=True)
class Origin:
    """A generated module and the ONNX file that it was generated from.

    Attributes:
        module: the module's path.
        space: the names in the module.
        onnx: the ONNX file, which has not changed since.
        signature: inputs and outputs.
        record: how the file's tensors are made of the state dict.
    """

    module: Path
    space: Mapping[str, Any]
    onnx: Path
    signature: Signature
    record: WayBack

    @property
    def files(self) -> set[Path]:
        """Return the module and its weights files."""
        sidecar = sidecar_of(self.space)
        return {self.module, *([] if sidecar is None else sidecar_files(sidecar))}


def origin_of(module: Path, space: Mapping[str, Any], onnx: Path | None) -> Origin:
    """Find the ONNX file that a module was generated from (`onnx`: named by the user).

    Raises:
        OnnxgenError: the module's weights do not name the file, or it can't be found, or has changed.
    """
    metadata = metadata_of(space)
    signature = recorded(metadata)
    record = WayBack.from_metadata(metadata)
    path = source_of(module, signature if TENSORS in metadata else None, onnx)
    assert signature is not None
    return Origin(module, space, path, signature, record)
