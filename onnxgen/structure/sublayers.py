"""What a sublayer of a transformer is, told by what it does: for classes whose attribute says nothing (`fn`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import MemberRef, Ref, refs
from onnxgen.code.torch_api import NORMS, function_of
from onnxgen.common.names import ModulePath, identifier
from onnxgen.lowering.roles import called, seen_through
from onnxgen.structure.literals import APPLIED
from onnxgen.structure.scopes import ClassRef, Scope

# letters of the steps: norm, linear, activation, split in parts, product, what does nothing, "?" for all others
LETTERS = {
    "nn.Linear": "l",
    "nn.Dropout": "",
    "nn.Identity": "",
    **dict.fromkeys(APPLIED, "a"),
    **dict.fromkeys(NORMS, "n"),
}
FEED_FORWARD = re.compile("n?l(a|sap)l")
SCORES, PROBABILITIES = 1, 2  # a product of two values; the softmax of one


@dataclass
class Step:
    """A statement: what it does (a letter a layer), the submodule that it calls, the values it takes and makes."""

    letters: str
    callee: Member | None
    takes: list[str]
    makes: tuple[str, ...]
    is_view: bool


def sublayer(scope: Scope) -> str:
    """What a scope does, `feed_forward` or `pre_norm`, say; "" where that is not certain."""
    if wrapped(scope) is not None:
        return _wrapper(scope)[0]
    steps = _steps(scope)
    if "".join(step.letters for step in steps if not step.is_view) == "n":
        return "norm"
    layers = "".join(step.letters for step in steps)
    if _attends(scope) and "a" not in layers and not any(_is_class(m) for m in scope.members):
        return "attention"
    is_chain = all(set(before.makes) & set(after.takes) for before, after in zip(steps, steps[1:]))
    if is_chain and FEED_FORWARD.fullmatch(layers) and steps[-1].makes == _returned(scope):
        widths = [m.build.args for m in scope.members if isinstance(m.build, ast.Call) and _letters(m, scope) == "l"]
        if ast.dump(widths[0][0]) == ast.dump(widths[-1][1]):
            return "feed_forward"
    return ""


def work(member: Member, scope: Scope, recorded: Mapping[ModulePath, str]) -> str:
    """What a submodule of a scope does, below all that only wraps it; "" if that is not certain.

    `recorded`: the class names that the exporter recorded, by path.
    """
    if not isinstance(member.build, ast.Call):
        letters = _letters(member, scope)
        if FEED_FORWARD.fullmatch(letters):
            return "feed_forward"
        below = [m for m in scope.members if m.path[: len(member.path)] == member.path and _is_class(m)]
        found = {work(m, scope, recorded) for m in below} - {"norm"}
        return found.pop() if len(found) == 1 else ""
    if not isinstance(member.build.func, ClassRef):
        return {"n": "norm", "l": "linear"}.get(_letters(member, scope), "")
    inner = member.build.func.scope
    child = wrapped(inner)
    name = recorded.get(inner.path, "")
    return (work(child, inner, recorded) if child else "") or (identifier(name) if name else sublayer(inner))


def wrapped(scope: Scope) -> Member | None:
    """The one child of a scope that does nothing else but norm it, or add its input to the result."""
    return _wrapper(scope)[1]


def _wrapper(scope: Scope) -> tuple[str, Member | None]:
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
    """The statements of a scope; nothing if one of them is not plain."""
    found = []
    for s in scope.body:
        if not isinstance(s, Assign) or not s.targets:
            return []
        member = s.value.func.member if isinstance(s.value, ast.Call) and isinstance(s.value.func, MemberRef) else None
        letters = _function(s.value) if member is None else _letters(member, scope)
        found.append(Step(letters, member, list(refs(s.value)), s.targets, isinstance(seen_through(s.value), Ref)))
    return found


def _function(value: ast.expr) -> str:
    if isinstance(value, ast.BinOp) and isinstance(value.left, Ref) and isinstance(value.right, Ref):
        return {ast.Add: "+", ast.Mult: "p"}.get(type(value.op), "?")
    return "s" if called(value)[0] in ("chunk", "split") else LETTERS.get(function_of(value), "?")


def _letters(member: Member, scope: Scope) -> str:
    """What a submodule does; of a list that is called as one, what all its items do."""
    if isinstance(member.build, ast.Attribute):
        items = [m for m in scope.members if m.path[: len(member.path)] == member.path]
        items.sort(key=lambda m: [int(part) if part.isdigit() else -1 for part in m.path])
        return "".join(_letters(item, scope) for item in items)
    return LETTERS.get(member.layer, "?")


def _attends(scope: Scope) -> bool:
    """Scaled dot product attention: by its name, or as a softmax between two products of values."""
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
        elif isinstance(s.value, ast.Call) and isinstance(s.value.func, MemberRef):
            of = 0
        made.update(dict.fromkeys(s.targets, of))
    return False


def _is_class(member: Member) -> bool:
    return isinstance(member.build, ast.Call) and isinstance(member.build.func, ClassRef)


def _is_whole(member: Member | None) -> bool:
    """A class of the file, or a list of layers that is called as one."""
    return member is not None and (_is_class(member) or isinstance(member.build, ast.Attribute))
