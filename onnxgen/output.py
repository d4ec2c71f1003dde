"""Writing the pair of module and sidecar, and telling whether what is there is fresh, stale or edited by hand."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from onnxgen.code.render import code_digest
from onnxgen.errors import EditedError, OnnxgenError, Problem
from onnxgen.generated import CODE_LINE, Generated
from onnxgen.options import Options
from onnxgen.weights import same_content, write_pair

_RECORDED = re.compile(rf"^{CODE_LINE} +([0-9a-f]{{16}})$", re.MULTILINE)


class Output:
    """The files of one generation.

    Attributes:
        out: the module's path.
    """

    def __init__(self, out: Path, options: Options) -> None:
        self.out, self.options = out, options

    def _text(self) -> str | None:
        try:
            return self.out.read_bytes().decode("utf-8", "replace").replace("\r\n", "\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OnnxgenError(f"cannot read {self.out}: {error.strerror}") from None

    def is_edited(self, text: str) -> bool:
        """Whether a person changed what the module does: its AST without docstrings is not what was generated."""
        recorded = _RECORDED.search(text)
        try:
            return recorded is None or code_digest(text) != recorded.group(1)
        except (SyntaxError, ValueError):
            return True

    def is_fresh(self, generated: Generated) -> bool:
        """Whether module and sidecar say what `generated` says (whatever formatting the module got since)."""
        text = self._text()
        return text is not None and self._same_source(text, generated) and self._same_weights(generated)

    def _same_source(self, text: str, generated: Generated) -> bool:
        """Made from the same graph with the same options: what was recorded when it was generated still holds."""
        wanted, found = _RECORDED.search(generated.source), _RECORDED.search(text)
        if wanted is None or found is None or wanted.group(1) != found.group(1):
            return False
        return _fingerprint(text) == _fingerprint(generated.source)

    def _same_weights(self, generated: Generated) -> bool:
        return self.options.embed or same_content(
            generated.weights, generated.tensors, generated.metadata, self.options.shard_size
        )

    def write(self, generated: Generated, force: bool) -> None:
        """Write what changed; a module that was edited is kept.

        Raises:
            EditedError: it was edited and its source changed too.
            OnnxgenError: it can't be written; the old files are as they were.
        """
        text = self._text()
        if text is not None and not force:
            edited = self.is_edited(text)
            if self._same_source(text, generated) and self._same_weights(generated):
                generated.report.status = "kept" if edited else "fresh"
                return
            if edited:
                self._refuse(text, generated)
        weights = None if self.options.embed else generated.weights
        size = self.options.shard_size
        generated.report.wrote = write_pair(
            self.out, generated.source, weights, generated.tensors, generated.metadata, size, force
        )
        generated.report.status = "written"

    def _refuse(self, text: str, generated: Generated) -> None:
        new = self.out.with_name(self.out.name + ".new")
        write_pair(new, generated.source, None, {}, {})
        diff = difflib.unified_diff(
            text.splitlines(), generated.source.splitlines(), self.out.name, new.name, lineterm="", n=1
        )
        head = "\n".join(line for _, line in zip(range(20), diff))
        raise EditedError(
            Problem(
                f"{self.out} was edited by hand and its source changed too; it was kept, and {new.name} is what would "
                "be written now",
                help="merge the two, or overwrite yours with --force\n" + head,
            )
        )


def _fingerprint(text: str) -> str | None:
    found = re.search(r'^FINGERPRINT = ["\']([0-9a-f]+)["\']', text, re.MULTILINE)
    return found.group(1) if found else None
