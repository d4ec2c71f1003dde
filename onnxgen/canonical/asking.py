"""Whether the Python of an edited file decides anything by what it is given, such as the size of an input."""

from __future__ import annotations

import ast

from onnxgen.canonical.purity import said, written

DECIDING = (ast.If, ast.IfExp, ast.While, ast.Compare, ast.BoolOp, ast.Assert, ast.Match, ast.comprehension)
BOUNDING = frozenset({"min", "max", "any", "all", "bool", "sorted", "filter", "pow", "divmod"})


def decides(text: str, known: str) -> bool:
    """Whether a file decides anything by what it is given, beside what is written in the same way in another one."""
    others = written(ast.parse(known))
    statements: list[ast.stmt] = []
    for node in ast.parse(text).body:
        statements += node.body if isinstance(node, ast.ClassDef) else [node]
    edited = [s for s in statements if said(s) not in others and ast.dump(s) not in others]
    return any(_decides(part) for statement in edited for part in _later(statement))


def _later(statement: ast.stmt) -> list[ast.AST]:
    """Return the parts of a statement that run when the module is called."""
    if not (isinstance(statement, ast.FunctionDef) and statement.name == "__init__"):
        return [statement]
    return [n for n in ast.walk(statement) if isinstance(n, (ast.Lambda, ast.FunctionDef)) and n is not statement]


def _decides(part: ast.AST) -> bool:
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and node.id in BOUNDING:
            return True
        if isinstance(node, ast.Attribute) and node.attr.startswith("sym_"):  # such as torch.sym_max
            return True
        if isinstance(node, ast.comprehension):
            asked: list[ast.AST] = [*node.ifs]
        else:
            asked = [getattr(node, "test", node)] if isinstance(node, DECIDING) else []
        if any(isinstance(n, ast.Name) and n.id != "self" for a in asked for n in ast.walk(a)):
            return True
    return False
