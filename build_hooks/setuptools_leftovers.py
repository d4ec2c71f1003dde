"""Remove files that the last build put into setuptools' build folder and this one does not.

setuptools never empties that folder, and puts all of it into the wheel. Leftovers are the sidecar of a module that now
embeds its weights, or a module that was renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

NAME = "onnxgen.txt"


def remove_leftovers(temporary: Path, build_lib: Path, files: Iterable[str], others: Iterable[str]) -> None:
    """Remove files of the last build that this build did not write, and note the files of this build for the next one.

    Args:
        temporary: setuptools' folder for files that do not go into a wheel; it has the notes.
        build_lib: the folder that goes into the wheel. Notes about another folder are ignored.
        files: the files that this build wrote there.
        others: the files that other commands wrote there.
    """
    notes, folder = temporary / NAME, os.path.abspath(build_lib)
    now = {os.path.relpath(file, folder) for file in files}
    kept = now | {os.path.relpath(file, folder) for file in others}
    before: list[str] = []
    with suppress(OSError, ValueError):
        before = notes.read_text(encoding="utf-8").splitlines()
    if before[:1] == [folder]:
        for name in set(before[1:]) - kept:
            Path(folder, name).unlink(missing_ok=True)
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("\n".join([folder, *sorted(now)]), encoding="utf-8")
