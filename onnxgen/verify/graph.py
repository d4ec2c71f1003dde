"""Facts about a graph that decide how it is compared: inputs, mode, random values, equal dims.

Names of dims may be expressions ("past_sequence_length + 1"). Operators relate dims: the inner dims
of a product are equal, and operands of a sum have equal sizes along each axis, or 1. Equations are
solved for named dims where possible. Sizes are tested against the others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, has_subgraphs, subgraphs
from onnxgen.graph.operators import PIECEWISE_CONSTANT, card, is_a, known
from onnxgen.graph.traits import (
    ADDS,
    BROADCASTS,
    COMMUTES,
    COMPARISON,
    CONVOLUTION,
    MOVES,
    POOL,
    PRODUCT,
    RANDOM,
    SAME,
    SAMPLES,
    SCALES,
)
from onnxgen.options import Options
from onnxgen.reader.inputs import types_of
from onnxgen.shapes import propagate
from onnxgen.shapes.decided import decided
from onnxgen.shapes.dims import Dim, Sym, TooComplex, apply, substitute, symbol, symbols
from onnxgen.shapes.equal import Equation, Shapes, broadcast, by_letters, whole
from onnxgen.shapes.info import Info, info
from onnxgen.shapes.ranges import Range, counts_queries, most_keys, range_of
from onnxgen.weights.stored import stored

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
    expressions: dict[str, Dim] = {}
    for name in names:
        if name in plain or len(name) > 200:
            continue
        with suppress(SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
            dim = _dim(ast.parse(name, mode="eval").body)
            if symbols(dim).keys() <= plain:
                expressions[name] = dim
    return expressions


def _dim(tree: ast.expr) -> Dim:
    """Parse an expression of names and whole numbers; `floor(a / b)` is `a // b`. Raises ValueError for others."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return symbol(name)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in BINARY:
            dim: Dim = BINARY[type(kind)](_dim(left), _dim(right))
            return dim
        case ast.Call(func=ast.Name(id="floor"), args=[ast.BinOp(left=left, op=ast.Div(), right=right)]):
            return apply("floordiv", _dim(left), _dim(right))
        case ast.Call(func=ast.Name(id=("min" | "max" | "Min" | "Max") as function), args=args) if args:
            return apply(function.lower(), *map(_dim, args))
    raise ValueError("no size")


# ---- what operators require ------------------------------------------------------------------------------------------


def asked(nodes: Iterable[ir.Node]) -> Iterator[Equation]:
    """Yield the equations that the nodes of a graph require, as far as dims are known. Equal numbers are left out."""
    for node in nodes:
        shapes = [info(value).shape for value in node.inputs]
        with suppress(IndexError, TooComplex):
            for equation in _of_node(node, shapes):
                if equation.a != equation.b and not (isinstance(equation.a, int) and isinstance(equation.b, int)):
                    yield equation


def _of_node(node: ir.Node, shapes: Shapes) -> Iterator[Equation]:
    known = card(node.domain, node.op_type)
    yield from by_letters(known, node, shapes)
    if known.rules.equal is not None:
        yield from known.rules.equal(node, shapes)
    elif BROADCASTS in known.traits and "broadcast" not in node.attributes:  # opsets 1 to 6 broadcast by another rule
        yield from broadcast([s for s in shapes if s is not None])


# ---- what follows ----------------------------------------------------------------------------------------------------


def solved(equations: Iterable[Equation], free: Mapping[str, int]) -> dict[str, Dim]:
    """Solve equations for named dims. Certain equations come first.

    Args:
        free: the names that equations are solved for, with their places in the order of inputs. Later names become
            expressions of earlier ones. Equations with other names are ignored.
    """
    solutions: dict[str, Dim] = {}
    for equation in sorted(equations, key=lambda e: e.or_one):
        with suppress(ArithmeticError, KeyError):
            current = equation.after(solutions)
            if current.or_one and 1 in (current.a, current.b):
                continue
            solution = _solution(current, free)
            if solution is not None:
                name, dim = solution
                solutions = {known: substitute(d, {name: dim}) for known, d in solutions.items()} | {name: dim}
    return solutions


def _solution(equation: Equation, free: Mapping[str, int]) -> tuple[str, Dim] | None:
    """Return a name and the expression it must equal: the name that stands alone, or else the last one."""
    difference = equation.a - equation.b
    if not isinstance(difference, Sym) or not symbols(difference).keys() <= free.keys():
        return None
    solutions = ((name, _alone(difference, name)) for name in symbols(difference))
    possible = [(name, dim) for name, dim in solutions if dim is not None and (isinstance(dim, Sym) or dim >= 1)]
    return max(possible, key=lambda s: (symbol(s[0]) in (equation.a, equation.b), free[s[0]]), default=None)


def _alone(difference: Sym, name: str) -> Dim | None:
    """Solve `difference == 0` for a symbol. Returns None if the solution is not a polynomial."""
    alone = [(repr(name), 1)]
    factor = next((c for monomial, c in difference.terms if [(a.key, p) for a, p in monomial] == alone), 0)
    if factor == 0:
        return None
    rest = difference - factor * symbol(name)
    if isinstance(rest, Sym) and name in symbols(rest):
        return None
    if isinstance(rest, int):
        return -rest // factor if rest % factor == 0 else None
    return rest * -factor if abs(factor) == 1 else None


PROPAGATION_ROUNDS = 5  # rounds of propagation; each knows more dims than the one before
PRODUCTS = re.compile(
    "(MatMul|Conv)Integer(ToFloat)?|QLinear(MatMul|Conv)|DynamicQuantize(MatMul|LSTM)|QGemm|QAttention"
)
STRAIGHT_THROUGH = re.compile(r"Quant|^Q[A-Z]|Integer$")  # operators that round to integers
HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


@dataclass
class Role:
    """The use of an input's elements.

    Attributes:
        bounds: dims that the elements index; each element must be below all of them.
        indexes: they are indices.
        size: they act as a size or a count.
        mode: they switch training mode.
        compared: integers to try, since a branch may depend on them: the constants that the elements are compared
            with, then the neighbours of these.
        keys: the keys that the graph looks up in a map.
        least: lower limits of integers.
        distinct: the range of axes along which no two indices may be equal; None if they may be.
        categories: words or integers that an encoder knows, and unknown ones if it accepts them.
        shape: for an input of unknown rank, a shape that its operators accept; None if unknown.
        reshapes: if it is the shape input of a Reshape, the rank of the reshaped tensor; else None.
        parts: if it has the sizes that a Split cuts an axis into, the size of the axis; else None.
        counted: it is a mask, and the ones of each row are counted as its keys. All must be 1, or caches hold garbage.
    """

    bounds: list[Dim] = field(default_factory=list)
    indexes: bool = False
    size: bool = False
    mode: bool = False
    compared: list[int] = field(default_factory=list)
    keys: list[str] | list[int] = field(default_factory=list)
    least: list[Dim] = field(default_factory=list)
    distinct: tuple[int, int] | None = None
    categories: list[str] | list[int] = field(default_factory=list)
    shape: tuple[int, ...] | None = None
    reshapes: int | None = None
    parts: Dim | None = None
    counted: bool = False


@dataclass
class Graph:
    """The facts about a graph that verification needs.

    Attributes:
        inputs: name, type and facts of each argument, in order.
        roles: by input name.
        outputs: names, in order.
        random: outputs whose values differ from run to run.
        trains_norm: it has a BatchNormalization in training mode.
        keeps_norm: it has a BatchNormalization in evaluation mode.
        trains_dropout: it has a Dropout in training mode.
        branches: it has control flow, so a run need not reach every parameter.
        loops: it has a loop, which may run on for some inputs.
        is_standard: all of its operators are ONNX's own.
        rounds: values may be rounded to integers between its operators.
        chooses: it has an If, so a run takes one of two branches.
        halves: the half precision types it computes in.
        multiplies_bytes: it multiplies 8-bit integers.
        straight_through: it rounds to integers; the module passes gradients straight through.
        windows: dynamic input sizes of pools and convolutions, each with the smallest size that holds the window.
        known: named dims that are expressions of others.
        equations: the other equations between dims.
        argument_types: the ONNX type of each argument that is a tensor.
        types: the ONNX element type of each value of the main graph, if known.
    """

    inputs: list[tuple[str, ir.TypeProtocol | None, Info]]
    roles: dict[str, Role]
    outputs: list[str]
    random: set[str] = field(default_factory=set)
    trains_norm: bool = False
    keeps_norm: bool = False
    trains_dropout: bool = False
    branches: bool = False
    loops: bool = False
    is_standard: bool = True
    rounds: bool = False
    chooses: bool = False
    halves: set[ir.DataType] = field(default_factory=set)
    multiplies_bytes: bool = False
    straight_through: bool = False
    windows: list[tuple[Sym, int]] = field(default_factory=list)
    known: dict[str, Dim] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)
    argument_types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)

    @property
    def training(self) -> bool:
        return self.trains_norm or self.trains_dropout


def _rounds(node: ir.Node) -> bool:
    """Return True if a node may be part of a rounding to integers."""
    to = node.attributes["to"].as_int() if node.op_type == "Cast" and "to" in node.attributes else 0
    is_byte = to in (ir.DataType.INT8, ir.DataType.UINT8)
    return is_byte or known(node).rules.flat == PIECEWISE_CONSTANT or STRAIGHT_THROUGH.search(node.op_type) is not None


def examine(model: ir.Model, options: Options) -> Graph:
    """Examine a model that `reader.read` returned."""
    graph = model.graph
    propagate(graph, options)
    names = _names(graph.inputs)
    inputs = [(name, v.type, info(v)) for name, v in zip(names, graph.inputs)]
    known, equations = related(graph, options)
    tensors = [name for name, _, facts in inputs if facts.kind == "tensor" and facts.dtype]
    tainted = _tainted(graph)
    values = [value for node in graph for value in node.outputs]
    examined = Graph(
        inputs,
        dict(zip(names, map(_role, graph.inputs))),
        _names(graph.outputs),
        random=set(_names(v for v in graph.outputs if v in tainted)),
        known=known,
        equations=equations,
        argument_types=types_of(graph, tensors),
        types={name: int(t) for name, v in zip(_names(values), values) if (t := info(v).dtype) is not None},
    )
    _note_nodes(examined, graph, model.opset_imports.get("", 1))
    return examined


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [value.name or "" for value in values]


def _note_nodes(examined: Graph, graph: ir.Graph, opset: int) -> None:
    """Note what the nodes of a graph tell, one by one."""
    nodes = all_nodes(graph)
    kinds = {node.op_type for node in nodes}
    examined.multiplies_bytes = any(map(PRODUCTS.fullmatch, kinds))
    examined.straight_through = any(map(STRAIGHT_THROUGH.search, kinds))
    examined.chooses = "If" in kinds
    examined.loops = any(node.op_type != "If" and has_subgraphs(node) for node in nodes)
    examined.is_standard = all(node.domain in ("", "ai.onnx") for node in nodes)
    examined.rounds = not examined.is_standard or any(map(_rounds, nodes))
    examined.branches = any(map(has_subgraphs, nodes))
    used = [*graph.inputs, *(v for node in nodes for v in (*node.inputs, *node.outputs))]
    types = {v.dtype for v in used if v is not None}
    types |= {ir.DataType(node.attributes["to"].as_int()) for node in nodes if node.op_type == "Cast"}
    examined.halves = {dtype for dtype in HALVES if dtype in types}
    for node in nodes:
        _note_mode(examined, node, node.version or opset)
        examined.windows.extend((*_cache_windows(node), *_windows(node)))


def related(graph: ir.Graph, options: Options) -> tuple[dict[str, Dim], list[Equation]]:
    """Return the named dims that are expressions of others, and further conditions on sizes. Runs `propagate`."""
    names: dict[str, int] = {}
    for value in graph.inputs:
        for dim in info(value).shape or ():
            for name in symbols(dim):
                names.setdefault(name, len(names))
    known = named(names)
    conditions = decided(graph, options) if names else {}
    equations: list[Equation] = []
    for _ in range(PROPAGATION_ROUNDS if names else 0):
        propagate(graph, options, known, conditions)
        equations = list(dict.fromkeys(asked(all_nodes(graph))))
        new = solved(equations, {name: place for name, place in names.items() if name not in known})
        if not new:
            break
        known = {name: substitute(dim, new) for name, dim in known.items()} | new
    return known, equations


def _note_mode(graph: Graph, node: ir.Node, opset: int) -> None:
    if node.domain not in ("", "ai.onnx"):
        return
    if node.op_type == "BatchNormalization":
        if _norm_trains(node, opset):
            graph.trains_norm = True
        else:
            graph.keeps_norm = True
    elif node.op_type == "Dropout" and _dropout_trains(node, opset):
        graph.trains_dropout = True


def _norm_trains(node: ir.Node, opset: int) -> bool:
    """Return True if a BatchNormalization is in training mode.

    Opset 14 has an attribute for it, opsets 7 to 13 extra outputs, earlier ones `is_test` (default 0).
    """
    if opset >= 14:
        return whole(node, "training_mode") == 1
    if opset >= 7:
        return sum(1 for output in node.outputs if output.name) > 1
    return whole(node, "is_test") == 0


def _dropout_trains(node: ir.Node, opset: int) -> bool:
    if opset < 7:
        return whole(node, "is_test") == 0
    mode = node.inputs[2] if opset >= 12 and len(node.inputs) > 2 else None
    tensor = stored(mode) if mode is not None else None
    return tensor is not None and bool(np.asarray(tensor.numpy()).any())


def _cache_windows(node: ir.Node) -> Iterator[tuple[Sym, int]]:
    if node.op_type == "GroupQueryAttention" and whole(node, "sliding_window_cache") and len(node.inputs) > 6:
        total = info(node.inputs[6]).data  # a cache that is not full has uninitialised memory behind its keys
        sizes = () if total is None else (n for n in total.flat if isinstance(n, Sym))
        yield from ((size, whole(node, "local_window_size")) for size in sizes)
    if counts_queries(node) and (query := info(node.inputs[0]).shape) and info(node.inputs[3]).shape:
        rest = most_keys(node, [info(value).shape for value in node.inputs]) - query[1]
        yield from [(rest, 0)] if isinstance(rest, Sym) else []


def _windows(node: ir.Node) -> Iterator[tuple[Sym, int]]:
    if not is_a(node, POOL, CONVOLUTION):
        return
    at = known(node).matrix
    weight = None if at is None else info(node.inputs[at]).shape
    kernel = _ints(node, "kernel_shape") or [d for d in (weight or ())[2:] if isinstance(d, int)]
    auto = node.attributes.get("auto_pad")
    how, n = "NOTSET" if auto is None else auto.as_string(), len(kernel)
    if how.startswith("SAME"):  # padded to the size that the window needs
        return
    dilations, pads = _ints(node, "dilations") or [1] * n, _ints(node, "pads") if how == "NOTSET" else []
    both = [sum(pads[i::n]) for i in range(n)]
    for size, k, d, pad in zip((info(node.inputs[0]).shape or ())[2:], kernel, dilations, both):
        if isinstance(size, Sym):
            yield size, (k - 1) * d + 1 - pad


def _ints(node: ir.Node, name: str) -> list[int]:
    attribute = node.attributes.get(name)
    return [] if attribute is None else list(attribute.as_ints())


def _tainted(graph: ir.Graph) -> set[ir.Value | None]:
    """Return the values that depend on a random operator."""
    tainted: set[ir.Value | None] = set()
    for node in graph:
        nodes = [node, *(n for s in subgraphs(node) for n in all_nodes(s))]
        passed = [v for s in subgraphs(node) for v in s.outputs] + [v for n in nodes for v in n.inputs]
        if any(is_a(n, RANDOM) for n in nodes) or not tainted.isdisjoint(passed):
            tainted.update(node.outputs)
    return tainted


COUNTS = {"GroupQueryAttention": (5, 16), "SparseAttention": (8,)}  # inputs with the number of keys of each row


def _role(value: ir.Value) -> Role:
    """Follow an input through the graph to the nodes that use its elements as indices or sizes."""
    role = Role()
    seen, todo, sums, copies = {value}, [value], set[ir.Value](), {value}  # copies: with the same numbers and shape
    constants, neighbours = dict[int, None](), dict[int, None]()
    while todo:
        current = todo.pop()
        for use in current.uses():
            node, position = use.node, use.idx
            if current in sums and position in COUNTS.get(node.op_type, ()):
                role.counted = True
                continue
            role.shape = role.shape or _shape_taken(node, position)
            if _note_use(role, node, position, current in copies):
                continue
            if is_a(node, COMPARISON):
                constants |= dict.fromkeys(_integer(node.inputs[1 - position]))
                neighbours |= _beside(node, position)
            elif _carries_numbers(node, position):
                new = [o for o in node.outputs if o not in seen]
                sums.update(new if current in sums or node.op_type == "ReduceSum" else ())
                seen.update(new)
                copies.update(new if current in copies and node.op_type == "Cast" else ())
                todo.extend(new)
    role.compared = list(constants | neighbours)
    return role


def _beside(node: ir.Node, position: int) -> dict[int, None]:
    """Return the integers next to the one that an input is compared with."""
    steps = (-1,) if node.op_type == "Equal" else (-1, 1)
    return {constant + step: None for constant in _integer(node.inputs[1 - position]) for step in steps}


def _note_use(role: Role, node: ir.Node, position: int, is_copy: bool) -> bool:
    """Note what the elements of an input are to a node, and return True if it tells."""
    taken = range_of(node, position)
    if taken is not None:
        _limit(role, taken, node, is_copy)
    elif node.op_type == "Dropout" and position == 2:
        role.mode = True
    elif position == 1 and [*card(node.domain, node.op_type).parameters][1:2] == ["indices"]:
        role.indexes = True
        role.bounds.extend(_bounds(node))
    elif node.op_type in ("DictVectorizer", "CastMap"):
        role.keys = _keys(node)
    elif node.op_type in ENCODERS:
        role.categories = _categories(node)
    else:
        return False
    return True


def _limit(role: Role, taken: Range, node: ir.Node, is_copy: bool) -> None:
    """Note the range that a node takes. `is_copy`: it takes the input's own numbers, in the same shape."""
    if taken.is_size:
        role.size = True
        if is_copy:
            role.reshapes = info(node.inputs[0]).rank if node.op_type == "Reshape" else None
            role.parts = _axis_size(node) if node.op_type.startswith("Split") else None
        return
    role.least.append(taken.least)
    role.indexes = role.indexes or taken.below is not None
    role.bounds.extend([] if taken.below is None else [taken.below])
    role.distinct = role.distinct or (taken.distinct if is_copy else None)


def _shape_taken(node: ir.Node, position: int) -> tuple[int, ...] | None:
    """Return a shape that a product or convolution accepts, derived from its other operand."""
    is_conv = is_a(node, CONVOLUTION)
    if not is_a(node, PRODUCT) or is_a(node, SAMPLES) != is_conv or position > 1 or len(node.inputs) < 2:
        return None
    other = info(node.inputs[1 - position]).shape or ()
    sizes = [d for d in other if isinstance(d, int)]
    if len(sizes) < max(2, len(other)):
        return None
    if is_conv:
        return (2, sizes[1] * whole(node, "group", 1), *(d + 7 for d in sizes[2:])) if position == 0 else None
    # the inner size is the last of the first factor, and the last but one of the second; transposed, it is the other
    is_transposed = [whole(node, name) != 0 for name in ("transA", "transB")]
    inner = sizes[-1] if is_transposed[1 - position] != bool(position) else sizes[-2]
    return (3, inner) if is_transposed[position] == bool(position) else (inner, 3)


def _axis_size(node: ir.Node) -> Dim | None:
    """Return the size of the axis that a node names, if it is known."""
    shape, axis = info(node.inputs[0]).shape or (), whole(node, "axis")
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _keys(node: ir.Node) -> list[str] | list[int]:
    """Return the keys that an operator looks up in a map, if its attributes list them."""
    if "string_vocabulary" in node.attributes:
        return list(node.attributes["string_vocabulary"].as_strings())
    return _ints(node, "int64_vocabulary") or list(range(whole(node, "max_map") or 3))


ENCODERS = {"OneHotEncoder": "cats_", "LabelEncoder": "keys_", "CategoryMapper": "cats_"}
OTHERS = "?", ""  # text that no encoder knows


def _categories(node: ir.Node) -> list[str] | list[int]:
    """Return the categories that an encoder knows, and an unknown one unless a OneHotEncoder refuses those."""
    prefix, is_strict = ENCODERS[node.op_type], node.op_type == "OneHotEncoder" and not whole(node, "zeros", 1)
    if f"{prefix}strings" in node.attributes:
        return list(node.attributes[f"{prefix}strings"].as_strings()) + ([] if is_strict else list(OTHERS))
    numbers = _ints(node, f"{prefix}int64s")
    return numbers + ([] if is_strict or not numbers else [max(numbers) + 1])


ABOUT = (SAME, ADDS, SCALES, COMMUTES)  # change numbers, but not their role


def _carries_numbers(node: ir.Node, position: int) -> bool:
    """Return True if the operator's output holds about the same numbers as its input, or sums of them."""
    if node.op_type == "ReduceSum":
        return position == 0
    is_rounded = known(node).rules.flat == PIECEWISE_CONSTANT or node.op_type == "Clip"
    return is_a(node, MOVES) and position in known(node).data or is_a(node, *ABOUT) or is_rounded


def _integer(value: ir.Value | None) -> list[int]:
    """Return the element of a stored one-element integer, as a list that is empty otherwise."""
    tensor = stored(value)
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_integer():
        return []
    return [int(tensor.numpy().reshape(-1)[0])]


def _bounds(node: ir.Node) -> list[Dim]:
    data = node.inputs[0]
    shape = info(data).shape
    if shape is None and data is not None and data.shape is not None:
        shape = tuple(d for d in data.shape if isinstance(d, int))
        shape = shape if len(shape) == len(data.shape) else None
    if not shape:
        return []
    if node.op_type.endswith("ND"):
        indices = info(node.inputs[1]).shape
        depth = indices[-1] if indices and isinstance(indices[-1], int) else len(shape)
        return list(shape[:depth])
    axis = whole(node, "axis")
    return [shape[axis]] if -len(shape) <= axis < len(shape) else []
