"""Decide if a module matches its source, by content alone: time stamps never count.

The *key* of an entry is a digest of everything that a generated module depends on. A build writes it into the module's
header (`Build`), and the digests of the files with weights into the sidecar. A pair is fresh if both match. The first
half of the key covers the user's choices (source, external data, options, templates, plugins, names). The second half
also covers onnxgen (its version and templates). A module that was edited by hand is kept while the first half stays.
The versions of Python, onnx, onnx-ir, numpy, black and jinja2 are no part of it: they do not change the text, which
`benchmarks/versions.py` and `tests/passes/test_same_text.py` check.

Nothing here imports onnx, numpy, black or jinja2, except to find the external data files of a model. Their names are
cached by the model's digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from onnxgen._version import __version__
from onnxgen.common.cache import Cache, digest
from onnxgen.common.paths import templates_dir
from onnxgen.errors import OnnxgenError

from .plugin_files import plugin_digests
from .settings import Entry
from .sidecar import belongs

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
    made = _short([asked, __version__, _ours(templates_dir())])
    return Content(asked + made, source, _short(data) if data else "", (entry.source, *files))


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
    found = _FINGERPRINT.search(read(entry.output))
    return found is not None and belongs(entry.weights, found[1].decode(), content.source, content.data)


def recorded(module: Path) -> str:
    """Return the key in a module's header; empty if it has none."""
    return _recorded(read(module))


def _recorded(text: bytes) -> str:
    found = _LINE.search(text, 0, MAX_HEADER_BYTES)
    return found[1].decode() if found else ""


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
    found = dict(vars(entry.options))
    del found["templates"], found["plugins"]  # their content counts instead of their paths
    found["limits"] = dict(vars(entry.options.limits))
    weights = entry.weights
    found["weights"] = None if weights is None else Path(os.path.relpath(weights, entry.output.parent)).as_posix()
    for name in ("input_shapes", "const", "batch_axes", "dropout"):
        found[name] = list(found[name].items())  # the order may matter
    return found


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
    found, seen = [], set()
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        if os.path.realpath(place) in seen:  # a link leads back to a parent
            folders.clear()
            continue
        seen.add(os.path.realpath(place))
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        # Some editors lock files with a dangling link.
        paths = [Path(place, name) for name in sorted(names) if os.path.exists(os.path.join(place, name))]
        found += [[path.relative_to(folder).as_posix(), digest(path, cache)] for path in paths]
    return found


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
    found: list[str] = []
    if _mentions_data(entry.source):
        from onnxgen.reader.locations import locations

        try:
            found = sorted(locations(entry.source))
        except OnnxgenError as error:
            raise OnnxgenError(*(f"{entry.at('source')}: {problem}" for problem in error.problems)) from None
    cache.put("locations", name, found)
    return found


def _mentions_data(path: Path) -> bool:
    """Return True if a model may have external data: it then contains the word "location", which protobuf stores as
    plain text.
    """
    rest = b""
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            if b"location" in rest + chunk:
                return True
            rest = chunk[-8:]
    return False
