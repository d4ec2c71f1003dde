"""The files that tools which change files start from: those that torch wrote into the same folder before."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sources(
    out: Path, *names: str, tools: tuple[str, ...] = ("torch_script", "torch_dynamo")
) -> list[tuple[str, Path]]:
    """Name and path of other tools' files.

    Args:
        out: the folder of the tool that asks.
        names: of the nets; all of them if there are none.
        tools: whose files to take.
    """
    found = []
    for tool in tools:
        for path in sorted((out.parent / tool).glob("*.onnx")):
            if not names or path.stem in names:
                found.append((f"{tool.removeprefix('torch_')}_{path.stem}", path))
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for what a tool writes on the way."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def keep(made: Path, path: Path) -> None:
    """Put a file that a tool wrote somewhere else where it belongs; its external data must keep its name beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(str(made), str(path))
