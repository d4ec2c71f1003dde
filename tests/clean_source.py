"""What a generated file may consist of: an allow-list of tokens, syntax, imports and names.

A file is held against it without being run. A name that is read must be defined in the file or be a harmless builtin;
nothing reaches dunders, the import system, files or processes. Helpers are onnxgen's own functions, copied: what is
word for word one of them is not looked into.
"""

from __future__ import annotations

import ast
import builtins
import io
import tokenize
from functools import cache
from typing import TypeGuard

from onnxgen.paths import helpers_dir

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


def assert_safe(source: str) -> None:
    """Tokens are printable ASCII; the syntax is of the allow-list; every name is defined; nothing reaches dunders."""
    assert not set(source) - set(map(chr, range(32, 127))) - {"\n"}, set(source)
    assert source.startswith('"""') and "coding" not in "".join(source.splitlines()[:2]), source[:200]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string not in helper_text():
            assert not set(token.string) & set("'\"\\`") and len(token.string) <= 120, token.string
    tree = ast.parse(source)
    functions = {n for node in ast.walk(tree) if isinstance(node, CALLABLE) for n in bound(node)} | set(dir(builtins))
    defined = functions | {"__file__"}
    tree.body = [node for node in tree.body if ast.dump(node) not in helpers()]
    for node in ast.walk(tree):
        assert isinstance(node, (*STATEMENTS, *EXPRESSIONS)), ast.dump(node)[:100]
        defined |= bound(node)
        if is_digit_attribute(node):
            node.func = ast.Name("print", ast.Load())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id in functions | {"cls", "layer"}, f"calls {node.func.id}"
        if isinstance(node, ast.Name):
            assert node.id in defined and node.id not in FORBIDDEN, node.id
            assert not node.id.startswith("__") or node.id in DUNDERS, node.id
        elif isinstance(node, ast.Attribute):
            assert of_self(node) or node.attr not in FORBIDDEN_ATTRIBUTES, node.attr
            assert not node.attr.startswith("__") or node.attr in DUNDERS | {"__name__"}, node.attr
        elif isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= MODULES, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            assert node.module in MODULES, node.module


def bound(node: ast.AST) -> set[str]:
    """The names that a node defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.ExceptHandler):
        return {node.name or ""}
    return {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()


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


@cache
def helper_text() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in sorted(helpers_dir().glob("*.py")))


@cache
def helpers() -> frozenset[str]:
    """Every function and class of `onnxgen/helpers`."""
    nodes = ast.parse(helper_text().replace("from __future__ import annotations", "")).body
    return frozenset(ast.dump(node) for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
