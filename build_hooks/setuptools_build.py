"""The sub-command of setuptools' `build` that writes the modules of `[tool.onnxgen]`, or of `setup(onnxgen_models=)`.

| what is built | what happens |
|---|---|
| a wheel | modules are written into the build folder, and the source tree stays as it is |
| an editable wheel | modules are written in place |
| an sdist | nothing is generated; the files that modules are made from are added |
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from setuptools import Command, Distribution
from setuptools.errors import SetupError

from onnxgen.errors import OnnxgenError

from .settings import Entry, entries_from, read_project
from .setuptools_leftovers import remove_leftovers
from .setuptools_places import installed, leave_out, onnx_files, package_of, place_of_output

NAME = "build_onnxgen"
KEYWORD = "onnxgen_models"


# ---- wiring ----------------------------------------------------------------------------------------------------------


def hook(distribution: Distribution) -> None:
    """Add the sub-command to the `build` command of a distribution that has models.

    Commands are created at first use, after all settings were read, and from a class that setup.py, setup.cfg or
    pyproject.toml may have replaced. So the lookup of the class is replaced. A command created now would miss its
    options, and a class put into `cmdclass` now would keep setup.cfg's `cmdclass` from being read.
    """
    found = distribution.get_command_class

    def get_command_class(command: str) -> Any:
        if command == NAME:
            return BuildOnnxgen
        return _with_models(found(command)) if command == "build" else found(command)

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
    given = getattr(distribution, KEYWORD, None)
    with _failing():
        project = read_project(root)
        if given is None:
            return () if project is None else project.entries
        if project is not None and project.entries:
            what = f"setup.py: {KEYWORD}: pyproject.toml has [tool.onnxgen] too"
            raise OnnxgenError(what, help="name the models in only one of them")
        return entries_from(root, given, KEYWORD, file="setup.py")


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
        found: list[str] = self.get_finalized_command("build_py").get_outputs(include_bytecode=False)
        return found

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
        """Return what an sdist must have: ONNX files with their data, templates, and existing modules, which may be
        edited.
        """
        from .standing import sources

        with _failing():
            found = {path for entry in models(self.distribution) for path in sources(entry)}
        return sorted({os.path.relpath(path) for path in found})

    def get_outputs(self) -> list[str]:
        """Return what an installation gets: modules, sidecars, and ONNX files that were requested."""
        if self.editable_mode:
            return list(self.get_output_mapping())
        from .build import outputs

        found: list[Path] = []
        with _failing():
            for entry in models(self.distribution):
                place = place_of_output(self.distribution, entry)
                found += outputs(installed(entry, place, Path(self.build_lib)))
                found += [Path(self.build_lib, becomes) for becomes in self._onnx_files(entry).values()]
        return sorted({str(path) for path in found})

    def get_output_mapping(self) -> dict[str, str]:
        """Return the files in place by their places in the build folder, for an editable install."""
        found: dict[Path, Path] = {}
        if not self.editable_mode:
            return {}
        from .build import outputs

        with _failing():
            for entry in models(self.distribution):
                place = place_of_output(self.distribution, entry)
                found.update((place.of(path), path) for path in outputs(entry))
                found.update((becomes, path) for path, becomes in self._onnx_files(entry).items())
        return {os.path.join(self.build_lib, becomes): os.path.relpath(path) for becomes, path in sorted(found.items())}
