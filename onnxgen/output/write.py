"""Writes module and sidecar, and keeps edits: fresh, stale and edited files, three-way merge.

`merge` takes the edits of a module over into the text that is generated now: a three-way merge. Its
base is the text that the edited module was generated as. It is in the metadata of the weights.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from onnxgen.code.render import formatted
from onnxgen.common.atomic import is_same_file, tidy
from onnxgen.common.paths import RECORD
from onnxgen.errors import EditedError, OnnxgenError
from onnxgen.options import Options
from onnxgen.output.compose import DATA, Generated
from onnxgen.record.base import (
    BASE,
    FINGERPRINT_LINE,
    UNREADABLE,
    bare,
    base_of,
    bases,
    filled,
    fingerprint,
    is_digest,
    unpacked,
    with_build,
)
from onnxgen.record.sidecar import index_path, metadata_at, read_header, sidecar_files
from onnxgen.weights.sidecar import is_lost, same_content, sidecar_targets, write_pair

_BOTH = "was edited by hand, and the ONNX file or the options changed too"
_WEIGHTS = "was edited by hand, and the weights changed too"


@dataclass(frozen=True)
class Standing:
    """The existing files, compared with what was generated.

    Attributes:
        status: "fresh": module and weights are the same. "stale": they differ or are missing. For an edited module:
            "kept" if its source is the same, "lost" if moreover its weights are missing or lack what a build records,
            "merged" if its source changed too and the edits fit, "edited" if they don't.
        text: of the module to write, if "stale" or "merged"; of the file beside it, if "edited".
        before: the module as it was read, if the text has its edits.
        why: what happened to a module that was edited.
        beside: what the text is, if "edited".
    """

    status: str
    text: str = ""
    before: bytes | None = None
    why: str = ""
    beside: str = "what would be written now"


class Output:
    """The files of one generation.

    Attributes:
        out: the module's path.
    """

    def __init__(self, out: Path, options: Options) -> None:
        self.out, self.options = out, options

    def text(self) -> str | None:
        """Return the text of the existing module. None if there is none, or it is empty."""
        self._refuse_folders()
        return _text(self._bytes() or b"")

    def _bytes(self) -> bytes | None:
        try:
            return self.out.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OnnxgenError(f"cannot write {self.out}: {error.strerror}") from None

    def _refuse_folders(self) -> None:
        """Raise an error if the path is a folder or a pipe, also with `--force`."""
        if os.path.exists(self.out) and not os.path.isfile(self.out):
            what = "a folder" if os.path.isdir(self.out) else "not a regular file"
            raise OnnxgenError(f"cannot write {self.out}: it is {what}", help="name a file for the module")

    def is_edited(self, text: str) -> bool:
        """Return True if a person changed the module's AST (except docstrings) since it was generated."""
        recorded = fingerprint(text)
        try:
            return recorded is None or not is_digest(recorded, text)
        except UNREADABLE:
            return True

    def is_of(self, generated: Generated) -> bool:
        """Return True if the existing module was made from the same graph with the same options."""
        text = self.text()
        return text is not None and self._same_source(text, generated)

    def is_fresh(self, generated: Generated) -> bool:
        """Return True if module and sidecar are those of `generated`, however the module is formatted."""
        text = self.text()
        return text is not None and self._same_source(text, generated) and self._same_weights(generated)

    def _same_source(self, text: str, generated: Generated) -> bool:
        """Compare fingerprints, which depend on the graph and the options, and not on later edits."""
        return fingerprint(text) == generated.metadata["fingerprint"]

    def _same_weights(self, generated: Generated) -> bool:
        """Return True if the sidecar is the one that would be written. The data digest counts in builds only."""
        if self.options.embed:
            return True
        recorded = self._recorded(generated)
        if generated.key:
            recorded.pop(DATA, None)
        return self._same_content(generated, {**generated.metadata, **recorded})

    def _same_content(self, generated: Generated, metadata: Mapping[str, str], alone: bool = True) -> bool:
        return same_content(generated.weights, generated.tensors, metadata, self.options.shard_size, alone)

    def _recorded(self, generated: Generated) -> dict[str, str]:
        """Return what the sidecar may record in another way: the data digest, which only builds record, and the same
        base, compressed by another zlib.
        """
        metadata = metadata_at(generated.weights)
        metadata_kept = {DATA: metadata[DATA]} if DATA in metadata else {}
        if BASE in metadata and unpacked(metadata[BASE]) == unpacked(generated.metadata[BASE]):
            metadata_kept[BASE] = metadata[BASE]
        return metadata_kept

    def write(self, generated: Generated, force: bool) -> None:
        """Write what changed. Edits of the module are merged into the new one if they fit, else the module is kept. So
        it is if its source is the same; its weights are written if they are missing.

        Raises:
            EditedError: the module was edited, its source changed too, and the two do not fit together.
            OnnxgenError: a file cannot be written. The old files are unchanged.
        """
        self._refuse_folders()
        self._refuse_sources(generated)
        if not force and self.out.name == "model.py" and self.out.is_file() and (self.out.parent / RECORD).is_file():
            what = f"{self.out} is the module of a run, which its trained weights fit"
            raise OnnxgenError(what, help="name another output with -o, or overwrite it with --force")
        standing = Standing("stale", generated.source) if force else self.standing(generated)
        status = standing.status
        if status == "edited":
            raise self.refusal(generated, standing, self._write_beside(standing.text))
        generated.report.status = {"stale": "written", "lost": "kept"}.get(status, status)
        if status == "fresh":
            self._sign(generated)
        if status in ("stale", "merged", "lost"):
            self._write_pair(generated, standing, force)
        if status in ("stale", "merged"):
            self._forget_new(force)
        elif status != "lost":
            for folder in {self.out.parent, generated.weights.parent}:
                tidy(folder)

    def _write_pair(self, generated: Generated, standing: Standing, force: bool) -> None:
        obsolete = self._own_sidecar(generated.weights) if self.options.embed else []
        is_same = standing.status == "merged" and standing.text == self.text()
        generated.report.wrote = write_pair(
            self.out,
            None if is_same else standing.text or None,
            None if self.options.embed else generated.weights,
            generated.tensors,
            generated.metadata,
            self.options.shard_size,
            force,
            standing.before,
        )
        for path in obsolete:
            with suppress(OSError):
                path.unlink()

    def _write_beside(self, text: str) -> str:
        """Write the `.new` file, and return its name. An existing one may have edits, too, so it is not overwritten
        unless it is as it was generated.
        """
        new = Output(self.out.with_name(self.out.name + ".new"), self.options)
        there = new.text()
        text = signed(text) if new.is_edited(text) else text
        if there is not None and there != text and new.is_edited(there) and not is_as_signed(there):
            what = f"{self.out} was edited by hand, and {new.out.name} of an earlier run may have edits of yours, too"
            raise EditedError(what, help=f"move it to {self.out.name} when it is done, or remove it")
        write_pair(new.out, text, None, {}, {})
        return new.out.name

    def _own_sidecar(self, weights: Path) -> list[Path]:
        """Return the files of the existing module's sidecar, if all have its fingerprint."""
        recorded, files = fingerprint(self.text() or ""), []
        with suppress(OnnxgenError):
            for path in sidecar_files(weights):
                if recorded is None or read_header(path)[0].get("fingerprint") != recorded:
                    return []
                files.append(path)
            files += [index_path(weights)] if files != [weights] else []
        return files

    def _forget_new(self, force: bool) -> None:
        """Remove the `.new` file of an earlier run: the module is newer now. Without `force`, edits in it stay."""
        new = self.out.with_name(self.out.name + ".new")
        with suppress(OSError):
            text = new.read_text(encoding="utf-8", errors="replace")
            if fingerprint(text) is not None and (force or not self.is_edited(text) or is_as_signed(text)):
                new.unlink()

    def standing(self, generated: Generated) -> Standing:
        """Compare the existing files with what was generated, and merge edits of the module into it."""
        self._refuse_folders()
        before = self._bytes()
        text = _text(before or b"")
        if text is None:
            return Standing("stale", generated.source)
        same, edited = self._same_source(text, generated), self.is_edited(text)
        if same and self._same_weights(generated):
            return Standing("kept" if edited else "fresh")
        if same and edited:
            if self._may_write_weights(generated):
                return Standing("lost")
            if self._has_other_tensors(generated):
                return Standing("edited", generated.source, None, _WEIGHTS)
        return self._merged(generated, text, before, edited)

    def _merged(self, generated: Generated, text: str, before: bytes | None, edited: bool) -> Standing:
        """Merge a module, which may be edited, into what was generated."""
        same = self._same_source(text, generated)
        base = self._base(text, generated) or (generated.source if same else None)
        if base is None or "\ufffd" in text:
            why = f"{_BOTH}; {'it is not UTF-8' if base else 'its weights lack the text that it was generated as'}"
            return Standing("edited" if edited else "stale", generated.source, None, why)
        merged, doubt = merge(base, text, generated.source, self.out.name, same)
        if doubt:
            return Standing("edited", merged, None, _BOTH, f"the merge of both, {doubt}")
        before = None if merged == generated.source else before
        return Standing("merged" if edited else "stale", merged, before, _BOTH)

    def _base(self, text: str, generated: Generated) -> str | None:
        """Return the text that an edited module was generated as. None if its weights do not have it."""
        base_texts = (base_of(text, entry) for entry in bases(text, self.out, generated.weights))
        return next((base for base in base_texts if base is not None), None)

    def _may_write_weights(self, generated: Generated) -> bool:
        """Return True if writing the sidecar loses nothing: it is missing, broken, or of another module (a person has
        updated the code), or lacks only what this version or a build records, or has files of another layout beside it.
        """
        ours = generated.metadata["fingerprint"]
        return (
            is_lost(generated.weights)
            or metadata_at(generated.weights).get("fingerprint", ours) != ours
            or self._same_content(generated, self._needed(generated), alone=False)
        )

    def _needed(self, generated: Generated) -> dict[str, str]:
        """Return the metadata that a sidecar of the same source has in any case, with what it may record besides."""
        needed = {key: value for key, value in generated.metadata.items() if key not in (DATA, BASE)}
        return needed | self._recorded(generated)

    def _has_other_tensors(self, generated: Generated) -> bool:
        """Return True if the sidecar is of the same source and has other tensors: perhaps a person trained them."""
        metadata = metadata_at(generated.weights)
        data = metadata.get(DATA, "")
        same = self._needed(generated).items() <= metadata.items() and generated.metadata.get(DATA, data) == data
        return same and not same_content(generated.weights, generated.tensors, None, self.options.shard_size, False)

    def _sign(self, generated: Generated) -> None:
        """Record the build in a fresh module, whose text is kept otherwise."""
        text = self.text() or ""
        signed = with_build(text, generated.key) if generated.key else text
        if signed != text:
            generated.report.wrote = write_pair(self.out, signed, None, {}, {})
            generated.report.status = "written"

    def _refuse_sources(self, generated: Generated) -> None:
        """Raise an error if a target is a file that is being read, also with `--force`."""
        targets = [self.out]
        if not self.options.embed:
            targets += sidecar_targets(generated.weights, generated.tensors, self.options.shard_size)
        for target in targets:
            if any(is_same_file(target, source) for source in generated.reads):
                what = f"{target} is the ONNX model or holds its data"
                raise OnnxgenError(f"cannot write there: {what}", help="name another output or --weights FILE")

    def refusal(self, generated: Generated, standing: Standing, new: str = "") -> EditedError:
        """Return the error for an "edited" module. `new`: the file that was written beside it."""
        text = self.text() or ""
        why, way_out = standing.why, f"complete it and move it to {self.out.name}"
        if fingerprint(text) is None:
            why, way_out = "was not written by onnxgen", "name another output"
        elif standing.why == _WEIGHTS:
            way_out = f"to keep your edits, remove {generated.weights.name} and generate again"
        elif not new:
            way_out = "`onnxgen build` merges the two, or writes the new one beside it"
        kept = "it was kept" + (f", and {new} is {standing.beside}" if new else "")
        diff = difflib.unified_diff(
            bare(text).splitlines(),
            bare(standing.text).splitlines(),
            self.out.name,
            new or "generated",
            lineterm="",
            n=1,
        )
        head = "\n".join(_plain(line) for _, line in zip(range(20), diff))
        overwrite = "--force" if new else "`onnxgen build --force`"
        help = f"{way_out}, or overwrite it with {overwrite}\n{head}".rstrip()
        return EditedError(f"{self.out} {why}; {kept}", help=help)


def _text(content: bytes) -> str | None:
    """Return the text of a module. None if it is empty."""
    text = content.decode("utf-8-sig", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if text.strip() else None


def _plain(line: str) -> str:
    """Replace characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in line[:200])


_MAX_EXACT = 5_000  # lines; past that, comparing frequent ones takes long, and so does black
_WRITTEN = "A merge as onnxgen wrote it:"
_SIGNATURE = re.compile(rf"^# {_WRITTEN} ([0-9a-f]{{16}})\n*\Z", re.MULTILINE)
Lines = Sequence[str]


# ---- the merge -------------------------------------------------------------------------------------------------------


def merge(base: str, mine: str, new: str, name: str, same: bool = False) -> tuple[str, str]:
    """Merge an edited module `mine`, and the text `new` that is generated now.

    Lines that only one side changed are taken from it. If there are conflicts and black's formatting of the texts has
    fewer of them, the result is formatted: the person may have formatted the file otherwise.

    Args:
        base: of `base_of`, or the generated text itself.
        name: of the module, for the conflict markers.
        same: base and new differ in comments and docstrings only. Then there is no conflict: the edited lines are kept.

    Returns:
        The text, with conflict markers if there are conflicts; and why it can't replace the module ("in which nothing
        sets x"), "" if it can.
    """
    texts = [bare(text) for text in (base, _SIGNATURE.sub("", mine), new)]
    text, conflicts = _merged(texts, texts, name, same)
    if conflicts and all(one.count("\n") < _MAX_EXACT for one in texts):
        with suppress(*UNREADABLE):
            other, fewer = _merged([formatted(one, keep_commas=False) for one in texts], texts, name, same)
            text = other if fewer < conflicts else text
    text = filled(text, new)
    at = [str(number) for number, line in enumerate(text.split("\n"), 1) if line.startswith("<" * 7 + " ")]
    if not at:
        return text, _doubt(text, mine, new)
    return text, f"with conflicts at lines {', '.join(at)}" if len(at) > 1 else f"with a conflict at line {at[0]}"


def _merged(texts: Lines, originals: Lines, name: str, same: bool) -> tuple[str, int]:
    """Return the merge of base, mine and new, and the number of conflicts. `originals`: before they were formatted."""
    base, mine, new = texts
    if base == mine:
        return originals[2], 0
    if base == new or mine == new:
        return originals[1], 0
    lines: list[str] = []
    conflicts = 0
    for old, ours, theirs in _changes(*(text.split("\n") for text in texts)):
        if old == ours or ours == theirs:
            lines += theirs
        elif old == theirs:
            lines += ours
        else:
            conflicts += 1
            if same:
                lines += ours
                continue
            lines += [f"<<<<<<< {name}, edited", *ours, "||||||| generated before", *old]
            lines += ["=======", *theirs, ">>>>>>> generated now"]
    return "\n".join(lines), conflicts


def _changes(base: Lines, mine: Lines, new: Lines) -> Iterator[tuple[Lines, Lines, Lines]]:
    """Yield the texts in parts: a line that all have, or what lies between two such lines."""
    ours, theirs = _pairs(base, mine), _pairs(base, new)
    at = (0, 0, 0)
    for line in [*sorted(ours.keys() & theirs.keys()), len(base)]:
        end = (line, ours.get(line, len(mine)), theirs.get(line, len(new)))
        yield base[at[0] : end[0]], mine[at[1] : end[1]], new[at[2] : end[2]]
        yield base[line : line + 1], base[line : line + 1], base[line : line + 1]
        at = (end[0] + 1, end[1] + 1, end[2] + 1)


def _pairs(base: Lines, other: Lines) -> dict[int, int]:
    """Return which line of `other` is which line of the base.

    An insertion moves down where that says the same, as in git: a method is inserted after a blank line, not before.
    """
    long = len(base) > _MAX_EXACT  # then frequent lines are paired only beside others
    blocks = SequenceMatcher(None, base, other, autojunk=long).get_matching_blocks()
    pairs = {block.a + n: block.b + n for block in blocks for n in range(block.size)}
    for block, after in zip(blocks, blocks[1:]):
        line, first, end = block.a + block.size, block.b + block.size, after.b
        while pairs.get(line) == end and other[first] == other[end]:
            pairs[line] = first
            line, first, end = line + 1, first + 1, end + 1
    return pairs


# ---- a merge beside the module, which may be written over until somebody changes it ---------------------------------


def signed(text: str) -> str:
    """Return a merge with its digest in a comment at the end, which the next merge removes."""
    return f"{text}# {_WRITTEN} {_digest(text)}\n"


def is_as_signed(text: str) -> bool:
    """Return True if a merge is as `signed` made it."""
    signature = _SIGNATURE.search(text)
    return signature is not None and _digest(text[: signature.start()]) == signature[1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- what a merge without a conflict may still break -----------------------------------------------------------------


def _doubt(text: str, mine: str, new: str) -> str:
    """Return why a merge can't replace the module: it does not parse, or one side took away what the other one uses."""
    try:
        (used, known), *sides = map(_names, (text, mine, new))
    except UNREADABLE as error:
        return "which is not Python" + (f" (line {at})" if (at := getattr(error, "lineno", None)) else "")
    if "Model" not in known:
        return "which has no class Model"
    if FINGERPRINT_LINE.findall(text) != [fingerprint(new)]:
        return "which has not one FINGERPRINT"
    unset = used - known - {name for side_used, side_known in sides for name in side_used - side_known}
    return f"in which nothing sets {', '.join(sorted(unset))}" if unset else ""


def _names(text: str) -> tuple[set[str], set[str]]:
    """Return the names, and attributes of `self`, that a module uses, and those that something sets."""
    used: set[str] = set()
    known = set(dir(builtins))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else f"self.{node.attr}"
            if not isinstance(node.ctx, ast.Load):
                known.add(name)
            elif isinstance(node, ast.Name) or isinstance(node.value, ast.Name) and node.value.id == "self":
                used.add(name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            known |= {node.name, f"self.{node.name}"}
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # the name of a buffer
            known.add(f"self.{node.value}")
    return used, known
