"""One class for several scopes.

Goes in: the form of these scopes, with the literals of each instance. Comes out: a `Shared`, the body and the members
of the class, the parameters of its constructor, and the call that makes each instance.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from onnxgen.code.module_def import Statement
from onnxgen.code.quote import rewrite
from onnxgen.common.names import identifier
from onnxgen.structure.forms import Differ, Form, FormMaker, Node, Part
from onnxgen.structure.layout import SELF
from onnxgen.structure.literals import Key, Slot, fill, is_number
from onnxgen.structure.optional import Body, Only, flag_name
from onnxgen.structure.parameters import Flag, Group, Parameter, Parameters, Use, parsed
from onnxgen.structure.tree import Entry
from onnxgen.structure.widths import size_names, sizes, widths


@dataclass
class Shared:
    """One class for several scopes.

    Attributes:
        root: what it registers.
        body, outputs: of `forward`.
        stored: the attributes that `forward` reads, and the parameter or condition that each is.
        parameters: of the constructor.
        made: returns the call that makes an instance, by the name of the class and the instance's number.
        held: sizes that the class has and that no parameter gives.
    """

    root: Entry
    body: list[Statement]
    outputs: list[ast.expr]
    stored: dict[str, str]
    parameters: list[Parameter]
    made: Callable[[str, int], ast.Call]
    held: frozenset[int]


def share(form: Form, maker: FormMaker, gives_widths: bool = False) -> Shared:
    """Return the class of a form. `gives_widths`: widths are parameters, too, if they are equal in all instances.

    Raises:
        Differ: it would have too many parameters, or optional parts that no flag can turn off.
    """
    return _Sharing(form, maker, gives_widths).run()


class _Sharing:
    def __init__(self, form: Form, maker: FormMaker, gives_widths: bool) -> None:
        self.form, self.maker = form, maker
        self.all = frozenset(form.instances)
        self.body = Body(form)
        self.uses: dict[int, Use] = {}  # by id of the column
        self.optional: dict[Flag, str] = {}
        self.held: set[int] = set()  # by classes that it makes
        self.sizes = size_names(form.scope)
        self._see(form.root, "", self.all)
        for node in (*form.nodes, form.returned):
            self._columns("", node.slots.values, True)
        for flag, node in self.body.flags().items():
            self.optional.setdefault(flag, flag_name(node))
        uses = list(self.uses.values())
        found = widths(uses, len(form.instances), self.held) if gives_widths else []
        self.parameters = Parameters(form.instances, uses, dict(self.optional), found)
        if found and not self.parameters.are_few:
            self.parameters = Parameters(form.instances, uses, self.optional, [])

    def _see(self, part: Part, name: str, outer: Only, row: str = "") -> None:
        """Collect the literals of a part and of all below it, and the flags that they need."""
        only = frozenset(part.only)
        if only != outer:
            self.optional.setdefault((only, ""), (_item_name(part) if row else "") or name)
        self.held |= self.maker.classes[part.maker].held if part.maker in self.maker.classes else set()
        self._columns(name, part.slots.values, False, f"{row} {part.maker}" if row else "")
        for n, wanted in self.sizes.get(id(part.entry.member), {}).items():
            for slot in part.slots.values.get(("", "#", n), {}).values():
                slot.wanted = wanted
        if part.uniform is not None:
            column = {i: Slot(ast.Constant(n), "depth") for i, n in part.uniform.items()}
            self.uses[id(part.uniform)] = Use(column, name)
        for key, below in part.below.items():
            self._see(below, key if not key.isdigit() else name, only, (name or "items") if key.isdigit() else "")

    def _columns(self, owner: str, values: dict[Key, dict[int, Slot]], in_forward: bool, row: str = "") -> None:
        for _, column in sorted(values.items(), key=lambda item: _order(item[0])):
            self.uses[id(column)] = Use(column, owner, in_forward, row)

    def run(self) -> Shared:
        if not self.parameters.are_few:
            raise Differ("too many parameters")
        stored = set(self.body.flags())
        self.parameters.name(set(self.form.root.below), stored, self.maker.reserved)
        flags = self.parameters.flags
        self._settle(self.form.root, self.all)
        body, outputs = self.body.statements(self._filled, lambda flag: flags[flag])
        read = [base for g in self.parameters.all if g.in_forward for base in g.bases or [g]]
        kept = {g.name: g.name for g in read}
        kept |= {name: self.parameters.test(flag) for flag, name in flags.items() if flag in stored}
        own = (size for use in self.uses.values() if id(use) not in self.parameters.of for size in sizes(use))
        made, held = self.parameters.parameters(), frozenset(own) | self.held
        return Shared(self.form.root.entry, body, outputs, kept, made, self.parameters.made, held)

    def _settle(self, part: Part, outer: Only) -> None:
        """Write the literals and the flags of a part into its entry."""
        entry, only = part.entry, frozenset(part.only)
        entry.below = {name: below.entry for name, below in part.below.items()}
        entry.flag = self.parameters.test((only, "")) if only != outer else ""
        entry.passes = any(block.passes is part for block in self.body.blocks)
        if entry.member is not None:
            build = self.maker.made(entry.member.build)
            entry.value = fill(build, lambda key: self._choice(part.slots.values, ("", *key)), self.maker.classes)
        if part.uniform is not None:
            entry.count = _expression(self.parameters.of[id(self.uses[id(part.uniform)])])
        for below in part.below.values():
            self._settle(below, only)

    def _filled(self, node: Node, index: int, expression: ast.expr) -> ast.expr:
        return fill(expression, lambda key: self._choice(node.slots.values, (index, *key)), self.maker.classes)

    def _choice(self, values: dict[Key, dict[int, Slot]], key: Key) -> ast.expr | None:
        """Return what is written for a literal: a parameter, the literal, or None if it is torch's default."""
        column = values[key]
        use = self.uses[id(column)]
        group = self.parameters.of.get(id(use))
        if group is not None:
            return _expression(group, use.in_forward)
        slot = next(iter(column.values()))
        return None if slot.is_default else slot.value


def _expression(group: Group, in_forward: bool = False) -> ast.expr:
    """Return what is written for the literals of a group: a parameter, or an expression of other parameters."""
    tree = parsed(group.expression)
    if in_forward:
        tree = rewrite(tree, lambda n: ast.Attribute(SELF, n.id, ast.Load()) if isinstance(n, ast.Name) else None)
    return tree


def _order(key: Key) -> tuple[object, ...]:
    """Sort literals as they are written, keywords after the positions of their call."""
    return tuple(str(part).zfill(4) if isinstance(part, int) else part for part in key)


def _item_name(part: Part) -> str:
    """Name the flag of an optional item of a list after its class, or after what it does."""
    first = next(iter(part.below.values()), part) if part.entry.is_list else part
    if _is_pointwise(first):
        return "expand"
    return identifier(part.maker) if part.maker and "." not in part.maker else ""


def _is_pointwise(part: Part) -> bool:
    """True for a 1x1 convolution."""
    kernel = [slot for found in part.slots.values.values() for slot in found.values() if slot.wanted == "kernel_size"]
    return bool(kernel) and all(is_number(slot.value, 1) for slot in kernel)
