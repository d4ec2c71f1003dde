"""Every text of every file of the collection replaced by code, and what comes of it.

    python -m tests.injection.collection [--every 1] [--largest 5000000]

prints how many were made, how many were refused that the originals are not, and how many broke a promise: a module with
syntax or names outside the allow-list, or a failure that is no `OnnxgenError`. The exit code is 1 if any did.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.pipeline import build
from tests.conftest import SHARED
from tests.injection.holding import hold
from tests.injection.renamed import renamed

WAYS = (Options(annotate=True, allow_unsupported=True), Options(flat=True, allow_unsupported=True))


@dataclass
class Found:
    """What came of it.

    Attributes:
        files, made: how many files were taken, and how many modules made of their copies.
        refused: copies that are refused, as their originals are.
        lost: copies that are refused while their originals are not, with the message.
        broken: promises that were broken, with the message.
    """

    files: int = 0
    made: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def files(every: int, largest: int) -> list[Path]:
    found = sorted((SHARED / "models").rglob("*.onnx"), key=str)
    return [path for path in found if path.stat().st_size <= largest][::every]


def attack(path: Path, folder: Path, found: Found) -> None:
    """Both renamings of a file, in both forms."""
    found.files += 1
    for parts in (False, True):
        model = renamed(onnx.load(path, load_external_data=False), path.name, parts)
        copy = folder / f"net{int(parts)}.onnx"
        copy.write_bytes(model.SerializeToString())
        for options in WAYS:
            _one(path, copy, options, f"{path.name}, {'parts' if parts else 'whole'}", found)


def _one(path: Path, copy: Path, options: Options, name: str, found: Found) -> None:
    try:
        hold(build(copy, options, copy.with_suffix(".py")).source, name)
        found.made += 1
    except OnnxgenError as error:
        found.refused += 1
        if not str(error).isascii() or not all(line.isprintable() for line in str(error).splitlines()):
            found.broken.append(f"{name}: its error is not plain: {str(error)!a}")
        if _is_made(path, options):
            found.lost.append(f"{name}: {error}")
    except Exception as error:
        found.broken.append(f"{name}: {type(error).__name__}: {str(error)[:300]!a}")


def _is_made(path: Path, options: Options) -> bool:
    try:
        build(path, options, path.with_suffix(".py"))
    except OnnxgenError:
        return False
    return True


def run(paths: list[Path]) -> Found:
    found = Found()
    with tempfile.TemporaryDirectory() as name:
        for path in paths:
            for data in path.parent.iterdir():  # what is stored outside of files
                if data.suffix in (".bin", ".out"):
                    shutil.copy(data, name)
            attack(path, Path(name), found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="one file of so many")
    parser.add_argument("--largest", type=int, default=5_000_000, help="bytes of a file")
    given = parser.parse_args()
    found = run(files(given.every, given.largest))
    for line in (*(f"refused: {text}" for text in found.lost), *(f"BROKEN: {text}" for text in found.broken)):
        print(line.encode("ascii", "backslashreplace").decode()[:400])
    print(
        f"{found.files} files: {found.made} modules made, {found.refused} refused ({len(found.lost)} whose originals "
        f"are not), {len(found.broken)} promises broken"
    )
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
