"""What generated code uses of a plugin: its functions and classes, copied, and what it imports from elsewhere.

Copied as onnxgen's own helpers are, by their text: a plugin's PyTorch code is not run to generate. So what is copied
must stand by itself, with what it uses of the same file and the imports of that file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from onnxgen.code.copied import helper_names
from onnxgen.common.names import RESERVED
from onnxgen.errors import OnnxgenError
from onnxgen.plugins.finding import files_of
from onnxgen.plugins.loading import Plugin

Import = tuple[str, str]  # module, and the name in it or ""

# What a generated file knows by these names, wherever it is needed.
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


@dataclass(frozen=True)
class Definition:
    """A function, class or constant at the top level of a file: its text, and the names that it uses."""

    text: str
    uses: frozenset[str]
    line: int
    is_operator: bool = False


@dataclass(frozen=True)
class PluginFile:
    """A file of a plugin, as far as it can be copied."""

    path: Path
    definitions: dict[str, Definition]
    imports: dict[str, Import]


@dataclass
class OwnCode:
    """What the code of one network uses of plugins.

    Attributes:
        sources: the text of each function, class or constant that is copied, by its name.
        imports: what is imported, by the name that it has in the generated file.
        has_calls: a plugin's function wrote some of the code.
    """

    sources: dict[str, str] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    has_calls: bool = False
    _files_of: dict[str, Path] = field(default_factory=dict)
    _needs: dict[str, set[str]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """What nothing else in the generated file may be called."""
        return frozenset((*self.sources, *self.imports))

    def copy(self, plugin: Plugin, name: str) -> ast.expr:
        """A function or class of a plugin, by its name, as the generated file has it.

        Raises:
            OnnxgenError: there is none, there are several, or it can't stand in another file.
        """
        if name not in self.sources or self._files_of[name] not in _files(plugin):
            source = _source_of(plugin, name)
            self._take(plugin, source, name)
        return ast.Name(name, ast.Load())

    def take_import(self, plugin: Plugin, module: str, name: str) -> ast.expr:
        """What a module has by a name, imported from there.

        Raises:
            OnnxgenError: these are no names of Python, the module is onnxgen, or the name means something else.
        """
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            raise _error(plugin, f"from {module} import {name} is not Python")
        self._import(plugin, name, (module, name))
        return ast.Name(name, ast.Load())

    def used_in(self, text: str) -> tuple[list[str], dict[str, Import]]:
        """What the text of the classes needs: copied texts in their order, and imports by name."""
        pending, wanted = [n for n in self.names if re.search(rf"(?<![\w.]){n}\b", text)], set()
        while pending:
            name = pending.pop()
            if name not in wanted:
                wanted.add(name)
                pending += self._needs.get(name, ())
        return (
            [source for name, source in self.sources.items() if name in wanted],
            {name: found for name, found in self.imports.items() if name in wanted},
        )

    def _take(self, plugin: Plugin, source: PluginFile, first: str) -> None:
        """Copy a definition, and all that it uses of its file, in the file's order."""
        pending, wanted = [first], set()
        while pending:
            name = pending.pop()
            if name in wanted:
                continue
            wanted.add(name)
            uses = source.definitions[name].uses
            inside = set(uses & source.definitions.keys()) - {name}
            outside = set(uses & source.imports.keys()) - inside
            for used in sorted(outside):
                self._import(plugin, used, source.imports[used])
            self._needs[name] = inside | outside
            pending += sorted(inside)
        for name in sorted(wanted, key=lambda n: source.definitions[n].line):
            self._refuse_taken(plugin, name, source.path)
            self._files_of[name] = source.path
            self.sources[name] = source.definitions[name].text

    def _import(self, plugin: Plugin, name: str, found: Import) -> None:
        module, part = found
        full = ".".join(filter(None, found))
        if module.startswith("."):
            raise _error(
                plugin, f"{name} is imported from {module}", "a copied helper stands alone: put both into the same file"
            )
        if module.split(".")[0] == "onnxgen":
            raise _error(plugin, f"{name} is part of onnxgen, which generated code never imports", "leave it out")
        if FRAME.get(name) == full:
            return
        if name in FRAME or self.imports.get(name, found) != found or name in self._files_of:
            raise _error(
                plugin, f"{full} would be called {name}, which has another meaning there", "import it by another"
            )
        if not part and module != name and module.split(".")[0] == name:
            raise _error(plugin, f"import {module} can't be copied", f"import {module} as another name")
        if name in RESERVED or name in helper_names():
            raise _error(
                plugin, f"{full} would be called {name}, which has another meaning there", "import it by another"
            )
        self.imports[name] = found

    def _refuse_taken(self, plugin: Plugin, name: str, home: Path) -> None:
        if name in RESERVED or name in helper_names() or name in self.imports or self._files_of.get(name, home) != home:
            raise _error(plugin, f"the generated file already has another {name}", "give it another name")


def _files(plugin: Plugin) -> list[Path]:
    return [] if plugin.place is None else files_of(plugin.place)


def _source_of(plugin: Plugin, name: str) -> PluginFile:
    """The file of a plugin that has something by this name."""
    found = [
        source
        for source in map(_read, _files(plugin))
        if name in source.definitions and not source.definitions[name].is_operator
    ]
    if not found:
        raise _error(plugin, f"the plugin has no function or class {name} at the top level of its files")
    if len(found) > 1:
        names = " and ".join(source.path.name for source in found)
        raise _error(plugin, f"{names} each define {name}", "rename one of them")
    return found[0]


def _read(path: Path) -> PluginFile:
    text = path.read_text(encoding="utf-8")
    lines, tree = text.splitlines(), ast.parse(text)
    definitions: dict[str, Definition] = {}
    imports: dict[str, Import] = {}
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            imports |= {a.asname or a.name.split(".")[0]: _whole(a) for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            module = "." * node.level + (node.module or "")
            imports |= {a.asname or a.name: (module, a.name) for a in node.names}
        elif name := _defined(node):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            uses = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            body = "\n".join(lines[first - 1 : node.end_lineno])
            definitions[name] = Definition(body, uses, first, _is_operator(node))
    return PluginFile(path, definitions, imports)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, with the imports inside of an `if` or `try` (what only a type checker needs)."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from (inner for inner in _statements(node.body) if isinstance(inner, (ast.Import, ast.ImportFrom)))
        else:
            yield node


def _whole(found: ast.alias) -> Import:
    """`import a.b` makes `a` known; all of torch comes with `torch`."""
    return ("torch" if found.name.startswith("torch.") and found.asname is None else found.name), ""


def _defined(node: ast.stmt) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _is_operator(node: ast.stmt) -> bool:
    calls = [d.func for d in getattr(node, "decorator_list", []) if isinstance(d, ast.Call)]
    return any(getattr(f, "attr", getattr(f, "id", "")) == "op" for f in calls)


def _error(plugin: Plugin, what: str, help: str = "") -> OnnxgenError:
    return OnnxgenError(f"plugin {plugin.name}: {what}", help=help)
