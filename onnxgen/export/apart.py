"""Writes what was trained apart from the graph: the original with optional inputs, and their values as an adapter."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from onnxgen.errors import OnnxgenError, counted
from onnxgen.export import export
from onnxgen.export.beside import Moved, moved_weights
from onnxgen.export.job import ExportJob, Verification
from onnxgen.export.low_rank import SUFFIX, float_file, write_adapter
from onnxgen.export.origin import Origin, origin_of
from onnxgen.export.report import BACK, DiffersError, ExportReport
from onnxgen.export.state import state_of
from onnxgen.runtime.load import imported

VERIFYING = ("runs", "seed", "rtol", "atol", "plugins")


def export_apart(module: Path, **given: Any) -> ExportReport:
    """Write the original graph with optional inputs, and what was trained as an adapter beside it.

    Weights that the file stores as integers keep their bytes.

    Args:
        module: the generated module.
        given: the other arguments of `export`.

    Raises:
        OnnxgenError: as `export` and `write_adapter`.
    """
    with tempfile.TemporaryDirectory(prefix="onnxgen-", ignore_cleanup_errors=True) as folder, imported(module) as file:
        origin = origin_of(module, vars(file), given["onnx"])
        network = _job(module, given).trained(origin, file)
        moved = moved_weights(origin, state_of(network)) if origin.record.quantised else []
        tuned = Path(folder) / "tuned.onnx"
        verify = given["verify"] and not moved  # rounded, it would not compute what the module does
        report = export(module, **{**given, "out": tuned, "weights": network, "verify": verify})
        if report.method != BACK:
            what = f"{module.name} has another graph than the original: {report.why}"
            raise OnnxgenError(what, help="export it without --adapter")
        out = given["out"] or module.with_name(f"{Path(report.model).stem}-base.onnx")
        report.out = str(out)
        if moved:
            _without_rounding(report, moved)
            if given["verify"]:
                _verify(float_file(tuned, moved), network, origin, report, given)
        wrote = write_adapter(Path(report.model), tuned, out, force=given["force"], moved=moved)
    report.wrote, tensors, elements = wrote
    what = f"{counted(tensors, 'tensor')} in {elements:,} numbers"
    report.notes.append(f"the {SUFFIX} file has {what}; without it the .onnx file computes what the original does")
    return report


def _job(module: Path, given: dict[str, Any]) -> ExportJob:
    return ExportJob(module, given["onnx"], given["weights"], given["out"], given["force"], False, {})


def _without_rounding(report: ExportReport, moved: list[Moved]) -> None:
    """Report the integers as what they are: unchanged."""
    kept = {one.how.tensor for one in moved}
    report.changed, report.below = ([n for n in names if n not in kept] for names in (report.changed, report.below))
    report.notes.append(f"{counted(len(kept), 'tensor')} of integers keep their bytes")


def _verify(floats: Path, network: nn.Module, origin: Origin, report: ExportReport, given: dict[str, Any]) -> None:
    """Compare the module with the file that has its floats, as base and adapter are, too.

    Raises:
        DiffersError: they do not compute the same.
    """
    wanted = Verification(*(given[name] for name in VERIFYING))
    report.changed, changed = ["weights"], report.changed  # so that the comparison knows that they were trained
    report.verified = wanted.compare(floats, network, origin, report)
    report.changed = changed
    if report.verified.differs:
        raise DiffersError(report)


def refuse_rounding(module: Path, **given: Any) -> None:
    """Raise `OnnxgenError` if an adapter would be merged into integers: rounding loses what it adds."""
    with imported(module) as file:
        origin = origin_of(module, vars(file), given["onnx"])
        if not origin.record.quantised:
            return
        moved = moved_weights(origin, state_of(_job(module, given).trained(origin, file)))
    if moved:
        what = f"{origin.onnx.name} stores {counted(len(moved), 'adapted tensor')} as integers ({moved[0].shown})"
        way = "--adapter writes it beside them; for a graph of floats, torch.onnx.export(open_model(run), ...)"
        raise OnnxgenError(f"{what}, and rounding would lose most of the adapter", help=way)
