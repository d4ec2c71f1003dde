"""What the site has beside docs/: pages of the root and of benchmarks/, under the links that hold in the repository.

`mkdocs.yml` names this file as a hook. A page of docs/ says `../SECURITY.md`, as the repository needs it. The site lays
the root's pages over docs/, so there `../` goes. Names of pages in backticks become links.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"benchmarks/{p.name}" for p in ROOT.glob("benchmarks/*.md")),
)
TABLES = tuple(p.relative_to(ROOT).as_posix() for p in ROOT.glob("benchmarks/*/*.csv"))


def on_files(files: Files, config: Any) -> Files:
    for name in (*PAGES, *TABLES):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """The links of a page, as they hold on the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(here)

    def relative(name: str) -> str:
        return posixpath.relpath(name, folder or ".")

    def linked(match: re.Match[str]) -> str:
        name = match[1].removeprefix("docs/")
        known = name != here and files.get_file_from_path(name) is not None
        return f"[`{match[1]}`]({relative(name)})" if known else match[0]

    if here not in PAGES:
        markdown = re.sub(r"\]\(\.\./", "](", markdown)
    markdown = re.sub(r"\]\(docs/", "](", markdown)
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = (re.sub(r"(?<!\[)`((?:docs/|benchmarks/)?[A-Z_]+\.md)`", linked, part) for part in parts[::2])
    return "".join(parts)
