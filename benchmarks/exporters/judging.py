"""What onnxgen makes of a file: the commands that a person would type, each in a process of its own."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, environment

LATE = 124  # the exit code that stands for a time limit, as the command `timeout` has it
REFUSED = 2  # onnxgen's exit code for bad input

# right: generated, and equal in every run. refused by both: onnxruntime loads it neither. untold: nothing differs, but
# the outputs tell too little. no inputs: none that an oracle accepts was found, of a file that onnxruntime loads.
# unjudged: the same, of one that it does not load, or of whose operands it says that it does not support them.
# refused, crashed, late: generating.
VERDICTS = (
    "right", "refused by both", "unjudged", "untold", "differs", "no inputs", "refused", "crashed", "verify crashed",
    "late",
)  # fmt: skip
FINE = VERDICTS[:4]
UNSUPPORTED = "inputs are not supported"  # what onnxruntime says of operands that its kernel for CPUs does not take


@dataclass(frozen=True)
class Row:
    """One file.

    Attributes:
        tool, file: whose it is, and its path in the tool's folder.
        size: in bytes, without external data.
        generate, verify: exit codes; `verify` is None where nothing was generated.
        loads: why onnxruntime does not load it, or "".
        oracle: what computed the expected outputs.
        verdict: one of `VERDICTS`.
        why: the first problem.
    """

    tool: str
    file: str
    size: int
    generate: int
    verify: int | None
    loads: str
    oracle: str
    verdict: str
    why: str


def judge(folder: Path, tool: str = "", *, again: bool = False, timeout: float = 240) -> Iterator[Row]:
    """A row for each file; one that was judged before and is the same file still is not judged again."""
    log = folder / "judged.json"
    known = json.loads(log.read_text(encoding="utf-8")) if log.is_file() else {}
    for path in sorted(folder.glob(f"{tool or '*'}/**/*.onnx")):
        name, mark = path.relative_to(folder).as_posix(), _mark(path)
        if name not in known or known[name]["mark"] != mark or again:
            row = examine(path, folder, timeout)
            known[name] = {"mark": mark, **asdict(row)}
            log.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: {row.verdict} {row.why}", flush=True)
        yield Row(**{key: value for key, value in known[name].items() if key != "mark"})


def examine(path: Path, folder: Path, timeout: float) -> Row:
    """Generate, verify, load."""
    with tempfile.TemporaryDirectory() as made:
        module = str(Path(made) / "model.py")
        generate, said = _onnxgen(timeout, str(path), "-o", module, "--json")
        verify, report = None, {}
        if generate == 0:
            verify, report = _onnxgen(timeout, "verify", str(path), module, "--json")
    code, text = _python(60, "-m", "benchmarks.exporters.loads", str(path))
    loads = "" if code == 0 else text.strip().replace(f"{path.parent}/", "") or f"the process died ({code})"
    verdict = _verdict(generate, verify, report, loads)
    why = "" if verdict == "right" else _why(report if generate == 0 else said).replace(f"{path.parent}/", "")
    oracle = ", ".join(dict.fromkeys(run["oracle"] for run in report.get("runs", ())))
    tool, _, file = path.relative_to(folder).as_posix().partition("/")
    return Row(tool, file, path.stat().st_size, generate, verify, loads, oracle, verdict, why)


def _verdict(generate: int, verify: int | None, report: dict[str, Any], loads: str) -> str:
    if LATE in (generate, verify):
        return "late"
    if generate:
        return ("refused by both" if loads else "refused") if generate == REFUSED else "crashed"
    if verify == 0:
        return "right"
    if verify == REFUSED:
        return "unjudged" if loads or UNSUPPORTED in str(report.get("error", "")) else "no inputs"
    if verify == 1:
        return "untold" if report.get("untold") and not report.get("problems") else "differs"
    return "verify crashed"


def _why(found: dict[str, Any]) -> str:
    """The first thing that a command complained of, on one line."""
    problems = found.get("problems") or list(found.get("untold", {}).values()) or [found.get("error", "")]
    first = problems[0]
    if isinstance(first, dict):
        operator = f" ({first['op']})" if first["op"] else ""
        first = first["what"] + operator
    return " ".join(str(first).split())[:300]


def _onnxgen(timeout: float, *args: str) -> tuple[int, dict[str, Any]]:
    """Exit code of a command of onnxgen's, and the object it printed (of a crash, what it said last)."""
    code, text = _python(timeout, "-m", "onnxgen", *args)
    try:
        found: dict[str, Any] = json.loads(text)
        return code, found
    except json.JSONDecodeError:
        lines = [line for line in text.splitlines() if line.strip()]
        return code, {"error": lines[-1] if lines else f"exit code {code}"}


def _python(timeout: float, *args: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, *args], capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return LATE, f"took over {timeout:.0f} s"
    return done.returncode, done.stdout if done.stdout.strip() else done.stderr


def _mark(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
