"""What becomes of every file of the collection of real ONNX files: the table in MODELS.md.

    python -m benchmarks.models [--category net,graph] [--file PART_OF_NAME] [--timeout 60] [--json FILE] [--write]

Each file is generated, imported, run with `from_pretrained()` in eval mode on the collection's inputs, and compared
with its reference runtime (float32: rtol 1e-3, atol 1e-5); then a backward pass, and every trained tensor is rebuilt
from the sidecar. `agrees` means all of it, `ran` that there is nothing to compare with: the reference runtime refuses
the file. `--write` renews MODELS.md. Without the collection (`ONNXGEN_SHARED` says where it lies) nothing is measured.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.common import arguments
from onnxgen.cli.say import aligned
from tests.conftest import SHARED

PAGE = Path(__file__).with_name("MODELS.md")
COLUMNS = ("file", "exporter", "opset", "category", "verdict", "lines", "classes")
VERDICTS = ("agrees", "ran", "differs", "refused", "failed")


def judge(entry: dict[str, Any], refs: Any, folder: Path) -> dict[str, Any]:
    """One file down the whole road: its verdict, and how large the module is."""
    from onnxgen.errors import OnnxgenError
    from tests.support.real import assert_finite_gradients, assert_same, assert_way_back, run

    path = SHARED / "models" / entry["file"]
    found: dict[str, Any] = {}
    try:
        feeds = refs.inputs(path, recipe=entry.get("feeds"))
        made = run(path, folder, feeds)
        found.update(lines=made.generated.report.lines, classes=made.generated.report.classes)
        compared = entry["ort"] == "ok" or entry.get("ort_level") == "reference"
        if compared:
            expected = refs.outputs(str(path), feeds, entry.get("ort_level", "off"))
            assert len(expected) == len(made.outputs), f"{len(made.outputs)} outputs instead of {len(expected)}"
            for (name, theirs), ours in zip(expected.items(), made.outputs, strict=True):
                assert_same(name, ours, theirs, values=not entry.get("random_outputs"))
        assert_finite_gradients(made)
        assert_way_back(made, path)
        return {**found, "verdict": "agrees" if compared else "ran"}
    except OnnxgenError as error:
        return {**found, "verdict": "refused", "why": _short(_refusal(error.problems))}
    except AssertionError as error:
        return {**found, "verdict": "differs", "why": _short(str(error))}
    except Exception as error:
        return {**found, "verdict": "failed", "why": _short(f"{type(error).__name__}: {error}")}


def _refusal(problems: tuple[Any, ...]) -> str:
    """The first problem, and the operators that have it."""
    what = problems[0].what
    operators = dict.fromkeys(problem.op for problem in problems if problem.what == what and problem.op)
    return f"{what} ({', '.join(operators)})" if operators else what


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= 110 else text[:107] + "..."


def _work(entries: list[dict[str, Any]], pipe: Connection) -> None:
    """The child: judges file after file, so that one that kills it or hangs costs no more than itself."""
    from tests.support.real import imported

    refs = imported(SHARED / "models" / "refs.py")
    warnings.simplefilter("ignore")
    for entry in entries:
        with tempfile.TemporaryDirectory() as folder:
            pipe.send(judge(entry, refs, Path(folder)))


def results(entries: list[dict[str, Any]], timeout: float) -> Iterator[dict[str, Any]]:
    """The verdict on each file, in order; a child that dies or takes too long is replaced by a new one."""
    context = multiprocessing.get_context("spawn")
    at = 0
    while at < len(entries):
        ours, theirs = context.Pipe()
        child = context.Process(target=_work, args=(entries[at:], theirs), daemon=True)
        child.start()
        theirs.close()
        patience = timeout + 60  # the first waits for imports, too
        while at < len(entries):
            try:
                there = ours.poll(patience)
                yield ours.recv() if there else {"verdict": "failed", "why": f"took over {timeout:.0f} s"}
            except EOFError:
                child.join()
                there = False
                yield {"verdict": "failed", "why": f"the process died ({child.exitcode})"}
            at, patience = at + 1, timeout
            if not there:
                break
        child.kill()


def row(entry: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    used = {domain: version for domain, version in entry["opset"].items() if domain in entry["domains"]}
    opset = ", ".join([str(entry["opset"].get("ai.onnx", "none")), *(f"{d} {v}" for d, v in sorted(used.items()))])
    why = f"{result['verdict']}: {result['why']}" if "why" in result else result["verdict"]
    return {
        "file": entry["file"],
        "exporter": entry["exporter"] or "unnamed",
        "opset": opset,
        "category": entry["category"],
        "verdict": why,
        "lines": result.get("lines", ""),
        "classes": result.get("classes", ""),
    }


def totals(rows: list[dict[str, Any]]) -> list[list[str]]:
    """How many files of each category have which verdict."""
    counts = Counter((r["category"], r["verdict"].partition(":")[0]) for r in rows)
    categories = list(dict.fromkeys(r["category"] for r in rows))
    lines = [[c, *(str(counts[c, v]) for v in VERDICTS), str(sum(counts[c, v] for v in VERDICTS))] for c in categories]
    return [["category", *VERDICTS, "files"], *lines]


def page(rows: list[dict[str, Any]]) -> str:
    """MODELS.md."""
    text = [
        "# What becomes of real files",
        "",
        "Written by `python -m benchmarks.models --write`, which says what the verdicts mean.",
        "",
        *_markdown(totals(rows)),
        "",
        *_markdown([list(COLUMNS), *([str(r[c]) for c in COLUMNS] for r in rows)]),
    ]
    return "\n".join(text) + "\n"


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--category", help="only these categories (net,graph)")
    parser.add_argument("--file", default="", help="only files with this in their name")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a file (default: 60)")
    parser.add_argument("--write", action="store_true", help="renew MODELS.md (only over all files)")
    given = parser.parse_args()
    manifest = SHARED / "models" / "manifest.json"
    if not manifest.is_file():
        sys.exit(f"skipped: no collection of real ONNX files in {SHARED} (ONNXGEN_SHARED says where)")
    wanted = given.category.split(",") if given.category else []
    entries = [e for e in json.loads(manifest.read_text(encoding="utf-8")) if given.file in e["file"]]
    entries = [e for e in entries if not wanted or e["category"] in wanted]
    order = ("net", "graph", "op", "ms-contrib", "classic-ml", "custom-domain", "broken")
    entries.sort(key=lambda e: (order.index(e["category"]), e["file"]))
    rows = [row(entry, result) for entry, result in zip(entries, results(entries, given.timeout), strict=True)]
    print("\n".join(aligned([COLUMNS, *([str(r[c]) for c in COLUMNS] for r in rows)])))
    print("\n" + "\n".join(aligned(totals(rows))))
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if given.write and not (wanted or given.file):
        PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
