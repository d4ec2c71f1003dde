"""`onnxgen verify MODEL.onnx model.py`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from onnxgen.cli.say import progress, table, tell, tell_json
from onnxgen.errors import OnnxgenError, counted
from onnxgen.options import Options
from onnxgen.verify.report import Gradients, OutputCheck, Run, VerifyReport

MAX_DIFFERENCES_SHOWN = 20  # --json has all


def verify_command(
    model: Path,
    module: Path | None,
    options: Options,
    *,
    files: tuple[Path, ...],
    sizes: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Verify and print the table. Returns the exit code."""
    from onnxgen.pipeline import default_out
    from onnxgen.verify import verify

    wanted = _sizes(sizes)
    if model.suffix == ".py" and module is not None and module.suffix != ".py":
        raise OnnxgenError(f"{model} is no ONNX file", help=f"name it last: onnxgen verify {module} {model}")
    path = default_out(model, module)
    if module is None and not path.is_file():
        raise OnnxgenError(f"there is no module {path}", help=f"name it after {model}, or write it: onnxgen {model}")
    feeds = [_arrays(file) for file in files] or None
    with progress(f"verifying {model.name}", quiet or as_json):
        report = verify(model, path, options=options, feeds=feeds, sizes=wanted, **given)
    if as_json:
        tell_json(report.as_json())
    else:
        print_report(report, quiet)
    return 0 if report.agrees else 1


def _sizes(given: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal() or int(size) < 1:
            raise OnnxgenError(f"--sizes {text}: it takes NAME=N, the name of a dynamic dim and a size of at least 1")
        found[name] = int(size)
    return found


def _arrays(path: Path) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, AttributeError) as error:
        raise OnnxgenError(f"{path} is not an npz file of arrays: {error}") from None


def print_report(report: VerifyReport, quiet: bool) -> None:
    """Print the table of outputs, the gradients, the notes and the verdict. With `quiet`, print only differences."""
    problems = report.problems()
    if not quiet:
        is_near = any(o.limit is not None for run in report.runs for o in run.outputs)
        rows = [row for index, run in enumerate(report.runs) for row in _rows(index, run, report, is_near)]
        compared = ("root mean square", "limit") if is_near else ("relative",)
        columns = ("run", "sizes", "oracle", "output", "is", "largest difference", *compared, "")
        table(f"{report.module} and {report.model}, in {report.mode} mode", columns, rows)
        tell(f"loaded in part: {report.partial}" if report.partial else f"gradients: {_gradients(report.gradients)}")
        if report.integrity is not None:
            tell(f"integrity: {counted(report.integrity.tensors, 'tensor')} of the weights compared bit for bit")
        for note in report.notes:
            tell(f"note: {note}")
    for problem in problems[:MAX_DIFFERENCES_SHOWN]:
        tell(f"different: {problem}")
    if len(problems) > MAX_DIFFERENCES_SHOWN:
        tell(f"different: and {len(problems) - MAX_DIFFERENCES_SHOWN} more (--json has all)")
    if report.located is not None:
        at = report.located
        where = f"line {at.line} of {report.module}" if at.line else "in its weights"
        where += "" if math.isnan(at.absolute) else f", by {at.absolute:.3g}"
        tell(f"first difference: node {at.node} ({at.op_type}), {where}")
    for name, why in report.untold.items():
        tell(f"not told apart: output {name}: {why}")
    if not quiet:
        equal = "NOT TOLD APART" if report.untold else f"equal, to {report.tolerance}"
        if report.partial:
            equal = "equal in all tensors that both have; outputs may differ, because layers do"
        elif left := report.gradients.not_compared:
            equal += f"; not compared: the gradients of {left} of {counted(report.gradients.groups, 'group')}"
        tell("NOT EQUAL" if report.differs else equal)


def _rows(index: int, run: Run, report: VerifyReport, is_near: bool) -> list[tuple[str, ...]]:
    sizes = " ".join(f"{name}={size}" for name, size in run.sizes.items())
    first = (str(index), sizes, run.oracle)
    if run.error:
        return [(*first, "", "", *[""] * (3 if is_near else 2), run.error)]
    told = {o.name: "not told apart" if o.name in report.untold else "ok" for o in run.outputs}
    found = told | {o.name: f"differs: {o.why}" if report.partial else "DIFFERENT" for o in run.outputs if o.why}
    return [(*first, o.name, o.got, *_differences(o, is_near), found[o.name]) for o in run.outputs]


def _differences(o: OutputCheck, is_near: bool) -> tuple[str, ...]:
    """Return the largest absolute and relative difference. `is_near`: the root mean square and its limit instead of the
    relative one.
    """
    compared = (o.rms, o.limit) if is_near else (o.relative,)
    if o.compared != "values":
        return ("not compared" if is_near else "random", *[""] * len(compared))
    return tuple("-" if number is None else f"{number:.3g}" for number in (o.absolute, *compared))


def _gradients(found: Gradients) -> str:
    if not found.parameters:
        return "there is no parameter to train"
    text = f"finite for {found.reached} of {counted(found.parameters, 'parameter')}"
    if found.unreached:
        names = ", ".join(found.unreached[:5]) + (", ..." if len(found.unreached) > 5 else "")
        text += f"; none reaches {names} (the graph's differentiable part need not reach them in these runs)"
    if found.groups:
        groups = counted(found.groups, "group")
        text += f"; {found.held} of {groups} of parameters and inputs agree with finite differences"
    if found.not_compared:
        text += f", {found.not_compared} not compared (time ran out)"
    if found.unclear:
        shown = ", ".join(found.unclear[:3]) + (", ..." if found.unclear[3:] else "")
        text += f"; finite differences say nothing of {shown}"
    return text
