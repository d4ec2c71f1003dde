"""The layers of the packages, and which tests a change needs: its own, and those of the packages that stand on it.

    python -m tests.support.rooms [BASE]      # prints the folders of tests for what changed since the commit BASE

Without BASE, the change is what was committed within a day of the last commit. The reasons go to the error stream.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The layers of the packages, lowest first: a package imports only from its own layer and from those below it.
FLOORS = (
    ("_version", "common", "errors", "options"),
    ("record",),
    ("graph",),
    ("shapes",),
    ("plugins",),
    ("weights",),
    ("code",),
    ("scopes",),
    ("reader",),
    ("passes",),
    ("heads",),
    ("lowering",),
    ("ops", "helpers"),
    ("classical", "microsoft"),
    ("structure",),
    ("purpose",),
    ("output",),
    ("validate",),
    ("arguments", "paranoid"),
    ("pipeline",),
    ("identify",),
    ("runtime", "view"),
    ("verify",),
    ("backend", "surgery"),
    ("export",),
    ("canonical",),
    ("diff",),
    ("training",),
    ("ship",),
    ("cli", "__main__"),
)
APART = ("build_hooks", "_callable", "importer", "templates")  # they use only the public API of `onnxgen`, or nothing

# What uses a finished module. A change inside the generator does not reach its tests, unless the change is in a package
# that it reads files with: the generator's own tests hold what a finished module is.
USERS = ("view", "training", "ship", "cli", "build_hooks", "importer")
READ_BY_USERS = ("_version", "common", "errors", "options", "record", "weights", "output", "_callable")

# The packages that a folder of tests is about, if it has another name than its package.
ABOUT = {
    "backend": ("ops", "backend"),
    "bombs": ("pipeline",),
    "build_hooks": ("build_hooks", "importer"),
    "docs": ("docs", "cli"),
    "fuzz": ("pipeline",),
    "golden": ("pipeline",),
    "gradients": ("ops",),
    "hunts": ("pipeline",),
    "injection": ("pipeline",),
    "integrity": ("output", "runtime"),
    "ops": ("ops", "classical"),
    "properties": ("ops",),
    "quantized": ("passes",),
    "whole": ("pipeline",),
    "windows": ("cli",),
    "zoo": ("pipeline",),
}


def standing_on(room: str) -> set[str]:
    """Return the packages that a change of one can reach: itself, and those of higher layers."""
    if room == "templates":  # the frame of every module
        return standing_on("code")
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    if room not in floor:
        return {room, *(USERS if room in READ_BY_USERS else ())}
    above = {name for name in floor if floor[name] > floor[room]}
    if room in READ_BY_USERS:
        return {room, *above, *USERS}
    return {room} | (above - {*USERS} if floor[room] <= floor["pipeline"] else above)


def needed(changed: Iterable[str]) -> dict[str, str]:
    """Return the folders of tests that changed files need, each with the first reason; "tests" stands for all."""
    found: dict[str, str] = {}
    folders = sorted(path.name for path in (ROOT / "tests").iterdir() if any(path.glob("**/test_*.py")))
    for file in changed:
        match file.split("/"):
            case ["onnxgen", room, *_] if room != "__init__.py":
                reached = standing_on(room.removesuffix(".py"))
            case ["build_hooks" | "templates" as room, *_]:
                reached = standing_on(room)
            case ["tests", folder, _, *_] if folder in folders:
                found.setdefault(f"tests/{folder}", file)
                continue
            case ["docs", *_] | ["README.md" | "CONTRIBUTING.md" | "CHANGELOG.md" | "SECURITY.md" | "mkdocs.yml"]:
                reached = {"docs"}
            case ["samples", *_]:
                reached = {"docs", "training", "build_hooks"}
            case [str(place), *_] if place in ("benchmarks", "docker", "LICENSE") or place.startswith("."):
                continue
            case _:
                return {"tests": file}
        for folder in folders:
            if reached & {*ABOUT.get(folder, (folder,))}:
                found.setdefault(f"tests/{folder}", file)
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def changed_since(base: str = "") -> tuple[str, list[str]]:
    """Return the commit that counts as the last one before the change, and the files that differ from it."""
    if not base:
        day_before = int(_git("log", "-1", "--format=%ct")) - 24 * 3600
        base = _git("rev-list", "-1", f"--before={day_before}", "HEAD")
    return base, _git("diff", "--name-only", base, "HEAD").splitlines() if base else ["all: there is no older commit"]


def main() -> None:
    base, changed = changed_since(*sys.argv[1:2])
    folders = needed(changed)
    print(f"{len(changed)} files differ from {base[:10]}. Their tests:", file=sys.stderr)
    for folder, file in sorted(folders.items()) or [("none", "no package changed")]:
        print(f"  {folder:<20} because of {file}", file=sys.stderr)
    print(*sorted(folders))


if __name__ == "__main__":
    main()
