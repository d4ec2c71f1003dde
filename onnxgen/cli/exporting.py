"""`onnxgen export model.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.cli.files import newest_run
from onnxgen.cli.say import progress, tell, tell_json
from onnxgen.errors import counted
from onnxgen.export.report import BACK, ExportReport
from onnxgen.training.runs.folder import is_own_file, no_run
from onnxgen.training.runs.way_back import of_run

if TYPE_CHECKING:
    from onnxgen.verify.report import VerifyReport


def export_command(
    module: Path | None, *, quiet: bool, verbose: bool, as_json: bool, adapter: bool = False, **arguments: Any
) -> int:
    """Write the ONNX file and print a report. Returns the exit code."""
    module = module or newest_run("exporting")
    if is_own_file(module) and module.suffix != ".py" or not module.exists() and module.suffix != ".py":
        raise no_run(module)
    with progress(f"exporting {module.name}", quiet or as_json):
        report = _of_run(module, arguments, adapter) if module.is_dir() else _written(module, arguments, adapter)
    if as_json:
        tell_json(report.as_json())
    elif not quiet:
        _print(report, verbose)
    return 0


def _written(module: Path, arguments: dict[str, Any], adapter: bool) -> ExportReport:
    from onnxgen.export import export  # PyTorch takes seconds
    from onnxgen.export.adapter import export_apart

    return export_apart(module, **arguments) if adapter else export(module, **arguments)


def _of_run(run: Path, arguments: dict[str, Any], adapter: bool) -> ExportReport:
    """Export the module of a run, with a card beside it; an adapter's base is not what was trained, and has none."""
    module, arguments = of_run(run, arguments)
    if adapter:
        return _written(module, arguments, adapter)
    from onnxgen.ship.card import card_of_export, places_of_card

    card = places_of_card(Path(arguments["out"]), arguments["force"])
    report = _written(module, arguments, adapter)
    report.wrote += card_of_export(run, report.wrote, card)
    return report


def _print(report: ExportReport, verbose: bool) -> None:
    tell(f"wrote {', '.join(str(path) for path in report.wrote)}")
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
    _print_verification(report.verified, verbose, len(report.rounded))


def _print_verification(verified: VerifyReport | None, verbose: bool, rounded: int) -> None:
    if verified is None:
        tell("  not verified")
        return
    runs = counted(len(verified.runs), "run")
    verdict = "not told apart" if verified.untold else f"equal, to {verified.tolerance}"
    tell(f"  verified against the module in {runs}: {verdict}")
    if rounded:
        rms = max((output.rms or 0.0 for run in verified.runs for output in run.outputs), default=0.0)
        what = f"{counted(rounded, 'trained tensor')} rounded to the file's integers"
        tell(f"  {what}: that changes outputs by {rms:.3g} in root mean square")
    for name, why in verified.untold.items():
        tell(f"  warning: output {name}: {why}")
    for note in verified.notes if verbose else ():
        tell(f"  note: {note}")
