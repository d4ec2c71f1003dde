"""The files in a run's folder, and the folder of a new run. This module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from onnxgen.common.paths import RECORD as RECORD
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import files_there, index_path

LAST, BEST = "last.safetensors", "best.safetensors"
GOAL = "goal.safetensors"  # the parameters that the task itself has, in the best epoch
CHECKPOINTS, CONFIG = "checkpoints", "config.toml"
CHECKPOINT_FILES = ("last.ckpt", "previous.ckpt")
MODULE, METRICS, TOKENIZER = "model.py", "metrics.csv", "tokenizer.json"
HELD_BACK = "held_back.csv"  # the samples that were not trained on
NAME = "name a module that onnxgen generated, or the folder of a run"
MOST_NAMED = 8  # runs in an error
RUNS = Path("runs")  # new runs are numbered in here, if no folder is given


def holds_a_run(out: Path) -> bool:
    """Return True if the folder has the weights or checkpoints of a run."""
    return any((*files_there(out / BEST), *files_there(out / LAST), *(out / CHECKPOINTS).glob("*")))


def there(weights: Path) -> Path | None:
    """Return the file to read weights from: one file, or the index of several. None if there is none."""
    return next((path for path in (weights, index_path(weights)) if path.is_file()), None)


def need_run(out: Path) -> None:
    """Raise `OnnxgenError` if the folder has no run to resume, not even one without weights yet."""
    if not (out / CONFIG).is_file() and not holds_a_run(out):
        way_out = "name the run's folder with --out, or start a run without --resume"
        raise OnnxgenError(f"there is no run to resume in {out}", help=way_out)


def best_of(run: Path) -> Path:
    """Return the best weights of a run. Raise `OnnxgenError` if it has none yet."""
    if (weights := there(run / BEST)) is None:
        way = f"continue it: onnxgen train --resume --out {run}"
        raise OnnxgenError(f"{run} has no {BEST}: it was stopped before the end of its first epoch", help=way)
    return weights


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder and below it, the oldest first. The folder itself may be one."""
    folders = {path.parent for path in folder.rglob(CONFIG)} if folder.is_dir() else set()
    return sorted(folders, key=lambda run: ((run / CONFIG).stat().st_mtime_ns, run))


def numbered(name: str, runs: Path = RUNS) -> Path:
    """Make the next free folder `runs/NAME-1`, `runs/NAME-2`, and return its path.

    Raises:
        OSError: it can't be made.
    """
    number = max(_numbers(name, runs), default=0) + 1
    while True:
        try:
            (folder := runs / f"{name}-{number}").mkdir(parents=True)
        except FileExistsError:  # another process made it at this moment
            number += 1
        else:
            return folder


def latest(name: str, runs: Path = RUNS) -> Path:
    """Return the newest run called `name`, or the newest of all if `name` is empty.

    Raises:
        OnnxgenError: there is none.
    """
    matching = [run for run in runs_in(runs) if not name or re.fullmatch(rf"{re.escape(name)}-\d+", run.name)]
    if not matching:
        what = f"there is no run {name or ''}".rstrip() + f" in {runs}"
        raise OnnxgenError(what, help="name the run's folder with --out, or start a run without --resume")
    return matching[-1]


def newest(runs: Path = RUNS) -> Path:
    """Return the newest run that has weights. Raises `OnnxgenError`: there is none."""
    known = runs_in(runs)
    if not known:
        raise OnnxgenError(f"there is no run in {runs}", help="name the folder of one; onnxgen train makes them")
    run = next((run for run in reversed(known) if there(run / BEST) is not None), known[-1])
    best_of(run)  # it raises if no run has weights
    return run


def no_run(path: Path) -> OnnxgenError:
    """Return the error for a path that was given in place of the folder of a run; it says which runs there are."""
    import difflib  # for errors alone

    if path.is_file() and is_run(path.parent):
        return OnnxgenError(f"{path} is a file of a run", help=f"name the run: {path.parent}")
    known = dict.fromkeys(map(str, [*runs_beside(path), *runs_in(RUNS)]))
    close = difflib.get_close_matches(str(path)[-200:], known, 1, 0.8)
    some = ", ".join([*known][-MOST_NAMED:]) + (", ..." if len(known) > MOST_NAMED else "")
    way = f"did you mean {close[0]}?" if close else f"the runs are {some}" if known else "onnxgen train makes them"
    what = f"{path} is not a run: it has no {RECORD}" if path.exists() else f"there is no run {path}"
    return OnnxgenError(what, help=way)


def is_own_file(path: Path) -> bool:
    """Return True for a file that training wrote into the folder of a run: weights, record, settings, module."""
    weights = (file.name for name in (BEST, LAST, GOAL) for file in files_there(path.parent / name))
    return path.name in (RECORD, CONFIG, MODULE, METRICS, *weights) and path.is_file() and is_run(path.parent)


def runs_beside(path: Path) -> list[Path]:
    """Return the runs in the folder of a path."""
    return sorted(other for other in path.parent.iterdir() if is_run(other)) if path.parent.is_dir() else []


def is_run(path: Path) -> bool:
    """Return True for the folder of a run."""
    return path.is_dir() and ((path / RECORD).is_file() or (path / CONFIG).is_file() or holds_a_run(path))


def _numbers(name: str, runs: Path) -> Iterator[int]:
    for path in runs.glob(f"{name}-*"):  # `name` has no wildcards: see `slug`
        if match := re.fullmatch(rf"{re.escape(name)}-(\d+)", path.name):
            yield int(match[1])


def slug(text: str) -> str:
    """Return a text as a part of a folder's name: letters, digits, `_` and `-`; "run" if none are left."""
    return re.sub(r"[^\w-]+", "-", text).strip("-")[:60] or "run"
