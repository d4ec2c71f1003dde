"""Functions and classes that are copied into generated files: the helpers and code of plugins.

Helpers are real torch functions for what no single torch call does. Helpers and plugins' code are read as text:
generating never imports torch, and runs none of a plugin's PyTorch code. What is copied of a plugin must work on its
own, together with what it uses of the same file and that file's imports (`OwnCode`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from onnxgen.common.names import RESERVED
from onnxgen.common.paths import helper_files
from onnxgen.errors import OnnxgenError
from onnxgen.plugins.finding import files_of
from onnxgen.plugins.loading import Plugin

Import = tuple[str, str]  # module, and the name in it or ""

_CALL = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\(")  # a call of a function or class, not of a method


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top level of a file."""

    text: str
    tree: ast.stmt


@dataclass(frozen=True)
class SourceFile:
    """The definitions and imports of a file by name, in the file's order."""

    path: Path
    definitions: dict[str, Definition]
    imports: dict[str, Import]


def read_source(path: Path) -> SourceFile:
    """Read what a file defines and imports."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    source = SourceFile(path, {}, {})
    for node in _statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            source.imports.update((a.asname or a.name.split(".")[0], _whole(a)) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            module = "." * node.level + (node.module or "")
            source.imports.update((a.asname or a.name, (module, a.name)) for a in node.names)
        elif name := defined_name(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            source.definitions[name] = Definition("\n".join(lines[first - 1 : node.end_lineno]), node)
    return source


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and the imports inside an `if` or `try` (needed by type checkers only)."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from (inner for inner in _statements(node.body) if isinstance(inner, (ast.Import, ast.ImportFrom)))
        else:
            yield node


def _whole(alias: ast.alias) -> Import:
    """Return the module of an import statement. `import torch.nn` binds `torch`, which has all its submodules."""
    return ("torch" if alias.name.startswith("torch.") and alias.asname is None else alias.name), ""


def defined_name(node: ast.stmt) -> str:
    """Return the name that a statement defines, or "" if it is not exactly one."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


@cache
def helpers() -> dict[str, Definition]:
    """Return every helper by name, in the order in which they are written into a file."""
    return {name: definition for source in _sources() for name, definition in source.definitions.items()}


@cache
def _sources() -> list[SourceFile]:
    return [read_source(path) for path in helper_files()]


@cache
def helper_names() -> frozenset[str]:
    """Return the names of all helpers, which no local variable may have."""
    return frozenset(helpers())


@cache
def arguments(name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return what the constructor of a layer takes: the names of what must be given, and numbers and texts that need
    not be, with their defaults. Nothing for a function.
    """
    tree = helpers()[name].tree
    constructors = [f for f in getattr(tree, "body", []) if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    if not isinstance(tree, ast.ClassDef) or not constructors:
        return (), {}
    signature = constructors[0].args
    names, usual = [a.arg for a in signature.args[1:]], signature.defaults
    needed = names[: len(names) - len(usual)]
    pairs = [
        *zip(names[len(needed) :], usual),
        *((a.arg, d) for a, d in zip(signature.kwonlyargs, signature.kw_defaults) if d),
    ]
    return tuple(needed), {n: d.value for n, d in pairs if isinstance(d, ast.Constant) and d.value is not None}


def imported(text: str) -> dict[str, Import]:
    """Return the imports of the helpers' files that `text` uses, by name."""
    used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text)) - helpers().keys()
    return {name: origin for source in _sources() for name, origin in source.imports.items() if name in used}


def copied(text: str) -> dict[str, Definition]:
    """Return the helpers that `text` calls, and those that they call, by name."""
    wanted: set[str] = set()
    pending = [text]
    while pending:
        for name in set(_CALL.findall(pending.pop())) & helpers().keys() - wanted:
            wanted.add(name)
            pending.append(helpers()[name].text)
    return {name: helper for name, helper in helpers().items() if name in wanted}


# Names that every generated file may use, and what they mean.
FRAME = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "np": "numpy",
    "math": "math",
    "re": "re",
    "json": "json",
    "Path": "pathlib.Path",
}


@dataclass
class OwnCode:
    """What the code of one network uses of plugins.

    Attributes:
        sources: each function, class or constant that is copied, by its name.
        imports: what is imported, by its name in the generated file.
        has_calls: a plugin's function wrote some of the code.
    """

    sources: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    has_calls: bool = False
    _files_of: dict[str, Path] = field(default_factory=dict)
    _needs: dict[str, set[str]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Names that nothing else in the generated file may have."""
        return frozenset((*self.sources, *self.imports))

    def copy(self, plugin: Plugin, name: str) -> ast.expr:
        """Copy a function or class of a plugin. Returns its name in the generated file.

        Raises:
            OnnxgenError: there is none, there are several, or it cannot be in another file.
        """
        files = [] if plugin.place is None else files_of(plugin.place)
        if name not in self.sources or self._files_of[name] not in files:
            sources = [s for s in map(read_source, files) if name in s.definitions and not _is_operator(s, name)]
            if not sources:
                raise _error(plugin, f"the plugin has no function or class {name} at the top level of its files")
            if len(sources) > 1:
                names = " and ".join(source.path.name for source in sources)
                raise _error(plugin, f"{names} each define {name}", "rename one of them")
            self._take(plugin, sources[0], name)
        return ast.Name(name, ast.Load())

    def take_import(self, plugin: Plugin, module: str, name: str) -> ast.expr:
        """Import a name from a module. Returns the name.

        Raises:
            OnnxgenError: a name is not an identifier, the module is onnxgen, or the name has another meaning.
        """
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            raise _error(plugin, f"from {module} import {name} is not Python")
        self._import(plugin, name, (module, name))
        return ast.Name(name, ast.Load())

    def used_in(self, text: str) -> tuple[dict[str, Definition], dict[str, Import]]:
        """Return the definitions and imports that the text of the classes needs, by name."""
        pending, wanted = [n for n in self.names if re.search(rf"(?<![\w.]){n}\b", text)], set()
        while pending:
            name = pending.pop()
            if name not in wanted:
                wanted.add(name)
                pending += self._needs.get(name, ())
        return (
            {name: definition for name, definition in self.sources.items() if name in wanted},
            {name: definition for name, definition in self.imports.items() if name in wanted},
        )

    def _take(self, plugin: Plugin, source: SourceFile, first: str) -> None:
        """Copy a definition and all that it uses of its file, in the file's order."""
        pending, wanted = [first], set()
        while pending:
            name = pending.pop()
            if name in wanted:
                continue
            wanted.add(name)
            uses = {n.id for n in ast.walk(source.definitions[name].tree) if isinstance(n, ast.Name)}
            inside = (uses & source.definitions.keys()) - {name}
            outside = (uses & source.imports.keys()) - inside
            for used in sorted(outside):
                self._import(plugin, used, source.imports[used])
            self._needs[name] = inside | outside
            pending += sorted(inside)
        for name in sorted(wanted, key=lambda n: source.definitions[n].tree.lineno):
            other_file = self._files_of.get(name, source.path) != source.path
            if name in RESERVED or name in helper_names() or name in self.imports or other_file:
                raise _error(plugin, f"the generated file already has another {name}", "give it another name")
            self._files_of[name] = source.path
            self.sources[name] = source.definitions[name]

    def _import(self, plugin: Plugin, name: str, origin: Import) -> None:
        module, part = origin
        full = ".".join(filter(None, origin))
        if module.startswith("."):
            help = "a copied helper stands alone: put both into the same file"
            raise _error(plugin, f"{name} is imported from {module}", help)
        if module.split(".")[0] == "onnxgen":
            raise _error(plugin, f"{name} is part of onnxgen, which generated code never imports", "leave it out")
        if FRAME.get(name) == full:
            return
        if not part and module != name and module.split(".")[0] == name and name not in FRAME:
            raise _error(plugin, f"import {module} can't be copied", f"import {module} as another name")
        is_other = self.imports.get(name, origin) != origin or name in self._files_of
        if is_other or name in FRAME or name in RESERVED or name in helper_names():
            what = f"{full} would be called {name}, which has another meaning there"
            raise _error(plugin, what, "import it by another")
        self.imports[name] = origin


def _is_operator(source: SourceFile, name: str) -> bool:
    """Return True for a function decorated by `@onnxgen.op(...)`."""
    decorators = getattr(source.definitions[name].tree, "decorator_list", [])
    calls = [d.func for d in decorators if isinstance(d, ast.Call)]
    return any(getattr(f, "attr", getattr(f, "id", "")) == "op" for f in calls)


def _error(plugin: Plugin, what: str, help: str = "") -> OnnxgenError:
    return OnnxgenError(f"plugin {plugin.name}: {what}", help=help)
