"""Whether a command answers a fault as it should: with an exit code that is no bug's, and with a line for people."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from onnxgen.cli import EDITED, INTERRUPTED, run

FINE = {0, 1, 2, EDITED, INTERRUPTED}
SECONDS = 60
LONGEST = 1500  # characters of a line that a person reads
# What Python says of a fault that nobody foresaw: true, and no help.
BARE = re.compile(
    r"object has no attribute|NoneType|not subscriptable|unexpected keyword|positional argument|unhashable"
    r"|object is not|object cannot be|index out of range|(?:Key|Index|Attribute|Assertion)Error|Traceback"
)


class TooLong(BaseException):
    """A command has not ended in time."""


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TooLong("".join(traceback.format_stack(frame)[-6:]))


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judged(command: Sequence[str], folder: Path, theirs: str = "") -> tuple[int, str]:
    """Run a command in a folder, in this process. Returns its exit code, and what is wrong with its answer ("").

    Args:
        theirs: what an answer says that repeats an error of the person's own code.
    """
    before = Path.cwd()
    os.chdir(folder)
    out, errors = (io.TextIOWrapper(io.BytesIO(), errors="backslashreplace") for _ in range(2))
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
            _limited(),
        ):
            warnings.simplefilter("ignore")
            code = run(list(command))
    except TooLong as where:
        return -1, f"not over after {SECONDS} s: {where}"
    except BaseException:
        return -2, traceback.format_exc()
    finally:
        os.chdir(before)
    for stream in (out, errors):
        stream.flush()
    shown = out.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]
    said = errors.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]
    for word in (word for word in command if len(word) > LONGEST):
        said = said.replace(word, "...")
    return code, _wrong(code, said, theirs, bool(re.search("^problem: ", shown, re.M)))  # as `inspect` says it


def _wrong(code: int, said: str, theirs: str, listed: bool) -> str:
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    if code not in FINE:
        return f"exit code {code}: {said[:600]}"
    if code == 2 and not lines and not listed:
        return f"no error is told: {said[:600]!r}"
    bare = [line for line in lines if BARE.search(line) and not (theirs and re.search(theirs, line))]
    if bare:
        return f"what Python says: {bare[0][:600]}"
    if long := [line for line in lines if len(line) > LONGEST]:
        return f"a line of {len(long[0])} characters: {long[0][:200]}"
    return ""


def rest(command: Sequence[Any]) -> str:
    """Return a command for a message."""
    return ascii([word if len(word) < 80 else f"{word[:30]}...({len(word)})" for word in map(str, command)])


def tell(text: str) -> None:
    print(text, file=sys.__stdout__, flush=True)
