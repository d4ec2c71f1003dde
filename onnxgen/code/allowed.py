"""What a generated file may consist of: an allow-list of syntax, imports and names.

A name that is read must be bound in the file or be a harmless builtin; nothing reaches dunders, the import system,
files or processes. A name that is bound is plain ASCII, no word of Python's, and hides nothing that the file uses.
Helpers are onnxgen's own functions, copied: what is word for word one of them is not looked into.
"""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import TypeGuard

from onnxgen.code.copied import helper_trees

MODULES = {"torch", "torch.nn.functional", "torch.overrides", "safetensors", "safetensors.torch", "numpy", "pathlib"}
MODULES |= {"functools", "math", "json", "base64", "re", "collections.abc", "typing", "__future__"}
FORBIDDEN = {"exec", "eval", "open", "compile", "__import__", "input", "breakpoint", "globals", "locals", "vars"}
FORBIDDEN |= {"setattr", "delattr", "getattr", "os", "sys", "subprocess"}
# What modules and objects have that reads or writes files, runs code, or leads to what does.
FORBIDDEN_ATTRIBUTES = set("""
    load save hub ops utils jit package serialization multiprocessing distributed library classes compiler
    fromfile tofile memmap loadtxt savetxt genfromtxt savez DataSource ctypeslib f2py distutils
    open unlink write_text write_bytes rename rmdir mkdir touch chmod symlink_to hardlink_to
    iterdir glob exec eval system popen fork spawn modules environ import_module builtins os sys subprocess
    """.split())
STATEMENTS = (
    *(ast.Module, ast.Import, ast.ImportFrom, ast.alias, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr, ast.If, ast.For, ast.While, ast.With),
    *(ast.withitem, ast.Raise, ast.Assert, ast.Pass, ast.Break, ast.Continue, ast.Delete, ast.Try, ast.ExceptHandler),
)
EXPRESSIONS = (
    *(ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Starred),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.JoinedStr, ast.FormattedValue, ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp),
    *(ast.comprehension, ast.Lambda, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
CALLABLE = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.arg)  # a class may be handed over
DUNDERS = {"__init__", "__file__"}
HANDED_OVER = {"cls", "layer"}  # locals that hold a class or a layer, which are called
BUILTINS = frozenset(dir(builtins))


class Refused(Exception):
    """A tree that onnxgen made is none that it may write: a bug in onnxgen, and nothing is written."""


@lru_cache(maxsize=1 << 14)
def is_identifier(name: str) -> bool:
    """Whether Python reads this as one name, and as this very name: ASCII, which NFKC leaves alone, and no keyword."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def check_module(tree: ast.Module) -> None:
    """A whole file is what the allow-list has.

    Raises:
        Refused: it is not.
    """
    functions = {n for node in ast.walk(tree) if isinstance(node, CALLABLE) for n in bound(node)} | BUILTINS
    rest = ast.Module([node for node in tree.body if not is_helper(node)], [])
    bound_here = {name for node in ast.walk(rest) for name in bound(node)}
    check(rest, functions | {"__file__"} | bound_here, functions | HANDED_OVER)


def check(tree: ast.AST, known: Iterable[str], called: Iterable[str]) -> None:
    """A tree is of the allow-list's syntax, reads no names but those that are known, and calls only `called` by name.

    Raises:
        Refused: it does anything else.
    """
    known, called = frozenset(known), frozenset(called)
    by_number = [node.func for node in ast.walk(tree) if is_digit_attribute(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node not in by_number:
                _name(node.id, known)
        elif isinstance(node, ast.Attribute):
            _attribute(node)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id not in called and node.func not in by_number:
                raise Refused(f"it calls {node.func.id!a}")
        elif isinstance(node, ast.Import):
            if not {alias.name for alias in node.names} <= MODULES:
                raise Refused(f"it has {ast.unparse(node)!a}")
        elif isinstance(node, ast.ImportFrom):
            if node.module not in MODULES:
                raise Refused(f"it imports from {node.module!a}")
        elif not isinstance(node, (*STATEMENTS, *EXPRESSIONS)):
            raise Refused(f"it has syntax that is not allowed, {type(node).__name__}")
        check_names((*bound(node), *_written(node)))


def check_names(names: Iterable[str]) -> None:
    """Each is one name to Python, and that very name.

    Raises:
        Refused: one is not.
    """
    for name in names:
        if not is_identifier(name):
            raise Refused(f"{name!a} is no name")


def check_bound(tree: ast.AST, taken: Iterable[str]) -> None:
    """What a method binds hides nothing: none of Python's own names, nor one of those that are taken (`self` is bound).

    Raises:
        Refused: it does.
    """
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.arg)):
            for name in bound(node):
                if name in BUILTINS or name in taken or name.startswith("__"):
                    raise Refused(f"a local variable is called {name!a}, which means something else")


def bound(node: ast.AST) -> tuple[str, ...]:
    """The names that a node defines."""
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return (node.name,)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return tuple((alias.asname or alias.name).split(".")[0] for alias in node.names)
    if isinstance(node, ast.arg):
        return (node.arg,)
    return (node.name,) if isinstance(node, ast.ExceptHandler) and node.name else ()


def _written(node: ast.AST) -> tuple[str, ...]:
    """The other names that a node's text has."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    return (node.arg,) if isinstance(node, ast.keyword) and node.arg is not None else ()


def _name(name: str, known: frozenset[str]) -> None:
    if name not in known or name in FORBIDDEN or (name.startswith("__") and name not in DUNDERS):
        raise Refused(f"it uses the name {name!a}")


def _attribute(node: ast.Attribute) -> None:
    hidden = node.attr.startswith("__") and node.attr not in DUNDERS | {"__name__"}
    if hidden or (node.attr in FORBIDDEN_ATTRIBUTES and not of_self(node)):
        raise Refused(f"it uses the attribute {node.attr!a}")


def of_self(node: ast.Attribute) -> bool:
    """Whether it is a member of the module itself: `self.layer.load`."""
    value: ast.expr = node
    while isinstance(value, (ast.Attribute, ast.Subscript)):
        value = value.value
    return isinstance(value, ast.Name) and value.id == "self"


def is_digit_attribute(node: ast.AST) -> TypeGuard[ast.Call]:
    """`getattr(x, "0")`: Python has no other way to a submodule that is called like a number."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return False
    return len(node.args) == 2 and isinstance(node.args[1], ast.Constant) and str(node.args[1].value).isdecimal()


def is_helper(node: ast.stmt) -> bool:
    """Whether it is a function or class of `onnxgen/helpers`, word for word."""
    name = getattr(node, "name", None)
    return name in helper_trees() and ast.dump(node) == _helper_dump(str(name))


@cache
def _helper_dump(name: str) -> str:
    return ast.dump(helper_trees()[name])
