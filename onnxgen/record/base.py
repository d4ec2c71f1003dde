"""The base of a module: the text that it was generated as, which the metadata of its weights keep for a merge."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from onnxgen.common.limits import Limits
from onnxgen.record.digest import is_digest
from onnxgen.record.sidecar import INDEX, embedded_header, entries

BASE = "base"  # key in the sidecar's metadata
BUILD_LINE = "Build"
_MAX_BYTES = 4 * Limits.source_length  # of a base: a character has up to four
FINGERPRINT_LINE = re.compile(r"""^FINGERPRINT = ["']([0-9a-f]*)["']""", re.MULTILINE)
_QUOTED = 'WEIGHTS = """'
_EMBEDDED = re.compile(rf'^{_QUOTED}[^"]*"""', re.MULTILINE)
_SIDECAR = re.compile(  # a formatter may have broken the line
    r"""^WEIGHTS = \(?\s*Path\(\s*__file__\s*\)\s*\.(?:with_name\(|parent\s*/)\s*["']([^"']+)["']""", re.MULTILINE
)
_BUILD = re.compile(rf"^{BUILD_LINE} +([0-9a-f]{{64}})\n", re.MULTILINE)  # a text of the user's has no such word
_HEADER_END = re.compile(r'\A((?:#[^\n]*\n|[ \t]*\n)*"""(?:(?!""").)*\n)(?=""")', re.DOTALL)
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # of `ast.parse`


def packed(source: str) -> str:
    """Return the metadata entry `BASE` of a generated text: without what each run fills in, compressed."""
    return base64.b85encode(zlib.compress(bare(source).encode())).decode()


def unpacked(entry: str) -> str | None:
    """Return the text in an entry `BASE`. None if it is damaged."""
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b85decode(entry), _MAX_BYTES).decode()
        return text if inflate.eof else None
    except (ValueError, zlib.error):
        return None


def bases(text: str, out: Path, weights: Path) -> Iterator[str]:
    """Yield the entries `BASE` that may be those of a module: of the weights in it, or of its sidecar.

    Args:
        text: the module.
        out: its path.
        weights: the sidecar, if the module does not say where it is.
    """
    if embedded := _EMBEDDED.search(text):
        with suppress(ValueError, KeyError, TypeError):
            yield str(embedded_header(embedded[0][len(_QUOTED) : -3])["__metadata__"][BASE])
    elif found := _SIDECAR.search(text):
        weights = out.parent / found[1].removesuffix(INDEX)
    yield from entries(weights, BASE)


def base_of(text: str, entry: str) -> str | None:
    """Return the base of an edited module from an entry `BASE`. None if it is damaged, or the base of another module.

    The module's fingerprint begins with the digest of the code that it was generated with. If the weights are in the
    module, they are part of that code.
    """
    recorded, base = fingerprint(text), unpacked(entry)
    if recorded is None or base is None:
        return None
    weights = _EMBEDDED.search(text)
    whole = _EMBEDDED.sub(lambda _: re.sub(r"[ \t]+\n", "\n", weights[0]), base) if weights else base
    try:
        return base if is_digest(recorded, whole) else None
    except UNREADABLE:
        return None


def fingerprint(text: str) -> str | None:
    """Return the `FINGERPRINT` of a module. None if it has none."""
    found = FINGERPRINT_LINE.search(text)
    return found[1] if found and found[1] else None


def bare(text: str) -> str:
    """Return a module without its fingerprint, the weights in it, and the line of a build: what a person reads."""
    text = _BUILD.sub("", FINGERPRINT_LINE.sub('FINGERPRINT = ""', text, count=1), count=1)
    return _EMBEDDED.sub('WEIGHTS = """"""', text, count=1)


def filled(text: str, new: str) -> str:
    """Return a bare text with the fingerprint, the weights and the build line of the text `new`."""
    for pattern in (FINGERPRINT_LINE, _EMBEDDED):
        if found := pattern.search(new):
            text = pattern.sub(lambda _, whole=found[0]: whole, text, count=1)  # type: ignore[misc]
    build = _BUILD.search(new)
    return with_build(text, build[1]) if build else text


def with_build(text: str, key: str) -> str:
    """Return a module with the key of a build in its header. A module without a header has no place for it."""
    line = f"{BUILD_LINE:<10}{key}\n"
    made, count = _BUILD.subn(line, text, count=1)
    return made if count else _HEADER_END.sub(lambda header: header[1] + line, text, count=1)
