"""Facts about the training that made a file: entries of its `metadata_props`, under a prefix of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx

from onnxgen.common.names import printable
from onnxgen.export import files
from onnxgen.export.labels import relabelled
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
    others = {key: found[key] for key in found if key not in stale}
    kept, unknown = relabelled(others, json.loads(metadata.get("classes", "[]")))
    if told := [printable(key) for key in others if kept.get(key) != others[key] and key not in unknown]:
        report.notes.append(f"the file's own list of classes has the new ones: {', '.join(told)}")
    if unknown:
        left = ", ".join(map(printable, unknown))
        report.notes.append(f"left out what may list other classes, in a form that is not known: {left}")
    if stale or new or kept != others:
        onnx.helper.set_model_props(model, kept | new)
        files.save(model, path, report.out)
