"""Check the definitions of a generated file: every name is defined once, and has the meaning that the network expects.

So the checker may take every name as torch's, Python's, or a class of the file.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from copy import deepcopy
from functools import cache

from onnxgen.code.copied import helpers
from onnxgen.code.meant import is_alias
from onnxgen.code.own_code import FRAME
from onnxgen.common.names import MODULE_ATTRIBUTES
from onnxgen.validate.values import Unreadable

METHODS = {"__init__", "forward", "tie_weights"}
PYTHONS = frozenset(dir(builtins))


def module_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that a file defines. Each must be defined once, and none may shadow Python's or another
    module's.
    """
    names: list[str] = []
    needed: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += [alias.asname or alias.name for alias in node.names]
            if any(FRAME.get(a.asname or a.name, _source(node, a)) != _source(node, a) for a in node.names):
                raise Unreadable("an import under the name of something else")
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
            original = _helper_code(node.name)
            if original is not None and _code(node) != original:
                raise Unreadable(f"{node.name} is not the helper of that name")
            if original is not None:
                needed |= _helper_needs(node.name)
            else:
                parts = [node] if isinstance(node, ast.FunctionDef) else _not_followed(node)
                needed.update(*map(_needs, parts))
        elif is_alias(node):
            needed |= {"Model", "from_pretrained"}
        elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            raise Unreadable(f"a file with a {type(node).__name__}")
    if len(set(names)) < len(names) or not PYTHONS.isdisjoint(names):
        raise Unreadable("a file defines what has a meaning already")
    if missing := needed.difference(names):
        raise Unreadable(f"the file does not define {min(missing)}")
    return frozenset(names)


@cache
def _helper_code(name: str) -> str | None:
    return _code(deepcopy(helpers()[name].tree)) if name in helpers() else None


@cache
def _helper_needs(name: str) -> frozenset[str]:
    return _needs(helpers()[name].tree)


def _needs(tree: ast.AST) -> frozenset[str]:
    """Return the names that a function or class reads and does not define itself."""
    nodes = list(ast.walk(tree))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    own |= {str(n.name) for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))}
    own |= {a.asname or a.name for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return frozenset(read - own - PYTHONS - {"__file__"})


def _not_followed(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the parts of a network's class that are not executed on symbols: annotations."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            yield ast.Tuple(_annotations(method), ast.Load())


def _annotations(method: ast.FunctionDef) -> list[ast.expr]:
    return [tree for tree in (*(a.annotation for a in method.args.args), method.returns) if tree is not None]


def check_variables(definition: ast.ClassDef, taken: frozenset[str]) -> None:
    """Check that no method assigns a name that the file defines: the name would be unbound before the assignment."""
    for method in definition.body:
        for node in ast.walk(method):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in taken:
                raise Unreadable(f"the variable {node.id} hides what the file calls so")


def _code(definition: ast.stmt) -> str:
    """Return the code of a function or class, without docstrings."""
    for node in ast.walk(definition):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(definition)


def _source(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    return f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name


def check_body(definition: ast.ClassDef, stubs: set[str]) -> None:
    """Check that a class defines only usual members of modules, and nothing that changes how modules work."""
    for node in definition.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        name = node.name if isinstance(node, ast.FunctionDef) else ""
        own = name[:1].isalpha() and name not in MODULE_ATTRIBUTES  # its own code calls it, and no torch
        if not own and name not in METHODS | stubs - MODULE_ATTRIBUTES:
            raise Unreadable(f"class {definition.name} has something else than the methods of a module")
