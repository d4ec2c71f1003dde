"""A folder of wheels that real builds install from, in environments of their own and without the network.

That of onnxgen is built from this tree. The others stand for the wheels that the test environment was installed from:
they require the same, and bring the same packages. The fixture is in `conftest.py`.
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
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from filelock import FileLock
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
THEN = "1800000000"  # seconds: of a commit
# What belongs to an installation and not to a wheel, and what no build needs: thousands of files less to unpack.
LOCAL = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
NEEDLESS = ("tests", "test", "__pycache__")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process of the session fills."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def ours(factory: pytest.TempPathFactory) -> Path:
    """The wheel of onnxgen, of this tree; built once a session."""
    (wheel,) = once(factory, "onnxgen", lambda folder: build_wheel(ROOT, folder)).glob("*.whl")
    return wheel


def fill(folder: Path, ours: Path) -> None:
    """Put the wheels of onnxgen, of the backends, and of all that they need into a folder."""
    shutil.copy(ours, folder)
    (info,) = (entry for entry in zipfile.Path(ours).iterdir() if entry.name.endswith(".dist-info"))
    for distribution in needed(*requirements(metadata.PathDistribution(info)), *BACKENDS):
        repack(distribution, folder)


def link(wheel: Path, site: Path) -> None:
    """Make a folder to import from that is as if onnxgen's wheel and the back ends had been installed into it.

    The packages that they need are links to those of the test environment: nothing is unpacked.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    _compiled(ROOT / "onnxgen", site / "onnxgen")
    _compiled(ROOT / "build_hooks", site / "onnxgen" / "build_hooks")
    (info,) = site.glob("*.dist-info")
    for distribution in needed(*requirements(metadata.PathDistribution(info)), *BACKENDS):
        _link(distribution, site)


def _link(distribution: metadata.Distribution, site: Path, besides: str = "") -> None:
    """Make links to the packages of an installed distribution in a folder to import from; on Windows, copies."""
    outside = (file for file in distribution.files or [] if ".." not in file.parts and not file.is_absolute())
    for name in {file.parts[0] for file in outside} - {"__pycache__", besides}:
        theirs = Path(str(distribution.locate_file(name)))
        if (site / name).exists():  # a namespace of several distributions
            continue
        if sys.platform != "win32":
            (site / name).symlink_to(theirs)
        elif theirs.is_dir():
            shutil.copytree(theirs, site / name)
        else:
            shutil.copy(theirs, site / name)


def _compiled(ours: Path, theirs: Path) -> None:
    """Copy compiled modules to the same modules elsewhere: to compile them again would take seconds."""
    for source in ours.rglob("*.py"):
        copy, compiled = theirs / source.relative_to(ours), Path(cache_from_source(source))
        if compiled.exists() and copy.exists() and copy.read_bytes() == source.read_bytes():
            os.utime(copy, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))  # which the compiled file has
            Path(cache_from_source(copy)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(compiled, cache_from_source(copy))


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
    """The wheel that an installed distribution came from, as far as its RECORD still tells; not compressed.

    What it has is only linked: the wheel has a .pth file in place of the packages. To unpack them, and to compile them
    anew, took most of the time of a build in isolation.
    """
    (info,) = {f.parts[0] for f in distribution.files or [] if f.parts[0].endswith(".dist-info")}
    wheel = folder / f"{info.removesuffix('.dist-info')}-{_tags(distribution)}.whl"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        linked = sys.platform != "win32"
        if linked:
            place = folder / "linked" / distribution.name
            place.mkdir(parents=True)
            _link(distribution, place, besides=info)
            text = f"{place}\n".encode()
            digest = urlsafe_b64encode(sha256(text).digest()).rstrip(b"=").decode()
            archive.writestr(f"{distribution.name}-linked.pth", text)
            rows.append((f"{distribution.name}-linked.pth", f"sha256={digest}", len(text)))
        for file in _files(distribution, info):
            if linked and file.parts[0] != info:
                continue
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
        [sys.executable, "-c", code, str(folder)],
        cwd=copy,
        env=os.environ | {"SOURCE_DATE_EPOCH": THEN},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(copy)
    return folder / done.stdout.split()[-1]


def environment(cache: Path, wheelhouse: Path | None = None) -> dict[str, str]:
    """Variables for a process that builds: pip takes wheels from a folder alone, and nothing of this tree is seen.

    Projects stay as they are: what is imported is not compiled, see `isolated`.

    Args:
        cache: where onnxgen keeps what it remembers of files.
        wheelhouse: the folder of wheels, for builds in isolation.
    """
    return {
        **clean_environment(),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheelhouse or os.devnull),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_WARN_CONFLICTS": "1",  # to look for them takes a tenth of a build, and nobody reads of them
        "PIP_COMPILE": "0",  # of what a build environment holds most is never imported
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "ONNXGEN_CACHE_DIR": str(cache),
    }


def isolated(env: dict[str, str]) -> dict[str, str]:
    """The variables of `environment` for a build in isolation: its processes compile onnxgen once, for all of them."""
    return {name: value for name, value in env.items() if name != "PYTHONDONTWRITEBYTECODE"}


def clean_environment() -> dict[str, str]:
    """The variables of this process without those that tell Python and pip where to look."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "ONNXGEN_"))}
    return {**mine, "PYTHONDONTWRITEBYTECODE": "1"}
