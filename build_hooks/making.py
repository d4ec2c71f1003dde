"""Generate: in place, elsewhere, or in memory to compare with an edited module. Imports the whole generator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onnxgen import pipeline
from onnxgen.common.cache import Cache
from onnxgen.errors import EditedError, OnnxgenError, Problem
from onnxgen.options import OPTIONS
from onnxgen.output.compose import Build, Generated
from onnxgen.output.write import Output
from onnxgen.weights.sidecar import write_pair

from .freshness import Content, content_of, is_adopted, is_edited, settle, stands
from .settings import Entry, Progress

MAX_ATTEMPTS = 3  # attempts, if the source changes while it is read


def build_in_place(
    entry: Entry, content: Content, cache: Cache, force: bool, progress: Progress | None
) -> tuple[str, str]:
    """Write module and sidecar of an entry, unless another process just did. Returns a status and a note."""
    with cache.locked(entry.root):
        adopted = is_adopted(entry)
        if (adopted or not force) and (status := stands(entry, content, cache)):
            return status, ""
        if adopted:
            return "kept", restore_weights(entry, entry, content, progress)
        return generate(entry, content, cache, force, progress), ""


def generate(entry: Entry, content: Content, cache: Cache, force: bool, progress: Progress | None) -> str:
    """Write module and sidecar; again if the source changed meanwhile, so that they match what they record."""
    for _ in range(MAX_ATTEMPTS):
        generated = in_memory(entry, content, progress)
        make_folders(entry)
        with named(entry, "output"), pipeline.timed(generated.report, "write"):
            Output(entry.output, entry.options).write(generated, force)
        before, content = content, content_of(entry, cache)
        if before.key == content.key:
            settle(entry.output, content.key, cache)
            return generated.report.status
    what = f"{entry.at('source')}: {entry.shown(entry.source)} changed while it was read"
    raise OnnxgenError(what, help="build again when it is complete")


def in_memory(entry: Entry, content: Content, progress: Progress | None) -> Generated:
    """Generate in memory. Returns what would be written."""
    with named(entry, "source"):
        record = Build(content.key, content.data)
        return pipeline.build(entry.source, entry.options, entry.output, progress, record)


def look(entry: Entry, content: Content, cache: Cache) -> str:
    """Return "kept" or "stale" for a module whose header does not match. Writes nothing.

    Raises `EditedError` if it was edited by hand and its source changed too.
    """
    if is_adopted(entry) or not is_edited(entry):
        return "stale"
    return "kept" if _standing(entry, in_memory(entry, content, None), content, cache) == "kept" else "stale"


def _standing(entry: Entry, generated: Generated, content: Content, cache: Cache, merges: bool = True) -> str:
    """Return the `Standing.status` of a module that was edited by hand. `merges`: it may be merged with the new one."""
    with named(entry, "output"):
        output = Output(entry.output, entry.options)
        standing = output.standing(generated)
        if standing.status == "edited" or standing.status == "merged" and not merges:
            raise output.refusal(generated, standing)
        if standing.status == "kept":
            settle(entry.output, content.key, cache)
        return standing.status


def carry(
    entry: Entry, moved: Entry, content: Content, cache: Cache, progress: Progress | None, copy: Callable[[], str]
) -> str:
    """Copy an edited module, whose header does not record its content, to its place in `moved`.

    Raises `EditedError` if its source changed too: a merge is made in place only, where a person sees it.
    """
    generated = in_memory(entry, content, progress)
    if _standing(entry, generated, content, cache, merges=False) == "kept":
        return copy()
    make_folders(moved)
    with named(entry, "output"):
        text, shard_size = Output(entry.output, entry.options).text(), entry.options.shard_size
        write_pair(moved.output, text, moved.weights, generated.tensors, generated.metadata, shard_size, force=True)
    return "written"


def restore_weights(entry: Entry, moved: Entry, content: Content, progress: Progress | None) -> str:
    """Write the missing sidecar of an adopted module to the place in `moved`. Returns the reason if that fails."""
    lacks = f"{entry.shown(entry.output)} is adopted and its weights are missing, and"
    try:
        generated = in_memory(entry, content, progress)
    except OnnxgenError as error:
        return f"{lacks} its source gives none: {error.problems[0]}"
    with named(entry, "weights"):
        if not Output(entry.output, entry.options).is_of(generated):
            return f"{lacks} those of its source do not fit"
        make_folders(moved)
        tensors, metadata = generated.tensors, generated.metadata
        write_pair(moved.output, None, moved.weights, tensors, metadata, entry.options.shard_size)
    return ""


def make_folders(entry: Entry) -> None:
    """Create the folders of module and sidecar."""
    for name, path in (("output", entry.output), ("weights", entry.weights)):
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                what = f"the folder {entry.shown(path.parent)} can't be made: {error.strerror}"
                raise OnnxgenError(f"{entry.at(name)}: {what}") from None


@contextmanager
def named(entry: Entry, key: str) -> Iterator[None]:
    """Prefix every problem in the block with its file and key. A problem with an option gets the option's key."""
    try:
        yield
    except OnnxgenError as error:
        kind = EditedError if isinstance(error, EditedError) else OnnxgenError
        raise kind(*(_named(entry, key, problem) for problem in error.problems)) from error


def _named(entry: Entry, key: str, problem: Problem) -> Problem:
    what = str(Problem(problem.what, problem.node, problem.op, problem.opset))
    option = re.search(r"--[a-z-]+", what)
    key = next((about.key for about in OPTIONS.values() if option and about.option == option[0]), key)
    source, output = entry.source.name, entry.output.name
    about = "" if source in what or output in what else f"{entry.shown(entry.source)}: "
    return Problem(f"{entry.at(key)}: {about}{what}", help=problem.help)
