"""Facts about the training that made a file: entries of its `metadata_props`, under a prefix of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx

from onnxgen.common.names import printable
from onnxgen.export import files
from onnxgen.export.report import PREFIX, ExportReport


def record_metadata(path: Path, metadata: Mapping[str, str], report: ExportReport) -> None:
    """Put entries into the ONNX file at `path`, instead of all that an earlier export put there.

    Those describe another training. So they go, even if no new ones are given; then the report says so.
    """
    model = onnx.load(path, load_external_data=False)
    found = {entry.key: entry.value for entry in model.metadata_props}
    new = {PREFIX + key: text for key, text in metadata.items()}
    stale = [key for key in found if key.startswith(PREFIX)]
    if lost := [printable(key) for key in stale if key not in new]:
        report.notes.append(f"left out what the original says of its own training: {', '.join(lost)}")
    if stale or new:
        onnx.helper.set_model_props(model, {key: found[key] for key in found if key not in stale} | new)
        files.save(model, path, report.out)
