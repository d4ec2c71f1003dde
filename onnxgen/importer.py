"""`import onnxgen.importer`, and from then on `import pkg.mnist` works from `pkg/mnist.onnx`, during development.

An ONNX file is looked for where Python would look for `mnist.py`, and only if there is none: a `.py`, a package, even a
bare folder of that name comes first. The module is generated into the user's cache folder, with its weights and never
beside the ONNX file; an unchanged file is generated once, a changed one when it is imported by the next process (or
`onnxgen.reload` is called). Tracebacks and `inspect.getsource` show the generated source, which is a file there.

    import onnxgen.importer

    onnxgen.importer.options("pkg.mnist", dtype="float16")      # else as the project's [tool.onnxgen] says, if it does
    from pkg.mnist import Model

Importing this module costs next to nothing until an ONNX file is imported. What goes wrong then is an `ImportError`.
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

KEPT = 3  # generations of one ONNX file that the cache folder has: a process may still run with an older one

_options: dict[str, Options] = {}  # by module; "" is every module


def options(module: str = "", /, **given: Any) -> None:
    """Options of the modules that are imported from now on: fields of `onnxgen.Options` (`weights` does not count).

    They stand in for what `[tool.onnxgen]` says about the file. `onnxgen.reload` lets them count for a module that is
    imported already.

    Args:
        module: the name of one module, `pkg.mnist`; default: all that have no options of their own.
        given: the options; none of them: forget what was said before.

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
    """Let ONNX files be imported (importing this module does it); once is as good as twice."""
    uninstall()
    sys.meta_path.append(Finder())


def uninstall() -> None:
    """No more ONNX files are imported; modules that were stay as they are."""
    sys.meta_path[:] = [f for f in sys.meta_path if (type(f).__module__, type(f).__name__) != (__name__, "Finder")]


class Finder:
    """Finds ONNX files; stands last in `sys.meta_path`, after what finds modules and packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module `name` if a folder of `path` (a package's `__path__`; None: `sys.path`) has its ONNX file."""
        stem = name.rpartition(".")[2]
        if not stem.isidentifier():
            return None
        for folder in sys.path if path is None else path:
            source = os.path.join(os.path.abspath(folder), f"{stem}.onnx") if isinstance(folder, str) else ""
            if _is_there(source):
                return ModuleSpec(name, Loader(name, source), origin=source)
        return None


class Loader(SourceFileLoader):
    """Loads the module that is generated from an ONNX file, once somebody asks for it.

    Attributes:
        name: the module's name.
        source: the ONNX file.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    @cached_property
    def path(self) -> str:  # type: ignore[override]  # of a SourceFileLoader it is an attribute, too
        """The generated file. Raises `ImportError`."""
        from onnxgen.errors import OnnxgenError

        try:
            return str(_generated(self.name, self.source))
        except OnnxgenError as error:
            raise ImportError(str(error), name=self.name, path=self.source) from None

    def exec_module(self, module: ModuleType) -> None:
        """Run the generated source; its weights lie beside `module.__file__`."""
        module.__file__ = self.path
        super().exec_module(module)


def _is_there(path: str) -> bool:
    """Whether there is a file of exactly this name: upper and lower case count on every system, as in all imports."""
    try:
        return os.path.isfile(path) and os.path.basename(path) in os.listdir(os.path.dirname(path))
    except OSError:
        return False


# ---- generating ------------------------------------------------------------------------------------------------------


def _generated(name: str, source: str) -> Path:
    """The module made of an ONNX file, in the cache folder; generated if it is not there."""
    from dataclasses import replace

    from onnxgen.build_hooks.build import build
    from onnxgen.build_hooks.freshness import content_of
    from onnxgen.common.cache import Cache
    from onnxgen.errors import OnnxgenError, Problem

    cache = Cache()
    entry: Entry = _entry(name, source, cache.folder)
    try:
        key = content_of(entry, cache).key
        version = entry.root / f"{key[:12]}{key[-12:]}"  # of either half: what was asked for, and what it is made by
        output: Path = version / entry.output.name
        built = build(replace(entry, output=output), cache=cache)
    except OnnxgenError as error:
        start = f"{entry.at('source')}: "
        plain = [Problem(p.what.removeprefix(start), p.node, p.op, p.opset, p.help) for p in error.problems]
        raise OnnxgenError(*plain) from error
    if built.status == "written":
        _sweep(version.parent)
    return output


def _entry(name: str, source: str, cache: Path) -> Entry:
    """What a build would be asked for, with its output in the cache folder."""
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
    """Options that were said for the module or for all, else those of the project that the file belongs to."""
    if name in _options or "" in _options:
        return _options[name if name in _options else ""]
    from onnxgen.build_hooks.settings import nearest, read_project
    from onnxgen.options import Options

    root = nearest(source.parent)
    project = read_project(root) if root is not None else None
    listed = [entry.options for entry in project.entries if entry.source.samefile(source)] if project else []
    return listed[0] if listed else Options()


def _sweep(versions: Path) -> None:
    """Remove the oldest of what one ONNX file was made into."""
    import shutil

    folders = [path for path in versions.iterdir() if path.is_dir()]
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


install()
