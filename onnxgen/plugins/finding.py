"""Find plugins: `.py` files, folders, modules by dotted names, and those of installed packages.

Nothing here runs a plugin or imports onnx, since builds use it to find out if anything changed.

Installed packages name modules by entry points of the group `onnxgen.ops`. These are used without
an option, so only for operators outside the domains of ONNX, onnxruntime and onnxgen. Thus an
installed package changes nothing for files that do not need it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen.errors import OnnxgenError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from onnxgen.graph.operators import OperatorTable


INIT = "__init__.py"


def is_path(name: str) -> bool:
    """Return True if a plugin is named by its path (`ops.py`, `plugins/ops/`), not by its dotted name (`acme.ops`)."""
    return name.endswith(".py") or "/" in name or os.sep in name


def place_of(name: str) -> Path | None:
    """Return the file of a plugin, or the folder if it is a package. None for a module without a file.

    Raises:
        OnnxgenError: there is no such file, or no such module.
    """
    if is_path(name):
        return _checked(Path(os.path.abspath(name)), name)
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        what = "is neither the path of a .py file nor the name of a module"
        raise _error(name, what, "name it like plugins/ops.py or a.b")
    spec = _spec(name)
    if spec is None:
        raise _error(name, "there is no such module", "install it, or name its file: path/to/plugin.py")
    if not spec.has_location or spec.origin is None:
        return None
    file = Path(spec.origin)
    return file.parent if file.name == INIT else file


def _checked(path: Path, name: str) -> Path:
    if path.is_dir():
        if not (path / INIT).is_file():
            raise _error(name, f"the folder has no {INIT}", "name a .py file in it")
        return path
    if not path.is_file():
        raise _error(name, "there is no such file" if not path.exists() else "is not a regular file")
    if path.suffix != ".py":
        raise _error(name, "is not a .py file")
    return path


def files_of(place: Path) -> list[Path]:
    """Return the file, or all Python files of a package."""
    if place.is_file():
        return [place]
    files = []
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        files += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    return files


def _spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module, without importing the packages around it, which may be large."""
    if name == "__main__":
        main: ModuleSpec | None = getattr(sys.modules[name], "__spec__", None)
        return main or ModuleSpec(name, None)
    first, *rest = name.split(".")
    with searching_here():
        try:
            spec = importlib.util.find_spec(first)
        except (ImportError, ValueError):  # a module without a spec
            spec = ModuleSpec(first, None) if first in sys.modules else None
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


@contextmanager
def searching_here() -> Iterator[None]:
    """Also search modules in the current folder, as `python` does but an installed command does not."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _error(name: str, what: str, help: str = "") -> OnnxgenError:
    return OnnxgenError(f"--plugin {name}: {what}", help=help)


GROUP = "onnxgen.ops"


def found() -> list[EntryPoint]:
    """Return the entry points, sorted."""
    from importlib.metadata import entry_points  # as long to import as a small file to generate

    return sorted(set(entry_points(group=GROUP)), key=lambda e: (e.name, e.value))


def installed() -> OperatorTable:
    """Return the operators of all of them.

    Raises:
        OnnxgenError: one can't be imported, has no operator, or has the same operator as another.
    """
    from onnxgen.plugins.loading import Plugin, plugin, together

    plugins: dict[str, Plugin] = {}
    for entry in found():
        try:
            plugins.setdefault(entry.module, plugin(entry.module))
        except OnnxgenError as error:
            brought = f"entry point {entry.name} of {entry.dist.name if entry.dist is not None else 'a package'}"
            (problem,) = error.problems
            what = problem.what.removeprefix(f"--plugin {entry.module}: ")
            raise OnnxgenError(f"{brought}: {what}", help=problem.help) from error
    return together(plugins.values())
