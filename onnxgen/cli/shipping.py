"""`onnxgen ship RUN --to TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.cli.files import newest_run
from onnxgen.cli.say import progress, table, tell, tell_json
from onnxgen.errors import counted
from onnxgen.training.runs.folder import is_run, no_run

if TYPE_CHECKING:
    from onnxgen.ship.comparison import Shipped


def ship_command(run: Path | None, *, to: str, quiet: bool, verbose: bool, as_json: bool, **arguments: Any) -> int:
    """Write the file and print a report. Returns the exit code."""
    run = run or newest_run("shipping")
    if not is_run(run):
        raise no_run(run)
    from onnxgen.ship import ship  # PyTorch takes seconds

    with progress(f"shipping {run.name} as {to}", quiet or as_json):
        report = ship(run, to, **arguments)
    if as_json:
        tell_json(report.as_json())
    elif not quiet:
        _print(report)
    return 0


def _print(report: Shipped) -> None:
    tell(f"wrote {report.out}, {report.size:,} bytes, and {' and '.join(path.name for path in report.wrote[1:])}")
    tell(f"  takes {counted(report.batch, 'sample') if report.batch else 'any number of samples'} at a time")
    for note in report.notes:
        tell(f"  note: {note}")
    if not report.compared:
        return
    samples = counted(report.compared, "sample")
    tell(f"  beside the module, on {samples}: outputs differ by {report.difference:.2g} of the largest")
    ours, theirs = report.seconds
    tell(f"  a sample takes {1000 * theirs:.3g} ms, {theirs / ours:.2g} times that of the module")
    if rows := [(name, f"{before:.6g}", f"{after:.6g}") for name, before, after in report.metrics]:
        table(f"{report.part} part", ("", "module", "file"), rows)
