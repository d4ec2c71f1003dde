"""Attention's heads as authors split and merge them: `B, N, C = x.shape`, `q.view(B, N, heads, C // heads)`.

Goes in: a class that writes `q.unflatten(-1, (self.num_heads, -1))`, which `arguments/heads.py` writes of three axes
alone, and `flatten(2)` behind the attention. Comes out: the class with views of the sizes of its input. It is changed
only where q, k and v are of the size of one argument, for numbers of every size: layers that keep all axes make them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from onnxgen.code.quote import quote, rewrite, walk
from onnxgen.code.torch_api import DROPOUTS, dotted

ATTENTION = "F.scaled_dot_product_attention"
ALIKE = ("nn.LayerNorm", "nn.RMSNorm", *DROPOUTS)  # layers that keep all sizes
LINEAR = "nn.Linear"
SIZES = ("B", "N", "C")
SPLIT, PACKED = "(-1, (self.num_heads, -1))", "(-1, (3, self.num_heads, -1))"
HEADED, MERGED = "headed", "merged"


def with_sizes(body: list[ast.stmt], setup: Sequence[ast.stmt], given: Iterable[str]) -> list[ast.stmt]:
    """Return the statements of `forward` with the sizes of what they split into heads.

    Args:
        body: the statements.
        setup: those of `__init__`.
        given: the arguments of `forward`.
    """
    nodes = [node for statement in body for node in walk(statement)]
    if not any(map(_parts, nodes)) or any(isinstance(node, ast.Name) and node.id in SIZES for node in nodes):
        return body
    found = _Sizes(setup, given)
    made = [found.of(statement) for statement in body]
    if len(found.split) != 1 or "" in found.split:
        return body
    target = ast.Tuple([ast.Name(name, ast.Store()) for name in SIZES], ast.Store())
    return [ast.Assign([target], quote("x.shape", x=ast.Name(found.split.pop(), ast.Load()))), *made]


def _parts(tree: ast.AST) -> int:
    """Return in how many parts a value is split, each of which has heads: 0 if it is no such split."""
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and tree.func.attr == "unflatten"):
        return 0
    return {SPLIT: 1, PACKED: 3}.get(_text(tree.args), 0)


class _Sizes:
    """Follows the sizes of arguments through a method.

    Attributes:
        alike: by name, the argument whose sizes it has, or "".
        split: of all values that are split, the argument that has their sizes.
    """

    def __init__(self, setup: Sequence[ast.stmt], given: Iterable[str]) -> None:
        assigned = [(one.targets[0], one.value) for one in setup if isinstance(one, ast.Assign)]
        self.layers = {ast.unparse(target): made for target, made in assigned if isinstance(made, ast.Call)}
        self.alike = {name: name for name in given}
        self.attended: dict[str, str] = {}  # by name, `HEADED` or `MERGED`: what the attention gives, and its turn
        self.split: set[str] = set()

    def of(self, statement: ast.stmt) -> ast.stmt:
        """Return a statement with views of sizes."""
        if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
            nodes = [*walk(statement)]
            self.split |= {"" for node in nodes if _parts(node)}
            self._forget(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
            return statement
        made: ast.stmt = rewrite(statement, self._call)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        alike, attended = self._like(statement.value), self._attended(statement.value)
        for node in (node for target in targets for node in walk(target)):
            if isinstance(node, ast.Name):
                self.alike[node.id], self.attended[node.id] = alike, attended
        return made

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.alike[name] = self.attended[name] = ""

    def _call(self, node: ast.AST) -> ast.expr | None:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        of = node.func.value
        if parts := _parts(node):
            self.split.add(self._like(of, parts))
            written = "x.view(B, N, 3, h, C // h)" if parts > 1 else "x.view(B, N, h, C // h)"
            return quote(written, x=rewrite(of, self._call), h=quote("self.num_heads"), **_names())
        if node.func.attr == "flatten" and _text(node.args) == "(2,)" and self._attended(of) == MERGED:
            return quote("x.reshape(B, N, C)", x=rewrite(of, self._call), **_names())
        return None

    def _like(self, tree: ast.expr, parts: int = 1) -> str:
        """Return the argument that has the sizes of an expression, if its last axis were one of some equal parts."""
        if isinstance(tree, ast.Name):
            return self.alike.get(tree.id, "") if parts == 1 else ""
        if not isinstance(tree, ast.Call):
            return ""
        if isinstance(tree.func, ast.Attribute) and tree.func.attr == "chunk":
            is_last = [(k.arg, ast.unparse(k.value)) for k in tree.keywords] == [("dim", "-1")]
            given = tree.args[0] if len(tree.args) == 1 and is_last else None
            count = given.value if isinstance(given, ast.Constant) else 0
            return self._like(tree.func.value, parts * count) if isinstance(count, int) and count else ""
        layer = self.layers.get(ast.unparse(tree.func))
        if layer is None or len(tree.args) != 1 or tree.keywords:
            return ""
        name = dotted(layer.func)
        if name == LINEAR and len(layer.args) == 2:
            before, after = map(ast.unparse, layer.args)
            return self._like(tree.args[0]) if after == (before if parts == 1 else f"{parts} * {before}") else ""
        return self._like(tree.args[0], parts) if name in ALIKE else ""

    def _attended(self, tree: ast.expr) -> str:
        """Return `HEADED` for what attention gives, `MERGED` once its heads are the third axis, else ""."""
        if isinstance(tree, ast.Name):
            return self.attended.get(tree.id, "")
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
            return ""
        if dotted(tree.func) == ATTENTION:
            return HEADED
        is_turned = tree.func.attr == "transpose" and _text(tree.args) == "(1, 2)"
        return MERGED if is_turned and self._attended(tree.func.value) == HEADED else ""


def _text(trees: Sequence[ast.expr]) -> str:
    return ast.unparse(ast.Tuple([*trees], ast.Load()))


def _names() -> dict[str, ast.expr]:
    return {name: ast.Name(name, ast.Load()) for name in SIZES}
