"""`ModelGen`: the settings of `[tool.onnxgen]`, made by a script.

from onnxgen.build_hooks import ModelGen

ModelGen().input("models/mnist.onnx").out_dir("src/pkg/").dtype("float16").run_from_script()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgen.common.values import FLAG
from onnxgen.errors import OnnxgenError
from onnxgen.options import OPTIONS

if TYPE_CHECKING:
    from .build import Built
    from .settings import Progress, Project

NAME = "ModelGen"


class ModelGen:
    """Generates the modules of ONNX files that are missing or not fresh.

    Each method except `run`, `run_from_script` and `check` changes this object and returns it, so calls can be chained.
    Options are those of `onnxgen.Options`, by the same names. They apply to all inputs: use one `ModelGen` for each set
    of options. A second call for the same option replaces the first.

    `[[tool.onnxgen.models]]` with the same files and options makes the same modules, and modules of the one are fresh
    for the other. Unlike there, paths may lead outside the project.

    Args:
        root: the folder that paths are relative to; default: the working directory when it runs.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self._root = root
        self._inputs: list[str] = []
        self._output: str | None = None
        self._table: dict[str, Any] = {}

    # ---- files -------------------------------------------------------------------------------------------------------

    def input(self, source: str | os.PathLike[str]) -> ModelGen:
        """Add an ONNX file, or all files that match a pattern such as "models/*.onnx". May be called again."""
        self._inputs.append(Path(source).as_posix())
        return self

    def out_dir(self, folder: str | os.PathLike[str]) -> ModelGen:
        """Set the folder of the modules, named like their ONNX files (default: beside each). It replaces `out`."""
        self._output = f"{Path(folder).as_posix()}/"
        return self

    def out(self, file: str | os.PathLike[str]) -> ModelGen:
        """Set the module to write, for a single input; for several a name with "{stem}". It replaces `out_dir`."""
        self._output = Path(file).as_posix()
        return self

    # ---- options -----------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., ModelGen]:
        """Return a method that sets an option of `onnxgen.Options` to its argument. The default of a flag is True."""
        if (about := OPTIONS.get(name)) is None:
            raise AttributeError(f"{NAME} has no method {name!r}")
        key = about.key
        return (lambda on=True: self._set(key, on)) if about.kind is FLAG else lambda value: self._set(key, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *OPTIONS})

    def embed_states(self, on: bool = True) -> ModelGen:
        """Set `embed`. This is its name in burn-import."""
        return self._set("embed", on)

    def edited(self, way: str) -> ModelGen:
        """Set what happens to edited modules: "refuse" to overwrite them (the default), or "mine": leave them."""
        return self._set("edited", way)

    def _set(self, key: str, value: object) -> ModelGen:
        self._table[key] = value
        return self

    # ---- building ----------------------------------------------------------------------------------------------------

    def run(self, *, force: bool = False, progress: Progress | None = None) -> list[Built]:
        """Make the modules that are missing or not fresh.

        Args:
            force: overwrite modules that were edited by hand.
            progress: called with each stage of a generation as it begins.

        Returns:
            The modules, in the order of the inputs: `status` ("fresh", "written", "merged" with edits, or "kept", if it
            was edited and its source has not changed), `files`, `seconds`.

        Raises:
            OnnxgenError: a path or an option is bad, or a model can't be converted: all problems, each with its input.
                The other models were built; the files of these are unchanged.
            EditedError: a module was edited, its source changed too, and they can't be merged; `<module>.new` was
                written beside it.
        """
        from .build import build_project

        return build_project(self._project(), force=force, progress=progress)

    def run_from_script(self, *, force: bool = False, progress: Progress | None = None) -> list[Built]:
        """Call `run` with paths relative to the folder of the calling script instead of the working directory."""
        script = sys._getframe(1).f_globals.get("__file__")
        if script is None:
            what = f"{NAME}.run_from_script() must be called from a script: paths are relative to its folder"
            raise OnnxgenError(what, help=f"call {NAME}(folder)...run()")
        self._root = os.path.dirname(os.path.abspath(script))
        return self.run(force=force, progress=progress)

    def check(self) -> bool:
        """Return True if `run` would leave everything unchanged. Writes nothing. Raises the errors of `run`."""
        from .build import build_project

        return all(built.status != "stale" for built in build_project(self._project(), check=True))

    def _project(self) -> Project:
        from .settings import Project, entries_from

        if not self._inputs:
            raise OnnxgenError(f"{NAME} has no input", help=f'name an ONNX file: {NAME}().input("mnist.onnx")')
        root = Path(os.path.abspath(self._root or Path.cwd()))
        table = self._table if self._output is None else {**self._table, "output": self._output}
        models = [{**table, "source": source} for source in self._inputs]
        return Project(root, root, entries_from(root, models, "input", file=NAME, inside=False))
