"""Reads a finished file again: what stands there must be the very trees that were meant.

A fault in printing, formatting or a template then costs a refusal, never code that nobody meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxgen.code.allowed import MODULES, Refused
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.copied import helper_trees

# what the templates define themselves
FUNCTIONS = {"constant", "load_weights"}
CONSTANTS = {"WEIGHTS", "FINGERPRINT", "Model"}
METHODS = {"from_pretrained"}
# what the templates and helpers take of these modules by name
PARTS = {
    "torch": {"Tensor", "nn"},
    "safetensors": {"SafetensorError", "safe_open"},
    "safetensors.torch": {"load"},
    "torch.testing": {"assert_close"},
    "pathlib": {"Path"},
}
_IGNORED = {"ctx", "kind", "type_comment", "type_ignores", "type_params"}
_FIELDS: dict[type, tuple[str, ...]] = {}


@dataclass(frozen=True)
class Meant:
    """What a file is to hold.

    Attributes:
        classes: those of the network.
        copied: helpers, and what is copied of plugins, by name, as Python reads their text.
        modules: what plugins import from.
    """

    classes: Sequence[ClassTree]
    copied: Mapping[str, ast.stmt]
    modules: frozenset[str] = frozenset()


def hold(tree: ast.Module, meant: Meant, is_ours: bool) -> None:
    """A file holds what was meant, and where its templates are onnxgen's own, nothing besides.

    Raises:
        Refused: it holds anything else; the message says where.
    """
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        found.setdefault(_name(node), []).append(node)
    for name, copy in meant.copied.items():
        if not any(same(copy, node) for node in found.get(name, ())):
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
        names = [_name(n) for n in body if _name(n) not in METHODS]
        if names != [m.name for m in meant.methods] or list(map(ast.unparse, node.bases)) != [meant.base]:
            raise Refused(f"the class {meant.name} has what nobody meant")


def _same_method(meant: ast.FunctionDef, found: ast.FunctionDef, is_ours: bool) -> bool:
    """Whether a method is as it was meant, but for its docstring; a template of the user's may decorate it."""
    return (
        same(meant.args, found.args)
        and same(meant.returns, found.returns)
        and same(without_docstring(meant.body), without_docstring(found.body))
        and not (is_ours and found.decorator_list)
    )


def _hold_frame(tree: ast.Module, meant: Meant) -> None:
    """Beside the classes and what is copied there is a docstring, imports, and what the templates have by name."""
    names = {*meant.copied, *(each.name for each in meant.classes)}
    if not tree.body or not _is_docstring(tree.body[0]):
        raise Refused("the file does not begin with its docstring")
    for node in tree.body[1:]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = {a.name for a in node.names} if isinstance(node, ast.Import) else {node.module or ""}
            if not modules <= MODULES | meant.modules:
                raise Refused(f"the file has {ast.unparse(node)!a}")
            _hold_parts(node, meant)
            continue
        allowed = CONSTANTS if isinstance(node, ast.Assign) else FUNCTIONS if isinstance(node, ast.FunctionDef) else ()
        if _name(node) not in names and _name(node) not in allowed:
            raise Refused(f"the file has a statement that nobody meant, line {node.lineno}")


def _hold_parts(node: ast.Import | ast.ImportFrom, meant: Meant) -> None:
    parts = PARTS.get(node.module or "") if isinstance(node, ast.ImportFrom) else None
    if parts is not None and not meant.modules and not {alias.name for alias in node.names} <= parts:
        raise Refused(f"the file has {ast.unparse(node)!a}, and the module has no such name")


def _name(node: ast.stmt) -> str:
    """What a statement defines; "" if that is not one name."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """A body without the docstring that it may begin with."""
    return list(body[1:] if body and _is_docstring(body[0]) else body)


def same(meant: object, found: object) -> bool:
    """Whether two trees are the same but for their places in a file; `found` is as Python's parser made it."""
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


def copies(helpers: Iterable[str], own: Iterable[str]) -> dict[str, ast.stmt]:
    """What is copied as Python reads it, by name: helpers that are named, and the texts of plugins."""
    found = {name: helper_trees()[name] for name in helpers}
    return found | {_name(node): node for text in own for node in ast.parse(text).body}
