"""Equations between the dims of a graph that its operators require, and what they imply for named dims.

Names may be expressions ("past_sequence_length + 1"). Operators relate dims: the inner dims of a product are equal, and
operands of a sum have equal sizes along each axis, or 1. Equations are solved for named dims where possible. Sizes are
tested against the others.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import BROADCASTS
from onnxgen.shapes.dims import Dim, Sym, TooComplex, apply, evaluate, product, substitute, symbol, symbols
from onnxgen.shapes.info import Shape, info

Shapes = list[Shape | None]
Pair = tuple[Dim, Dim]
EquationRule = Callable[[ir.Node, Shapes], Iterable[Pair]]
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Equation:
    """Two dims that must be equal. `or_one`: either may also be 1."""

    a: Dim
    b: Dim
    or_one: bool = False

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return True if the equation holds for these sizes, or if one of its dims is not known yet."""
        try:
            a, b = evaluate(self.a, sizes), evaluate(self.b, sizes)
        except (KeyError, ArithmeticError):
            return True
        return a == b or self.or_one and 1 in (a, b)

    def after(self, found: Mapping[str, Dim]) -> Equation:
        """Return the equation with some named dims replaced by known values."""
        return Equation(substitute(self.a, found), substitute(self.b, found), self.or_one)


# ---- names that are expressions --------------------------------------------------------------------------------------

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: apply("floordiv", a, b),
}


def named(names: Iterable[str]) -> dict[str, Dim]:
    """Return the dim names that are expressions of other names, with those expressions."""
    plain = {name for name in names if name.isidentifier()}
    found: dict[str, Dim] = {}
    for name in names:
        if name in plain or len(name) > 200:
            continue
        with suppress(SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            dim = _dim(ast.parse(name, mode="eval").body)
            if symbols(dim).keys() <= plain:
                found[name] = dim
    return found


def _dim(tree: ast.expr) -> Dim:
    """Parse an expression of names and whole numbers; `floor(a / b)` is `a // b`. Raises ValueError for others."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return symbol(name)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in BINARY:
            made: Dim = BINARY[type(kind)](_dim(left), _dim(right))
            return made
        case ast.Call(func=ast.Name(id="floor"), args=[ast.BinOp(left=left, op=ast.Div(), right=right)]):
            return apply("floordiv", _dim(left), _dim(right))
        case ast.Call(func=ast.Name(id=("min" | "max" | "Min" | "Max") as function), args=args) if args:
            return apply(function.lower(), *map(_dim, args))
    raise ValueError("no size")


# ---- what operators require ------------------------------------------------------------------------------------------

# axes of each input of onnxruntime's operators: equal letters mean equal sizes
LETTERS = {
    "MultiHeadAttention": ("blq", "bkq", "bkv", "", "", "", "bnph", "bnph"),
    "GroupQueryAttention": ("blq", "bld", "bld", "bnph", "bnph", "s", "", *[""] * 9, "b"),
    "SparseAttention": ("blq", "bld", "bld", "bnph", "bnph", "", "", "", "s"),
    "Attention": ("blq", "qv", "v"),
    "SkipLayerNormalization": ("blh", "blh", "h", "h", "h"),
    "SkipSimplifiedLayerNormalization": ("blh", "blh", "h", "h"),
    "EmbedLayerNormalization": ("bl", "bl", "vh", "ph", "sh", "h", "h"),
    "RotaryEmbedding": ("blh", "bl"),
}

CACHED = {"GroupQueryAttention": 6, "SparseAttention": 7}  # index of the input with the total number of keys


def asked(nodes: Iterable[ir.Node]) -> Iterator[Equation]:
    """Yield the equations that the nodes of a graph require, as far as dims are known. Equal numbers are left out."""
    for node in nodes:
        shapes = [info(value).shape for value in node.inputs]
        with suppress(IndexError, TooComplex):
            for equation in _of_node(node, shapes):
                if equation.a != equation.b and not (isinstance(equation.a, int) and isinstance(equation.b, int)):
                    yield equation


def _of_node(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    if node.domain == MICROSOFT:
        yield from _by_letters(LETTERS.get(node.op_type, ()), shapes)
        if node.op_type in CACHED:
            yield from (Equation(a, b) for a, b in _cached(node, shapes))
    elif is_a(node, BROADCASTS) or node.op_type == "PRelu":
        if "broadcast" not in node.attributes:  # opsets 1 to 6 broadcast by another rule
            yield from _broadcast([s for s in shapes if s is not None])
    elif node.op_type in EQUATION_RULES:
        yield from (Equation(a, b) for a, b in EQUATION_RULES[node.op_type](node, shapes))
    if node.op_type in ("MatMul", "FusedMatMul") and len(shapes) > 1 and shapes[0] and shapes[1]:
        yield from _broadcast([shapes[0][:-2], shapes[1][:-2]])


def _cached(node: ir.Node, shapes: Shapes) -> Iterator[Pair]:
    """Yield equations for the size of a head, and for the number of keys, including those of a growing cache."""
    x, past, heads = shapes[0], shapes[3], whole(node, "num_heads")
    if not x or not past:
        return
    is_packed = len(shapes) < 2 or shapes[1] is None
    yield x[2], past[3] * (heads + 2 * whole(node, "kv_num_heads") if is_packed else heads)
    total = info(node.inputs[CACHED[node.op_type]]).data
    if whole(node, "sliding_window_cache"):
        yield past[2], whole(node, "local_window_size")  # unused cache room is uninitialised memory
    elif node.op_type == "GroupQueryAttention" and total is not None:
        has_room = len(shapes) > 16 and node.inputs[16] is not None  # the cache has room, so it need not grow
        sizes = total.reshape(-1).tolist()[:1]
        yield from ((size, past[2] + x[1]) for size in sizes if not has_room or size != past[2])


def _by_letters(letters: Iterable[str], shapes: Shapes) -> Iterator[Equation]:
    first: dict[str, Dim] = {}
    for names, shape in zip(letters, shapes):
        for name, dim in zip(names, shape or ()) if len(names) == len(shape or ()) else ():
            yield Equation(first.setdefault(name, dim), dim)


def _broadcast(shapes: list[Shape]) -> Iterator[Equation]:
    """Yield equations: sizes along each axis, counted from the last, are equal or 1."""
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        dims = [s[-axis] for s in shapes if len(s) >= axis and s[-axis] != 1]
        yield from (Equation(dims[0], dim, or_one=True) for dim in dims[1:])


def whole(node: ir.Node, name: str, default: int = 0) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.type != ir.AttributeType.INT else attribute.as_int()


def _two(pairs: Callable[[ir.Node, Shape, Shape], Iterable[Pair]], first: int = 0) -> EquationRule:
    """Make a rule for two adjacent inputs, if their shapes are known."""

    def rule(node: ir.Node, shapes: Shapes) -> Iterable[Pair]:
        a, b = shapes[first : first + 2]
        return pairs(node, a, b) if a and b else ()

    return rule


def _concat(node: ir.Node, shapes: Shapes) -> Iterator[Pair]:
    known = [s for s in shapes if s]
    axis = whole(node, "axis", 1)
    for shape in known[1:]:
        for i, (a, b) in enumerate(zip(known[0], shape)):
            if i != axis % len(shape):
                yield a, b


def _reshape(node: ir.Node, shapes: Shapes) -> Iterator[Pair]:
    made = info(node.outputs[0]).shape
    if shapes[0] is not None and made is not None:
        yield product(shapes[0]), product(made)


def _recurrent(node: ir.Node, shapes: Shapes) -> Iterator[Pair]:
    x, weight = shapes[:2]
    batch = 0 if whole(node, "layout", 0) else 1
    if x and weight:
        yield x[2], weight[2]
        if len(shapes) > 4 and shapes[4]:
            yield shapes[4][0], x[batch]
        for state in shapes[5:7]:
            if state and len(state) == 3:
                yield state[batch], x[batch]


def _attention(node: ir.Node, shapes: Shapes) -> Iterator[Pair]:
    q, k, v = shapes[:3]
    if q and k and v and len(q) == len(k) == len(v):
        yield from ((q[0], k[0]), (k[0], v[0]), (k[-2], v[-2]))
        for past in shapes[4:6]:
            if past and len(past) == 4:
                yield past[0], q[0]


EQUATION_RULES: dict[str, EquationRule] = {
    **dict.fromkeys(("MatMul", "MatMulInteger"), _two(lambda node, a, b: [(a[-1], b[-2] if len(b) > 1 else b[-1])])),
    "Gemm": _two(lambda node, a, b: [(a[1 - bool(whole(node, "transA"))], b[int(bool(whole(node, "transB")))])]),
    **dict.fromkeys(("Conv", "ConvInteger"), _two(lambda node, x, w: [(x[1], w[1] * whole(node, "group", 1))])),
    "ConvTranspose": _two(lambda node, x, w: [(x[1], w[0])]),
    **dict.fromkeys(
        ("BatchNormalization", "InstanceNormalization"),
        _two(lambda node, x, scale: [(x[1], scale[0])] if len(scale) == 1 else []),
    ),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization"), _two(lambda node, x, scale: zip(reversed(x), reversed(scale)))
    ),
    "Concat": _concat,
    "Reshape": _reshape,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "ScatterElements": _two(lambda node, indices, updates: zip(indices, updates), first=1),
    "Attention": _attention,
    "RoiAlign": _two(lambda node, rois, indices: [(rois[0], indices[0])], first=1),
}


# ---- what follows ----------------------------------------------------------------------------------------------------


def solved(equations: Iterable[Equation], free: Mapping[str, int]) -> dict[str, Dim]:
    """Solve equations for named dims. Certain equations come first.

    Args:
        free: the names that equations are solved for, with their places in the order of inputs. Later names become
            expressions of earlier ones. Equations with other names are ignored.
    """
    found: dict[str, Dim] = {}
    for equation in sorted(equations, key=lambda e: e.or_one):
        with suppress(ArithmeticError, KeyError):
            current = equation.after(found)
            if current.or_one and 1 in (current.a, current.b):
                continue
            made = _solution(current, free)
            if made is not None:
                name, dim = made
                found = {known: substitute(d, {name: dim}) for known, d in found.items()} | {name: dim}
    return found


def _solution(equation: Equation, free: Mapping[str, int]) -> tuple[str, Dim] | None:
    """Return a name and the expression it must equal: the name that stands alone, or else the last one."""
    difference = equation.a - equation.b
    if not isinstance(difference, Sym) or not symbols(difference).keys() <= free.keys():
        return None
    best: tuple[tuple[bool, int], str, Dim] | None = None
    for name in symbols(difference):
        dim = _alone(difference, name)
        if dim is None or isinstance(dim, int) and dim < 1:
            continue
        stands = symbol(name) in (equation.a, equation.b)
        rank = (stands, free[name])
        if best is None or rank > best[0]:
            best = rank, name, dim
    return None if best is None else best[1:]


def _alone(difference: Sym, name: str) -> Dim | None:
    """Solve `difference == 0` for a symbol. Returns None if the solution is not a polynomial."""
    factor = 0
    for monomial, coefficient in difference.terms:
        if [(a.key, p) for a, p in monomial] == [(repr(name), 1)]:
            factor = coefficient
    if factor == 0:
        return None
    rest = difference - factor * symbol(name)
    if isinstance(rest, Sym) and name in symbols(rest):
        return None
    if isinstance(rest, int):
        return -rest // factor if rest % factor == 0 else None
    return rest * -factor if abs(factor) == 1 else None
