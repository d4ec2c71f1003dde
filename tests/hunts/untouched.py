"""Modules that nobody edited, in fresh processes: `python -m tests.hunts untouched --cases 120 --seed 0`.

With `--what keep`, a few edits that keep the function are made in each first.

Files come from $ONNXGEN_SHARED/models, small ones first, or from a folder (`--only FOLDER`). Each is generated and then
proved; the time is that of the processes' own work, so that others on the machine don't count.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.hunts import keeping, spelling
from tests.hunts.rewriting import KEEP, Source

MACHINES = (keeping, spelling)  # importing them registers their edits
EDITS = ("rename_local", "swap_commutative", "extract_variable", "reorder_layers")


def files(folder: str | None) -> list[Path]:
    if folder is not None:
        return sorted(Path(folder).rglob("*.onnx"), key=lambda path: path.stat().st_size)
    models = Path(os.environ["ONNXGEN_SHARED"]) / "models"
    entries = json.loads((models / "manifest.json").read_text())
    kept = [e for e in entries if e["ort"] == "ok" and e["category"] in ("net", "graph") and not e["external"]]
    kept = [e for e in kept if e.get("init_types") and e["nodes"] >= 3]
    return [models / e["file"] for e in sorted(kept, key=lambda e: (e["bytes"], e["file"]))]


def ran(*words: str, limit: float = 900) -> tuple[int, str, float]:
    """Run onnxgen. Returns its exit code, what it said, and the seconds that it worked."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "onnxgen", *words], capture_output=True, text=True, timeout=limit, check=False
        )
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, said = -1, f"it takes more than {limit:.0f} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return code, said, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def edit(module: Path) -> None:
    """Make each of a few edits that keep the function, where it applies."""
    for name in EDITS:
        text = module.read_text(encoding="utf-8")
        try:
            made = KEEP[name](Source(text), random.Random(0))
        except (SyntaxError, ValueError, StopIteration, IndexError):
            continue
        if made is not None:
            module.write_text(made.text, encoding="utf-8")


def hunt(first: int, cases: int, folder: str | None = None, edited: bool = False) -> Counter[str]:
    table: Counter[str] = Counter()
    why: Counter[str] = Counter()
    ratios: list[float] = []
    for path in files(folder)[first : first + cases]:
        with tempfile.TemporaryDirectory() as work:
            module = str(Path(work) / "model.py")
            code, said, generating = ran(str(path), "-o", module)
            if code:
                table["refused"] += 1
                continue
            if edited:
                edit(Path(module))
            code, said, proving = ran("prove", str(path), module)
        verdict = {0: "proved", 1: "different", 4: "not proved"}.get(code, "failed")
        table[verdict] += 1
        ratios.append(proving / generating)
        line = said.strip().splitlines()[0] if said.strip() else ""
        print(f"{path.name}: {verdict}, {generating:.1f} s and {proving:.1f} s: {line[:200]}", flush=True)
        if verdict != "proved":
            why[line[:120]] += 1
    for text, times in why.most_common():
        print(f"{times:5} {text}")
    ratios.sort()
    if ratios:
        print(f"time of prove / of generating: median {ratios[len(ratios) // 2]:.1f}, worst {ratios[-1]:.1f}")
    print(f"untouched: {dict(table)}", flush=True)
    return table
