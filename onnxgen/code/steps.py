"""Chains of calls as several statements: `x = F.relu(self.fc(x.flatten(1)))` as `x = x.flatten(1)` and what is left.

Goes in: the statements of a method, each with as many calls in one another as a line has room for. Comes out: the same
calls in the same order. A layer stays together with the norm, activation and dropout behind it, and with methods of its
result: `self.query(x).view(s).transpose(1, 2)` is read from left to right.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from onnxgen.code import printer
from onnxgen.code.quote import rewrite, walk
from onnxgen.code.torch_api import ACTIVATIONS, dotted

MODULES = ("self", "F", "torch", "nn", "math")
LAYER, NORM, PART, METHOD, ALONE, OTHER = "layer", "norm", "part", "method", "alone", "other"
PARTS = {*ACTIVATIONS, "F.dropout"}
MANY_ARGUMENTS = {"F.scaled_dot_product_attention"}
MOST = 3  # calls of a layer and its parts, or of methods in a row
USUAL = "x"


class Steps:
    """Writes the methods of one class in steps.

    Args:
        nested: how many calls may be in one another.
        named: with so many statements, a method returns a name; 0: never.
        norms, parts: the attributes that are norms, and those that are activations and dropouts.
    """

    def __init__(self, nested: int, named: int, norms: Collection[str], parts: Collection[str]) -> None:
        self.nested, self.named, self.norms, self.parts = nested, named, norms, parts

    def of(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a method in steps."""
        made: list[ast.stmt] = []
        last = max((i for i, one in enumerate(body) if is_read(USUAL, one)), default=-1)
        for i, statement in enumerate(body):
            made += self._block([statement], i < last)
        if self.named and len(made) >= self.named and isinstance(end := made[-1], ast.Return):
            made[-1:] = _named(end, made[-2])
        return made

    def _block(self, block: Sequence[ast.stmt], needed: bool) -> list[ast.stmt]:
        """Return statements in steps. `needed`: what is called `x` is read later."""
        made: list[ast.stmt] = []
        for statement in block:
            if isinstance(statement, (ast.Assign, ast.Return)):
                made += self._split(statement, needed)
            else:
                made.append(self._inside(statement, needed or is_read(USUAL, statement)))
        return made

    def _inside(self, statement: ast.stmt, needed: bool) -> ast.stmt:
        """Return a statement whose blocks are in steps."""
        blocks = {
            name: self._block(block, needed) for name in ("body", "orelse") if (block := getattr(statement, name, None))
        }
        return printer.changed(statement, **blocks) if blocks else statement

    def _split(self, statement: ast.Assign | ast.Return, needed: bool) -> Iterator[ast.stmt]:
        value = statement.value
        name = _name_of(statement, needed) if value is not None else ""
        while name and value is not None and (ends := self._ends(chain(value))):
            outer = with_name(value, ends[0], name)
            if outer is None:
                break
            yield printer.like(statement, ast.Assign([ast.Name(name, ast.Store())], ends[0]), dims="")
            value = outer
        yield printer.changed(statement, value=value) if value is not statement.value else statement

    def _ends(self, calls: list[ast.Call]) -> list[ast.Call]:
        """Return the calls, from the inmost, whose results get a statement of their own."""
        if len(calls) <= self.nested:
            return []
        groups: list[list[ast.Call]] = [[]]
        kinds: list[str] = []
        for call in reversed(calls):
            kind = self._kind(call)
            if kinds and not self._fits(kind, kinds, call is calls[0]):
                groups.append([])
                kinds = []
            groups[-1].append(call)
            kinds.append(kind)
        joined: list[list[ast.Call]] = []
        for group in groups:
            if joined and len(joined[-1]) + len(group) <= self.nested:
                joined[-1] = [*joined[-1], *group]
            else:
                joined.append(group)
        return [group[-1] for group in joined[:-1]]

    def _fits(self, kind: str, kinds: list[str], is_last: bool) -> bool:
        """Return True if a call stays in the statement that has calls of these kinds. `is_last`: it is the outmost."""
        if kind == LAYER and is_last and kinds == [NORM, PART]:  # both before their layer
            return True
        kind = PART if kind == NORM else kind
        if kinds[0] == LAYER or {*kinds, kind} == {METHOD}:
            return kind in (PART, METHOD) and len(kinds) < MOST
        return kind not in (LAYER, ALONE) and kinds[0] != ALONE and len(kinds) < self.nested

    def _kind(self, call: ast.Call) -> str:
        name = dotted(call.func)
        if name in MANY_ARGUMENTS:
            return ALONE
        if _under(call.func, "self"):
            attribute = name.removeprefix("self.")
            return NORM if attribute in self.norms else PART if attribute in self.parts else LAYER
        if name in PARTS:
            return PART
        return METHOD if is_method(call) else OTHER


def chain(tree: ast.expr) -> list[ast.Call]:
    """Return a call, the call that it is applied to, and so on, from the outmost."""
    found: list[ast.Call] = []
    while isinstance(tree, ast.Call):
        found.append(tree)
        if isinstance(tree.func, ast.Attribute) and is_method(tree):
            tree = tree.func.value
        elif tree.args:
            tree = tree.args[0]
        else:
            break
    return found


def is_method(call: ast.Call) -> bool:
    """True for a method of a tensor."""
    root = dotted(call.func).partition(".")[0]
    return isinstance(call.func, ast.Attribute) and root not in MODULES and not _under(call.func, "self")


def _under(tree: ast.expr, name: str) -> bool:
    """True for `self.layers[0]`."""
    while isinstance(tree, (ast.Attribute, ast.Subscript)):
        tree = tree.value
    return isinstance(tree, ast.Name) and tree.id == name


def is_read(name: str, statement: ast.stmt) -> bool:
    """Return True if a statement reads a name."""
    names = (node for node in walk(statement) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Load) for node in names)


def _name_of(statement: ast.Assign | ast.Return, needed: bool) -> str:
    """Return the name of what a statement computes on the way: its target, if that does not say what the result is."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else ast.Name(USUAL)
    if not isinstance(target, ast.Name):
        return ""
    return target.id if needed or is_read(target.id, statement) else USUAL


def with_name(tree: ast.expr, inner: ast.expr, name: str) -> ast.expr | None:
    """Return an expression with a name in the place of a part of it; None if it reads the name somewhere else."""
    place = ast.Name(name, ast.Load())
    made: ast.expr = rewrite(tree, lambda node: place if node is inner else None)
    others = (node for node in walk(made) if isinstance(node, ast.Name) and node is not place)
    return None if any(node.id == name for node in others) else made


def _named(last: ast.Return, before: ast.stmt) -> list[ast.stmt]:
    """Return the last statement as an assignment and a `return`, if the result may have the name of what is before."""
    target = before.targets[0] if isinstance(before, ast.Assign) else None
    if not isinstance(target, ast.Name) or not isinstance(last.value, (ast.Call, ast.BinOp)):
        return [last]
    if isinstance(last.value, ast.Call) and dotted(last.value.func).startswith("self."):
        return [last]
    if not any(isinstance(node, ast.Name) and node.id == target.id for node in walk(last.value)):
        return [last]
    made = printer.like(last, ast.Assign([target], last.value))
    return [made, ast.Return(ast.Name(target.id, ast.Load()))]
