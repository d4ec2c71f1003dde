"""Read the state of an entry's files from what they record. Nothing is generated."""

from __future__ import annotations

from pathlib import Path

from onnxgen.common.cache import Cache

from .freshness import HALF_KEY_CHARACTERS, Content, has_weights, is_settled, read, recorded, settle, source_files
from .plugin_files import own_files
from .settings import Entry
from .sidecar import files_of


def outputs(entry: Entry) -> tuple[Path, ...]:
    """Return the module and the files of its sidecar, with as many shards as exist now."""
    return (entry.output, *([] if entry.weights is None else files_of(entry.weights)))


def sources(entry: Entry) -> set[Path]:
    """Return what an sdist must have: the ONNX file with its data, templates, plugins, and an edited module.

    Weights are included only for modules with `edited = "mine"`. Others can be made again.
    """
    folder = entry.options.templates
    found = {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"} if folder else set()
    kept = outputs(entry) if is_adopted(entry) else [entry.output]
    return {*found, *source_files(entry), *own_files(entry), *(path for path in kept if path.is_file())}


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
