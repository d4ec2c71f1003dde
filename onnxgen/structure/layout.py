"""What a class registers: its tree, the lines of `__init__`, and how `self` reaches each member.

`tree`: goes in the members of a class with their module paths, and its containers, comes out a tree of `Entry` objects,
one for each attribute and list item. `forms.py` compares the trees of two classes.

`layout` makes a `Layout` of it, from which `writer.py` writes `__init__` and every use of a member. A part of a module
path that is not a class of its own becomes an `nn.ModuleList` if its parts are numbered without gaps, an
`nn.ModuleDict` if numbers are missing, and else a plain `nn.Module()`; a class with nothing but numbered submodules is
itself an `nn.Sequential`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from onnxgen.code.module_def import Member
from onnxgen.code.quote import call, literal, quote, tensor_of
from onnxgen.common.names import ModulePath
from onnxgen.lowering.parameter import drawn_shape
from onnxgen.structure.clues import SHORTCUTS


@dataclass(eq=False)
class Entry:
    """An attribute of a module, or an item of a list.

    Attributes:
        member: what is registered here; None if this only holds other entries.
        container: the member by which the code uses all items of this list at once.
        below: the entries that it holds, by name.
        value: the expression that makes the member, if it is not the member's own `build`.
        flag: the parameter or the condition that says whether an instance has it.
        passes: an instance that does not have it has an `nn.Identity` instead.
        count: the length of a list whose length is a parameter; all its items are made like the first one.
    """

    member: Member | None = None
    container: Member | None = None
    below: dict[str, Entry] = field(default_factory=dict)
    value: ast.expr | None = None
    flag: str = ""
    passes: bool = False
    count: ast.expr | None = None

    @property
    def is_list(self) -> bool:
        """True if all entries below are numbered modules, so that one container can hold them."""
        modules = (p.member is None or p.member.kind == "module" for p in self.below.values())
        return self.member is None and bool(self.below) and all(map(str.isdigit, self.below)) and all(modules)

    @property
    def is_gapless(self) -> bool:
        return list(self.below) == [str(i) for i in range(len(self.below))]


def tree(path: ModulePath, members: list[Member], containers: Mapping[ModulePath, Member]) -> Entry:
    """Return the tree of the class at `path`. `containers` are the lists that its code uses as a whole, by path."""
    root = Entry()

    def entry(at: ModulePath) -> Entry:
        current = root
        for part in at[len(path) :]:
            current = current.below.setdefault(part, Entry())
        return current

    for member in members:
        entry(member.path).member = member
    for at, container in containers.items():
        entry(at).container = container
    _sort(root, path)
    return root


def _sort(entry: Entry, path: ModulePath) -> None:
    """Sort numbered entries by number, and fill gaps in a list with `nn.Identity`: exporters drop what does nothing."""
    for name, below in entry.below.items():
        _sort(below, (*path, name))
    if not all(map(str.isdigit, entry.below)):
        return
    numbers = sorted(map(int, entry.below))
    if entry.is_list and fillable(numbers):
        for number in set(range(numbers[-1])) - set(numbers):
            member = Member((*path, str(number)), quote("nn.Identity()"), "module")
            entry.below[str(number)] = Entry(member)
    entry.below = dict(sorted(entry.below.items(), key=lambda item: int(item[0])))


def fillable(numbers: list[int]) -> bool:
    """True if a list with these items may have `nn.Identity` in its gaps: at most one more than it has items."""
    return max(numbers) + 1 - len(numbers) <= len(numbers) + 1


SELF = ast.Name("self", ast.Load())
SHORT = len(" for _ in range(2)")  # shorter items are shorter twice
ONE_LINE = 48  # characters of an item that fits one line with its loop
ITEMS = "layers"  # the local variable that collects the items of a list, if some are optional


@dataclass
class Line:
    """One statement of `__init__`: `target = value`, or just `value`; under `if flag:` if there is a flag."""

    target: ast.expr | None
    value: ast.expr
    flag: str = ""


@dataclass
class Layout:
    """What `__init__` does, and how to reach each member.

    Attributes:
        lines: the statements, in order.
        reach: the expression for each member, by `id(member)`.
        text: prints an expression; two expressions are equal if their texts are.
        flag: the flag of the lines that are being added.
        layers: the items of the class, if it is itself an `nn.Sequential`.
    """

    lines: list[Line]
    reach: dict[int, ast.expr]
    text: Callable[[ast.expr], str]
    flag: str = ""
    layers: list[ast.expr] = field(default_factory=list)

    def add(self, target: ast.expr | None, value: ast.expr) -> None:
        self.lines.append(Line(target, value, self.flag))


def layout(root: Entry, text: Callable[[ast.expr], str]) -> Layout:
    """Lay out what a class registers. `text` prints an expression."""
    plan = Layout([], {}, text)
    if not root.is_list or not root.is_gapless or any(entry.flag for entry in root.below.values()):
        for name, entry in sorted(root.below.items(), key=lambda item: item[0] in SHORTCUTS):
            _assign(plan, SELF, name, entry)  # what stands beside the block comes behind it
        return plan
    plan.layers = _repeated(plan, [_value(plan, entry) for entry in root.below.values()])
    _reach(plan, SELF, root)
    if root.container is not None and root.container.layer == "nn.Sequential":
        plan.reach[id(root.container)] = quote("super().forward")
    return plan


def _assign(plan: Layout, parent: ast.expr, name: str, entry: Entry) -> None:
    """Add `parent.name = ...` for a member or a container, and then the lines for the entries below it."""
    outer = plan.flag
    if entry.passes:
        _register(plan, parent, name, quote("nn.Identity()"), "module")
    plan.flag = entry.flag or outer
    options = {}
    kind = "module"
    if entry.member is not None:
        kind = entry.member.kind
        if kind == "buffer" and not entry.member.keys:  # the state dict does not have it
            options["persistent"] = False
    value = _value(plan, entry)
    shape = drawn_shape(value) if kind == "parameter" else None
    if shape is not None:
        value = _with_zeros(value, shape)
    here = _register(plan, parent, name, value, kind, **options)
    if shape is not None:
        plan.add(None, quote("nn.init.trunc_normal_(p, std=0.02)", p=here))
    _reach(plan, here, entry)
    plan.flag = outer


def _with_zeros(value: ast.expr, shape: ast.Tuple) -> ast.expr:
    """Return the parameter with zeros, `nn.Parameter(torch.zeros(1, 17, dim))`, into which numbers are drawn."""
    tensor = value.args[0] if isinstance(value, ast.Call) else value
    options = {word.arg: word.value for word in tensor.keywords if word.arg} if isinstance(tensor, ast.Call) else {}
    return quote("nn.Parameter(x)", x=call("torch.zeros", *shape.elts, **options))


def _register(plan: Layout, parent: ast.expr, name: str, value: ast.expr, kind: str, **options: Any) -> ast.expr:
    """Add the line that registers a value; return the expression that reaches it.

    A name that is a number is not an attribute: it is only reached through its text.
    """
    here: ast.expr = ast.Attribute(parent, name, ast.Load())
    if name.isdigit():
        how = "m.get_submodule(n)" if kind == "module" else "getattr(m, n)"
        here = quote(how, m=parent, n=name)
    elif kind != "buffer":
        plan.add(here, value)
        return here
    method = {"module": "add_module", "parameter": "register_parameter", "buffer": "register_buffer"}[kind]
    plan.add(None, call(ast.Attribute(parent, method, ast.Load()), name, value, **options))
    return here


def _reach(plan: Layout, here: ast.expr, entry: Entry) -> None:
    """Note that `here` reaches an entry, freeze its tensors, and lay out the entries below it."""
    if entry.member is not None:
        plan.reach[id(entry.member)] = here
        for key in entry.member.frozen_parts:
            plan.add(None, quote("w.requires_grad_(False)", w=tensor_of(here, key)))
    if entry.container is not None:
        plan.reach[id(entry.container)] = here
    if not entry.is_list:
        for name, below in entry.below.items():
            _assign(plan, here, name, below)
        return
    gapless = entry.is_gapless
    for name, below in entry.below.items():
        _reach(plan, ast.Subscript(here, literal(int(name) if gapless else name), ast.Load()), below)


def _value(plan: Layout, entry: Entry) -> ast.expr:
    if entry.member is not None:
        return entry.member.build if entry.value is None else entry.value
    if not entry.is_list:
        return quote("nn.Module()")
    kind = entry.container.layer if entry.container is not None else "nn.ModuleList"
    starred = kind == "nn.Sequential"
    if any(below.flag for below in entry.below.values()):
        return _collected(plan, entry, kind)
    values = [_value(plan, below) for below in entry.below.values()]
    if not entry.is_gapless:
        return quote("nn.ModuleDict(entries)", entries=ast.Dict([literal(name) for name in entry.below], values))
    items = _repeated(plan, values) if entry.count is None else [_times(values[0], entry.count)]
    if len(items) == 1 and isinstance(items[0], ast.Starred) and not starred:
        return call(kind, items[0].value)
    return call(kind, *items) if starred else call(kind, items)


def _repeated(plan: Layout, values: list[ast.expr]) -> list[ast.expr]:
    """Write equal items in a row as one, `*[Block(8, 8) for _ in range(4)]`, where that is shorter."""
    shortened: list[ast.expr] = []
    for text, group in groupby(values, plan.text):
        items = list(group)
        enough = 3 if len(text) <= ONE_LINE else 5
        if len(items) == len(values):
            enough = 3 if len(text) < SHORT else 2
        shortened += [_times(items[0], len(items))] if len(items) >= enough else items
    return shortened


def _times(item: ast.expr, count: Any) -> ast.expr:
    return ast.Starred(quote("[item for _ in range(n)]", item=item, n=count), ast.Load())


def _collected(plan: Layout, entry: Entry, kind: str) -> ast.expr:
    """Add the lines that collect the items of a list, some of which are optional; return the list."""
    outer = plan.flag
    local = ast.Name(ITEMS, ast.Load())
    segments: list[tuple[str, list[ast.expr]]] = []
    for below in entry.below.values():
        if not segments or segments[-1][0] != below.flag:
            segments.append((below.flag, []))
        segments[-1][1].append(_value(plan, below))
    start = ast.List(segments.pop(0)[1] if not segments[0][0] else [], ast.Load())
    plan.add(local, start)
    for flag, values in segments:
        plan.flag = flag or outer
        if len(values) == 1:
            plan.add(None, call(ast.Attribute(local, "append", ast.Load()), values[0]))
        else:
            plan.add(None, call(ast.Attribute(local, "extend", ast.Load()), values))
    plan.flag = outer
    return quote(f"{kind}(*items)" if kind == "nn.Sequential" else f"{kind}(items)", items=local)
