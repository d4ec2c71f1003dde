"""The number of attention's heads as an argument: `x.unflatten(-1, (self.num_heads, -1))`.

Goes in: classes with spots. Comes out: classes that store the number, and the argument that gives it. It may change
where a class splits the width of q, k and v into heads, attends, and merges the heads again, and nothing else depends
on them: whatever their number is, the width stays.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from onnxgen.arguments.names import HEADS, Argument
from onnxgen.arguments.sizes import is_integer
from onnxgen.arguments.written import Spot
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import ModuleDef, expressions
from onnxgen.code.quote import Ref, rewrite, value_of, walk
from onnxgen.code.steps import is_method
from onnxgen.code.torch_api import dotted
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info
from onnxgen.structure.literals import is_literal

ATTENTION = "F.scaled_dot_product_attention"
SPLIT, PACKED, ORDERED, HEADED, ATTENDED, BEHIND, ORDINARY = "split packed ordered headed attended behind -".split()
# what a method makes of a value whose axes are those of heads, with the arguments that it must have
STEPS = {
    (SPLIT, "transpose", (1, 2)): HEADED,
    (PACKED, "permute", (2, 0, 3, 1, 4)): ORDERED,
    (ORDERED, "unbind", (0,)): HEADED,  # each of the three
    (ATTENDED, "transpose", (1, 2)): BEHIND,
    (BEHIND, "flatten", (2,)): ORDINARY,
}
OPTIONS = {"is_causal", "scale", "dropout_p", "attn_mask"}  # of attention, which do not depend on the number


class _Seen(Exception):
    """Something else depends on the number of heads."""


@dataclass
class _Class:
    """Follows the heads through the methods of a class; `numbers`: where their number is written."""

    numbers: list[ast.Constant]
    kinds: dict[str, str]

    def run(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if not isinstance(statement, (ast.Assign, ast.Return)) or statement.value is None:
                self.children(statement)
                continue
            kind = self.kind(statement.value)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            names = targets[0].elts if targets and isinstance(targets[0], ast.Tuple) else targets
            if kind != ORDINARY and not (names and all(isinstance(name, ast.Name) for name in names)):
                raise _Seen
            self.kinds.update((name.id, kind) for name in names if isinstance(name, ast.Name))

    def kind(self, tree: ast.AST) -> str:
        """Return what an expression is."""
        if isinstance(tree, ast.Name):
            return self.kinds.get(tree.id, ORDINARY)
        if isinstance(tree, ast.Call) and dotted(tree.func) == ATTENTION:
            if [self.kind(one) for one in tree.args] != [HEADED] * 3 or {k.arg for k in tree.keywords} - OPTIONS:
                raise _Seen
            self.children(*tree.keywords)
            return ATTENDED
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and is_method(tree):
            before = self.kind(tree.func.value)
            if before == ORDINARY and tree.func.attr == "unflatten":
                return self.split(tree)
            if before != ORDINARY:
                given = tuple(value_of(one) for one in tree.args if is_integer(one))
                made = STEPS.get((before, tree.func.attr, given))
                if made is None or len(given) < len(tree.args) or tree.keywords:
                    raise _Seen
                return made
        self.children(tree)
        return ORDINARY

    def split(self, tree: ast.Call) -> str:
        """`x.unflatten(-1, (4, -1))`, or with three in one, `(3, 4, -1)`."""
        self.children(*tree.args)
        match [value_of(one) for one in tree.args if is_literal(one)]:
            case [-1, (int(), -1)]:
                kind = SPLIT
            case [-1, (3, int(), -1)]:
                kind = PACKED
            case _:
                return ORDINARY
        self.numbers.append(tree.args[1].elts[-2])  # type: ignore[attr-defined]
        return kind

    def children(self, *trees: ast.AST) -> None:
        """Go on below some trees, in which no part may be one of heads."""
        for tree in trees:
            if isinstance(tree, ast.stmt):
                before = {name for name, kind in self.kinds.items() if kind != ORDINARY}
                if before & {node.id for node in walk(tree) if isinstance(node, ast.Name)}:
                    raise _Seen
            elif any(self.kind(inner) != ORDINARY for inner in ast.iter_child_nodes(tree)):
                raise _Seen


def with_heads(classes: Sequence[ClassTree], module: ModuleDef) -> tuple[list[ClassTree], list[Argument]]:
    """Return the classes, and an argument for each number of heads."""
    made, arguments, is_open = [], [], _are_open(module)
    for tree in classes:
        numbers = _numbers(tree) if is_open else []
        if numbers and len({number.value for number in numbers}) == 1:
            number = Spot(numbers[0].value)
            made.append(_stored(tree, number, numbers))
            arguments.append(Argument(HEADS, number.value, {id(number): number.value}, 1))  # type: ignore[arg-type, dict-item]
        else:
            made.append(tree)
    return made, arguments


def _are_open(module: ModuleDef) -> bool:
    """True if attention always has four axes, batch and heads first, and no mask has one of heads."""

    def shape(tree: ast.expr) -> tuple[Dim, ...]:
        return (module.infos.get(tree.value, Info()).shape or ()) if isinstance(tree, Ref) else ()

    for call in _attentions(module):
        masks = [shape(k.value) for k in call.keywords if k.arg == "attn_mask"]
        if any(len(shape(operand)) != 4 for operand in call.args):
            return False
        if any(not mask or (len(mask) > 2 and mask[-3] != 1) for mask in masks):
            return False
    return True


def attentions(module: ModuleDef) -> int:
    """Return how often a network attends: also where its layers multiply with integers, and are none of torch's."""
    return sum(1 for _ in _attentions(module))


def _attentions(module: ModuleDef) -> Iterator[ast.Call]:
    for node in (node for statement in module.body for tree in expressions(statement) for node in walk(tree)):
        if isinstance(node, ast.Call) and dotted(node.func) == ATTENTION:
            yield node


def _numbers(tree: ClassTree) -> list[ast.Constant]:
    """Return where a class has the number of heads, if nothing else depends on it."""
    nodes = [node for part in (*tree.setup, *tree.body) for node in walk(part)]
    attends = any(isinstance(node, ast.Call) and dotted(node.func) == ATTENTION for node in nodes)
    followed = _Class([], {})
    if not attends or tree.own or any(isinstance(node, ast.Attribute) and node.attr == HEADS for node in nodes):
        return []
    try:
        followed.run(tree.body)
    except _Seen:
        return []
    return followed.numbers


def _stored(tree: ClassTree, number: Spot, written: Sequence[ast.Constant]) -> ClassTree:
    """Return a class that stores a number and reads it where it was written."""
    own = ast.Attribute(ast.Name("self", ast.Load()), HEADS, ast.Load())
    found = {id(one) for one in written}
    body = [rewrite(statement, lambda node: own if id(node) in found else None) for statement in tree.body]
    target = ast.Attribute(ast.Name("self", ast.Load()), HEADS, ast.Store())
    return replace(tree, body=body, setup=[ast.Assign([target], number), *tree.setup])
