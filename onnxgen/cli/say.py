"""Output for people: plain text when piped, rich on a terminal."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from onnxgen.common.names import visible
from onnxgen.common.timing import Still

DELAY = 1.0  # seconds of work before a progress bar shows
PARTLY = " (with --partial if your edits change the layers)"  # after a hint to verify a module with edits


def tell(text: str, to_errors: bool = False, flush: bool = False) -> None:
    """Print text without control characters. `to_errors`: to stderr."""
    print(visible(text), file=sys.stderr if to_errors else sys.stdout, flush=flush)


def tell_json(payload: Any, flush: bool = False) -> None:
    """Print plain types as one line of ASCII JSON. It has no number that is infinite or NaN: these are null."""
    print(json.dumps(_in_json(payload), allow_nan=False), flush=flush)


def _in_json(payload: Any) -> Any:
    if isinstance(payload, Mapping):
        return {name: _in_json(value) for name, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        return [_in_json(value) for value in payload]
    return None if isinstance(payload, float) and not math.isfinite(payload) else payload


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to stdout. Without a terminal, print plain aligned columns."""
    if not sys.stdout.isatty():
        tell(title)
        for line in aligned([columns, *rows]):
            tell("  " + line)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(visible(title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(visible(cell)) for cell in row))  # Text: names from a file are no markup
    Console().print(shown)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns. A cell is one line."""
    rows = [[visible(cell).replace("\n", "?").replace("\t", "?") for cell in row] for row in rows]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(max(map(len, rows), default=0))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows]


@contextmanager
def progress(what: str, quiet: bool, stages: Sequence[str] = ()) -> Iterator[Callable[[str], None]]:
    """Show a progress bar with the time on stderr, if that is a terminal and the work takes over a second.

    Elsewhere a line each ten seconds says what goes on.

    Yields a function to call with each stage as it begins. With `stages`, the bar shows how many of them are done.
    """
    if quiet:
        yield lambda stage: None
        return
    if not sys.stderr.isatty():
        stage = [""]
        with Still(lambda: what + stage[-1], partial(tell, to_errors=True, flush=True)):
            yield lambda name: stage.append(f": {name}")
        return
    what, done = visible(what), threading.Event()
    begun: list[str] = []
    thread = threading.Thread(target=_bar, args=(what, tuple(stages), begun, done), daemon=True)
    thread.start()
    try:
        yield begun.append
    finally:
        done.set()
        thread.join()


def _bar(what: str, stages: tuple[str, ...], begun: list[str], done: threading.Event) -> None:
    if done.wait(DELAY):
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=len(stages) or None)
        while not done.wait(0.1):
            if begun and begun[-1] in stages:
                now = begun[-1]
                shown.update(task, description=f"{what}: {now}", completed=stages.index(now))
