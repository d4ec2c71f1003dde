"""The text that a module was generated as: its base, which weights keep for a merge, and a digest.

An edited module is told by the digest from one that was only formatted anew.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from onnxgen.common.limits import Limits
from onnxgen.record.sidecar import INDEX, embedded_header, entries

FINGERPRINT = re.compile(r'^FINGERPRINT = "[0-9a-f]*"', re.MULTILINE)
LENGTH = 16  # characters
# how the text was written, and what follows from the rest
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def code_digest(source: str) -> str:
    """Return a digest of what a module does: of its syntax tree without docstrings and `FINGERPRINT`.

    Comments, line ends, brackets that change nothing and other layout are not in it. Every Python version returns the
    same: `ast.dump` and `ast.unparse` do not write one tree alike in all of them.

    Raises:
        SyntaxError: the source is not Python.
    """
    return tree_digest(_parsed(source))


def tree_digest(tree: ast.Module) -> str:
    """Return the `code_digest` of a tree whose `FINGERPRINT` is empty. Removes the docstrings from the tree."""
    _remove_docstrings(tree)
    words: list[str] = []
    _write(tree, words)
    return _hash("".join(words))


def is_digest(recorded: str, source: str) -> bool:
    """Return True if `recorded` begins with the `code_digest` of a source, or with what older versions recorded.

    Raises:
        SyntaxError: the source is not Python.
    """
    return any(recorded.startswith(digest(source)) for digest in (code_digest, _older_digest))


def with_fingerprint(source: str, fingerprint: str) -> str:
    """Set the `FINGERPRINT` of a source.

    Raises:
        ValueError: there is no such line, so the file would not load its weights.
    """
    line = f'FINGERPRINT = "{fingerprint}"'
    text = FINGERPRINT.sub(line, source, count=1)
    if line not in text.split("\n"):
        raise ValueError("the file does not have its fingerprint")
    return text


def _older_digest(source: str) -> str:
    """Return the digest that was recorded before: of `ast.unparse`, so that it depends on the version of Python."""
    tree = _parsed(source)
    _remove_docstrings(tree)
    return _hash(ast.unparse(tree))


def _parsed(source: str) -> ast.Module:
    return ast.parse(FINGERPRINT.sub('FINGERPRINT = ""', source.replace("\r\n", "\n")))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def _remove_docstrings(tree: ast.Module) -> None:
    blocks: list[ast.AST] = [tree]  # of statements: no expression holds a definition
    while blocks:
        node = blocks.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = without_docstring(node.body)
        inner = (ast.stmt, ast.ExceptHandler, ast.match_case)
        blocks += [child for child in ast.iter_child_nodes(node) if isinstance(child, inner)]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a body without its docstring, if any."""
    return list(body[1:] if body and is_docstring(body[0]) else body)


def _is_empty(node: object) -> bool:
    """True for text of no characters between the places of an f-string, which Python 3.12 has in its trees."""
    return isinstance(node, ast.Constant) and node.value == "" and isinstance(node.value, str)


def _write(value: object, words: list[str]) -> None:
    """Append the words of a tree: names of nodes, their fields that are not empty, and values."""
    if isinstance(value, ast.AST):
        words.append(f"{type(value).__name__}(")
        for name in value._fields:
            inner = getattr(value, name, None)
            if isinstance(value, ast.JoinedStr):
                inner = [node for node in value.values if not _is_empty(node)]
            if inner is not None and inner != [] and name not in _LEFT_OUT:  # empty: perhaps an older Python lacks it
                words.append(f"{name}=")
                _write(inner, words)
        words.append(")")
    elif isinstance(value, (list, tuple)):
        words.append("[")
        for inner in value:
            _write(inner, words)
        words.append("]")
    else:
        words.append(f"{ascii(value)},")


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
    elif sidecar := _SIDECAR.search(text):
        weights = out.parent / sidecar[1].removesuffix(INDEX)
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
    match = FINGERPRINT_LINE.search(text)
    return match[1] if match and match[1] else None


def bare(text: str) -> str:
    """Return a module without its fingerprint, the weights in it, and the line of a build: what a person reads."""
    text = _BUILD.sub("", FINGERPRINT_LINE.sub('FINGERPRINT = ""', text, count=1), count=1)
    return _EMBEDDED.sub('WEIGHTS = """"""', text, count=1)


def filled(text: str, new: str) -> str:
    """Return a bare text with the fingerprint, the weights and the build line of the text `new`."""
    for pattern in (FINGERPRINT_LINE, _EMBEDDED):
        if match := pattern.search(new):
            text = pattern.sub(lambda _, whole=match[0]: whole, text, count=1)  # type: ignore[misc]
    build = _BUILD.search(new)
    return with_build(text, build[1]) if build else text


def with_build(text: str, key: str) -> str:
    """Return a module with the key of a build in its header. A module without a header has no place for it."""
    line = f"{BUILD_LINE:<10}{key}\n"
    replaced, count = _BUILD.subn(line, text, count=1)
    return replaced if count else _HEADER_END.sub(lambda header: header[1] + line, text, count=1)
