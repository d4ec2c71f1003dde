"""Which dims of a node must be equal, by what its operator requires: rules for cards, and axes in letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.operators import Operator
from onnxgen.shapes.dims import Dim, evaluate, product, substitute
from onnxgen.shapes.info import Shape, info

Shapes = list[Shape | None]
EquationRule = Callable[[ir.Node, Shapes], Iterable["Equation"]]


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

    def after(self, values: Mapping[str, Dim]) -> Equation:
        """Return the equation with some named dims replaced by known values."""
        return Equation(substitute(self.a, values), substitute(self.b, values), self.or_one)


def by_letters(known: Operator, node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    """Yield equations of the axes with equal letters. An input whose rank is not its number of letters has none."""
    first: dict[str, Dim] = {}
    for letters, shape in zip(known.letters(whole(node, "layout")), shapes):
        for letter, dim in zip(letters, shape or ()) if len(letters) == len(shape or ()) else ():
            if letter.isalpha():
                yield Equation(first.setdefault(letter, dim), dim)


def broadcast(shapes: list[Shape]) -> Iterator[Equation]:
    """Yield equations: sizes along each axis, counted from the last, are equal or 1."""
    for axis in range(1, max(map(len, shapes), default=0) + 1):
        dims = [s[-axis] for s in shapes if len(s) >= axis and s[-axis] != 1]
        yield from (Equation(dims[0], dim, or_one=True) for dim in dims[1:])


def whole(node: ir.Node, name: str, default: int = 0) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.type != ir.AttributeType.INT else attribute.as_int()


def _two(pairs: Callable[[ir.Node, Shape, Shape], Iterable[tuple[Dim, Dim]]], first: int = 0) -> EquationRule:
    """Make a rule for two adjacent inputs, if their shapes are known."""

    def rule(node: ir.Node, shapes: Shapes) -> Iterable[Equation]:
        a, b = shapes[first : first + 2]
        return [Equation(one, other) for one, other in pairs(node, a, b)] if a and b else ()

    return rule


def concat(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    known = [s for s in shapes if s]
    axis = whole(node, "axis", 1)
    for shape in known[1:]:
        for i, (a, b) in enumerate(zip(known[0], shape)):
            if i != axis % len(shape):
                yield Equation(a, b)


def reshape(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    target = info(node.outputs[0]).shape
    if shapes[0] is not None and target is not None:
        yield Equation(product(shapes[0]), product(target))


def attention(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    q, k, v = shapes[:3]
    if q and k and v and len(q) == len(k) == len(v):
        yield from (Equation(q[0], k[0]), Equation(k[0], v[0]), Equation(k[-2], v[-2]))
        for past in shapes[4:6]:
            if past and len(past) == 4:
                yield Equation(past[0], q[0])


def cached(total_at: int) -> EquationRule:
    """Make a rule for the size of a head, and for the number of keys, including those of a growing cache.

    Args:
        total_at: the input with the total number of keys.
    """

    def rule(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
        x, past, heads = shapes[0], shapes[3], whole(node, "num_heads")
        if not x or not past:
            return
        is_packed = len(shapes) < 2 or shapes[1] is None
        yield Equation(x[2], past[3] * (heads + 2 * whole(node, "kv_num_heads") if is_packed else heads))
        total = info(node.inputs[total_at]).data
        if whole(node, "sliding_window_cache"):
            yield Equation(past[2], whole(node, "local_window_size"))  # unused cache room is uninitialised memory
        elif node.op_type == "GroupQueryAttention" and total is not None:
            has_room = len(shapes) > 16 and node.inputs[16] is not None  # the cache has room, so it need not grow
            sizes = total.reshape(-1).tolist()[:1]
            yield from (Equation(size, past[2] + x[1]) for size in sizes if not has_room or size != past[2])

    return rule


def prelu(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    yield from broadcast([s for s in shapes if s is not None])


def fused_matmul(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    if len(shapes) > 1 and shapes[0] and shapes[1]:
        yield from broadcast([shapes[0][:-2], shapes[1][:-2]])


def matmul(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    yield from matmul_integer(node, shapes)
    yield from fused_matmul(node, shapes)


matmul_integer = _two(lambda node, a, b: [(a[-1], b[-2] if len(b) > 1 else b[-1])])
gemm = _two(lambda node, a, b: [(a[1 - bool(whole(node, "transA"))], b[int(bool(whole(node, "transB")))])])
conv = conv_integer = _two(lambda node, x, w: [(x[1], w[1] * whole(node, "group", 1))])
conv_transpose = _two(lambda node, x, w: [(x[1], w[0])])
batch_norm = instance_norm = _two(lambda node, x, scale: [(x[1], scale[0])] if len(scale) == 1 else [])
layer_norm = rms_norm = _two(lambda node, x, scale: zip(reversed(x), reversed(scale)))
scatter_elements = _two(lambda node, indices, updates: zip(indices, updates), first=1)
roi_align = _two(lambda node, rois, indices: [(rois[0], indices[0])], first=1)
