"""`onnxgen MODEL.onnx`."""

from __future__ import annotations

import keyword
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgen.cli.say import PARTLY, aligned, progress, tell, tell_json
from onnxgen.common.names import identifier
from onnxgen.common.timing import FORMAT, IMPORTS, STAGES, WEIGHTS
from onnxgen.errors import counted
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.record.usual import train_line, usual_of

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
    from onnxgen.cli.verifying import print_report
    from onnxgen.verify import verify

    with progress(f"verifying {out.name}", quiet or as_json):
        report = verify(model, out, options=options)
    result["verify"] = report.as_json()
    if not as_json:
        print_report(report, quiet)
    return 0 if report.agrees else 1


def summary(generated: Generated, model: Path, out: Path) -> dict[str, Any]:
    """Return the report as `--json` prints it."""
    report, usual = generated.report, usual_of(generated.metadata)
    return {
        "status": report.status,
        "model": str(model),
        "module": str(out),
        "wrote": [str(path) for path in report.wrote],
        **{name: getattr(report, name) for name in ("classes", "parameters", "lines", "recognised")},
        **{name: getattr(report, name) for name in ("plain", "left_out")},
        "notes": [*report.notes, *_names(out), *([] if usual is None else [usual.told()])],
        "train": train_line(out) if usual is None else usual.line(out),
        "checked": report.checked,
        "stages": {name: round(report.stages[name], 6) for name in SHOWN_STAGES if name in report.stages},
    }


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
    status = result["status"]
    if status == "merged" and result["module"] not in result["wrote"]:
        status = "as it was"
    text = _STATUS_TEXTS.get(status, "{status}: {module}")
    *most, last = result["wrote"] or [""]
    files = " and ".join([", ".join(most), last] if most else [last])
    tell(text.format(files=files, **result) + (f"; wrote {files}" if files and result["status"] == "kept" else ""))
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


def _print_stages(stages: Mapping[str, float]) -> None:
    """Print the seconds of each stage, in all, and without imports and copying weights."""
    net = sum(seconds for name, seconds in stages.items() if name not in (IMPORTS, WEIGHTS))
    rows = [(name, f"{seconds:.3f}") for name, seconds in stages.items()]
    rows += [("in all", f"{sum(stages.values()):.3f}"), (f"without {IMPORTS} and {WEIGHTS}", f"{net:.3f}")]
    for line in aligned([("stage", "seconds"), *rows]):
        tell("  " + line)
