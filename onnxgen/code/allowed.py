"""The allow-list of generated files: syntax, imports and names.

A name that is read must be bound in the file or be a harmless builtin. Nothing reaches dunders, the import system,
files or processes. A name that is bound is plain ASCII, is not a Python keyword, and hides nothing that the file uses.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import lru_cache
from typing import Any, TypeGuard

from onnxgen.code.quote import walk
from onnxgen.code.torch_api import PARAMETRISATIONS, dotted, is_none, misfit

MODULES = {"torch", "torch.nn.functional", "safetensors", "safetensors.torch"}
MODULES |= {"numpy", "pathlib", "functools", "math", "json", "base64", "re", "collections.abc", "typing"}
MODULES |= {"warnings", "__future__"}
FORBIDDEN = {"exec", "eval", "open", "compile", "__import__", "input", "breakpoint", "globals", "locals", "vars"}
FORBIDDEN |= {"setattr", "delattr", "getattr", "os", "sys", "subprocess"}
# Attributes that read or write files, run code, or lead to others that do.
FORBIDDEN_ATTRIBUTES = set(
    """
    load save hub ops utils jit package serialization multiprocessing distributed library classes compiler
    fromfile tofile memmap loadtxt savetxt genfromtxt savez DataSource ctypeslib f2py distutils
    open unlink write_text write_bytes rename rmdir mkdir touch chmod symlink_to hardlink_to
    iterdir glob exec eval system popen fork spawn modules environ import_module builtins os sys subprocess
    """.split()
)
STATEMENTS = (
    *(ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr, ast.If, ast.For, ast.While, ast.With),
    *(ast.withitem, ast.Raise, ast.Assert, ast.Pass, ast.Break, ast.Continue, ast.Delete, ast.Try, ast.ExceptHandler),
)
EXPRESSIONS = (
    *(ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Starred),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.JoinedStr, ast.FormattedValue, ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp),
    *(ast.comprehension, ast.Lambda),
    *(kind for group in (ast.operator, ast.unaryop, ast.boolop, ast.cmpop) for kind in group.__subclasses__()),
)
SYNTAX = frozenset((*STATEMENTS, *EXPRESSIONS))
DUNDERS = {"__init__", "__file__"}
HANDED_OVER = {"cls", "layer"}  # locals that hold a class or a layer, which are called
BUILTINS = frozenset(dir(builtins))


class Refused(Exception):
    """A tree that onnxgen made is not allowed: a bug in onnxgen. Nothing is written."""


@lru_cache(maxsize=1 << 14)
def is_identifier(name: str, in_ascii: bool = True) -> bool:
    """Return True if Python reads `name` as one identifier, unchanged by NFKC, and it is not a keyword."""
    if in_ascii and not name.isascii():
        return False
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.is_normalized("NFKC", name)


def _call(node: ast.Call, called: Set[str], exempt: Set[int]) -> None:
    if isinstance(node.func, ast.Name) and node.func.id not in called and id(node.func) not in exempt:
        raise Refused(f"it calls {node.func.id!a}")
    if wrong := misfit(node):
        raise Refused(f"it calls {wrong}")


def _operation(node: ast.BinOp) -> None:
    is_annotation = isinstance(node.op, ast.BitOr)  # `Tensor | None`
    if not is_annotation and (is_none(node.left) or is_none(node.right)):
        raise Refused("it computes with None")


def check(tree: ast.AST, known: Set[str], called: Set[str], taken: Set[str] | None = None) -> None:
    """Check a tree against the allow-list.

    Args:
        tree: any part of a file.
        known: names that it may read, besides those that it binds.
        called: names that it may call, besides its arguments and loop variables.
        taken: names that it may not bind, besides Python's builtins. None: it may bind any.

    Raises:
        Refused: it does anything else.
    """
    nodes = list(walk(tree))
    own = {name for node in nodes[1:] for name in bound(node)}
    check_names(own)
    if taken is not None:
        check_bound(own, taken)
    called = called | frozenset(_looped(nodes))
    exempt = _exempt(nodes)
    for node in nodes:
        if type(node) not in SYNTAX:
            raise Refused(f"it has syntax that is not allowed, {type(node).__name__}")
        if isinstance(node, ast.Name):
            if id(node) not in exempt:
                _name(node.id, known, own)
        elif isinstance(node, ast.Attribute):
            if id(node) not in exempt:
                _attribute(node)
        elif isinstance(node, ast.Call):
            _call(node, called, exempt)
        elif isinstance(node, ast.BinOp):
            _operation(node)
        elif isinstance(node, ast.keyword):
            check_names(() if node.arg is None else (node.arg,))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _import(node)


def _exempt(nodes: Sequence[ast.AST]) -> set[int]:
    """Return the nodes that have rules of their own: the name `getattr`, and the only use of `nn.utils`."""
    exempt = {id(node.func) for node in nodes if is_digit_attribute(node)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.endswith("_norm") and dotted(node) in PARAMETRISATIONS:
            exempt.update(id(inner) for inner in walk(node) if isinstance(inner, ast.Attribute))
    return exempt


def check_bound(names: Iterable[str], taken: Set[str]) -> None:
    """Check that names which a method binds hide neither Python's builtins nor `taken`. Raises `Refused`."""
    for name in names:
        if name in BUILTINS or name in taken or name.startswith("__"):
            raise Refused(f"a local variable is called {name!a}, which means something else")


def check_names(names: Iterable[str], in_ascii: bool = True) -> None:
    """Check that each name is an identifier. Raises `Refused`."""
    for name in names:
        if not is_identifier(name, in_ascii):
            raise Refused(f"{name!a} is not a name")


def bound(node: ast.AST) -> tuple[str, ...]:
    """Return the names that a node defines."""
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    read = _BOUND.get(type(node))
    return () if read is None else read(node)


def _imported(node: Any) -> tuple[str, ...]:
    return tuple((alias.asname or alias.name).split(".")[0] for alias in node.names)


_BOUND: dict[type[ast.AST], Callable[[Any], tuple[str, ...]]] = {
    ast.ClassDef: lambda node: (node.name,),
    ast.FunctionDef: lambda node: (node.name,),
    ast.Import: _imported,
    ast.ImportFrom: _imported,
    ast.arg: lambda node: (node.arg,),
    ast.ExceptHandler: lambda node: (node.name,) if node.name else (),
}


def _looped(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the variables that may hold a layer: arguments and loop variables."""
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from (name for inner in walk(node.target) for name in bound(inner))


def _import(node: ast.Import | ast.ImportFrom) -> None:
    modules = {alias.name for alias in node.names} if isinstance(node, ast.Import) else {node.module}
    if not modules <= MODULES:
        raise Refused(f"it has {ast.unparse(node)!a}")


def _name(name: str, known: Set[str], own: Set[str]) -> None:
    is_known = name in own or (name in known and name not in FORBIDDEN)
    if not is_known or not is_identifier(name) or (name.startswith("__") and name not in DUNDERS):
        raise Refused(f"it uses the name {name!a}")


def _attribute(node: ast.Attribute) -> None:
    name = node.attr
    is_private = name.startswith("__") and name not in DUNDERS | {"__name__"}
    if not is_identifier(name) or is_private or (name in FORBIDDEN_ATTRIBUTES and not of_self(node)):
        raise Refused(f"it uses the attribute {name!a}")


def of_self(node: ast.Attribute) -> bool:
    """Return True for an attribute of the module itself: `self.layer.load`."""
    value: ast.expr = node
    while isinstance(value, (ast.Attribute, ast.Subscript)):
        value = value.value
    return isinstance(value, ast.Name) and value.id == "self"


def is_digit_attribute(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return True for `getattr(x, "0")`, the only way to read a submodule whose name is a number."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return False
    return len(node.args) == 2 and isinstance(node.args[1], ast.Constant) and str(node.args[1].value).isdecimal()
