"""The names of the sizes of a matrix that a class makes of its own tensors, as of integers and their scales.

Goes in: the scope of a class. Comes out: the names of the sizes of its tensors of two axes, as torch's own layers call
them: what is multiplied with has `in_features` and `out_features`, a table of rows that are looked up
`num_embeddings` and `embedding_dim`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import MemberRef, Ref, refs, walk
from onnxgen.code.torch_api import function_of
from onnxgen.structure.scopes import Scope

_STEPS = 4  # between a stored tensor and the matrix: a cast, a zero point, a scale
_OPERANDS = 2  # of each of these
PRODUCT, TABLE = ("in_features", "out_features"), ("num_embeddings", "embedding_dim")


def size_names(scope: Scope) -> dict[int, dict[int, str]]:
    """Return the names of the sizes of each such tensor, by the id of its member and the number of the literal."""
    makers = {s.targets[0]: s.value for s in scope.body if isinstance(s, Assign) and len(s.targets) == 1}
    found: dict[int, dict[int, str]] = {}
    for tree in (node for expression in scope.expressions() for node in walk(expression)):
        matrix, names = _matrix(tree)
        for member in _made_of(matrix, makers, _STEPS) if matrix is not None else ():
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
    yield from (node.member for node in walk(tree) if isinstance(node, MemberRef))
    operands = refs(tree)
    for name in operands if steps and len(operands) <= _OPERANDS else ():
        if name in makers:
            yield from _made_of(makers[name], makers, steps - 1)
