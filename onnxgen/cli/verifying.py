"""`onnxgen verify MODEL.onnx model.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onnxgen.cli.say import count, progress, table
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.verify.report import Gradients, Run, VerifyReport

SHOWN = 20  # differences printed; --json has all


def verify_command(
    model: Path,
    module: Path | None,
    options: Options,
    *,
    inputs: tuple[Path, ...],
    quiet: bool,
    verbose: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Verify and print the table; returns the exit code."""
    from onnxgen.pipeline import default_out
    from onnxgen.verify import verify

    feeds = [_arrays(path) for path in inputs] or None
    with progress(f"verifying {model.name}", quiet or as_json):
        report = verify(model, default_out(model, module), options=options, feeds=feeds, **given)
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        print_report(report, quiet)
    return 0 if report.agrees else 1


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, AttributeError) as error:
        raise OnnxgenError(f"{path} is not an npz file of arrays: {error}") from None


def print_report(report: VerifyReport, quiet: bool) -> None:
    """The table of outputs, what the gradients are, the notes, and the verdict; with `quiet` only what is different."""
    problems = report.problems()
    if not quiet:
        rows = [row for index, run in enumerate(report.runs) for row in _rows(index, run)]
        columns = ("run", "sizes", "oracle", "output", "is", "largest difference", "relative", "")
        table(f"{report.module} and {report.model}, in {report.mode} mode", columns, rows)
        print(f"gradients: {_gradients(report.gradients)}")
        if report.integrity is not None:
            print(f"integrity: {count(report.integrity.tensors, 'tensor')} of the weights compared bit for bit")
        for note in report.notes:
            print(f"note: {note}")
    for problem in problems[:SHOWN]:
        print(f"different: {problem}")
    if len(problems) > SHOWN:
        print(f"different: and {len(problems) - SHOWN} more (--json has all)")
    if not quiet:
        print(f"equal, to {report.tolerance}" if report.agrees else "NOT EQUAL")


def _rows(index: int, run: Run) -> list[tuple[str, ...]]:
    sizes = " ".join(f"{name}={size}" for name, size in run.sizes.items())
    first = (str(index), sizes, run.oracle)
    if run.error:
        return [(*first, "", "", "", "", run.error)]
    return [
        (
            *first,
            o.name,
            o.got,
            f"{o.absolute:.3g}" if o.compared == "values" else "random",
            f"{o.relative:.3g}" if o.compared == "values" else "",
            "ok" if o.agrees else "DIFFERENT",
        )
        for o in run.outputs
    ]


def _gradients(found: Gradients) -> str:
    if not found.parameters:
        return "there is no parameter to train"
    text = f"finite for {found.reached} of {count(found.parameters, 'parameter')}"
    if found.unreached:
        names = ", ".join(found.unreached[:5]) + (", ..." if len(found.unreached) > 5 else "")
        text += f"; none reaches {names} (the graph's differentiable part need not reach them in these runs)"
    return text
