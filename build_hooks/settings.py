"""`[tool.onnxgen]` of a `pyproject.toml`: the models of a project, their modules and options.

    [tool.onnxgen]                          # options for all models
    dtype = "float16"

    [[tool.onnxgen.models]]
    source = "models/mnist.onnx"            # or "models/*.onnx"
    output = "src/pkg/mnist.py"             # or "src/pkg/{stem}.py", or the folder "src/pkg/"

Paths are relative to the project, inside it, and without conflicts between models. All problems of
all entries are reported together, each with its file and key. Nothing here imports onnx, numpy or
black, since a project is read before it is known if anything must be built.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxgen.common import values
from onnxgen.common.names import identifier
from onnxgen.common.values import shown
from onnxgen.errors import OnnxgenError, Problem, counted, did_you_mean
from onnxgen.options import OPTIONS, Options
from onnxgen.plugins.finding import is_path

STEM = "{stem}"
# bytes of a path and of a file name; systems allow little more, and suffixes are added to names
MAX_PATH_BYTES, MAX_NAME_BYTES = 1000, 240
_GLOB = re.compile(r"[*?\[]")


class Paths:
    """Makes paths as written in the settings absolute. Each method raises `ValueError` with what is wrong."""

    def __init__(self, root: Path, inside: bool) -> None:
        self.root, self.inside = root, inside

    def _absolute(self, text: object) -> str:
        """Return the absolute form of a path written with `/`. If `inside` is set, it must lie in the project."""
        if not isinstance(text, str) or not text:
            raise ValueError(f"must be a path, not {shown(text)}")
        if not text.isprintable():
            raise ValueError(f"{shown(text)} has a character that no path should have")
        longest = max(len(os.fsencode(part)) for part in text.split("/"))
        if len(os.fsencode(text)) > MAX_PATH_BYTES or longest > MAX_NAME_BYTES:
            raise ValueError(f"{shown(text)} is too long for a path")
        if "\\" in text and (self.inside or os.sep == "/"):
            raise ValueError(f"{shown(text)}: paths are written with / on every system")
        path = os.path.normpath(os.path.join(self.root, text))
        if self.inside:
            if text.startswith("/") or re.match(r"[A-Za-z]:", text):
                raise ValueError(f"{shown(text)} is absolute, but must be relative to the project")
            if not Path(path).is_relative_to(self.root):
                raise ValueError(f"{shown(text)} lies outside the project ({self.root})")
        return path

    def sources(self, text: object) -> tuple[list[Path], bool]:
        """Return the ONNX files, and whether a glob found them."""
        path = self._absolute(text)
        if not _GLOB.search(path[len(str(self.root)) :]) or os.path.isfile(path):
            if not os.path.isfile(path):
                raise ValueError(f"{shown(text)} is {'a folder' if os.path.isdir(path) else 'missing'}")
            return [Path(path)], False
        import glob

        pattern = os.path.relpath(path, self.root)
        names = sorted(name for name in glob.glob(pattern, root_dir=self.root, recursive=True))
        files = [self.root / name for name in names if os.path.isfile(self.root / name)]
        if odd := [name for name in names if not name.isprintable()]:
            raise ValueError(f"{shown(odd[0])} has a character that no path should have")
        if not files:
            raise ValueError(f"no file matches {shown(text)}")
        return files, True

    def output(self, text: object, source: Path, is_glob: bool) -> Path:
        """Return the module of a source: beside it by default, in a folder if the text ends in `/`, or as named."""
        name = f"{identifier(source.stem, 'model')}.py"
        if text is None:
            return source.with_name(name)
        path = self._absolute(_filled(text, source))
        assert isinstance(text, str)
        if text.endswith("/"):
            return Path(path) / name
        if not path.endswith(".py") or Path(path).name == ".py":
            raise ValueError(f"{shown(text)} must be the name of a .py file, or of a folder with / at the end")
        if is_glob and STEM not in text:
            raise ValueError(f"{shown(text)} is one file, but source may match several: write {STEM} in it")
        return Path(path)

    def weights(self, text: object, source: Path) -> Path:
        """Return the sidecar of a source."""
        if isinstance(text, str) and text.endswith("/"):
            raise ValueError(f"{shown(text)} is a folder, but the weights need the name of a file")
        return Path(self._absolute(_filled(text, source)))

    def folder(self, text: object, source: Path) -> Path:
        """Return an existing folder."""
        path = self._absolute(text)
        if not os.path.isdir(path):
            raise ValueError(f"{shown(text)} is not a folder")
        return Path(path)

    def plugins(self, names: Sequence[str], source: Path) -> tuple[str, ...]:
        """Return plugins: paths made absolute, dotted names unchanged. They need not exist yet."""
        return tuple(self._absolute(name) if is_path(name) else name for name in names)


def _filled(text: object, source: Path) -> object:
    return text.replace(STEM, identifier(source.stem, "model")) if isinstance(text, str) else text


class _Real:
    """Resolves paths. Most files share their folders, so mainly links among the files themselves are checked."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: Path) -> str:
        folder, name = os.path.split(path)
        if os.path.islink(path):
            return os.path.realpath(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        return os.path.join(self._folders[folder], name)


def check_places(entries: Sequence[Entry], inside: bool, wrong: Callable[[str, str], None]) -> None:
    """Report to `wrong` every file that would be written outside the project, over a source, or by two models."""
    real_path = _Real()
    sources = {real_path(entry.source): entry for entry in entries}
    taken: dict[str, tuple[Entry, str]] = {}
    for entry in entries:
        root = real_path(entry.root) if inside else ""
        for name, path in (("output", entry.output), ("weights", entry.weights)):
            if path is None:
                continue
            real = real_path(path)
            if problem := _problem(entry, path, real, sources, taken, root):
                wrong(f"{entry.key}.{name}", f"{entry.shown(path)} {problem}")
                break  # the sidecar lies beside the module and would have the same problem
            taken[real.casefold()] = (entry, name)
        templates = entry.options.templates
        if templates is not None and _is_in(real_path(entry.output), os.path.realpath(templates)):
            wrong(f"{entry.key}.templates", f"the folder {entry.shown(templates)} holds the output, too")


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _problem(
    entry: Entry,
    path: Path,
    real: str,
    sources: Mapping[str, Entry],
    taken: Mapping[str, tuple[Entry, str]],
    root: str,
) -> str:
    """Describe what is wrong with a file that an entry writes; empty if nothing is. `real`: its resolved path."""
    if root and not _is_in(real, root):
        return f"lies outside the project: a link leads to {real}"
    if real in sources:
        return f"is the source of {sources[real].key}"
    if real.casefold() in taken:  # on every system: a wheel may be installed on one that ignores case
        other, what = taken[real.casefold()]
        same = "this model" if other is entry else other.key
        which = f" for {other.shown(other.source)}" if other is not entry and other.key == entry.key else ""
        case = "" if getattr(other, what).name == path.name else ", where case does not count"
        return f"is the {what} of {same}{which}, too{case}"
    return "is a folder" if os.path.isdir(path) else ""


FILE = "pyproject.toml"
TABLE = "tool.onnxgen"
EDITED = ("refuse", "mine")
Progress = Callable[[str], None]  # called with each stage of a generation as it begins
MAX_PROBLEMS_SHOWN = 50  # problems in one error message

KEYS = {about.key: (name, about) for name, about in OPTIONS.items()}
ABOUT = {"edited": values.choice(*EDITED), "include-onnx": values.FLAG}  # keys that are not options of a generation
PLACES = ("source", "output")


@dataclass(frozen=True)
class Entry:
    """One model of a project.

    Attributes:
        key: the entry's place in its file, as in errors: `tool.onnxgen.models[0]`. A glob gives several entries with
            one key.
        source: the ONNX file; absolute, like every path here.
        output: the module.
        options: the options of the generation; `weights` is absolute, too.
        edited: "refuse" to build if the module was edited and its source changed, or "mine": never overwrite it.
        include_onnx: True if a wheel has the ONNX file, too.
        root: the project's folder, which contains `output`.
        file: the name of the file that has the entry.
    """

    key: str
    source: Path
    output: Path
    options: Options = field(default_factory=Options)
    edited: str = "refuse"
    include_onnx: bool = False
    root: Path = Path()
    file: str = FILE

    @property
    def weights(self) -> Path | None:
        """Return the path of the sidecar; None if the module embeds the weights."""
        return None if self.options.embed else self.options.weights or self.output.with_suffix(".safetensors")

    def at(self, name: str = "") -> str:
        """Return the prefix of errors: `pyproject.toml: tool.onnxgen.models[0].output`."""
        return f"{self.file}: {self.key}{name and '.'}{name}"

    def shown(self, path: Path) -> str:
        """Return a path as the user knows it: relative to the project if it lies there."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


@dataclass(frozen=True)
class Project:
    """The contents of `[tool.onnxgen]`: the project's folder, the file, and its models in order.

    `missing`: the settings that its back end needs to build them and that the file lacks; empty if there are none.
    """

    root: Path
    file: Path
    entries: tuple[Entry, ...]
    missing: str = ""


def read_project(root: Path | str) -> Project | None:
    """Read the settings of the project in the folder `root`. Returns None if there are none.

    Raises:
        OnnxgenError: the file can't be read, or `[tool.onnxgen]` is wrong: with all problems.
    """
    root = Path(os.path.abspath(root))
    document = _document(root / FILE)
    table = _own_table(document)
    if table is None:
        return None
    reader = _Found(root, FILE, inside=True)
    defaults = reader.defaults(table)
    models = table.get("models", [])
    if isinstance(models, dict):
        reader.wrong(f"{TABLE}.models", "must be a list of tables", "write [[tool.onnxgen.models]]")
        models = []
    reader.models(models, f"{TABLE}.models", defaults)
    return Project(root, root / FILE, reader.finish(), _missing(document))


def nearest(folder: Path) -> Path | None:
    """Return the nearest folder with a pyproject.toml, from `folder` upwards, or None."""
    folder = Path(os.path.abspath(folder))
    return next((parent for parent in (folder, *folder.parents) if (parent / FILE).is_file()), None)


def entries_from(
    root: Path | str, models: Sequence[Mapping[str, Any] | str], where: str, *, file: str = FILE, inside: bool = True
) -> tuple[Entry, ...]:
    """Make entries from sources other than `[tool.onnxgen]`: `setup(onnxgen_models=[...])`, or a script.

    Args:
        root: the folder that paths are relative to.
        models: tables with the same keys as in `[[tool.onnxgen.models]]`, or the path of an ONNX file alone.
        where: the name of the list in errors, such as `onnxgen_models`.
        file: the name of the file in errors.
        inside: all paths must lie in `root`.

    Raises:
        OnnxgenError: with all problems.
    """
    reader = _Found(Path(os.path.abspath(root)), file, inside)
    reader.models(models, where, {})
    return reader.finish()


def _document(file: Path) -> dict[str, Any]:
    """Parse the file if it may have settings of onnxgen; else return an empty dict."""
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise OnnxgenError(f"{file} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if b"onnxgen" not in text:  # true for most projects; the TOML parser is then not imported
        return {}
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        parsed: dict[str, Any] = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise OnnxgenError(f"{file} is not a TOML file: {error}") from None
    return parsed


def _own_table(document: Mapping[str, Any]) -> dict[str, Any] | None:
    tool = document.get("tool")
    if not isinstance(tool, dict) or "onnxgen" not in tool:
        return None
    table = tool["onnxgen"]
    if not isinstance(table, dict):
        raise OnnxgenError(f"{FILE}: {TABLE} must be a table, not {values.shown(table)}")
    return table


def _missing(document: Mapping[str, Any]) -> str:
    """Describe settings without which setuptools or hatchling skip the models silently."""
    system = document.get("build-system")
    requires = system.get("requires") if isinstance(system, Mapping) else None
    if not isinstance(system, Mapping) or not isinstance(requires, list):
        return ""
    backend = str(system.get("build-backend", "setuptools"))
    if not backend.startswith(("setuptools", "hatchling")):
        return ""
    if not any(str(name).strip().lower().startswith("onnxgen") for name in requires):
        return 'build-system.requires has no "onnxgen": wheels will have no modules'
    if backend.startswith("hatchling") and not _mentions_hook(document.get("tool")):
        return "there is no [tool.hatch.build.hooks.onnxgen]: wheels will have no modules"
    return ""


def _mentions_hook(tool: object) -> bool:
    build: Any = tool
    for name in ("hatch", "build"):
        build = build.get(name) if isinstance(build, Mapping) else None
    if not isinstance(build, Mapping):
        return False
    targets = build.get("targets")
    places = [build, *(targets.values() if isinstance(targets, Mapping) else ())]
    hooks = [place.get("hooks") for place in places if isinstance(place, Mapping)]
    return any(isinstance(hook, Mapping) and "onnxgen" in hook for hook in hooks)


class _Found:
    """Collects entries and problems."""

    def __init__(self, root: Path, file: str, inside: bool) -> None:
        self.root, self.file = root, file
        self.paths = Paths(root, inside)
        self.entries: list[Entry] = []
        self.problems: list[Problem] = []
        self.more = 0

    def wrong(self, key: str, what: str, way_out: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS_SHOWN:
            self.problems.append(Problem(f"{self.file}: {key}: {what}", help=way_out))
        else:
            self.more += 1

    def finish(self) -> tuple[Entry, ...]:
        """Return the entries, or raise one error with all problems."""
        check_places(self.entries, self.paths.inside, self.wrong)
        if self.more:
            self.problems.append(Problem(f"{self.file}: and {counted(self.more, 'problem')} more"))
        if self.problems:
            raise OnnxgenError(*self.problems)
        return tuple(self.entries)

    def defaults(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `[tool.onnxgen]` itself sets for all models."""
        known = [*(name for name in KEYS if name != "weights"), *ABOUT]
        settings = {name: value for name, value in table.items() if name != "models"}
        return self._values(settings, TABLE, known, "; source, output and weights belong to [[tool.onnxgen.models]]")

    def models(self, models: object, where: str, defaults: Mapping[str, Any]) -> None:
        """Add the entries of a list of models."""
        if not isinstance(models, (list, tuple)):
            self.wrong(where, f"must be a list, not {values.shown(models)}")
            return
        for number, model in enumerate(models):
            key = f"{where}[{number}]"
            if isinstance(model, (str, os.PathLike)):
                model = {"source": model}
            if isinstance(model, Mapping):
                self._model({name: values.plain(value) for name, value in model.items()}, key, defaults)
            else:
                self.wrong(key, f"must be a table, not {values.shown(model)}")

    def _model(self, model: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> None:
        before = len(self.problems) + self.more
        settings = {name: value for name, value in model.items() if name not in PLACES}
        chosen = {**defaults, **self._values(settings, key, [*KEYS, *ABOUT], "", PLACES)}
        pairs = self._pairs(model, key)
        if len(self.problems) + self.more > before:
            return
        about = {name: chosen.pop(name) for name in ("edited", "include_onnx") if name in chosen}
        for source, output in pairs:
            if (options := self._options(chosen, source, key)) is not None:
                self.entries.append(Entry(key, source, output, options, root=self.root, file=self.file, **about))

    def _pairs(self, model: Mapping[str, Any], key: str) -> list[tuple[Path, Path]]:
        """Return pairs of source and output: one, or for a glob one for each file that it finds."""
        if "source" not in model:
            self.wrong(key, "has no source", 'name the ONNX file: source = "models/mnist.onnx"')
            return []
        try:
            sources, is_glob = self.paths.sources(model["source"])
        except ValueError as error:
            self.wrong(f"{key}.source", str(error))
            return []
        pairs = []
        for source in sources:
            try:
                pairs.append((source, self.paths.output(model.get("output"), source, is_glob)))
            except ValueError as error:
                self.wrong(f"{key}.output", str(error))
                break
        return pairs

    def _values(
        self, settings: Mapping[str, Any], where: str, known: Iterable[str], aside: str, besides: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return values by field name (paths are still text). Unknown keys and wrong types are problems."""
        names, fields = list(known), {}
        for written, value in settings.items():
            name = str(written).replace("_", "-")
            key = f"{where}.{values.key(written)}"
            if name not in names:
                self.wrong(key, "unknown key", did_you_mean(name, [*names, *besides]) + aside)
                continue
            target = KEYS[name][0] if name in KEYS else name.replace("-", "_")
            if target in fields:
                self.wrong(key, "is given twice, with - and with _")
                continue
            try:
                fields[target] = self._value(name, value)
            except ValueError as error:
                self.wrong(key, f"must be {error}, not {values.shown(value)}")
            except OnnxgenError as error:
                self.wrong(key, _cut(str(error).replace("--", "")))
        return fields

    def _value(self, name: str, value: object) -> Any:
        if name in ABOUT:
            return ABOUT[name].read(value)
        field, about = KEYS[name]
        assert about.kind is not None
        parsed = about.kind.read(value)
        if about.kind is not values.PATH:  # parsed separately, so that an error names the right key
            alone: dict[str, Any] = {field: parsed, "dynamic_batch": field in ("dynamic_batch", "batch_axes")}
            Options(**alone)
        return parsed

    def _options(self, chosen: Mapping[str, Any], source: Path, key: str) -> Options | None:
        chosen, paths = dict(chosen), self.paths
        finders = {"weights": paths.weights, "templates": paths.folder, "plugins": paths.plugins}
        try:
            for name in [name for name in finders if name in chosen]:
                chosen[name] = finders[name](chosen[name], source)
            return Options(**chosen)
        except ValueError as error:
            self.wrong(f"{key}.{name}", str(error))
        except OnnxgenError as error:
            self.wrong(key, _cut(str(error).replace("--", "")))
        return None


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:300]}..."
