"""The files of a command: the run of one that names none, and what may be overwritten.

Nothing is overwritten without `--force`, and never what the command reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from onnxgen.cli.say import tell
from onnxgen.common.atomic import is_same_file
from onnxgen.errors import OnnxgenError
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


def refuse_overwriting(targets: Iterable[Path], reads: Iterable[Path], force: bool, ours: str = "") -> None:
    """Refuse to replace files.

    Args:
        reads: what is read for them, which is never replaced.
        ours: a text at the beginning of files that may be replaced, as an earlier run of the command wrote them.

    Raises:
        OnnxgenError: a target is a folder, is read, or, without `force`, is there.
    """
    reads = list(reads)
    for target in targets:
        if target.is_dir():
            raise OnnxgenError(f"cannot write {target}: it is a folder", help="name a file")
        if any(is_same_file(target, path) for path in reads):
            raise OnnxgenError(f"cannot write {target}: it is read for this", help="name another file with -o")
        if target.exists() and not force and not (ours and ours in _beginning(target)):
            raise OnnxgenError(f"{target} is there already", help="name another file, or overwrite it with --force")


def _beginning(path: Path) -> str:
    if not path.is_file():
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(2000)
