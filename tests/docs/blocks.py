"""The blocks of code of a page, in their order."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

FENCED = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n) {4}\S.*")
COMMAND = re.compile(r"^(?:onnxgen|python|pip|make|cp|py)\b|^if ")
KINDS = {"sh", "bat", "json", "python", "toml", "text", "yaml", "jinja", "cmake", "meson"}


@dataclass(frozen=True)
class Block:
    """One block: its language and its text."""

    kind: str
    text: str

    @property
    def file(self) -> str:
        """The file that the block shows; its first line says so (`# run.toml`)."""
        found = re.match(r"# ([\w.]+\.(?:py|toml))\n", self.text)
        return found[1] if found else ""

    def commands(self) -> list[str]:
        """The commands of a block of shell: one each line, but for lines that go on and an `if`."""
        text = re.sub(r"\\\n\s*", "", self.text)
        return re.findall(r"^if [\s\S]*?fi$|^(?!#)\S.*$", text, re.MULTILINE)


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(found["kind"], textwrap.dedent(found["text"])) for found in FENCED.finditer(text)]


def indented(page: Path) -> list[str]:
    """Lines of code that no fence encloses, so that nobody knows what they are."""
    return [found[0] for found in INDENTED.finditer(FENCED.sub("", page.read_text(encoding="utf-8")))]
