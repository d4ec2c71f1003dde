"""Sizes of resized maps, read from the value that each is joined with: `size=skip.shape[2:]`, not `size=(9, 11)`.

Goes in: the flat body. Comes out: the body in which maps are resized to the size of an earlier value with which the
result, or what is computed of it, is concatenated or added to. No other size would fit there. Maps that are resized in
the same way by factors are, too, if their factors differ: so the stages of a decoder are alike.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from onnxgen.code.module_def import Assign, Loop, Statement, blocks, expressions
from onnxgen.code.quote import MemberRef, Ref, SizeOf, quote, refs, value_of, walk
from onnxgen.code.torch_api import function_of
from onnxgen.lowering.roles import called, is_number
from onnxgen.shapes.info import Info

RESIZES = ("F.interpolate", "resize_floor")
MAX_STEPS = 8  # statements from a resize to where its result is joined
FIRST = 2  # the first axis that is resized


@dataclass
class Resize:
    """A statement that resizes. `size` is the keyword that says how, `to` a value that has the size of the result."""

    statement: Assign
    size: ast.keyword
    to: str

    @property
    def text(self) -> str:
        dims = [str(node.dim) for node in walk(self.size.value) if isinstance(node, SizeOf)]
        return f"{self.size.arg} {ast.dump(self.size.value)} {dims}"

    def change(self) -> None:
        """Resize to the size of `to`."""
        value = self.statement.value
        assert isinstance(value, ast.Call)
        size = ast.keyword("size", quote("x.shape[n:]", x=Ref(self.to), n=FIRST))
        keywords = [size if keyword is self.size else keyword for keyword in value.keywords]
        self.statement.value = ast.Call(value.func, value.args, keywords)


def resize_as_joined(block: list[Statement], infos: Mapping[str, Info], inputs: Iterable[str]) -> None:
    """Change the sizes in a block, its nested blocks included. `inputs`: the values that exist before it."""
    place = dict.fromkeys(inputs, -1)
    uses: dict[str, list[Statement]] = defaultdict(list)
    for i, statement in enumerate(block):
        for inner in blocks(statement):
            resize_as_joined(inner, infos, [*place, *(statement.turn if isinstance(statement, Loop) else ())])
        for name in dict.fromkeys(name for tree in expressions(statement) for name in refs(tree)):
            uses[name].append(statement)
        place.update(dict.fromkeys(statement.targets, i))
    found: dict[tuple[str, ...], list[Resize]] = defaultdict(list)
    for i, statement in enumerate(block):
        size = _size(statement)
        if isinstance(statement, Assign) and size is not None:
            way, joined = _joined(statement, uses, infos)
            earlier = [name for name in joined if place.get(name, i) < i]
            if earlier:
                others = [k for k in statement.value.keywords if k is not size]  # type: ignore[attr-defined]
                key = (*(f"{k.arg} {ast.dump(k.value)}" for k in others), *way)
                found[key].append(Resize(statement, size, min(earlier, key=lambda name: place[name])))
    for resizes in found.values():
        differ = len({one.text for one in resizes}) > 1
        for one in resizes:
            if differ or _is_literal(one.size):
                one.change()


def _size(statement: Statement) -> ast.keyword | None:
    """Return the keyword that says the size of a resize, if a size in pixels gives the same numbers."""
    value = statement.value if isinstance(statement, Assign) and len(statement.targets) == 1 else None
    if not isinstance(value, ast.Call) or function_of(value) not in RESIZES or not isinstance(value.args[0], Ref):
        return None
    for keyword in value.keywords:
        if keyword.arg == "size" or (keyword.arg == "scale_factor" and _is_exact(keyword.value)):
            return keyword
    return None


def _is_exact(factor: ast.expr) -> bool:
    """True for a whole factor: torch divides 1 by it, and a size by another, and both quotients must be equal."""
    value = value_of(factor) if is_number(factor) else None
    return isinstance(value, int) and value > 1 and np.float32(1 / value) == np.float32(1) / np.float32(value)


def _is_literal(size: ast.keyword) -> bool:
    return size.arg == "size" and not any(isinstance(node, (SizeOf, Ref)) for node in walk(size.value))


def _joined(
    resize: Assign, uses: Mapping[str, list[Statement]], infos: Mapping[str, Info]
) -> tuple[list[str], list[str]]:
    """Return the operators from a resize to the join of its result, and what that is joined with; [] if nothing is."""
    name, way = resize.targets[0], list[str]()
    sizes = _sizes(infos, name)
    for _ in range(MAX_STEPS):
        user = uses[name][0] if len(uses[name]) == 1 else None
        if not isinstance(user, Assign) or len(user.targets) != 1 or Counter(refs(user.value))[name] != 1:
            break
        way.append(_operator(user.value))
        beside = [*_beside(user.value, name, infos)] if user.scope == resize.scope else []
        if beside:
            return way, beside
        name = user.targets[0]
        if sizes is None or _sizes(infos, name) != sizes:
            break
    return way, []


def _operator(value: ast.expr) -> str:
    if isinstance(value, ast.BinOp):
        return type(value.op).__name__
    return value.func.member.layer if _is_layer(value) else called(value)[0]  # type: ignore[attr-defined]


def _is_layer(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, MemberRef)


def _beside(value: ast.expr, name: str, infos: Mapping[str, Info]) -> Iterator[str]:
    """Yield the values that must have the size of `name` where both are operands."""
    function, operands = called(value)
    is_cat = function == "cat" and isinstance(operands[0], ast.List) and _axis(value) == 1
    if is_cat:
        operands = operands[0].elts  # type: ignore[attr-defined]
    elif not isinstance(value, ast.BinOp) or not isinstance(value.op, (ast.Add, ast.Sub, ast.Mult)):
        return
    else:
        operands = [value.left, value.right]
    mine, rank = _sizes(infos, name), infos.get(name, Info()).rank
    for other in (tree.value for tree in operands if isinstance(tree, Ref) and tree.value != name):
        # what is added may be broadcast; what is concatenated has the size, or the file does not run
        if infos.get(other, Info()).rank == rank and (mine == _sizes(infos, other) if not is_cat else rank):
            yield other


def _axis(cat: ast.expr) -> int | None:
    keywords = cat.keywords if isinstance(cat, ast.Call) else []
    return next((value_of(k.value) for k in keywords if k.arg == "dim" and is_number(k.value)), None)


def _sizes(infos: Mapping[str, Info], name: str) -> tuple[object, ...] | None:
    """Return the sizes that a resize changes, None if they are unknown."""
    shape = infos.get(name, Info()).shape
    return None if shape is None or len(shape) <= FIRST or None in shape[FIRST:] else shape[FIRST:]
