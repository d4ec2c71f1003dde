"""`onnxgen MODEL.onnx` and `onnxgen verify MODEL.onnx model.py`."""

from __future__ import annotations

import keyword
import math
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.cli.say import PARTLY, aligned, progress, table, tell, tell_json
from onnxgen.common.names import identifier
from onnxgen.common.timing import FORMAT, IMPORTS, STAGES, WEIGHTS
from onnxgen.errors import OnnxgenError, counted
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.record.labels import recorded_alphabet, train_line
from onnxgen.record.sidecar import TRAINED

if TYPE_CHECKING:
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
    **comparison: Any,
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
        report = verify(model, path, options=options, feeds=feeds, sizes=wanted, **comparison)
    if as_json:
        tell_json(report.as_json())
    else:
        print_report(report, quiet)
    return 0 if report.agrees else 1


def _sizes(texts: tuple[str, ...]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal() or int(size) < 1:
            raise OnnxgenError(f"--sizes {text}: it takes NAME=N, the name of a dynamic dim and a size of at least 1")
        sizes[name] = int(size)
    return sizes


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
        _print_runs(report)
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
        tell(_verdict(report))


def _print_runs(report: VerifyReport) -> None:
    """Print the table of outputs, the gradients and the notes."""
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


def _verdict(report: VerifyReport) -> str:
    if report.differs:
        return "NOT EQUAL"
    if report.partial:
        return "equal in all tensors that both have; outputs may differ, because layers do"
    equal = "NOT TOLD APART" if report.untold else f"equal, to {report.tolerance}"
    if left := report.gradients.not_compared:
        equal += f"; not compared: the gradients of {left} of {counted(report.gradients.groups, 'group')}"
    return equal


def _rows(index: int, run: Run, report: VerifyReport, is_near: bool) -> list[tuple[str, ...]]:
    sizes = " ".join(f"{name}={size}" for name, size in run.sizes.items())
    first = (str(index), sizes, run.oracle)
    if run.error:
        return [(*first, "", "", *[""] * (3 if is_near else 2), run.error)]
    verdicts = ["not told apart" if o.name in report.untold else "ok" for o in run.outputs]
    for place, o in enumerate(run.outputs):
        if o.why:
            verdicts[place] = f"differs: {o.why}" if report.partial else "DIFFERENT"
    return [(*first, o.name, o.got, *_differences(o, is_near), how) for o, how in zip(run.outputs, verdicts)]


def _differences(o: OutputCheck, is_near: bool) -> tuple[str, ...]:
    """Return the largest absolute difference, and the relative one or, with `is_near`, root mean square and limit."""
    compared = (o.rms, o.limit) if is_near else (o.relative,)
    if o.compared != "values":
        return ("not compared" if is_near else "random", *[""] * len(compared))
    return tuple("-" if number is None else f"{number:.3g}" for number in (o.absolute, *compared))


def _gradients(gradients: Gradients) -> str:
    if not gradients.parameters:
        return "there is no parameter to train"
    text = f"finite for {gradients.reached} of {counted(gradients.parameters, 'parameter')}"
    if gradients.unreached:
        names = ", ".join(gradients.unreached[:5]) + (", ..." if len(gradients.unreached) > 5 else "")
        text += f"; none reaches {names} (the graph's differentiable part need not reach them in these runs)"
    if gradients.groups:
        groups = counted(gradients.groups, "group")
        text += f"; {gradients.held} of {groups} of parameters and inputs agree with finite differences"
    if gradients.not_compared:
        text += f", {gradients.not_compared} not compared (time ran out)"
    if gradients.unclear:
        shown = ", ".join(gradients.unclear[:3]) + (", ..." if gradients.unclear[3:] else "")
        text += f"; finite differences say nothing of {shown}"
    return text


SHOWN_STAGES = (IMPORTS, WEIGHTS, *STAGES[:-1], FORMAT, STAGES[-1])


def generate_command(
    model: Path,
    output: Path | None,
    options: Options,
    *,
    check: bool,
    force: bool,
    verified: bool,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Generate, or with `check` only report if that would change anything. Returns the exit code."""
    started = time.perf_counter()
    from onnxgen.pipeline import default_out, generate

    imports = time.perf_counter() - started
    out = default_out(model, output)
    if check:
        return _check(model, out, options, quiet, as_json)
    with progress(f"generating {out.name}", quiet or as_json, STAGES) as begin:
        generated = generate(model, out, options, force=force, progress=begin)
    generated.report.stages[IMPORTS] = generated.report.stages.get(IMPORTS, 0.0) + imports
    result = summary(generated, model, out)
    if not as_json and not quiet:
        _print(result, verbose, verified, verbose or options.paranoid)
    code = 0
    if verified:
        code = _verify(model, out, options, result, quiet, as_json)
    if as_json:
        tell_json(result)
    return code


def _check(model: Path, out: Path, options: Options, quiet: bool, as_json: bool) -> int:
    from onnxgen.pipeline import check

    with progress(f"checking {out.name}", quiet or as_json, STAGES) as begin:
        fresh = check(model, out, options, progress=begin)
    if as_json:
        tell_json({"status": "fresh" if fresh else "stale", "module": str(out)})
    elif not quiet:
        what = "fresh" if fresh else "stale: generate it again" if out.exists() else "missing: generate it"
        tell(f"{out} is {what}")
    return 0 if fresh else 1


def _verify(model: Path, out: Path, options: Options, result: dict[str, Any], quiet: bool, as_json: bool) -> int:
    from onnxgen.verify import verify

    with progress(f"verifying {out.name}", quiet or as_json):
        report = verify(model, out, options=options)
    result["verify"] = report.as_json()
    if not as_json:
        print_report(report, quiet)
    return 0 if report.agrees else 1


def summary(generated: Generated, model: Path, out: Path) -> dict[str, Any]:
    """Return the report as `--json` prints it."""
    report = generated.report
    return {
        "status": report.status,
        "model": str(model),
        "module": str(out),
        "wrote": [str(path) for path in report.wrote],
        **{name: getattr(report, name) for name in ("classes", "parameters", "lines", "recognised")},
        **{name: getattr(report, name) for name in ("plain", "left_out")},
        "notes": [*report.notes, *_names(out), *_fed(generated.metadata)],
        "train": train_line(out),
        "checked": report.checked,
        "stages": {name: round(report.stages[name], 6) for name in SHOWN_STAGES if name in report.stages},
    }


def _fed(metadata: Mapping[str, str]) -> list[str]:
    """Return a note if the file says how its network is fed."""
    if recorded_alphabet(metadata) is None and TRAINED not in metadata:
        return []
    from onnxgen.training.data.presets import preset_of  # not of other files: it imports parts of the training

    preset = preset_of(metadata)
    return [] if preset is None else [preset.told()]


def _names(out: Path) -> list[str]:
    """Return a note if an import statement can't name the module."""
    if out.stem.isidentifier() and not keyword.iskeyword(out.stem):
        return []
    other = f"{identifier(out.stem, 'model')}.py"
    return [f"{out.name} can't be imported, since {out.stem!r} is not a name in Python: give -o {other}"]


_STATUS_TEXTS = {
    "written": "wrote {files}",
    "merged": "wrote {files}: merged your edits into the new module",
    "as it was": "wrote {files}: your edits fit, and {module} needed no change",
    "fresh": "{module} is fresh: nothing to do",
    "kept": "{module} was edited by hand and its source has not changed: kept",
}


def _print(result: dict[str, Any], verbose: bool, verified: bool, tells_checks: bool) -> None:
    tell(_status(result))
    edited = result["status"] in ("merged", "kept")
    nouns = {"classes": "class", "parameters": "parameter", "lines": "line"}
    if not edited:  # the counts are of the module without edits
        tell("  source: " + ", ".join(counted(result[name], noun) for name, noun in nouns.items()))
    recognised = [f"{number} {name}" for name, number in result["recognised"].items()]
    if recognised:
        tell("  recognised: " + ", ".join(recognised))
    for note in result["notes"]:
        tell(f"  note: {note}")
    if tells_checks:
        tell(f"  checked: {result['checked']}")
    if result["status"] in ("written", "merged") and not verified:
        how = PARTLY if edited else ""
        tell("  next: " + shlex.join(["onnxgen", "verify", result["model"], result["module"]]) + how)
        if result["parameters"]:
            tell("  then: " + shlex.join(result["train"]))
    if verbose:
        _print_stages(result["stages"])


def _status(result: dict[str, Any]) -> str:
    """Return what was written, or why nothing was."""
    status = result["status"]
    if status == "merged" and result["module"] not in result["wrote"]:
        status = "as it was"
    *most, last = result["wrote"] or [""]
    files = " and ".join([", ".join(most), last] if most else [last])
    text = _STATUS_TEXTS.get(status, "{status}: {module}").format(files=files, **result)
    return f"{text}; wrote {files}" if files and status == "kept" else text


def _print_stages(stages: Mapping[str, float]) -> None:
    """Print the seconds of each stage, in all, and without imports and copying weights."""
    net = sum(seconds for name, seconds in stages.items() if name not in (IMPORTS, WEIGHTS))
    rows = [(name, f"{seconds:.3f}") for name, seconds in stages.items()]
    rows += [("in all", f"{sum(stages.values()):.3f}"), (f"without {IMPORTS} and {WEIGHTS}", f"{net:.3f}")]
    for line in aligned([("stage", "seconds"), *rows]):
        tell("  " + line)
