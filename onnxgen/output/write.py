"""Writes module and sidecar, and tells if the existing ones are fresh, stale or edited by hand."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onnxgen.code.render import code_digest
from onnxgen.common.atomic import is_same_file, tidy
from onnxgen.errors import EditedError, OnnxgenError
from onnxgen.options import Options
from onnxgen.output.compose import BUILD_LINE, DATA, Generated
from onnxgen.weights.sidecar import index_path, is_lost, same_content, sidecar_files, sidecar_targets, write_pair
from onnxgen.weights.streamed import read_header

_BUILD = re.compile(rf"^{BUILD_LINE} +[0-9a-f]+$", re.MULTILINE)


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
        try:
            text = self.out.read_bytes().decode("utf-8-sig", "replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OnnxgenError(f"cannot write {self.out}: {error.strerror}") from None
        return text.replace("\r\n", "\n").replace("\r", "\n") if text.strip() else None

    def _refuse_folders(self) -> None:
        """Raise an error if the path is a folder or a pipe, also with `--force`."""
        if os.path.exists(self.out) and not os.path.isfile(self.out):
            what = "a folder" if os.path.isdir(self.out) else "not a regular file"
            raise OnnxgenError(f"cannot write {self.out}: it is {what}", help="name a file for the module")

    def is_edited(self, text: str) -> bool:
        """Return True if a person changed the module's AST (except docstrings) since it was generated."""
        recorded = _fingerprint(text)
        try:
            return recorded is None or not recorded.startswith(code_digest(text))
        except (SyntaxError, ValueError):
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
        return _fingerprint(text) == generated.metadata["fingerprint"]

    def _same_weights(self, generated: Generated) -> bool:
        """Return True if the sidecar is the one that would be written. The data digest counts in builds only."""
        if self.options.embed:
            return True
        recorded = {} if generated.key else self._recorded_data(generated)
        return self._same_content(generated, {**generated.metadata, **recorded})

    def _same_content(self, generated: Generated, metadata: Mapping[str, str]) -> bool:
        return same_content(generated.weights, generated.tensors, metadata, self.options.shard_size)

    def _recorded_data(self, generated: Generated) -> dict[str, str]:
        try:
            metadata, _ = read_header(sidecar_files(generated.weights)[0])
        except OnnxgenError:
            return {}
        return {DATA: metadata[DATA]} if DATA in metadata else {}

    def write(self, generated: Generated, force: bool) -> None:
        """Write what changed. An edited module is kept, and its weights are written if they are missing.

        Raises:
            EditedError: the module was edited and its source changed too.
            OnnxgenError: a file cannot be written. The old files are unchanged.
        """
        self._refuse_folders()
        self._refuse_sources(generated)
        status = "stale" if force else self.standing(generated)
        if status == "edited":
            new = self.out.with_name(self.out.name + ".new")
            write_pair(new, generated.source, None, {}, {})
            raise self.refusal(generated, new.name)
        generated.report.status = {"stale": "written", "lost": "kept"}.get(status, status)
        if status == "fresh":
            self._sign(generated)
        if status in ("stale", "lost"):
            obsolete = self._own_sidecar(generated.weights) if self.options.embed else []
            generated.report.wrote = write_pair(
                self.out,
                None if status == "lost" else generated.source,
                None if self.options.embed else generated.weights,
                generated.tensors,
                generated.metadata,
                self.options.shard_size,
                force,
            )
            for path in obsolete:
                with suppress(OSError):
                    path.unlink()
        if status == "stale":
            self._forget_new()
        elif status != "lost":
            for folder in {self.out.parent, generated.weights.parent}:
                tidy(folder)

    def _own_sidecar(self, weights: Path) -> list[Path]:
        """Return the files of the existing module's sidecar, if all have its fingerprint."""
        fingerprint, found = _fingerprint(self.text() or ""), []
        with suppress(OnnxgenError):
            for path in sidecar_files(weights):
                if fingerprint is None or read_header(path)[0].get("fingerprint") != fingerprint:
                    return []
                found.append(path)
            found += [index_path(weights)] if found != [weights] else []
        return found

    def _forget_new(self) -> None:
        """Remove the `.new` file of an earlier run: the module itself is newer now."""
        new = self.out.with_name(self.out.name + ".new")
        with suppress(OSError):
            if _fingerprint(new.read_text(encoding="utf-8", errors="replace")) is not None:
                new.unlink()

    def standing(self, generated: Generated) -> str:
        """Compare the existing files with what was generated.

        "fresh": module and weights are the same. "stale": they differ or are missing. For an edited module: "kept" if
        its source is the same, "lost" if moreover its weights are missing or lack what a build records, "edited" if its
        source changed too.
        """
        text = self.text()
        if text is None:
            return "stale"
        same, edited = self._same_source(text, generated), self.is_edited(text)
        if same and self._same_weights(generated):
            return "kept" if edited else "fresh"
        if not edited:
            return "stale"
        return "lost" if same and self._may_write_weights(generated) else "edited"

    def _may_write_weights(self, generated: Generated) -> bool:
        """Return True if writing the sidecar loses nothing: it is missing, broken, or of another module (a person has
        updated the code), or lacks only what a build records.
        """
        if is_lost(generated.weights) or self._is_of_another(generated):
            return True
        metadata = {k: v for k, v in generated.metadata.items() if k != DATA} | self._recorded_data(generated)
        return self._same_content(generated, metadata)

    def _is_of_another(self, generated: Generated) -> bool:
        """Return True if the sidecar has the fingerprint of another module, so this one would not load it."""
        metadata, _ = read_header(sidecar_files(generated.weights)[0])
        return metadata.get("fingerprint", generated.metadata["fingerprint"]) != generated.metadata["fingerprint"]

    def _sign(self, generated: Generated) -> None:
        """Record the build in a fresh module, whose formatting is kept."""
        text = self.text() or ""
        signed, count = _BUILD.subn(f"{BUILD_LINE:<10}{generated.key}", text, count=1)
        if generated.key and (signed != text or not count):
            generated.report.wrote = write_pair(self.out, signed if count else generated.source, None, {}, {})
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

    def refusal(self, generated: Generated, new: str = "") -> EditedError:
        """Return the error for an "edited" module. `new`: the file that was written beside it."""
        text = self.text() or ""
        why, way_out = "was edited by hand, and the ONNX file or the options changed too", "merge the two"
        if self._same_source(text, generated):
            why = "was edited by hand, and the weights changed too"
            way_out = f"to keep your edits, remove {generated.weights.name} and generate again"
        elif _fingerprint(text) is None:
            why, way_out = "was not written by onnxgen", "name another output"
        kept = "it was kept" + (f", and {new} is what would be written now" if new else "")
        diff = difflib.unified_diff(
            text.splitlines(), generated.source.splitlines(), self.out.name, new or "generated", lineterm="", n=1
        )
        head = "\n".join(_plain(line) for _, line in zip(range(20), diff))
        overwrite = "--force" if new else "`onnxgen build --force`"
        if not new and way_out == "merge the two":
            way_out = "`onnxgen build` writes the new one beside it: merge the two"
        help = f"{way_out}, or overwrite it with {overwrite}\n{head}".rstrip()
        return EditedError(f"{self.out} {why}; {kept}", help=help)


def _plain(line: str) -> str:
    """Replace characters that could control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in line[:200])


def _fingerprint(text: str) -> str | None:
    found = re.search(r'^FINGERPRINT = ["\']([0-9a-f]+)["\']', text, re.MULTILINE)
    return found.group(1) if found else None
