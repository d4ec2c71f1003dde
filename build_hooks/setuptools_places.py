"""The places of a project's files in the tree that setuptools installs: the inverse of `package_dir`.

`src/pkg/mnist.py` is `pkg/mnist.py` where packages lie in `src`.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, replace
from pathlib import Path

from setuptools import Distribution

from onnxgen.errors import OnnxgenError

from .settings import Entry


@dataclass(frozen=True)
class PackageFolder:
    """A folder that packages lie in: `src`, or the folder of one package that `package_dir` names.

    Attributes:
        base: the folder in the project; absolute.
        inside: the folder that it becomes, relative to where a wheel is unpacked.
    """

    base: Path
    inside: Path

    def of(self, path: Path) -> Path:
        """Return the installed path of a file in `base`."""
        return self.inside / path.relative_to(self.base)


def place_of(distribution: Distribution, path: Path, root: Path) -> PackageFolder | None:
    """Return the folder of packages that a file lies in, or None if no installation would have the file."""
    folders = {"": "", **(distribution.package_dir or {})}
    places = [PackageFolder(Path(os.path.abspath(root / f)), Path(*p.split("."))) for p, f in folders.items()]
    around = [place for place in places if path.is_relative_to(place.base)]
    if not around:
        return None
    place = max(around, key=lambda found: len(found.base.parts))
    folder = place.of(path).parent
    # The project's own folder also has files outside of packages, such as tests; a folder like src has not.
    if place.base == root and folder.parts and package_of(distribution, folder) is None:
        return None
    return place


def package_of(distribution: Distribution, folder: Path) -> str | None:
    """Return the innermost package of the distribution that contains an installed folder, or is that folder."""
    for found in (folder, *folder.parents):
        if (name := ".".join(found.parts)) in (distribution.packages or ()):
            return name
    return None


def place_of_output(distribution: Distribution, entry: Entry) -> PackageFolder:
    """Return the folder of packages that an entry's files are written to.

    Raises:
        OnnxgenError: module or sidecar would not be installed.
    """
    place = place_of(distribution, entry.output, entry.root)
    if place is None:
        packages = ", ".join(sorted(distribution.packages or ())) or "there are none"
        what = f"{entry.at('output')}: {entry.shown(entry.output)} is not in a package of this project ({packages})"
        raise OnnxgenError(what, help="put it into one")
    if entry.weights is not None and not entry.weights.is_relative_to(place.base):
        what = f"{entry.at('weights')}: {entry.shown(entry.weights)} lies outside {entry.shown(place.base)}"
        raise OnnxgenError(what, help="put the weights into the package of the module")
    return place


def installed(entry: Entry, place: PackageFolder, to: Path) -> Entry:
    """Return the entry with its files in `to`, a folder of installed files."""
    weights = entry.options.weights
    options = replace(entry.options, weights=weights and to / place.of(weights))
    return replace(entry, output=to / place.of(entry.output), options=options)


def onnx_files(distribution: Distribution, entry: Entry) -> dict[Path, Path]:
    """Map the ONNX file and its data to their installed paths: in the package that they lie in, else beside
    the module.
    """
    from .freshness import source_files

    beside = place_of_output(distribution, entry).of(entry.output).parent
    found = {}
    for path in source_files(entry):
        place = place_of(distribution, path, entry.root)
        packaged = place is not None and package_of(distribution, place.of(path).parent) is not None
        found[path] = place.of(path) if place and packaged else beside / path.relative_to(entry.source.parent)
    return found


def leave_out(distribution: Distribution, entry: Entry) -> None:
    """Keep `build_py` from installing an ONNX file as package data, unless `package_data` names it.

    An sdist contains the file, and by default every file of an sdist that lies in a package is package data.
    """
    excluded = dict(distribution.exclude_package_data or {})
    for path, becomes in onnx_files(distribution, entry).items():
        package = package_of(distribution, becomes.parent)
        if package is None:
            continue
        name = becomes.relative_to(Path(*package.split(".")))
        folder = path.parents[len(name.parts) - 1]
        if not _is_asked_for(distribution, package, folder, name):
            patterns = [*excluded.get(package, ()), glob.escape(name.as_posix())]
            excluded[package] = list(dict.fromkeys(patterns))
    distribution.exclude_package_data = excluded


def _is_asked_for(distribution: Distribution, package: str, folder: Path, name: Path) -> bool:
    """Return True if a pattern of `package_data` matches a file of a package that lies in `folder`."""
    patterns = [p for who in ("", package) for p in (distribution.package_data or {}).get(who, ())]
    found = (glob.glob(pattern, root_dir=folder, recursive=True) for pattern in patterns)
    return any(os.path.normpath(name) == os.path.normpath(match) for matches in found for match in matches)
