"""The state of an entry's files according to what they record. Nothing is generated."""

from __future__ import annotations

from pathlib import Path

from .cache import Cache
from .freshness import HALF_KEY_CHARACTERS, Content, has_weights, is_settled, read, recorded, settle
from .settings import Entry
from .sidecar import files_of


def outputs(entry: Entry) -> tuple[Path, ...]:
    """Return the module and the files of its sidecar, with as many shards as exist now."""
    return (entry.output, *([] if entry.weights is None else files_of(entry.weights)))


def is_adopted(entry: Entry) -> bool:
    """Return True if the module permanently belongs to its editor (`edited = "mine"`). A missing module is
    generated.
    """
    return entry.edited == "mine" and bool(read(entry.output).strip())


def lacks_weights(entry: Entry) -> bool:
    """Return True if a module that needs a sidecar has none."""
    return entry.weights is not None and b"FINGERPRINT" in read(entry.output) and not _exist(outputs(entry)[1:])


def _exist(files: tuple[Path, ...]) -> bool:
    return all(file.is_file() for file in files)


def stands(entry: Entry, content: Content, cache: Cache) -> str:
    """Return "fresh" or "kept" if nothing needs to be done for the files in place, else "".

    "kept" is an adopted module, and one that was edited by hand since it was made of what is asked for now, perhaps by
    an older onnxgen.
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
