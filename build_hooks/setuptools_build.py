"""The sub-command of setuptools' `build` that writes modules of `[tool.onnxgen]`.

The models are those of `pyproject.toml`, or of `setup(onnxgen_models=)`.

| what is built | what happens |
|---|---|
| a wheel | modules are written into the build folder, and the source tree stays as it is |
| an editable wheel | modules are written in place |
| an sdist | nothing is generated; the files that modules are made from are added |

`PackageFolder` inverts `package_dir`: `src/pkg/mnist.py` is `pkg/mnist.py` where packages lie in
`src`. setuptools never empties its build folder, and puts all of it into the wheel. So files that
the last build put there and this one does not are removed (`remove_leftovers`), such as the sidecar
of a module that now embeds its weights, or a renamed module.
"""

from __future__ import annotations

import glob
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Distribution
from setuptools.errors import SetupError

from onnxgen.errors import OnnxgenError

from .settings import Entry, entries_from, read_project

RECORD = "onnxgen.txt"


def remove_leftovers(temporary: Path, build_lib: Path, files: Iterable[str], others: Iterable[str]) -> None:
    """Remove files of the last build that this build did not write, and note the files of this build for the next one.

    Args:
        temporary: setuptools' folder for files that do not go into a wheel; it has the notes.
        build_lib: the folder that goes into the wheel. Notes about another folder are ignored.
        files: the files that this build wrote there.
        others: the files that other commands wrote there.
    """
    notes, folder = temporary / RECORD, os.path.abspath(build_lib)
    now = {os.path.relpath(file, folder) for file in files}
    kept = now | {os.path.relpath(file, folder) for file in others}
    before: list[str] = []
    with suppress(OSError, ValueError):
        before = notes.read_text(encoding="utf-8").splitlines()
    if before[:1] == [folder]:
        for name in set(before[1:]) - kept:
            Path(folder, name).unlink(missing_ok=True)
    notes.parent.mkdir(parents=True, exist_ok=True)
    notes.write_text("\n".join([folder, *sorted(now)]), encoding="utf-8")


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
    place = max(around, key=lambda candidate: len(candidate.base.parts))
    folder = place.of(path).parent
    # The project's own folder also has files outside of packages, such as tests; a folder like src has not.
    if place.base == root and folder.parts and package_of(distribution, folder) is None:
        return None
    return place


def package_of(distribution: Distribution, folder: Path) -> str | None:
    """Return the innermost package of the distribution that contains an installed folder, or is that folder."""
    for candidate in (folder, *folder.parents):
        if (name := ".".join(candidate.parts)) in (distribution.packages or ()):
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
    """Map the ONNX file and its data to their installed paths: in their package, else beside the module."""
    from .freshness import source_files

    beside = place_of_output(distribution, entry).of(entry.output).parent
    targets = {}
    for path in source_files(entry):
        place = place_of(distribution, path, entry.root)
        packaged = place is not None and package_of(distribution, place.of(path).parent) is not None
        targets[path] = place.of(path) if place and packaged else beside / path.relative_to(entry.source.parent)
    return targets


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
    matched = (glob.glob(pattern, root_dir=folder, recursive=True) for pattern in patterns)
    return any(os.path.normpath(name) == os.path.normpath(match) for matches in matched for match in matches)


NAME = "build_onnxgen"
KEYWORD = "onnxgen_models"


# ---- wiring ----------------------------------------------------------------------------------------------------------


def hook(distribution: Distribution) -> None:
    """Add the sub-command to the `build` command of a distribution that has models.

    Commands are created at first use, after all settings were read, and from a class that setup.py, setup.cfg or
    pyproject.toml may have replaced. So the lookup of the class is replaced. A command created now would miss its
    options, and a class put into `cmdclass` now would keep setup.cfg's `cmdclass` from being read.
    """
    lookup = distribution.get_command_class

    def get_command_class(command: str) -> Any:
        if command == NAME:
            return BuildOnnxgen
        return _with_models(lookup(command)) if command == "build" else lookup(command)

    distribution.get_command_class = get_command_class


def _with_models(build: Any) -> Any:
    """Return a subclass of a `build` command that also has the sub-command."""
    if any(name == NAME for name, _ in build.sub_commands):
        return build

    class Build(build):  # type: ignore[misc]
        command_name = "build"
        sub_commands = [*build.sub_commands, (NAME, lambda self: bool(models(self.distribution)))]

        def finalize_options(self) -> None:
            super().finalize_options()
            with _failing():  # now, because `build_py.finalize_options` reads which files to leave out
                for entry in models(self.distribution):
                    if not entry.include_onnx:
                        leave_out(self.distribution, entry)

    return Build


def models(distribution: Distribution) -> tuple[Entry, ...]:
    """Return the entries of a distribution. Raises `SetupError` with everything that is wrong with them."""
    root = Path(os.path.abspath(distribution.src_root or os.curdir))
    listed = getattr(distribution, KEYWORD, None)
    with _failing():
        project = read_project(root)
        if listed is None:
            return () if project is None else project.entries
        if project is not None and project.entries:
            what = f"setup.py: {KEYWORD}: pyproject.toml has [tool.onnxgen] too"
            raise OnnxgenError(what, help="name the models in only one of them")
        return entries_from(root, listed, KEYWORD, file="setup.py")


@contextmanager
def _failing() -> Iterator[None]:
    """Turn errors in the block into a message of setuptools without traceback."""
    try:
        yield
    except OnnxgenError as error:
        raise SetupError(str(error)) from error


# ---- the command -----------------------------------------------------------------------------------------------------


class BuildOnnxgen(Command):  # type: ignore[misc]
    """The sub-command; see `setuptools.command.build.SubCommand` for its interface."""

    command_name = NAME
    description = "write the modules of [tool.onnxgen], and their weights"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [("build-lib=", "d", "the folder to build into")]

    def initialize_options(self) -> None:
        self.build_lib: Any = None
        self.build_temp: Any = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        # Not the folder of `build_py`: if a project has no other modules, setuptools may leave an older folder there.
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_temp", "build_temp"))

    def run(self) -> None:
        """Write what is not fresh. One error has the problems of all models."""
        errors, others = [], self._others()
        with _failing():
            for entry in models(self.distribution):
                try:
                    self._build(entry)
                except OnnxgenError as error:
                    errors.append(error)
            if errors:
                raise OnnxgenError(*(problem for error in errors for problem in error.problems))
        if not self.editable_mode:
            remove_leftovers(Path(self.build_temp), Path(self.build_lib), self.get_outputs(), others)

    def _others(self) -> list[str]:
        """Return what `build_py` puts into the build folder."""
        if self.editable_mode or not self.distribution.has_pure_modules():
            return []
        files: list[str] = self.get_finalized_command("build_py").get_outputs(include_bytecode=False)
        return files

    def _build(self, entry: Entry) -> None:
        from .build import build

        place = place_of_output(self.distribution, entry)
        if self.editable_mode:
            built = build(entry)
            built.need_in_place()
        else:
            built = build(entry, to=Path(self.build_lib, place.inside), base=place.base)
            for path, becomes in self._onnx_files(entry).items():
                target = Path(self.build_lib, becomes)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        self._declare(place.of(entry.output))
        self.announce(f"{entry.shown(entry.output)}: {built.status}", logging.INFO)

    def _declare(self, module: Path) -> None:
        """Declare a module outside of packages to setuptools, which installs nothing if it knows no module."""
        name = ".".join(module.with_suffix("").parts)
        if package_of(self.distribution, module.parent) is not None:
            return
        if package := name.rpartition(".")[0]:
            self.distribution.packages = [*(self.distribution.packages or ()), package]
        elif name not in (self.distribution.py_modules or ()):
            self.distribution.py_modules = [*(self.distribution.py_modules or ()), name]

    def _onnx_files(self, entry: Entry) -> dict[Path, Path]:
        return onnx_files(self.distribution, entry) if entry.include_onnx else {}

    # ---- called by setuptools even if `run` was not ------------------------------------------------------------------

    def get_source_files(self) -> list[str]:
        """Return what an sdist must have: ONNX files with data, templates, and modules, which may be edited."""
        from .freshness import sources

        with _failing():
            paths = {path for entry in models(self.distribution) for path in sources(entry)}
        return sorted({os.path.relpath(path) for path in paths})

    def get_outputs(self) -> list[str]:
        """Return what an installation gets: modules, sidecars, and ONNX files that were requested."""
        if self.editable_mode:
            return list(self.get_output_mapping())
        from .build import outputs

        paths: list[Path] = []
        with _failing():
            for entry in models(self.distribution):
                place = place_of_output(self.distribution, entry)
                paths += outputs(installed(entry, place, Path(self.build_lib)))
                paths += [Path(self.build_lib, becomes) for becomes in self._onnx_files(entry).values()]
        return sorted({str(path) for path in paths})

    def get_output_mapping(self) -> dict[str, str]:
        """Return the files in place by their places in the build folder, for an editable install."""
        mapping: dict[Path, Path] = {}
        if not self.editable_mode:
            return {}
        from .build import outputs

        with _failing():
            for entry in models(self.distribution):
                place = place_of_output(self.distribution, entry)
                mapping.update((place.of(path), path) for path in outputs(entry))
                mapping.update((becomes, path) for path, becomes in self._onnx_files(entry).items())
        return {
            os.path.join(self.build_lib, becomes): os.path.relpath(path) for becomes, path in sorted(mapping.items())
        }
