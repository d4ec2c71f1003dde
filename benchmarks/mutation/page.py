"""The second part of `MUTATION.md`: mutants of every room, judged by tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TITLE = "## Every room, judged by the tests"
# Mutants that mean the same to everybody, each with its reason: file, function, and what `Mutant` prints of the change.
SAME: dict[str, str] = json.loads(Path(__file__).with_name("reasons.json").read_text(encoding="utf-8"))
OUTCOMES = {
    "equal": "it means the same to everybody",
    "survived": "all tests pass that run the line",
    "undecided": "the time was over before all tests had run",
    "unrun": "no test runs the line",
}


def section(rooms: Mapping[str, Sequence[Mapping[str, Any]]], seed: int, tier: str) -> str:
    """What the page says of all rooms that have been tried."""
    rooms = {room: rows for room, rows in rooms.items() if rows}
    names = ",".join(rooms)
    most = max((len(rows) for rows in rooms.values()), default=0)
    total = Counter(_class(row) for rows in rooms.values() for row in rows)
    drawn, stopped = sum(total.values()), total["stopped by quick"] + total["stopped by all"]
    lines = [
        TITLE,
        "",
        f"`python -m benchmarks.mutation --judge tests --rooms {names} --mutants {most} --seed {seed} --tier {tier}`, "
        "then the same with `--then-all`.",
        "",
        f"**{stopped} of {drawn} mutants are stopped by a test: {stopped / max(1, drawn):.1%}**",
        "",
        "One line of a room at a time is made wrong, whether a test runs it or not. The tests that run it judge.",
        "",
        "| room | mutants | stopped by quick | stopped by all | equal | undecided | run by no test | survivors |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for room, rows in rooms.items():
        count = Counter(_class(row) for row in rows)
        shown = [
            count[name] for name in ("stopped by quick", "stopped by all", "equal", "undecided", "unrun", "survived")
        ]
        lines.append(f"| {room} | {len(rows)} | {' | '.join(map(str, shown))} |")
    for outcome, meaning in OUTCOMES.items():
        lines += ["", f"### {outcome.capitalize()}: {meaning}", "", *(_listed(rooms, outcome) or ["None."])]
    return "\n".join(lines) + "\n"


def _class(row: Mapping[str, Any]) -> str:
    if row["outcome"] == "stopped":
        return f"stopped by {row['tier']}"
    return "equal" if _reason(row) else str(row["outcome"])


def _reason(row: Mapping[str, Any]) -> str:
    """Why a mutant means the same to everybody; empty if it does not, or nobody has said so."""
    return SAME.get(f"{row['file']} {row['function']} {row['kind']}: `{row['before']}` -> `{row['after']}`", "")


def _listed(rooms: Mapping[str, Sequence[Mapping[str, Any]]], outcome: str) -> list[str]:
    def of(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        for row in sorted(rows, key=lambda row: (row["file"], row["line"])):
            if _class(row) == outcome:
                ran = f"; {row['tests']} tests run it" if outcome != "unrun" else ""
                ran = f": {reason}" if (reason := _reason(row)) else ran
                change = f"`{_code(row['before'])}` becomes `{_code(row['after'])}`"
                yield f"- `{row['file']}:{row['line']}` {row['kind']}: {change}{ran}"

    return [line for rows in rooms.values() for line in of(rows)]


def _code(text: str) -> str:
    return text.replace("`", "'")


def with_section(page: str, text: str) -> str:
    """A page with its second part new."""
    return f"{page.partition(TITLE)[0].rstrip()}\n\n{text}"
