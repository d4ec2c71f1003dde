"""What the measurements share: the environment of a child process, interleaved timing, one table, `--json`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxgen.cli.say import aligned

ROOT = Path(__file__).resolve().parents[1]


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser that has `--json FILE` already."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures to FILE")
    return parser


def finish(rows: Sequence[dict[str, Any]], file: Path | None) -> None:
    """Print rows as one table (the keys of the first are its columns) and write them to `file`."""
    columns = list(rows[0])
    print("\n".join(aligned([columns, *[[str(row.get(c, "")) for c in columns] for row in rows]])))
    if file is not None:
        file.write_text(json.dumps(list(rows), indent=2) + "\n", encoding="utf-8")


def environment() -> dict[str, str]:
    """That of a child that finds this very tree first, and writes byte code as an installed package has it."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def python(*args: str, **more: Any) -> str:
    """What a child `python ARGS` printed; `CalledProcessError` (its errors shown) where it failed."""
    command = [sys.executable, *args]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment(), **more).stdout


def interleaved(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Times of two measurements that take turns, so that a busy machine slows both; who goes first alternates."""
    pairs: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in ((0, 1), (1, 0))[turn % 2]:
            pairs[which].append((ours, theirs)[which]())
    return pairs


def ratio(pairs: tuple[list[float], list[float]]) -> float:
    """The median of the rounds' ratios: what disturbs one round disturbs both of its halves alike."""
    return statistics.median(a / b for a, b in zip(*pairs))
