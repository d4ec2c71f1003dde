"""A long `forward` of the root, divided: a part of it that hands on little becomes a method.

Goes in: the body of the root with its loops, and what share of it may stay. Comes out: the body with calls,
and the methods. A part is a run of statements, of the body or of a loop. It is a good one if it has many statements,
and few values go in and come out, such as the encoder before a decoder's loop, or a cell in that loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxgen.code.kinds import annotation
from onnxgen.code.module_def import Assign, Input, ModuleDef, Statement, expressions, flattened, used
from onnxgen.code.quote import Ref, refs, walk
from onnxgen.shapes.info import Info
from onnxgen.structure.methods import MAX_METHODS, loops_of, method_name
from onnxgen.structure.scopes import Method, Scope, callee

LEAST = 10  # statements of a part
MOST_GIVEN, MOST_MADE = 6, 3
PRICE = 3  # statements that a value is worth which goes in or comes out
TRIED = 400  # statements of a body in which parts are looked for


@dataclass
class _Part:
    """Statements of a block, from `first` to before `end`, with the values that go in and come out."""

    block: list[Statement]
    first: int
    end: int
    size: int
    given: list[str]
    made: list[str]

    def worth(self, whole: int) -> int:
        """Return how good the part is: both it and the rest of `whole` statements should be short."""
        return min(self.size, whole - self.size) - PRICE * (len(self.given) + len(self.made))


def divide(scope: Scope, module: ModuleDef, share: float) -> None:
    """Make methods of parts of the root until this share of its statements is left, or no part is good."""
    whole = sum(1 for _ in flattened(scope.body))
    most = int(share * whole)
    before = len(scope.methods)
    while (left := sum(1 for _ in flattened(scope.body))) > most and len(scope.methods) < before + MAX_METHODS:
        outputs = [name for tree in scope.outputs for name in refs(tree)]
        blocks = [(scope.body, outputs)]
        for loop in loops_of(scope.body):
            blocks.append((loop.body, [*loop.targets, *(refs(loop.stop) if loop.stop is not None else ())]))
        lists = {s.targets[0] for s in flattened(scope.body) if isinstance(s, Assign) and isinstance(s.value, ast.List)}
        parts = (part for block, after in blocks for part in _parts(block, after, most))
        found = [part for part in parts if lists.isdisjoint((*part.given, *part.made))]
        best = max(found, key=lambda part: part.worth(left), default=None)
        if best is None or best.worth(left) <= 0:
            return
        _write(best, scope, module)


def _parts(block: list[Statement], after: Sequence[str], most: int) -> Iterator[_Part]:
    """Yield the parts of a block that can be methods. `after`: the values that are used after the block."""
    if len(block) > TRIED:
        return
    sizes = [sum(1 for _ in flattened([statement])) for statement in block]
    needs = [used(statement) for statement in block]
    last: dict[str, int] = dict.fromkeys(after, len(block))
    for i, names in enumerate(needs):
        for name in names:
            last[name] = max(last.get(name, -1), i)
    for first in range(len(block)):
        given: dict[str, None] = {}
        made: dict[str, None] = {}
        size = 0
        for i in range(first, len(block)):
            size += sizes[i]
            given.update((name, None) for name in needs[i] if name not in made)
            made.update((name, None) for name in block[i].targets)
            if size > most or len(given) > MOST_GIVEN:
                break
            results = [name for name in made if last.get(name, -1) > i]
            if size >= LEAST and 0 < len(results) <= MOST_MADE and given and size < sum(sizes):
                yield _Part(block, first, i + 1, size, list(given), results)


def _write(part: _Part, root: Scope, module: ModuleDef) -> None:
    inside = part.block[part.first : part.end]
    layers = any(callee(node) for s in inside for tree in expressions(s) for node in walk(tree))
    begins = not {argument.value for argument in root.inputs}.isdisjoint(part.given)
    where = "step" if part.block is not root.body else "encode" if begins else "decode"
    steps = [s.value for s in flattened(inside) if isinstance(s, Assign)]
    name = method_name(root, module, where if layers else "transform", steps)
    method = Scope(root.path, body=inside, is_method=True)
    method.inputs = [Input(value, annotation(module.infos.get(value, Info()))) for value in part.given]
    method.outputs = [Ref(value) for value in part.made]
    root.methods.append(Method(name, method, [{v: v for v in (*part.given, *part.made)}]))
    function = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
    call = Assign(tuple(part.made), ast.Call(function, [Ref(value) for value in part.given], []), root.path)
    part.block[part.first : part.end] = [call]
