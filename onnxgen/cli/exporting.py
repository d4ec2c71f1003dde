"""`onnxgen export model.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.cli.files import newest_run
from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.errors import OnnxgenError, counted
from onnxgen.export.report import BACK, ExportReport
from onnxgen.training.runs.contract import onnx_beside_origin, shipped_facts
from onnxgen.training.runs.folder import is_own_file, no_run
from onnxgen.training.runs.record import need_own_code, need_same_code, read_record, whole_weights

if TYPE_CHECKING:
    from onnxgen.verify.report import VerifyReport


def export_command(
    module: Path | None, *, quiet: bool, verbose: bool, as_json: bool, adapter: bool = False, **arguments: Any
) -> int:
    """Write the ONNX file and print a report. Returns the exit code."""
    module = module or newest_run("exporting")
    if is_own_file(module) and module.suffix != ".py" or not module.exists() and module.suffix != ".py":
        raise no_run(module)
    from onnxgen.export import export  # PyTorch takes seconds
    from onnxgen.export.adapter import export_apart, refuse_rounding

    if module.is_dir():
        run, (module, arguments) = module, of_run(module, arguments)
        if not adapter and read_record(run).settings.get("lora"):
            refuse_rounding(module, **arguments)
    with progress(f"exporting {module.name}", quiet or as_json):
        report = export_apart(module, **arguments) if adapter else export(module, **arguments)
    if as_json:
        tell_json(report.as_json())
    elif not quiet:
        _print(report, verbose)
    return 0


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


def _print(report: ExportReport, verbose: bool) -> None:
    tell(f"wrote {' and '.join(str(path) for path in report.wrote)}")
    tell(f"  {report.method}: {report.why}")
    if report.method == BACK:
        text = f"  {len(report.changed):,} of {counted(report.tensors, 'tensor')} changed"
        counts = {
            ", {} more by less than a step of the file's numbers": report.below,
            ", {} added": report.added,
            ", {} resized": report.resized,
            "; {} cast back from a narrower type": report.lossy,
        }
        tell(text + "".join(words.format(f"{len(names):,}") for words, names in counts.items() if names))
    for note in report.notes:
        tell(f"  note: {note}")
    for name in report.changed if verbose else ():
        tell(f"  changed: {name}")
    for name in report.resized if verbose else ():
        tell(f"  resized: {name}")
    for name in report.added:
        tell(f"  added: {name}")
    _print_verification(report.verified, verbose)


def _print_verification(verified: VerifyReport | None, verbose: bool) -> None:
    if verified is None:
        tell("  not verified")
        return
    runs = counted(len(verified.runs), "run")
    verdict = "not told apart" if verified.untold else f"equal, to {verified.tolerance}"
    tell(f"  verified against the module in {runs}: {verdict}")
    for name, why in verified.untold.items():
        tell(f"  warning: output {name}: {why}")
    for note in verified.notes if verbose else ():
        tell(f"  note: {note}")
