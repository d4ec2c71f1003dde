"""Compares a finished file with the trees that it was made of.

A mistake in printing, formatting or a template is then an error instead of wrong code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnxgen.code.allowed import MODULES, Refused
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.copied import Definition, defined_name
from onnxgen.record.digest import is_docstring, without_docstring

# names that the templates define
FUNCTIONS = {"constant", "from_pretrained", "load_weights"}
CONSTANTS = {"WEIGHTS", "FINGERPRINT", "Model"}
ALIAS = ast.parse("Model.from_pretrained = classmethod(from_pretrained)").body[0]
# names that the templates and helpers import from these modules
PARTS = {
    "torch": {"Tensor", "nn"},
    "safetensors": {"SafetensorError", "safe_open"},
    "safetensors.torch": {"load"},
    "pathlib": {"Path"},
    "warnings": {"warn"},
}
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}
_FIELDS: dict[type, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Meant:
    """The expected content of a file.

    Attributes:
        classes: those of the network.
        copied: helpers and definitions of plugins, by name.
        modules: the modules that plugins import from.
        function: the one that builds the network.
    """

    classes: Sequence[ClassTree]
    copied: Mapping[str, Definition]
    modules: frozenset[str] = frozenset()
    function: str = ""


def hold(tree: ast.Module, meant: Meant, is_ours: bool) -> None:
    """Check that a file has what was meant and, if its templates are onnxgen's own (`is_ours`), nothing else.

    Raises:
        Refused: it has not. The message says where.
    """
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        found.setdefault(defined_name(node), []).append(node)
    for name, copy in meant.copied.items():
        if not any(same(copy.tree, node) for node in found.get(name, ())):
            raise Refused(f"{name} is not as it was copied")
    for each in meant.classes:
        nodes = found.get(each.name, [])
        if len(nodes) != 1 or not isinstance(nodes[0], ast.ClassDef):
            raise Refused(f"there is no class {each.name}, or another")
        _hold_class(nodes[0], each, is_ours)
    if is_ours:
        _hold_frame(tree, meant)


def _hold_class(node: ast.ClassDef, meant: ClassTree, is_ours: bool) -> None:
    body = without_docstring(node.body)
    for method in meant.methods:
        there = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == method.name]
        if len(there) != 1 or not _same_method(method, there[0], is_ours):
            raise Refused(f"{meant.name}.{method.name} is not as it was meant")
    if is_ours:
        names = list(map(defined_name, body))
        if names != [m.name for m in meant.methods] or list(map(ast.unparse, node.bases)) != [meant.base]:
            raise Refused(f"the class {meant.name} has what nobody meant")


def _same_method(meant: ast.FunctionDef, found: ast.FunctionDef, is_ours: bool) -> bool:
    """Compare methods, except docstrings. A user's template may decorate a method."""
    return (
        same(meant.args, found.args)
        and same(meant.returns, found.returns)
        and same(without_docstring(meant.body), without_docstring(found.body))
        and not (is_ours and found.decorator_list)
    )


def _hold_frame(tree: ast.Module, meant: Meant) -> None:
    """Check that a file has, besides classes and copies, only a docstring, imports, and names of the templates."""
    names = {*meant.copied, *(each.name for each in meant.classes), meant.function}
    if not tree.body or not is_docstring(tree.body[0]):
        raise Refused("the file does not begin with its docstring")
    for node in tree.body[1:]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = {a.name for a in node.names} if isinstance(node, ast.Import) else {node.module or ""}
            if not modules <= MODULES | meant.modules:
                raise Refused(f"the file has {ast.unparse(node)!a}")
            _hold_parts(node, meant)
            continue
        if is_alias(node):
            continue
        allowed = CONSTANTS if isinstance(node, ast.Assign) else FUNCTIONS if isinstance(node, ast.FunctionDef) else ()
        if defined_name(node) not in {*names, *allowed}:
            raise Refused(f"the file has a statement that nobody meant, line {node.lineno}")


def _hold_parts(node: ast.Import | ast.ImportFrom, meant: Meant) -> None:
    parts = PARTS.get(node.module or "") if isinstance(node, ast.ImportFrom) else None
    if parts is not None and not meant.modules and not {alias.name for alias in node.names} <= parts:
        raise Refused(f"the file has {ast.unparse(node)!a}, and the module has no such name")


def is_alias(node: ast.stmt) -> bool:
    """Return True for the statement that gives the network's class the name of the function that loads weights."""
    return same(ALIAS, node)


def same(meant: object, found: object) -> bool:
    """Return True if two trees are equal except for positions. `found` comes from Python's parser."""
    if isinstance(meant, ast.AST):
        kind = type(meant)
        if type(found) is not kind:
            return False
        fields = _FIELDS.get(kind)
        if fields is None:
            fields = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _IGNORED)
        return all(same(getattr(meant, name, None), getattr(found, name, None)) for name in fields)
    if isinstance(meant, (list, tuple)):
        return isinstance(found, list) and len(meant) == len(found) and all(map(same, meant, found))
    return isinstance(meant, type(found)) and meant == found  # a `NiceFloat` is found as a float
