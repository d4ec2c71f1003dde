"""What `__init__` assigns, and the expression that reaches each member from `self`.

Paths between a class and its members that are no class of their own become containers: `nn.ModuleList` where the parts
are numbered without gaps, `nn.ModuleDict` where numbers are missing, and a plain `nn.Module()` else. A class that has
nothing but numbered submodules is an `nn.Sequential`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from onnxgen.code.module_def import is_statistic
from onnxgen.code.quote import call, literal, quote, tensor_of
from onnxgen.structure.tree import Place

SELF = ast.Name("self", ast.Load())
ITEMS = "layers"  # the local list to which the items of an nn.Sequential are added, where some are optional


@dataclass
class Line:
    """One statement of `__init__`: `target = value`, or just `value`; under `if flag:` where there is a flag."""

    target: ast.expr | None
    value: ast.expr
    flag: str = ""


@dataclass
class Layout:
    """What `__init__` does, and how to reach each member.

    Attributes:
        lines: in order.
        reach: the expression for each member, by `id(member)`.
        text: prints an expression, to see which are equal.
        flag: what the lines that are added now are under.
        layers: of a class that is an `nn.Sequential` itself, what that is made of.
    """

    lines: list[Line]
    reach: dict[int, ast.expr]
    text: Callable[[ast.expr], str]
    flag: str = ""
    layers: list[ast.expr] = field(default_factory=list)

    def add(self, target: ast.expr | None, value: ast.expr) -> None:
        self.lines.append(Line(target, value, self.flag))


def layout(root: Place, text: Callable[[ast.expr], str]) -> Layout:
    """Lay out what a class registers; `text` prints an expression."""
    made = Layout([], {}, text)
    if root.is_list and root.is_gapless and not any(place.flag for place in root.below.values()):
        made.layers = [_value(made, place) for place in root.below.values()]
        _reach_items(made, SELF, root)
        if root.container is not None:
            whole = root.container.layer == "nn.Sequential"
            made.reach[id(root.container)] = quote("super().forward") if whole else SELF
        return made
    for name, place in root.below.items():
        _assign(made, SELF, name, place)
    return made


def _child(parent: ast.expr, name: str) -> ast.expr:
    """The expression for a child; a numbered one that is no list's item is only reached by its name as text."""
    if name.isdigit():
        return quote("m.get_submodule(n)", m=parent, n=name)
    return ast.Attribute(parent, name, ast.Load())


def _assign(made: Layout, parent: ast.expr, name: str, place: Place) -> None:
    """`parent.name = ...` for a member or a container, and then what lies below it."""
    outer = made.flag
    if place.passes:
        _set_module(made, parent, name, quote("nn.Identity()"))
    made.flag = place.flag or outer
    here = _place(made, parent, name, place)
    _register(made, here, place)
    if place.container is not None:
        made.reach[id(place.container)] = here
    if place.is_list:
        _reach_items(made, here, place)
    else:
        for child, below in place.below.items():
            _assign(made, here, child, below)
    made.flag = outer


def _set_module(made: Layout, parent: ast.expr, name: str, value: ast.expr) -> None:
    if name.isdigit():
        made.add(None, call(ast.Attribute(parent, "add_module", ast.Load()), name, value))
    else:
        made.add(_child(parent, name), value)


def _place(made: Layout, parent: ast.expr, name: str, place: Place) -> ast.expr:
    """The line that makes a member or a container; returns what reaches it."""
    here = _child(parent, name)
    value = _value(made, place)
    if name.isdigit():
        kind = "module" if place.member is None else place.member.kind
        method = {"module": "add_module", "parameter": "register_parameter", "buffer": "register_buffer"}[kind]
        extra = {"persistent": False} if _is_transient(place) else {}
        made.add(None, call(ast.Attribute(parent, method, ast.Load()), name, value, **extra))
        return here if kind == "module" else quote("getattr(m, n)", m=parent, n=name)
    if place.member is not None and place.member.kind == "buffer":
        register = ast.Attribute(parent, "register_buffer", ast.Load())
        options = {"persistent": False} if _is_transient(place) else {}
        made.add(None, call(register, name, value, **options))
    else:
        made.add(here, value)
    return here


def _is_transient(place: Place) -> bool:
    """A buffer that the state dict does not keep."""
    return place.member is not None and place.member.kind == "buffer" and not place.member.keys


def _register(made: Layout, here: ast.expr, place: Place) -> None:
    if place.member is not None:
        made.reach[id(place.member)] = here
        for key in sorted(place.member.frozen):
            target = tensor_of(here, key)
            if not is_statistic(key):
                made.add(None, quote("w.requires_grad_(False)", w=target))


def _value(made: Layout, place: Place) -> ast.expr:
    if place.member is not None:
        return place.member.build if place.value is None else place.value
    if not place.is_list:
        return quote("nn.Module()")
    kind = place.container.layer if place.container is not None else "nn.ModuleList"
    starred = kind == "nn.Sequential"
    if any(below.flag for below in place.below.values()):
        return _listed(made, place, kind)
    items = [(name, _value(made, p)) for name, p in place.below.items()]
    values = [value for _, value in items]
    if not place.is_gapless:
        entries = ast.Dict([literal(name) for name, _ in items], values)
        return quote("nn.ModuleDict(entries)", entries=entries)
    if place.count is not None or (len(items) > 2 and len({made.text(value) for value in values}) == 1):
        repeated = f"{kind}(*[item for _ in range(n)])" if starred else f"{kind}([item for _ in range(n)])"
        return quote(repeated, item=values[0], n=len(items) if place.count is None else place.count)
    return call(kind, *values) if starred else call(kind, values)


def _listed(made: Layout, place: Place, kind: str) -> ast.expr:
    """A list some of whose items are optional: they are added one after another."""
    outer = made.flag
    local = ast.Name(ITEMS, ast.Load())
    segments: list[tuple[str, list[ast.expr]]] = []
    for below in place.below.values():
        if not segments or segments[-1][0] != below.flag:
            segments.append((below.flag, []))
        segments[-1][1].append(_value(made, below))
    start = ast.List(segments.pop(0)[1] if not segments[0][0] else [], ast.Load())
    made.add(local, start)
    for flag, values in segments:
        made.flag = flag or outer
        if len(values) == 1:
            made.add(None, call(ast.Attribute(local, "append", ast.Load()), values[0]))
        else:
            made.add(None, call(ast.Attribute(local, "extend", ast.Load()), values))
    made.flag = outer
    return quote(f"{kind}(*items)" if kind == "nn.Sequential" else f"{kind}(items)", items=local)


def _reach_items(made: Layout, here: ast.expr, place: Place) -> None:
    gapless = place.is_gapless
    for name, below in place.below.items():
        item = ast.Subscript(here, literal(int(name) if gapless else name), ast.Load())
        _register(made, item, below)
        if below.container is not None:
            made.reach[id(below.container)] = item
        if below.is_list:
            _reach_items(made, item, below)
            continue
        for child, further in below.below.items():
            _assign(made, item, child, further)
