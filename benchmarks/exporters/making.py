"""Makes a tool's files in the tool's own environment, in a process that may die without taking the rest along."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NO_TOOLS = ("__init__", "__main__", "making", "child", "judging", "page", "sources", "loads")
TIMEOUT = 500.0  # seconds for a process that makes files; those it had no time for are made by the next


def tools() -> list[str]:
    """The names of the tools: modules beside this one with `REQUIREMENTS`."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NO_TOOLS and requirements(path.stem))


def requirements(tool: str) -> list[str]:
    """What to install for a tool; read, not imported, since what it imports is not here."""
    tree = ast.parse((HERE / f"{tool}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "REQUIREMENTS":
            return list(ast.literal_eval(node.value))
    return []


def make(tool: str, python: Path, out: Path, *, only: str = "", again: bool = False) -> int:
    """Run child processes until each file was tried once; returns 0 if at least one is there."""
    folder = out / tool
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "made.json"
    if again:
        _write(log, {name: why for name, why in read(log).items() if only not in name})
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(python), "-m", "benchmarks.exporters.child", tool, str(folder), only]
    while True:
        before = read(log)
        try:
            with (folder / "made.log").open("ab") as said:
                more: dict[str, Any] = {"stdout": said, "stderr": said, "env": environment, "cwd": ROOT}
                code = subprocess.run(command, timeout=TIMEOUT, check=False, **more).returncode
        except subprocess.TimeoutExpired:
            code = -1
        now = read(log)
        for name in [name for name, why in now.items() if why == "started"]:
            now[name] = f"the process died or took too long (exit code {code})"
        _write(log, now)
        if code == 0 or now == before:
            break
    for name, why in now.items():
        print(f"{tool}/{name}: {why or 'made'}")
    return 0 if any(not why for why in now.values()) else 1


def refusals(out: Path) -> dict[str, dict[str, str]]:
    """What tools refused to make: by tool and name, why."""
    found = {path.parent.name: read(path) for path in sorted(out.glob("*/made.json"))}
    return {tool: {n: why for n, why in made.items() if why} for tool, made in found.items()}


def read(log: Path) -> dict[str, str]:
    """The names that were tried; "" for one that was made, else why it was not."""
    if not log.is_file():
        return {}
    found: dict[str, str] = json.loads(log.read_text(encoding="utf-8"))
    return found


def _write(log: Path, found: dict[str, str]) -> None:
    log.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
