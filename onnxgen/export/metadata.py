"""Facts about the training that made a file: entries of its `metadata_props`, under a prefix of ours.

What other tools tell there of the classes and of the inputs is made to fit the file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnx

from onnxgen.common.names import printable
from onnxgen.export import files
from onnxgen.export.labels import relabelled
from onnxgen.export.report import ExportReport
from onnxgen.record.labels import PREFIX, ultralytics_size
from onnxgen.record.sidecar import TRAINED


def record_metadata(path: Path, metadata: Mapping[str, str], report: ExportReport) -> None:
    """Put entries into the ONNX file at `path`, instead of all that an earlier export put there.

    Those describe another training. So they go, even if no new ones are given; then the report says so.
    """
    model = onnx.load(path, load_external_data=False)
    found = {entry.key: entry.value for entry in model.metadata_props}
    facts, missing = _of_outputs(metadata, {value.name for value in model.graph.output})
    if missing:
        what = f"the file has no output {', '.join(map(printable, missing))}, which the run's answers are read from"
        report.notes.append(f"{what}: its metadata does not say how")
    report.notes += _left_to_others(facts)
    new = {PREFIX + key: text for key, text in facts.items()}
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
    kept = _of_input(kept, model.graph)
    if stale or new or kept != others:
        onnx.helper.set_model_props(model, kept | new)
        files.save(model, path, report.out)


def _of_input(entries: dict[str, str], graph: onnx.GraphProto) -> dict[str, str]:
    """Return the entries of Ultralytics with the size and the batch of the image that the network takes, if fixed."""
    shapes = [value.type.tensor_type.shape.dim for value in graph.input]
    images = [[dim.dim_value for dim in dims] for dims in shapes if len(dims) == 4]
    told = ultralytics_size(entries)
    if told is None or len(images) != 1:
        return entries
    batch, _, height, width = images[0]  # 0 is an open one
    made = dict(entries)
    if height and width and (height, width) != told:
        made["imgsz"] = f"[{height}, {width}]"
    if batch and "batch" in made:
        made["batch"] = str(batch)
    return made


def _of_outputs(metadata: Mapping[str, str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the facts without what they say of outputs that the file does not have, and the names of these.

    A detector that is exported anew ends in its raw maps, and an edited `forward` may return more than the file.
    """
    facts = dict(metadata)
    try:
        contract = json.loads(facts[TRAINED])
        outputs = [(entry, _read_from(entry)) for entry in contract["outputs"]]
    except (KeyError, TypeError, ValueError):  # none, or one that a user wrote
        return facts, []
    missing = {name for _, read in outputs for name in read if name not in names}
    if missing:
        contract["outputs"] = [entry for entry, read in outputs if not missing & read]
        facts[TRAINED] = json.dumps(contract)
    return facts, sorted(missing)


def _left_to_others(facts: Mapping[str, str]) -> list[str]:
    """Return a note if a program that runs the file has to make boxes of its outputs."""
    try:
        entries = [entry for entry in json.loads(facts[TRAINED])["outputs"] if entry["kind"] == "boxes"]
    except (KeyError, TypeError, ValueError):
        return []
    said = f"{PREFIX}{TRAINED} in its metadata says how, and samples/deploy/predict.py does it"
    for entry in entries:
        if not entry.get("boxes"):
            return ["its metadata does not say where its boxes are: they are read as the author of the network says"]
        if entry["layout"] == "offsets":
            place = printable(entry["boxes"]["output"])
            return [f"the file does not decode boxes: output {place} has offsets and logarithms of sizes; {said}"]
    return []


def _read_from(entry: Mapping[str, Any]) -> set[str]:
    """Return the outputs that an entry of the contract is read from."""
    if entry["kind"] != "boxes":
        return {entry["name"]}
    return {entry[part]["output"] for part in ("boxes", "scores", "objects") if entry.get(part)}
