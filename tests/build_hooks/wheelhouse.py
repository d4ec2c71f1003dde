"""A folder of wheels that real builds install from, in environments of their own and without the network.

The wheels are those of the test environment, repacked; that of onnxgen is built from this tree. The fixture is in
`conftest.py`.
"""

from __future__ import annotations

import csv
import importlib.metadata as metadata
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

BACKENDS = (
    "setuptools",
    "hatchling",
    "editables",
    "pdm-backend",
)  # what the little projects are built with, besides onnxgen
TREE = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "onnxgen", "templates", "build_hooks")
# What belongs to an installation and not to a wheel, and what no build needs: thousands of files less to unpack.
LOCAL = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
NEEDLESS = ("tests", "test", "__pycache__")


def fill(folder: Path) -> None:
    """Put the wheels of onnxgen, of the backends, and of all that they need into a folder."""
    ours = build_wheel(ROOT, folder)
    (info,) = (entry for entry in zipfile.Path(ours).iterdir() if entry.name.endswith(".dist-info"))
    for distribution in needed(*requirements(metadata.PathDistribution(info)), *BACKENDS):
        repack(distribution, folder)


def needed(*names: str) -> list[metadata.Distribution]:
    """Installed distributions and everything that they require."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found[name] = metadata.distribution(name)
            waiting += requirements(found[name])
    return list(found.values())


def requirements(distribution: metadata.Distribution) -> list[str]:
    """The names of what a distribution requires here, without its extras."""
    every = [Requirement(line) for line in distribution.requires or []]
    return [r.name for r in every if r.marker is None or r.marker.evaluate({"extra": ""})]


def repack(distribution: metadata.Distribution, folder: Path) -> Path:
    """The wheel that an installed distribution came from, as far as its RECORD still tells; not compressed."""
    (info,) = {f.parts[0] for f in distribution.files or [] if f.parts[0].endswith(".dist-info")}
    wheel = folder / f"{info.removesuffix('.dist-info')}-{_tags(distribution)}.whl"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for file in _files(distribution, info):
            archive.write(file.locate(), file.as_posix())
            digest = f"{file.hash.mode}={file.hash.value}" if file.hash else ""
            rows.append((file.as_posix(), digest, "" if file.size is None else file.size))
        archive.writestr(f"{info}/RECORD", _csv([*rows, (f"{info}/RECORD", "", "")]))
    return wheel


def _files(distribution: metadata.Distribution, info: str) -> Iterator[metadata.PackagePath]:
    for file in distribution.files or []:
        outside = ".." in file.parts or file.is_absolute()  # scripts: whoever installs the wheel makes them anew
        local = file.parts[0] == info and file.name in LOCAL
        if not outside and not local and not set(NEEDLESS) & set(file.parts[:-1]):
            yield file


def _tags(distribution: metadata.Distribution) -> str:
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    tags = [line.split(":")[1].strip().split("-") for line in lines if line.startswith("Tag:")]
    return "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))


def _csv(rows: list[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def build_wheel(tree: Path, folder: Path) -> Path:
    """The wheel of a checkout of onnxgen, built from a copy: building leaves things behind."""
    copy = folder / "tree"
    copy.mkdir()
    for name in TREE:
        if (tree / name).is_dir():
            shutil.copytree(tree / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(tree / name, copy)
    code = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=copy, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(copy)
    return folder / done.stdout.split()[-1]


def environment(wheelhouse: Path, cache: Path) -> dict[str, str]:
    """Variables for a process that builds: pip takes wheels from this folder alone, and nothing of this tree is seen.

    What is imported is compiled once a session, into a folder beside that of the wheels: projects stay as they are.

    Args:
        wheelhouse: the folder of wheels.
        cache: where onnxgen keeps what it remembers of files.
    """
    return {
        **{name: value for name, value in clean_environment().items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(wheelhouse.with_name("compiled")),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheelhouse),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_COMPILE": "0",  # of what a build environment holds most is never imported
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "ONNXGEN_CACHE_DIR": str(cache),
    }


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that tell Python and pip where to look."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "ONNXGEN_"))}
    return {**mine, "PYTHONDONTWRITEBYTECODE": "1"}
