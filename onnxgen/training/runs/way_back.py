"""The way of a run back to ONNX: which module, weights and file are its own, and what its file says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnxgen.errors import OnnxgenError
from onnxgen.training.runs.contract import onnx_beside_origin, shipped_facts
from onnxgen.training.runs.record import need_own_code, need_same_code, read_record, whole_weights


def of_run(run: Path, arguments: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the module of a run to export, and the arguments of `export`: weights, ONNX file, facts of the run."""
    record = read_record(run)
    adapted = bool(record.settings.get("lora"))
    if not record.module and not adapted:
        raise OnnxgenError(f"{run} has no module: {record.note}", help="export the model in Python")
    module = record.place_of_origin(run) if adapted else record.origin_for(run)
    need_own_code(run, record)
    if adapted:
        need_same_code(module, run, "keep the module as it was when its adapter was trained")
    module = module if adapted or _is_whole(module) else run / record.module
    if adapted and arguments["weights"] is None:
        from onnxgen.training import open_model

        arguments = {**arguments, "weights": open_model(run)}
    defaults = {
        "weights": arguments["weights"] or whole_weights(run, record),
        "out": run / f"{record.name}.onnx",
        "onnx": onnx_beside_origin(run, record),
    }
    facts = shipped_facts(run, record)
    return module, {
        **arguments,
        **{name: value for name, value in defaults.items() if arguments[name] is None},
        "metadata": facts,
    }


def _is_whole(module: Path) -> bool:
    """Return True if a module can be imported and has its weights."""
    from onnxgen.record.sidecar import metadata_of
    from onnxgen.runtime.load import imported

    try:
        with imported(module) as space:
            return bool(metadata_of(vars(space)))
    except OnnxgenError:
        return False
