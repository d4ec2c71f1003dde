"""The kind of a transformer's sublayer, for classes whose attribute says nothing (`fn`).

Goes in: a scope with its statements and submodules. Comes out: a word for what it computes ("attention",
"feed_forward", "pre_norm"), and the submodule that it only wraps in a norm or a residual. Both are empty if uncertain.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import Ref, refs
from onnxgen.code.torch_api import NORMS, function_of
from onnxgen.common.names import ModulePath, identifier
from onnxgen.lowering.roles import called, seen_through
from onnxgen.structure.literals import APPLIED
from onnxgen.structure.scopes import ClassRef, Scope, callee

# one letter for each layer: norm, linear, activation; "" for layers that do nothing when not trained; "?" for others
LETTERS = {
    "nn.Linear": "l",
    "nn.Dropout": "",
    "nn.Identity": "",
    **dict.fromkeys(APPLIED, "a"),
    **dict.fromkeys(NORMS, "n"),
}
FEED_FORWARD = re.compile("n?l(a|sap)l")  # s: split in parts, p: product
SCORES, PROBABILITIES = 1, 2  # a product of two values; the softmax of one


@dataclass
class Step:
    """A statement: a letter for each layer, the submodule that it calls, and the values it takes and makes."""

    letters: str
    callee: Member | None
    takes: list[str]
    makes: tuple[str, ...]
    is_view: bool


def sublayer(scope: Scope) -> str:
    """Return what a scope computes, such as "feed_forward" or "pre_norm"; "" if that is not certain."""
    if wrapped(scope) is not None:
        return _wrapper(scope)[0]
    steps = _steps(scope)
    if "".join(step.letters for step in steps if not step.is_view) == "n":
        return "norm"
    layers = "".join(step.letters for step in steps)
    if _attends(scope) and "a" not in layers and not any(isinstance(m.build, ClassRef) for m in scope.members):
        return "attention"
    is_chain = all(set(before.makes) & set(after.takes) for before, after in zip(steps, steps[1:]))
    if is_chain and FEED_FORWARD.fullmatch(layers) and steps[-1].makes == _returned(scope):
        widths = [m.build.args for m in scope.members if isinstance(m.build, ast.Call) and _letters(m, scope) == "l"]
        if ast.dump(widths[0][0]) == ast.dump(widths[-1][1]):
            return "feed_forward"
    return ""


def work(member: Member, scope: Scope, recorded: Mapping[ModulePath, str]) -> str:
    """Return what a submodule of a scope computes, below all wrappers; "" if that is not certain.

    `recorded`: the class names that the exporter recorded, by path.
    """
    if isinstance(member.build, ClassRef):
        inner = member.build.scope
        child = wrapped(inner)
        name = recorded.get(inner.path, "")
        return (work(child, inner, recorded) if child else "") or (identifier(name) if name else sublayer(inner))
    if isinstance(member.build, ast.Call):
        return {"n": "norm", "l": "linear"}.get(_letters(member, scope), "")
    if FEED_FORWARD.fullmatch(_letters(member, scope)):
        return "feed_forward"
    below = [m for m in scope.members if m.path[: len(member.path)] == member.path and isinstance(m.build, ClassRef)]
    found = {work(m, scope, recorded) for m in below} - {"norm"}
    return found.pop() if len(found) == 1 else ""


def wrapped(scope: Scope) -> Member | None:
    """Return the submodule of a scope that only adds a norm or a residual to it."""
    return _wrapper(scope)[1]


def _wrapper(scope: Scope) -> tuple[str, Member | None]:
    """Return the kind of a wrapper, and the submodule that it wraps."""
    steps = _steps(scope)
    if len(steps) != 2 or not scope.inputs or steps[1].makes != _returned(scope):
        return "", None
    given, (first, last) = {argument.value for argument in scope.inputs}, steps
    if _is_whole(first.callee):
        added = set(last.takes) - set(first.makes)
        if last.letters == "n" and tuple(last.takes) == first.makes:
            return "post_norm", first.callee
        if last.letters == "+" and len(added) == 1 and added <= given & set(first.takes):
            return "residual", first.callee
    if first.letters == "n" and set(first.takes) <= given and _is_whole(last.callee):
        if set(first.makes) <= set(last.takes) and not set(first.takes) & set(last.takes):
            return "pre_norm", last.callee
    return "", None


def _returned(scope: Scope) -> tuple[str, ...]:
    return tuple(output.value for output in scope.outputs if isinstance(output, Ref))


def _steps(scope: Scope) -> list[Step]:
    """Return the statements of a scope; [] if one of them is not an assignment."""
    found = []
    for s in scope.body:
        if not isinstance(s, Assign) or not s.targets:
            return []
        member = callee(s.value)
        letters = _function(s.value) if member is None else _letters(member, scope)
        found.append(Step(letters, member, list(refs(s.value)), s.targets, isinstance(seen_through(s.value), Ref)))
    return found


def _function(value: ast.expr) -> str:
    if isinstance(value, ast.BinOp) and isinstance(value.left, Ref) and isinstance(value.right, Ref):
        return {ast.Add: "+", ast.Mult: "p"}.get(type(value.op), "?")
    return "s" if called(value)[0] in ("chunk", "split") else LETTERS.get(function_of(value), "?")


def _letters(member: Member, scope: Scope) -> str:
    """Return the letters of a submodule; of a list that is called as one, those of all its items."""
    if isinstance(member.build, ast.Attribute):
        items = [m for m in scope.members if m.path[: len(member.path)] == member.path]
        items.sort(key=lambda m: [int(part) if part.isdigit() else -1 for part in m.path])
        return "".join(_letters(item, scope) for item in items)
    return LETTERS.get(member.layer, "?")


def _attends(scope: Scope) -> bool:
    """True for scaled dot product attention: the function, or a softmax between two products of values."""
    made: dict[str, int] = {}
    for s in scope.body:
        if not isinstance(s, Assign):
            return False
        value = seen_through(s.value)
        name, _ = called(value)
        if name == "scaled_dot_product_attention":
            return True
        of = max((made.get(taken, 0) for taken in refs(value)), default=0)
        if name in ("matmul", "bmm") or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult)):
            if of == PROBABILITIES:
                return True
            of = max(of, SCORES if len(set(refs(value))) > 1 else 0)
        elif name == "softmax" and of:
            of = PROBABILITIES
        elif callee(s.value) is not None:
            of = 0
        made.update(dict.fromkeys(s.targets, of))
    return False


def _is_whole(member: Member | None) -> bool:
    """True for a class of the file, or a list of layers that is called as one."""
    return member is not None and isinstance(member.build, (ClassRef, ast.Attribute))
