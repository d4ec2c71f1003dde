"""Where members live inside one class: what `__init__` assigns, and the expression that reaches each from `self`.

Paths between a class and its members that are no class of their own become containers: `nn.ModuleList` where the parts
are numbered without gaps, `nn.ModuleDict` where numbers are missing, and a plain `nn.Module()` else.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onnxgen.code.module_def import Member, Path
from onnxgen.code.quote import call, literal, quote

SELF = ast.Name("self", ast.Load())


@dataclass
class _Place:
    member: Member | None = None
    container: Member | None = None
    below: dict[str, _Place] = field(default_factory=dict)


@dataclass
class Layout:
    """What `__init__` does, and how to reach each member (by identity).

    Attributes:
        lines: (target, value) assignments in order; target None: an expression statement.
        reach: the expression for each member, by `id(member)`.
    """

    lines: list[tuple[ast.expr | None, ast.expr]]
    reach: dict[int, ast.expr]
    text: Callable[[ast.expr], str]


def layout(
    path: Path, members: list[Member], containers: Mapping[Path, Member], text: Callable[[ast.expr], str]
) -> Layout:
    """Lay out the members of the class at `path`.

    `containers` are the lists that the code uses as a whole; `text` prints an expression (to see which are equal).
    """
    root = _Place()
    for member in members:
        place = root
        for part in member.path[len(path) :]:
            place = place.below.setdefault(part, _Place())
        place.member = member
    for at, container in containers.items():
        place = root
        for part in at[len(path) :]:
            place = place.below[part]
        place.container = container
    _sort(root)
    made = Layout([], {}, text)
    for name, place in root.below.items():
        _assign(made, SELF, name, place)
    return made


def _sort(place: _Place) -> None:
    """Numbered parts come in the order of their numbers, whatever the order in which they were used."""
    for below in place.below.values():
        _sort(below)
    if all(name.isdigit() for name in place.below):
        place.below = dict(sorted(place.below.items(), key=lambda item: int(item[0])))


def _child(parent: ast.expr, name: str) -> ast.expr:
    """The expression for a child; a numbered one that is no list's item is only reached by its name as text."""
    if name.isdigit():
        return quote("m.get_submodule(n)", m=parent, n=name)
    return ast.Attribute(parent, name, ast.Load())


def _assign(made: Layout, parent: ast.expr, name: str, place: _Place) -> None:
    """`parent.name = ...` for a member or a container, and then what lies below it."""
    here = _child(parent, name)
    value = _value(made, place)
    if name.isdigit():
        kind = "module" if place.member is None else place.member.kind
        method = {"module": "add_module", "parameter": "register_parameter", "buffer": "register_buffer"}[kind]
        extra = {"persistent": False} if place.member is not None and _is_transient(place.member) else {}
        made.lines.append((None, call(ast.Attribute(parent, method, ast.Load()), name, value, **extra)))
        if kind != "module":
            here = quote("getattr(m, n)", m=parent, n=name)
    elif place.member is not None and place.member.kind == "buffer":
        register = ast.Attribute(parent, "register_buffer", ast.Load())
        options = {"persistent": False} if _is_transient(place.member) else {}
        made.lines.append((None, call(register, name, value, **options)))
    else:
        made.lines.append((here, value))
    _register(made, here, place)
    if place.container is not None:
        made.reach[id(place.container)] = here
    if place.member is None and _is_list(place):
        _reach_items(made, here, place)
    else:
        for child, below in place.below.items():
            _assign(made, here, child, below)


def _is_transient(member: Member) -> bool:
    """A buffer that the state dict does not keep."""
    return member.kind == "buffer" and not member.keys


def _register(made: Layout, here: ast.expr, place: _Place) -> None:
    if place.member is not None:
        made.reach[id(place.member)] = here
        for key in sorted(place.member.frozen):
            target = ast.Attribute(here, key, ast.Load()) if key else here
            if not key.startswith("running_"):
                made.lines.append((None, quote("w.requires_grad_(False)", w=target)))


def _is_list(place: _Place) -> bool:
    """Numbered submodules, or what holds such, that a container can hold."""
    return bool(place.below) and all(
        name.isdigit() and (p.member is None or p.member.kind == "module") for name, p in place.below.items()
    )


def _value(made: Layout, place: _Place) -> ast.expr:
    if place.member is not None:
        return place.member.build
    if not _is_list(place):
        return quote("nn.Module()")
    kind = ast.unparse(place.container.build) if place.container is not None else "nn.ModuleList"
    items = [(name, _value(made, p)) for name, p in place.below.items()]
    values = [value for _, value in items]
    if not _is_gapless(place):
        entries = ast.Dict([literal(name) for name, _ in items], values)
        return quote("nn.ModuleDict(entries)", entries=entries)
    starred = kind == "nn.Sequential"
    if len(items) > 2 and len({made.text(value) for value in values}) == 1:
        repeated = f"{kind}(*[item for _ in range(n)])" if starred else f"{kind}(item for _ in range(n))"
        return quote(repeated, item=values[0], n=len(items))
    return call(kind, *values) if starred else call(kind, values)


def _is_gapless(place: _Place) -> bool:
    return list(place.below) == [str(i) for i in range(len(place.below))]


def _reach_items(made: Layout, here: ast.expr, place: _Place) -> None:
    gapless = _is_gapless(place)
    for name, below in place.below.items():
        item = ast.Subscript(here, literal(int(name) if gapless else name), ast.Load())
        _register(made, item, below)
        if below.container is not None:
            made.reach[id(below.container)] = item
        if below.member is None and _is_list(below):
            _reach_items(made, item, below)
            continue
        for child, further in below.below.items():
            _assign(made, item, child, further)
