"""Decide if a module matches its source, by content alone: time stamps never count.

The *key* of an entry is a digest of everything that a generated module depends on. A build writes it into the module's
header (`Build`), and the digests of the files with weights into the sidecar. A pair is fresh if both match. The first
half of the key covers the user's choices (source, external data, options, templates, plugins, names). The second half
also covers onnxgen (its version and templates). A module that was edited by hand is kept while the first half stays.
The versions of Python, onnx, onnx-ir, numpy, black and jinja2 are no part of it: they do not change the text, which
`benchmarks/versions.py` and `tests/passes/test_same_text.py` check.

That the files of a sidecar fit a module is checked by their headers alone. No plugin is run or imported.

Nothing here imports onnx, numpy, black or jinja2, except to find the external data files of a model. Their names are
cached by the model's digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from onnxgen._version import __version__
from onnxgen.common.cache import Cache, digest
from onnxgen.common.paths import templates_dir
from onnxgen.errors import OnnxgenError
from onnxgen.graph.domains import imports_foreign
from onnxgen.plugins.finding import files_of as plugin_files_of
from onnxgen.plugins.finding import is_path, place_of
from onnxgen.record.sidecar import index_path, read_header, sidecar_files
from onnxgen.record.signature import recorded as recorded_signature

from .settings import Entry


def belongs(weights: Path, fingerprint: str, source: str, data: str) -> bool:
    """Return True if the sidecar at `weights` is complete, has the module's fingerprint, and was made of this content.

    Args:
        weights: the sidecar, whether it is one file or an index and its shards.
        fingerprint: the module's.
        source: SHA-256 of the ONNX file.
        data: digest of its external data, as a build recorded it; "" if there is none.
    """
    return any(_all_fit(place, fingerprint, source, data) for place in (weights, index_path(weights)))


def _all_fit(place: Path, *content: str) -> bool:
    try:
        return all(_content(read_header(path)[0]) == content for path in sidecar_files(place))
    except OnnxgenError:
        return False


def _content(metadata: Mapping[str, str]) -> tuple[str, ...]:
    signature = recorded_signature(metadata)
    source = "" if signature is None else signature.sha256
    return metadata.get("fingerprint", ""), source, metadata.get("data", "")


def files_of(weights: Path) -> tuple[Path, ...]:
    """Return the files of a sidecar, including its index; the single file if nothing exists yet."""
    try:
        files = sidecar_files(weights)
        return (weights,) if files == [weights] else (*files, index_path(weights))
    except OnnxgenError:
        return (weights,)


def plugin_digests(entry: Entry, cache: Cache) -> list[list[object]]:
    """Return each plugin of an entry with the digests of its files, and those of installed packages if they may be
    used.

    Raises:
        OnnxgenError: a plugin is missing, can't be read, or contains the module that is to be written.
    """
    named = [_digests(entry, name, cache) for name in entry.options.plugins]
    if not imports_foreign(entry.source):
        return named
    from onnxgen.plugins.finding import found

    return [*named, *(["installed", e.name, *_digests(entry, e.module, cache)] for e in found())]


def _digests(entry: Entry, name: str, cache: Cache) -> list[object]:
    place = _place(entry, name)
    if place is None:
        return [name]
    files = plugin_files_of(place)
    if entry.output in files:
        held = entry.shown(entry.output)
        what = f"{entry.at('plugins')}: {_shown(entry, name)} holds {held}, which is generated with it"
        raise OnnxgenError(what, help="name only the file with the operators")
    try:
        digests = [[file.relative_to(place.parent).as_posix(), digest(file, cache)] for file in files]
    except OSError as error:
        what = f"{entry.at('plugins')}: {_shown(entry, name)} can't be read: {error.strerror}"
        raise OnnxgenError(what) from None
    return [place.name if is_path(name) else name, digests]


def own_files(entry: Entry) -> Iterator[Path]:
    """Yield the files of plugins that are named by path. Others are installed packages."""
    for name in entry.options.plugins:
        if is_path(name):
            yield from plugin_files_of(_place(entry, name) or Path(name))


def watched(entry: Entry) -> Iterator[Path]:
    """Yield the paths of such files, including missing ones, which may come back."""
    for name in entry.options.plugins:
        if is_path(name):
            yield Path(name)
            yield from plugin_files_of(Path(name)) if Path(name).exists() else ()


def _place(entry: Entry, name: str) -> Path | None:
    try:
        return place_of(name)
    except OnnxgenError as error:
        (problem,) = error.problems
        what = problem.what.removeprefix(f"--plugin {name}: ")
        raise OnnxgenError(f"{entry.at('plugins')}: {_shown(entry, name)}: {what}", help=problem.help) from None


def _shown(entry: Entry, name: str) -> str:
    return entry.shown(Path(name)) if is_path(name) else name


HALF_KEY_CHARACTERS = 32  # characters of one half of a key
MAX_HEADER_BYTES = 1 << 23  # bytes of a module that contain its header; embedded weights may follow
_LINE = re.compile(rb"^Build +([0-9a-f]{64})\r?$", re.MULTILINE)
_FINGERPRINT = re.compile(rb"""^FINGERPRINT = ["']([0-9a-f]+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Content:
    """Digests of everything that an entry's module is made of.

    Attributes:
        key: the digest of it all; 64 characters.
        source: the SHA-256 of the ONNX file.
        data: one digest of all files with external data; empty if there are none.
        files: the ONNX file and its external data.
    """

    key: str
    source: str
    data: str
    files: tuple[Path, ...]


def content_of(entry: Entry, cache: Cache | None = None) -> Content:
    """Return the digests of everything that an entry's module is made of now.

    Raises:
        OnnxgenError: the source, its external data, a template or a plugin can't be read. The message names it as the
            settings do.
    """
    cache = cache or Cache()
    source = _digest(entry, "source", entry.source, cache)
    locations = _locations(entry, source, cache)
    files = [entry.source.parent / location for location in locations]
    data = [[location, _digest(entry, "source", file, cache)] for location, file in zip(locations, files)]
    chosen: list[Any] = [entry.source.name, entry.output.name, source, data, _options(entry), _templates(entry, cache)]
    chosen.append(plugin_digests(entry, cache))
    asked = _short(chosen)
    generator = _short([asked, __version__, _ours(templates_dir())])
    return Content(asked + generator, source, _short(data) if data else "", (entry.source, *files))


def source_files(entry: Entry, cache: Cache | None = None) -> tuple[Path, ...]:
    """Return the ONNX file and its external data files, which need not exist.

    Raises `OnnxgenError` if the names of the data files can't be read.
    """
    cache = cache or Cache()
    source = _digest(entry, "source", entry.source, cache)
    return (entry.source, *(entry.source.parent / location for location in _locations(entry, source, cache)))


def is_fresh(entry: Entry, content: Content, cache: Cache) -> bool:
    """Return True if module and sidecar exist, are complete, and match `content`."""
    return is_settled(entry.output, content.key, cache) and has_weights(entry, content)


def is_settled(module: Path, key: str, cache: Cache) -> bool:
    """Return True if a module's header has this key, or if the module was found to match it before."""
    text = read(module)
    return _recorded(text) == key or bool(text) and cache.get("settled", _settled(text, key)) is True


def settle(module: Path, key: str, cache: Cache) -> None:
    """Record that a module matches a key although its header does not say so: it was edited by hand."""
    text = read(module)
    if text and _recorded(text) != key:
        cache.put("settled", _settled(text, key), True)


def has_weights(entry: Entry, content: Content) -> bool:
    """Return True if the sidecar exists, is complete, and belongs to the module and the source."""
    if entry.weights is None:
        return True
    fingerprint = _FINGERPRINT.search(read(entry.output))
    return fingerprint is not None and belongs(entry.weights, fingerprint[1].decode(), content.source, content.data)


def recorded(module: Path) -> str:
    """Return the key in a module's header; empty if it has none."""
    return _recorded(read(module))


def _recorded(text: bytes) -> str:
    match = _LINE.search(text, 0, MAX_HEADER_BYTES)
    return match[1].decode() if match else ""


def read(module: Path) -> bytes:
    """Return a module's text; empty if there is none."""
    try:
        return module.read_bytes()
    except OSError:
        return b""


def _settled(text: bytes, key: str) -> str:
    return f"{hashlib.sha256(text).hexdigest()} {key}"


def _short(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:HALF_KEY_CHARACTERS]


def _options(entry: Entry) -> dict[str, Any]:
    """Return the options that the output depends on. No path is absolute, so that every checkout has the same key."""
    options = dict(vars(entry.options))
    del options["templates"], options["plugins"]  # their content counts instead of their paths
    options["limits"] = dict(vars(entry.options.limits))
    weights = entry.weights
    options["weights"] = None if weights is None else Path(os.path.relpath(weights, entry.output.parent)).as_posix()
    for name in ("input_shapes", "const", "batch_axes", "dropout"):
        options[name] = list(options[name].items())  # the order may matter
    return options


def _templates(entry: Entry, cache: Cache) -> list[list[str]]:
    folder = entry.options.templates
    try:
        return [] if folder is None else _tree(folder, cache)
    except OSError as error:
        raise OnnxgenError(f"{entry.at('templates')}: {entry.shown(folder or Path())}: {error.strerror}") from None


@lru_cache
def _ours(folder: Path) -> list[list[str]]:
    """Return onnxgen's own templates, which do not change while it runs."""
    return _tree(folder, Cache())


def _tree(folder: Path, cache: Cache) -> list[list[str]]:
    """Return every file in a folder that a template may include, with its digest."""
    entries, seen = [], set()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        if os.path.realpath(place) in seen:  # a link leads back to a parent
            folders.clear()
            continue
        seen.add(os.path.realpath(place))
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        # Some editors lock files with a dangling link.
        paths = [Path(place, name) for name in sorted(names) if os.path.exists(os.path.join(place, name))]
        entries += [[path.relative_to(folder).as_posix(), digest(path, cache)] for path in paths]
    return entries


def _raise(error: OSError) -> None:
    raise error


def _digest(entry: Entry, name: str, path: Path, cache: Cache) -> str:
    try:
        return digest(path, cache)
    except OSError as error:
        why = "is missing" if isinstance(error, FileNotFoundError) else f"can't be read: {error.strerror}"
        raise OnnxgenError(f"{entry.at(name)}: {entry.shown(path)} {why}") from None


def _locations(entry: Entry, source: str, cache: Cache) -> list[str]:
    """Return the external data files, relative to the model's folder."""
    name = f"{source} {__version__}"
    known = cache.get("locations", name)
    if isinstance(known, list):
        return [str(location) for location in known]
    names: list[str] = []
    if _mentions_data(entry.source):
        from onnxgen.reader.tensors import locations

        try:
            names = sorted(locations(entry.source))
        except OnnxgenError as error:
            raise OnnxgenError(*(f"{entry.at('source')}: {problem}" for problem in error.problems)) from None
    cache.put("locations", name, names)
    return names


def _mentions_data(path: Path) -> bool:
    """Return True if a model may have external data: protobuf stores the word "location" as plain text then."""
    rest = b""
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            if b"location" in rest + chunk:
                return True
            rest = chunk[-8:]
    return False


def outputs(entry: Entry) -> tuple[Path, ...]:
    """Return the module and the files of its sidecar, with as many shards as exist now."""
    return (entry.output, *([] if entry.weights is None else files_of(entry.weights)))


def sources(entry: Entry) -> set[Path]:
    """Return what an sdist must have: the ONNX file with its data, templates, plugins, and an edited module.

    Weights are included only for modules with `edited = "mine"`. Others can be made again.
    """
    folder = entry.options.templates
    templates = {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"} if folder else set()
    kept = outputs(entry) if is_adopted(entry) else [entry.output]
    return {*templates, *source_files(entry), *own_files(entry), *(path for path in kept if path.is_file())}


def is_adopted(entry: Entry) -> bool:
    """Return True if the module must never be overwritten (`edited = "mine"`). A missing module is generated."""
    return entry.edited == "mine" and bool(read(entry.output).strip())


def lacks_weights(entry: Entry) -> bool:
    """Return True if a module that needs a sidecar has none."""
    is_read = entry.weights is not None and b"FINGERPRINT" in read(entry.output)
    return is_read and not all(file.is_file() for file in outputs(entry)[1:])


def stands(entry: Entry, content: Content, cache: Cache) -> str:
    """Return "fresh" or "kept" if the files in place need no work, else "".

    "kept" is an adopted module, or one that was edited by hand and was made from the current content, perhaps by an
    older onnxgen.
    """
    if is_adopted(entry):
        return "" if lacks_weights(entry) else "kept"
    if not has_weights(entry, content):
        return ""
    if is_settled(entry.output, content.key, cache):
        return "fresh"
    if recorded(entry.output)[:HALF_KEY_CHARACTERS] == content.key[:HALF_KEY_CHARACTERS] and is_edited(entry):
        settle(entry.output, content.key, cache)
        return "kept"
    return ""


def is_edited(entry: Entry) -> bool:
    """Return True if the module exists and was edited by hand. Raises `OnnxgenError` if it is not a file."""
    if not read(entry.output).strip():
        return False
    from onnxgen.output.write import Output

    output = Output(entry.output, entry.options)
    text = output.text()
    return text is not None and output.is_edited(text)
