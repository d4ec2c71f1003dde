"""The run of a command that names none."""

from __future__ import annotations

from pathlib import Path

from onnxgen.cli.say import tell
from onnxgen.training.runs.folder import latest, newest


def newest_run(verb: str, always: bool = False) -> Path:
    """Return the newest run that has weights. If a newer one has none yet, stderr tells which is taken.

    Args:
        verb: what is done with the run: "asking".
        always: tell the run in any case.

    Raises:
        OnnxgenError: there is none.
    """
    run = newest()
    if (last := latest("")) != run:
        tell(f"{last} is unfinished: {verb} {run}, the newest run with weights", to_errors=True)
    elif always:
        tell(f"{verb} {run}, the newest run", to_errors=True)
    return run
