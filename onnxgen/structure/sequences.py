"""Equal rows of layers that differ in numbers: one class for all of them.

nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())     ConvBlock(3, 8)
nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())    ConvBlock(8, 16)

Goes in: the scopes of a file, with the `nn.Sequential` containers that `runs.py` found. Comes out: the same scopes, in
which such a container is a scope of its own that `share.py` can give constructor parameters. Keys of the state dict
stay: the class is itself an `nn.Sequential`.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Input, Member
from onnxgen.code.quote import MemberRef, Ref
from onnxgen.code.torch_api import CONVOLUTIONS, function_of
from onnxgen.structure.classnames import role_path
from onnxgen.structure.copies import replace_in
from onnxgen.structure.forms import Differ, FormMaker, add
from onnxgen.structure.scopes import ClassRef, Scope
from onnxgen.structure.share import share

MIN_USES = 3
MAX_PARAMETERS = 6
ONE_LINE = 40  # characters of layers that stay where they are: they fit one line
LONG = 48  # characters of layers that never fit one line
WIDE = 76  # characters of layers that have a line each
FILLER = len("nn.Identity(), ")  # what stands for a layer that the file lacks
FRAME = 3  # lines of a class beside those of its layers


@dataclass
class Row:
    """An `nn.Sequential` of a scope, and the scope that it would be."""

    around: Scope
    container: Member
    own: Scope


def share_rows(scopes: list[Scope], reserved: frozenset[str]) -> None:
    """Turn containers of layers into scopes where one class with few parameters can make at least three of them.

    Scopes that may share a class stay as they are: their variants are told apart by the layers in them.
    """
    maker = FormMaker({}, {}, reserved)
    alike: dict[str, list[Row]] = {}
    roles = Counter(role_path(scope.path) for scope in scopes)
    for scope in (scope for scope in scopes if roles[role_path(scope.path)] == 1):
        for container in scope.containers.values():
            row = _row(scope, container)
            if row is not None:
                alike.setdefault(maker.make(row.own, 0).key, []).append(row)
    for key, rows in alike.items():
        if _is_worth(rows, maker):
            for row in rows:
                row.own.row = _name(row.own.members), key
                _take_out(row)


def _row(scope: Scope, container: Member) -> Row | None:
    """Return a container of nothing but torch's layers; None for others, and for one that is the whole scope."""
    path = container.path
    members = [m for m in scope.members if m.path[: len(path)] == path]
    are_layers = all(
        len(m.path) == len(path) + 1 and m.layer.startswith("nn.") and all(map(m.is_buffer, m.frozen)) for m in members
    )
    if container.layer != "nn.Sequential" or path == scope.path or len(members) < 2 or not are_layers:
        return None
    given, made = ".".join((*path, "in")), ".".join((*path, "out"))
    call = Assign((made,), ast.Call(MemberRef(container), [Ref(given)], []), path)
    own = Scope(path, [call], members, [Input(given, "Tensor")], [Ref(made)], {path: container})
    own.varies = True
    return Row(scope, container, own)


def _is_worth(rows: list[Row], maker: FormMaker) -> bool:
    """True if a class makes the file shorter."""
    texts = [ast.unparse(ast.List([m.build for m in row.own.members], ast.Load())) for row in rows]
    last = int(rows[0].own.members[-1].path[-1])
    fillers = FILLER * (last + 1 - len(rows[0].own.members))
    lengths = [len(text) + fillers for text in texts]
    saved = sum(last + 2 if length > WIDE else 2 if length > LONG else 1 for length in lengths)
    if len(rows) < MIN_USES or len(set(texts)) == 1 or min(lengths) <= ONE_LINE or saved < last + 1 + FRAME:
        return False
    form, *others = (maker.make(row.own, i) for i, row in enumerate(rows))
    for other in others:
        add(form, other)
    try:
        return len(share(form, maker).parameters) <= MAX_PARAMETERS
    except Differ:
        return False


def _take_out(row: Row) -> None:
    """Let the scope around a row call the row's own scope."""
    scope, path = row.around, row.container.path
    member = Member(path, ClassRef(row.own), "module")
    at = scope.members.index(row.own.members[0])
    inside = set(map(id, row.own.members))
    kept = [m for m in scope.members[:at] if id(m) not in inside]
    scope.members = [*kept, member, *(m for m in scope.members[at:] if id(m) not in inside)]
    del scope.containers[path]

    def change(node: ast.AST) -> ast.expr | None:
        return MemberRef(member) if isinstance(node, MemberRef) and node.member is row.container else None

    for statement in scope.body:
        replace_in(statement, change)


def _name(members: list[Member]) -> str:
    """Name the class of a row after its layers."""
    kinds = [function_of(member.build) for member in members]
    if any(kind in CONVOLUTIONS for kind in kinds):
        return "ConvBlock"
    return "LinearBlock" if "nn.Linear" in kinds else "Block"
