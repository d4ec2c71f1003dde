"""What a network asks of the sizes of its inputs: which of it follows from what another one asks.

`torch.export` writes down each question that a module's Python, or an operator, asked of a size, such as
`L[0].size()[1] == L[1].size()[1]`. Two modules may ask the same in other words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import Max, Min  # what the sizes of an exported program are made of

from onnxgen.canonical.equations import follows
from onnxgen.canonical.terms import Shape

SIZE = re.compile(r"L\[(\d+)\]\.size\(\)\[(\d+)\]")
OPERATORS: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: sympy.floor(a / b),
    ast.Mod: sympy.Mod,
    ast.Pow: lambda a, b: a**b,
}
SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<"}
TRUE = ("true", sympy.Integer(0))
Question = tuple[str, Any]  # a sign, and what stands on its left: 0 stands on its right


class Questions:
    """What is asked, each as an expression of the inputs' sizes that is compared with 0."""

    def __init__(self, guards: Iterable[str], inputs: Sequence[Shape]) -> None:
        self.inputs = inputs
        self.asked: dict[Question, str] = {}
        for guard in guards:
            for question in self._all(guard):
                self.asked.setdefault(question, guard)

    def beyond(self, other: Questions) -> tuple[set[Any], list[str]]:
        """Return what is asked here beyond the other's questions: sizes that may not be 1, and the rest."""
        ones: set[Any] = set()
        rest: list[str] = []
        for question, guard in self.asked.items():
            if question in other.asked or question == TRUE:
                continue
            sign, left = question
            if sign == "==" and follows(left, [known for equal, known in other.asked if equal == "=="]):
                continue
            symbol = left + 1
            if sign == "!=" and isinstance(symbol, sympy.Symbol):
                ones.add(symbol)
            else:
                rest.append(guard)
        return ones, sorted({*rest})

    def _all(self, guard: str) -> list[Question]:
        """Return the questions of a guard, of which each must be true."""
        text = SIZE.sub(lambda m: f"size_{m[1]}_{m[2]}", guard)
        try:
            return list(self._split(ast.parse(text, mode="eval").body))
        except (SyntaxError, TypeError, KeyError, IndexError, ValueError):
            return [(guard, sympy.Integer(0))]

    def _split(self, node: ast.expr) -> Iterable[Question]:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            for part in node.values:
                yield from self._split(part)
        elif isinstance(node, ast.BoolOp):
            parts = [list(self._split(part)) for part in node.values]
            if not any(all(q == TRUE for q in part) for part in parts):
                yield f"or {sorted(map(str, parts))}", sympy.Integer(0)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield question(SIGNS[type(node.ops[0])], self._size(node.left) - self._size(node.comparators[0]))
        else:
            raise ValueError(ast.unparse(node))

    def _size(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return sympy.Integer(node.value)
        if isinstance(node, ast.Name):
            _, number, axis = node.id.split("_")
            return sympy.sympify(self.inputs[int(number)][int(axis)])
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](self._size(node.left), self._size(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._size(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            functions: dict[str, Any] = {"min": Min, "max": Max}
            return functions[node.func.id](*map(self._size, node.args))
        raise ValueError(ast.unparse(node))


def question(sign: str, left: Any) -> Question:
    """Return a comparison with 0 in the form that all equal ones have. All sizes are at least 1."""
    left = sympy.factor(sympy.expand(left))
    number, factors = left.as_coeff_mul()
    turned = number < 0
    kept = [f for f in factors if not f.is_positive]  # what is positive leaves the sign as it is
    left = sympy.expand(sympy.Mul(*kept)) if kept else sympy.Integer(1 if number else 0)
    if sign in ("<=", "<"):
        sign, turned = {"<=": ">=", "<": ">"}[sign], not turned
    left = -left if turned else left
    if sign == ">":
        if not left.is_integer:
            raise ValueError(f"{left} is no size")
        sign, left = ">=", left - 1
    if sign in ("==", "!=") and left.could_extract_minus_sign():
        left = -left
    return TRUE if _is_true(sign, left) else (sign, left)


def _is_true(sign: str, left: Any) -> bool:
    """Whether a comparison holds for all sizes from 1."""
    if left.is_Integer:
        return bool({"==": left == 0, "!=": left != 0, ">=": left >= 0}[sign])
    if sign == "==":
        return False
    symbols = sorted(left.free_symbols, key=str)
    more = left.subs({s: s + 1 for s in symbols}, simultaneous=True)
    if not more.is_polynomial(*symbols):
        return False
    terms = sympy.Poly(more, *symbols)
    least = terms.eval(dict.fromkeys(symbols, 0))
    coefficients = terms.coeffs()
    if sign == ">=":
        return bool(least >= 0 and all(c >= 0 for c in coefficients))
    return bool((least > 0 and all(c >= 0 for c in coefficients)) or (least < 0 and all(c <= 0 for c in coefficients)))
