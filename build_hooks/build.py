"""Building what `[tool.onnxgen]` asks for: nothing if it is fresh, else the module and its sidecar as one.

The part that most builds take, everything is fresh, imports none of what generates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onnxgen.errors import EditedError, OnnxgenError, Problem

from .cache import Cache
from .freshness import Content, content_of, is_fresh, read
from .settings import Entry, Project
from .sidecar import files_of

Progress = Callable[[str], None]
STATES = ("fresh", "written", "kept", "stale")


@dataclass(frozen=True)
class Built:
    """What became of one entry.

    Attributes:
        status: "fresh" (nothing to do), "written", "kept" (edited by hand, or adopted) or "stale" (only looked at).
        files: module and sidecar as they are now, with every shard and the index; those that exist.
        key: the digest of what the module is made of (see `freshness`).
        seconds: what it took.
        entry: the entry; its `output` is where the module would be in the project itself.
        note: what a person should know; mostly empty.
    """

    status: str
    files: tuple[Path, ...]
    key: str
    seconds: float
    entry: Entry
    note: str = ""


class BuildError(OnnxgenError):
    """Some entries of a project could not be built; `built` has the others.

    Attributes:
        exit_code: 3 if all that is wrong is modules that were edited by hand and are stale, else 2.
    """

    def __init__(self, errors: list[OnnxgenError], built: list[Built]) -> None:
        super().__init__(*(problem for error in errors for problem in error.problems))
        self.built = tuple(built)
        self.exit_code = max(3 if isinstance(error, EditedError) else 2 for error in errors)
        if any(not isinstance(error, EditedError) for error in errors):
            self.exit_code = OnnxgenError.exit_code


def build_project(
    project: Project,
    to: Path | None = None,
    check: bool = False,
    *,
    base: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Built]:
    """Build every entry of a project; with `check` only tell how they are. See `build` for the rest.

    Raises:
        BuildError: some could not be built; all others were.
    """
    cache, built, errors = Cache(), [], []
    for entry in project.entries:
        try:
            if check:
                built.append(check_entry(entry, cache=cache))
            else:
                built.append(build(entry, to=to, base=base, force=force, progress=progress, cache=cache))
        except OnnxgenError as error:
            errors.append(error)
    if errors:
        raise BuildError(errors, built)
    return built


def build(
    entry: Entry,
    *,
    to: Path | None = None,
    base: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    cache: Cache | None = None,
) -> Built:
    """Let module and sidecar of an entry be what its source gives.

    Args:
        entry: of `read_project` or `entries_from`.
        to: write into this folder and leave the project's own files alone; if they are fresh, or edited by hand, they
            are copied there. None: write in place.
        base: with `to`, the folder of the project that `to` stands for: `src` of `src/pkg/mnist.py` gives
            `pkg/mnist.py` in `to`. Default: the project's root.
        force: overwrite a module that was edited by hand (not one that is adopted).
        progress: is told each stage of a generation as it begins.
        cache: what is known of large files; default: the user's.

    Raises:
        OnnxgenError: the source is bad or a file can't be written; everything is as it was.
        EditedError: the module was edited by hand and its source changed too.
    """
    begun, cache = time.perf_counter(), cache or Cache()
    with _named(entry):
        content = content_of(entry, cache)
        if to is None and not force and is_adopted(entry):
            return _built("kept", entry, content, begun)
        if to is None and not force and is_fresh(entry, content, cache):
            return _built("fresh", entry, content, begun)
        from .making import make, make_elsewhere

        if to is None:
            status, made, note = make(entry, cache, force, progress)
        else:
            status, made, note = make_elsewhere(entry, Path(to), base, cache, force, progress)
        return Built(status, outputs(made), content.key, time.perf_counter() - begun, entry, note)


def check_entry(entry: Entry, *, cache: Cache | None = None) -> Built:
    """Whether `build` would leave the entry's files as they are: "fresh" or "kept"; else "stale". Writes nothing.

    Raises:
        OnnxgenError: the source can't be read.
        EditedError: the module was edited by hand and its source changed too.
    """
    begun, cache = time.perf_counter(), cache or Cache()
    with _named(entry):
        content = content_of(entry, cache)
        if is_adopted(entry):
            return _built("kept", entry, content, begun)
        if is_fresh(entry, content, cache):
            return _built("fresh", entry, content, begun)
        if not read(entry.output):
            return _built("stale", entry, content, begun)
        from .making import look

        return _built(look(entry, content, cache), entry, content, begun)


def outputs(entry: Entry) -> tuple[Path, ...]:
    """The module and the files of its sidecar: as many shards as there are now; generates nothing."""
    return (entry.output, *([] if entry.weights is None else files_of(entry.weights)))


def is_adopted(entry: Entry) -> bool:
    """Whether the module belongs to a person for ever (`edited = "mine"`); one that is not there yet is generated."""
    return entry.edited == "mine" and bool(read(entry.output).strip())


def _built(status: str, entry: Entry, content: Content, begun: float) -> Built:
    return Built(status, outputs(entry), content.key, time.perf_counter() - begun, entry)


@contextmanager
def _named(entry: Entry) -> Iterator[None]:
    """Let every problem begin with file and key of the entry."""
    try:
        yield
    except OnnxgenError as error:
        start = entry.at()
        named = [_problem(entry, p) if not p.what.startswith(start) else p for p in error.problems]
        raise type(error)(*named) from error


def _problem(entry: Entry, problem: Problem) -> Problem:
    what = str(Problem(problem.what, problem.node, problem.op, problem.opset))
    source = entry.shown(entry.source)
    about = "" if source in what or entry.shown(entry.output) in what else f"{source}: "
    return Problem(f"{entry.at('source')}: {about}{what}", help=problem.help)
