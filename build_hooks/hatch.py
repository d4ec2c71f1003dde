"""hatchling's build hook: `[tool.hatch.build.hooks.onnxgen]` in a project that has `[tool.onnxgen]`.

| what is built | what happens |
|---|---|
| a wheel | modules are made in a temporary folder, and get the places that modules of the source tree would have |
| an editable wheel | modules are written in place |
| an sdist | nothing is generated; the files that modules are made from are added |

`hatch clean` has nothing to remove: an editable install imports the modules in place.

hatchling loads this module when it looks for the hook of any package, so the builder is imported only when it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from .settings import Entry, Project

TABLE = "tool.hatch.build.hooks.onnxgen"
# Keys of a hook's table that hatchling reads itself.
COMMON = ("dependencies", "enable-by-default", "require-runtime-dependencies", "require-runtime-features")


@hookimpl
def hatch_register_build_hook() -> type[BuildHookInterface[BuilderConfig]]:
    return ModelBuildHook


class ModelBuildHook(BuildHookInterface[BuilderConfig]):
    """Adds the modules of `[tool.onnxgen]` to what hatchling builds."""

    PLUGIN_NAME = "onnxgen"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare a build. Any error ends it with a message and no traceback."""
        try:
            project = self._project()
            if self.target_name == "sdist":
                build_data["force_include"].update(self._sources(project))
            elif version == "editable":
                self._write_in_place(project)
            else:
                build_data["force_include"].update(self._modules(project))
        except OnnxgenError as error:
            self.app.abort(f"onnxgen: {error}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clean up when the wheel or the sdist is complete."""
        self._folder.cleanup()

    @cached_property
    def _folder(self) -> TemporaryDirectory[str]:
        """Make the temporary folder for modules of a wheel. It is removed when the build ends, successful or not."""
        return TemporaryDirectory(prefix="onnxgen-")

    def _project(self) -> Project:
        from .settings import FILE, read_project

        if unknown := sorted(set(self.config) - set(COMMON)):
            what = f"{FILE}: {TABLE}.{unknown[0]}: unknown key"
            raise OnnxgenError(what, help="put models and their options into [tool.onnxgen]")
        project = read_project(self.root)
        if project is None:
            what = f"{FILE}: {TABLE}: the file has no [tool.onnxgen] table, so nothing is built"
            raise OnnxgenError(what, help="add [[tool.onnxgen.models]] with source and output")
        return project

    # ---- what goes where ---------------------------------------------------------------------------------------------

    def _sources(self, project: Project) -> dict[str, str]:
        """Return the files that modules are made from, with their places in the sdist, also those that git ignores."""
        from .freshness import is_adopted, is_edited, sources

        paths: set[Path] = set()
        for entry in project.entries:
            made_again = not is_adopted(entry) and not is_edited(entry)
            paths |= sources(entry) - ({entry.output} if made_again else set())
        return {self._file(path): os.path.relpath(path, self.root) for path in sorted(paths)}

    def _file(self, path: Path) -> str:
        """Return a file, or the target of a link out of the project, since hatchling would put the link in an sdist."""
        real = path.resolve()
        return str(path if real.is_relative_to(Path(self.root).resolve()) else real)

    def _write_in_place(self, project: Project) -> None:
        from .build import build_project

        for built in build_project(project):
            built.need_in_place()

    def _modules(self, project: Project) -> dict[str, str]:
        """Return modules and sidecars, made in a temporary folder, by their places in the project.

        hatchling maps these places like those of other files (`packages`, `sources`), and takes no other file there.
        """
        from .build import build_project

        for entry in project.entries:
            self._check_places(entry)
        to = Path(self._folder.name).resolve()
        files = [path for built in build_project(project, to) for path in built.files]
        places = {str(path): str(path.relative_to(to)) for path in files}
        for entry in project.entries:
            places.update(self._onnx_files(entry))
        return places

    def _check_places(self, entry: Entry) -> None:
        if not self._is_selected(entry.output):
            what = f"{entry.at('output')}: {entry.shown(entry.output)} is not in a package of this project"
            place = f"tool.hatch.build.targets.{self.target_name}.packages"
            raise OnnxgenError(what, help=f"put it into one, or name its folder in {place}")
        weights = entry.weights or entry.output  # embedded in the module
        here, there = (os.path.dirname(place(entry.output)) for place in (str, self._inside))
        if os.path.relpath(weights, here) != os.path.relpath(self._inside(weights), there):
            what = f"{entry.at('weights')}: {entry.shown(weights)} would not be where the module looks for it"
            raise OnnxgenError(what, help="put the weights into the module's package")

    def _inside(self, path: Path) -> str:
        """Return where a file of the project would be in a wheel."""
        return self.build_config.get_distribution_path(os.path.relpath(path, self.root))

    def _is_selected(self, path: Path) -> bool:
        """Return True if hatchling would include files of this folder, even if version control ignores them."""
        if places := self.build_config.only_include:
            return any(path.is_relative_to(place) for place in places)
        return self.build_config.path_is_included(os.path.relpath(path, self.root))

    def _onnx_files(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """Yield ONNX file and data, in their package or beside the module; or let hatchling leave them out."""
        from .freshness import source_files

        for path in source_files(entry):
            place = path
            if not self._is_selected(path):
                place = entry.output.parent / path.relative_to(entry.source.parent)
            if entry.include_onnx:
                yield self._file(path), os.path.relpath(place, self.root)
            else:
                self.build_config.build_reserved_paths.add(self._inside(place))
