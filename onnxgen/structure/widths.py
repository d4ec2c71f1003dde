"""Widths that are equal in all instances of a class, as parameters of its constructor: `Attention(dim)`.

Goes in: the literals of a class. Comes out: those that are one width, for each width that the constructor is given.
It is given all widths of the class, but for those of optional parts, or none. None if a number in `forward`, in the
shape of a stored tensor or in a class that it makes depends on one of them, and none if there are many: then the class
is a table of widths.

The sizes of a matrix that a class makes of its own tensors, as of integers and their scales, are called as torch's own
layers call them: what is multiplied with has `in_features` and `out_features`, a table of rows that are looked up
`num_embeddings` and `embedding_dim`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import Ref, members, refs, walk
from onnxgen.code.torch_api import function_of
from onnxgen.structure.literals import numbers_of
from onnxgen.structure.parameters import SIZE, Group, Use
from onnxgen.structure.scopes import Scope

LEAST = 8  # a smaller number is no width that somebody chooses
MOST = 3  # widths of a class that is no table
ROW = 3  # items of a list that is a table
KEY = "key"  # of a constant in the weights
PLAIN = ("", "groups")  # what else may be a width: the size of a parameter, the groups of a convolution
STEPS = re.compile("kernel_size|stride|padding|dilation|dim|num_heads|dropout|depth")  # no sizes, or written as -1
MAX_STEPS = 4  # between a stored tensor and the matrix: a cast, a zero point, a scale
MAX_OPERANDS = 2  # of each of these
PRODUCT, TABLE = ("in_features", "out_features"), ("num_embeddings", "embedding_dim")


def widths(uses: Sequence[Use], count: int, held: Iterable[int]) -> list[Group]:
    """Return the widths that a class is given, each with the literals that it is.

    Args:
        uses: its literals.
        count: of its instances.
        held: the sizes that the classes have which it makes, and which nobody gives.
    """
    fixed = {number for use in uses if use.in_forward or _is_tuple(use) for number in sizes(use)}
    found: dict[int, list[Use]] = {}
    for use in uses:
        numbers = sizes(use)
        if numbers and len({*use.texts.values()}) == 1 and not use.in_forward and not _is_tuple(use):
            found.setdefault(numbers.pop(), []).append(use)
    given = {number for number, own in found.items() if any(SIZE.search(use.wanted) for use in own)}
    depends = any(other % number == 0 or number % other == 0 for number in given for other in fixed)
    stored = any(use.wanted == KEY for use in uses)  # a constant, whose sizes the text does not tell
    if depends or stored or len(given) > MOST or not given.isdisjoint(held) or any(_tables(uses)):
        return []
    made = []
    for number in given:
        whole = next((use for use in found[number] if len(use.column) == count), None)
        if whole is not None:  # else only an optional part has it
            made.append(Group(whole.texts, found[number], is_width=True))
    return made


def sizes(use: Use) -> set[int]:
    """Return the numbers of a literal that may be sizes."""
    counts = STEPS.search(use.wanted) if use.in_forward else not (use.wanted in PLAIN or SIZE.search(use.wanted))
    numbers = set() if counts else {n for slot in use.column.values() for n in _integers(slot.value)}
    return {number for number in numbers if number >= LEAST}


def _tables(uses: Iterable[Use]) -> Iterator[bool]:
    """Yield for each list with like items whether they have other widths."""
    rows: dict[tuple[str, str], list[str]] = {}
    for use in uses:
        if use.row and SIZE.search(use.wanted):
            rows.setdefault((use.row, use.wanted), []).append(str(use.texts))
    yield from (len(row) >= ROW and len({*row}) > 1 for row in rows.values())


def _is_tuple(use: Use) -> bool:
    return any(isinstance(slot.value, (ast.Tuple, ast.List)) for slot in use.column.values())


def _integers(tree: ast.AST) -> list[int]:
    values = (node.value for node in numbers_of(tree) if isinstance(node, ast.Constant))
    return [value for value in values if isinstance(value, int)]


def size_names(scope: Scope) -> dict[int, dict[int, str]]:
    """Return the names of the sizes of each such tensor, by the id of its member and the number of the literal."""
    makers = {s.targets[0]: s.value for s in scope.body if isinstance(s, Assign) and len(s.targets) == 1}
    found: dict[int, dict[int, str]] = {}
    for tree in (node for expression in scope.expressions() for node in walk(expression)):
        matrix, names = _matrix(tree)
        for member in _made_of(matrix, makers, MAX_STEPS) if matrix is not None else ():
            first = _first_size(member.build)
            if first:
                found[id(member)] = {first: names[0], first + 1: names[1]}
    return found


def _first_size(build: ast.expr) -> int:
    """Return which literal is the first size of a tensor of two axes as it begins; 0 for other tensors.

    They are `torch.zeros(384, 1536, dtype=torch.int8)` and `nn.Parameter(torch.normal(0.0, 0.02, (384, 1536)))`.
    """
    if isinstance(build, ast.Call) and function_of(build) == "nn.Parameter":
        build = build.args[0]
    if not isinstance(build, ast.Call):
        return 0
    if function_of(build) == "torch.zeros":
        return 1 if len(build.args) == 2 else 0
    sizes = build.args[-1] if function_of(build) == "torch.normal" else None
    return 3 if isinstance(sizes, ast.Tuple) and len(sizes.elts) == 2 and len(build.args) == 3 else 0


def _matrix(tree: ast.AST) -> tuple[ast.expr | None, tuple[str, str]]:
    """Return what an operator takes as a matrix, and the names of its sizes."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.MatMult):
        return tree.right, PRODUCT
    is_index = isinstance(tree, ast.Subscript) and isinstance(tree.slice, Ref)
    return (tree.value if isinstance(tree, ast.Subscript) and is_index else None), TABLE


def _made_of(tree: ast.expr, makers: dict[str, ast.expr], steps: int) -> Iterator[Member]:
    """Yield the members of the class that a value is made of."""
    yield from members(tree)
    operands = refs(tree)
    for name in operands if steps and len(operands) <= MAX_OPERANDS else ():
        if name in makers:
            yield from _made_of(makers[name], makers, steps - 1)
