"""A flat `ModuleDef` from a few lines of Python, for tests of what is held to it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnxgen.code.module_def import Assign, If, Input, Loop, Member, ModuleDef, Statement, Tie, With
from onnxgen.code.quote import MemberRef, Ref, SizeOf, rewrite
from onnxgen.shapes.dims import symbol
from onnxgen.shapes.info import Info

Change = Callable[[ast.AST], ast.expr | None]


def flat(
    inputs: Mapping[str, Sequence[int | str]],
    members: Mapping[str, str],
    body: str,
    frozen: Sequence[str] = (),
    ties: Sequence[tuple[str, str]] = (),
    persistent: Sequence[str] = (),
) -> ModuleDef:
    """The network that a text spells: `M["a.conv"]` is a member, `S["N"]` a size, and its last line returns.

    Args:
        inputs: the dims of each; text is the name of a dim.
        members: what makes each; a buffer where that is a call of `torch`.
        frozen, ties: state-dict keys.
        persistent: the buffers that `state_dict` keeps.
    """
    sizes = {
        d: symbol(d, (name, axis)) for name, dims in inputs.items() for axis, d in enumerate(dims) if type(d) is str
    }
    made = {path: _member(path, build, path in persistent) for path, build in members.items()}
    for key in frozen:
        member, part = _part(made, key)
        member.frozen.add(part)
    tree = ast.parse(body)
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}

    def change(node: ast.AST) -> ast.expr | None:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in ("M", "S"):
            key = ast.literal_eval(node.slice)
            return MemberRef(made[key]) if node.value.id == "M" else SizeOf(sizes[key])
        return Ref(node.id) if isinstance(node, ast.Name) and node.id in stored | set(inputs) else None

    *lines, last = tree.body
    assert isinstance(last, ast.Return) and last.value is not None
    outputs = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    found = ModuleDef("Net", list(made.values()), [Input(name) for name in inputs])
    found.body = [_statement(line, change) for line in lines]
    found.outputs = [rewrite(output, change) for output in outputs]
    for name, dims in inputs.items():
        found.infos[name] = Info(shape=tuple(sizes[d] if isinstance(d, str) else d for d in dims))
    found.ties = [Tie(*_part(made, kept), *_part(made, tied)) for kept, tied in ties]
    return found


def _member(path: str, build: str, persistent: bool) -> Member:
    kind = "parameter" if build.startswith("nn.Parameter") else "buffer" if build.startswith("torch") else "module"
    keys: dict[str, Any] = {"": None} if persistent else {}
    return Member(tuple(path.split(".")), ast.parse(build, mode="eval").body, kind, keys)


def _part(made: Mapping[str, Member], key: str) -> tuple[Member, str]:
    """The member that a state-dict key belongs to, and the key that it has there."""
    path = max((path for path in made if key == path or key.startswith(f"{path}.")), key=len)
    return made[path], key[len(path) + 1 :]


def _statement(line: ast.stmt, change: Change) -> Statement:
    blocks = [[_statement(inner, change) for inner in getattr(line, name, [])] for name in ("body", "orelse")]
    if isinstance(line, ast.If):
        return If(rewrite(line.test, change), *blocks, ())
    if isinstance(line, ast.For):
        return Loop(_names(line.target), rewrite(line.iter, change), None, blocks[0], ())
    if isinstance(line, ast.While):
        return Loop((), None, rewrite(line.test, change), blocks[0], ())
    if isinstance(line, ast.With):
        return With(rewrite(line.items[0].context_expr, change), blocks[0], ())
    assert isinstance(line, (ast.Assign, ast.Expr))
    targets = _names(line.targets[0]) if isinstance(line, ast.Assign) else ()
    return Assign(targets, rewrite(line.value, change))


def _names(target: ast.expr) -> tuple[str, ...]:
    return tuple(n.id for n in ast.walk(target) if isinstance(n, ast.Name))
