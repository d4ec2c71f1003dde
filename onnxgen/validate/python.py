"""Compute Python expressions on numbers, text and lists, if the results are small."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from onnxgen.validate.values import CONCRETE, Node, Value

MAX_ITEMS = 100_000  # items of a `range` or a repeated list that are evaluated one by one
MAX_INTEGER_BITS = 4096  # bits of a computed integer
PYTHON: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}


def is_fixed(tree: ast.expr) -> bool:
    """Return True for an expression whose value no call can change: names, numbers, and what `math` makes of them."""
    if isinstance(tree, ast.Call):
        module = tree.func.value if isinstance(tree.func, ast.Attribute) else None
        is_math = isinstance(module, ast.Name) and module.id == "math"
        return is_math and not tree.keywords and all(map(is_fixed, tree.args))
    if isinstance(tree, ast.BinOp):
        return is_fixed(tree.left) and is_fixed(tree.right)
    if isinstance(tree, ast.UnaryOp):
        return is_fixed(tree.operand)
    if isinstance(tree, ast.Tuple):
        return all(map(is_fixed, tree.elts))
    return isinstance(tree, (ast.Constant, ast.Name, ast.Attribute))


def of_math(module: Node, name: str, *args: Value) -> float | None:
    """Return `math.pi`, or a root or logarithm of a number; None for all else."""
    try:
        if module.key != ("name", "math"):
            return None
        if not args:
            return math.pi if name == "pi" else None
        function = {"sqrt": math.sqrt, "log": math.log}.get(name)
        is_number = len(args) == 1 and type(args[0]) in (int, float)
        return function(args[0]) if function is not None and is_number else None
    except (ArithmeticError, ValueError):
        return None


def is_plain(value: Value) -> bool:
    """Return True if a value is an ordinary Python value without symbolic parts."""
    return all(map(is_plain, value)) if isinstance(value, (tuple, list)) else isinstance(value, CONCRETE)


def is_small(kind: type[ast.operator], a: Any, b: Any) -> bool:
    """Return True if the result is no larger than what a person would write."""
    if kind is ast.Mult and not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        times = a if isinstance(a, int) else b
        return isinstance(times, int) and times <= MAX_ITEMS
    if kind in (ast.Mult, ast.Pow) and isinstance(a, int) and isinstance(b, int):
        return a.bit_length() * (b if kind is ast.Pow else 1) + b.bit_length() <= MAX_INTEGER_BITS
    return True


def bounds(source: range) -> tuple[int, ...]:
    if source.step != 1:
        return source.start, source.stop, source.step
    return (source.start, source.stop) if source.start else (source.stop,)


def power(base: Any, exponent: int) -> Any:
    made: Any = 1
    for _ in range(exponent):
        made = made * base
    return made
