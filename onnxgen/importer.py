"""After `import onnxgen.importer`, `import pkg.mnist` works from `pkg/mnist.onnx`. For development.

Python looks for an ONNX file where it would look for `mnist.py`, after everything else: a `.py`, a package, even a bare
folder of that name comes first. The module is generated with its weights into the user's cache folder, never beside the
ONNX file. An unchanged file is generated once, a changed one when the next process imports it (or when
`onnxgen.reload` is called). Tracebacks and `inspect.getsource` show the generated source.

    import onnxgen.importer

    onnxgen.importer.options("pkg.mnist", dtype="float16")      # by default those in the project's [tool.onnxgen]
    from pkg.mnist import Model

Importing this module costs almost nothing until an ONNX file is imported. Errors are then `ImportError`s.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from onnxgen.build_hooks.settings import Entry
    from onnxgen.options import Options

KEPT_VERSIONS = 3  # of one ONNX file in the cache folder: a process may still use an older one

_options: dict[str, Options] = {}  # by module; "" is for all modules


def options(module: str = "", /, **given: Any) -> None:
    """Set options of modules that are imported from now on. They replace those in `[tool.onnxgen]`.

    For a module that is already imported, call `onnxgen.reload` afterwards.

    Args:
        module: the name of one module, `pkg.mnist`. Default: all that have no options of their own.
        given: fields of `onnxgen.Options` (`weights` is ignored). None given: remove the options set before.

    Raises:
        OnnxgenError: a value is wrong.
        TypeError: there is no such option.
    """
    from onnxgen.options import Options

    if given:
        _options[module] = Options(**given)
    else:
        _options.pop(module, None)


def install() -> None:
    """Enable imports of ONNX files. Importing this module does it."""
    uninstall()
    sys.meta_path.append(Finder())


def uninstall() -> None:
    """Disable imports of ONNX files. Modules that are already imported stay."""
    sys.meta_path[:] = [f for f in sys.meta_path if (type(f).__module__, type(f).__name__) != (__name__, "Finder")]


class Finder:
    """Finds ONNX files. Last in `sys.meta_path`, after the finders of modules and packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the ONNX file of the module `name` in `path`, a package's `__path__` (None: `sys.path`)."""
        stem = name.rpartition(".")[2]
        if not stem.isidentifier():
            return None
        for folder in sys.path if path is None else path:
            source = os.path.join(os.path.abspath(folder), f"{stem}.onnx") if isinstance(folder, str) else ""
            if _is_there(source):
                return ModuleSpec(name, Loader(name, source), origin=source)
        return None


class Loader(SourceFileLoader):
    """Generates the module from an ONNX file when it is needed, and loads it.

    Attributes:
        name: the module's name.
        source: the ONNX file.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    @cached_property
    def path(self) -> str:  # type: ignore[override]  # an attribute of SourceFileLoader
        """The generated file. Raises `ImportError`."""
        from onnxgen.errors import OnnxgenError

        try:
            return str(_generated(self.name, self.source))
        except OnnxgenError as error:
            raise ImportError(str(error), name=self.name, path=self.source) from None

    def exec_module(self, module: ModuleType) -> None:
        """Run the generated source, whose weights are beside `module.__file__`."""
        module.__file__ = self.path
        super().exec_module(module)


def _is_there(path: str) -> bool:
    """Return True if a file has exactly this name. Case matters on every system, as in all imports."""
    try:
        return os.path.isfile(path) and os.path.basename(path) in os.listdir(os.path.dirname(path))
    except OSError:
        return False


def _generated(name: str, source: str) -> Path:
    """Return the module of an ONNX file in the cache folder. Generates it if it is missing."""
    from dataclasses import replace

    from onnxgen.build_hooks.build import build
    from onnxgen.build_hooks.freshness import content_of
    from onnxgen.common.cache import Cache
    from onnxgen.errors import OnnxgenError

    cache = Cache()
    entry: Entry = _entry(name, source, cache.folder)
    try:
        key = content_of(entry, cache).key
        version = entry.root / f"{key[:12]}{key[-12:]}"  # a part of each half (see `freshness`)
        output: Path = version / entry.output.name
        built = build(replace(entry, output=output), cache=cache)
    except OnnxgenError as error:
        start = f"{entry.at('source')}: "
        raise OnnxgenError(*(replace(p, what=p.what.removeprefix(start)) for p in error.problems)) from error
    if built.status == "written":
        _sweep(version.parent)
    return output


def _entry(name: str, source: str, cache: Path) -> Entry:
    """Return the `Entry` of a build, with its output in the cache folder."""
    import hashlib
    from dataclasses import replace
    from pathlib import Path

    from onnxgen.build_hooks.settings import Entry

    digest = hashlib.sha256(os.fsencode(os.path.realpath(source))).hexdigest()[:16]
    path = Path(source)
    versions = cache / "imported" / f"{path.stem}-{digest}"
    chosen = replace(_chosen(name, path), weights=None)
    return Entry(name, path, versions / f"{path.stem}.py", chosen, root=versions, file="onnxgen.importer")


def _chosen(name: str, source: Path) -> Options:
    """Return the options set for the module or for all, else those of the project that the file belongs to."""
    if name in _options or "" in _options:
        return _options[name if name in _options else ""]
    from onnxgen.build_hooks.settings import nearest, read_project
    from onnxgen.options import Options

    root = nearest(source.parent)
    project = read_project(root) if root is not None else None
    listed = [entry.options for entry in project.entries if entry.source.samefile(source)] if project else []
    return listed[0] if listed else Options()


def _sweep(versions: Path) -> None:
    """Remove the oldest versions of one ONNX file."""
    import shutil

    folders = [path for path in versions.iterdir() if path.is_dir()]
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT_VERSIONS]:
        shutil.rmtree(old, ignore_errors=True)


install()
