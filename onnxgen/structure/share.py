"""One class for several scopes.

Goes in: the form of these scopes, with the literals of each instance. Comes out: a `Shared`, the body and the members
of the class, the parameters of its constructor, and the call that makes each instance.

`Body` writes a body, some statements of which only some instances execute. Goes in: a form whose nodes know which
instances have them. Comes out: the statements of `forward`, in an order of execution, with each optional part under an
`if self.flag:`, or as a submodule that is `nn.Identity` in the other instances. `Differ` is raised if no flag can turn
an optional part off.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, If, Member, Statement, assigned
from onnxgen.code.quote import Ref, refs, rewrite
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import identifier
from onnxgen.structure.forms import Def, Differ, Form, FormMaker, Node, Part, inner_members, parts
from onnxgen.structure.layout import SELF, Entry
from onnxgen.structure.literals import APPLIED, Key, Signature, Slot, fill, is_number
from onnxgen.structure.nesting import copied, replace_in
from onnxgen.structure.order import grouped, topological
from onnxgen.structure.parameters import Flag, Group, Parameter, Parameters, Use, parsed, size_names, sizes, widths
from onnxgen.structure.scopes import callee


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

    @property
    def signature(self) -> Signature:
        positional = tuple(parameter.name for parameter in self.parameters if parameter.default is None)
        defaults = {p.name: tree for p in self.parameters if (tree := p.default_tree) is not None}
        return Signature(positional, defaults, self.held)


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
        groups = widths(uses, len(form.instances), self.held) if gives_widths else []
        self.parameters = Parameters(form.instances, uses, dict(self.optional), groups)
        if groups and not self.parameters.are_few:
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
        body, outputs = _Writing(self.body, self._filled, flags.__getitem__).run()
        read = [base for g in self.parameters.all if g.in_forward for base in g.bases or [g]]
        kept = {g.name: g.name for g in read}
        kept |= {name: self.parameters.test(flag) for flag, name in flags.items() if flag in stored}
        own = (size for use in self.uses.values() if id(use) not in self.parameters.of for size in sizes(use))
        parameters, held = self.parameters.parameters(), frozenset(own) | self.held
        return Shared(self.form.root.entry, body, outputs, kept, parameters, self.parameters.made, held)

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
    kernel = [slot for column in part.slots.values.values() for slot in column.values() if slot.wanted == "kernel_size"]
    return bool(kernel) and all(is_number(slot.value, 1) for slot in kernel)


Only = frozenset[int]  # the instances that have something
Fill = Callable[[Node, int, ast.expr], ast.expr]


@dataclass(eq=False)
class Block:
    """Statements that are executed together: a single one, or all of an optional part.

    Attributes:
        only: the instances that have an optional part; None if all have it.
        passes: the submodule that is all there is in an optional part, and that `nn.Identity` can replace.
        otherwise: the optional part that all other instances have in its place.
        is_other: it is such a part.
    """

    nodes: list[Node]
    only: Only | None
    passes: Part | None = None
    otherwise: Block | None = None
    is_other: bool = False

    @property
    def flag(self) -> Flag:
        """The flag of an optional part; one without members never shares a flag with other parts."""
        return self.only or frozenset(), "" if self.has_members else flag_name(self.last)

    @property
    def has_members(self) -> bool:
        return any(map(inner_members, self.nodes))

    @property
    def last(self) -> Node:
        return self.nodes[-1]


class Body:
    """Makes the body of a class from the nodes of its form."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.all = frozenset(form.instances)
        self.blocks = self._blocks()
        self.block_of = {node: block for block in self.blocks for node in block.nodes}
        self._check()
        for block in self.blocks:
            block.passes = self._identity(block)
        for block in self.blocks:
            self._pair(block)

    def flags(self) -> dict[Flag, Node]:
        """Return the flags that the body reads, each with the last node of a part that it turns off."""
        return {b.flag: b.last for b in self.blocks if b.only is not None and b.passes is None and not b.is_other}

    def _blocks(self) -> list[Block]:
        """Return the nodes in an order of execution, with those of an optional part together."""
        groups = self._groups()
        blocks = [Block(group, None if group[0].only == self.all else frozenset(group[0].only)) for group in groups]
        index = {node: i for i, block in enumerate(blocks) for node in block.nodes}
        before = [
            sorted({index[d.node] for n in block.nodes for d in n.operands if d.node is not None} - {i})
            for i, block in enumerate(blocks)
        ]
        order = topological(before)
        if len(order) < len(blocks):
            raise Differ("an optional part with statements of other parts between its own")
        return [blocks[i] for i in order]

    def _groups(self) -> list[list[Node]]:
        """Return the nodes of each optional part (union-find), and each other node alone."""
        above = {node: node for node in self.form.nodes}

        def root(node: Node) -> Node:
            while above[node] is not node:
                node = above[node]
            return node

        for node in self.form.nodes:
            for value in node.operands if node.only != self.all else ():
                if value.node is not None and value.node.only == node.only:
                    above[root(node)] = root(value.node)
        return [*grouped((root(node), node) for node in self.form.nodes).values()]

    def _check(self) -> None:
        """Check that each optional part can be turned off.

        It has its own submodules. Statements outside it use only its last value, which another value can replace. A
        part without submodules is a sum, a product or an activation, since nobody makes a reshape optional.
        """
        for part in self.blocks:
            if part.only is not None and not part.has_members and not _is_choice(part.last.expressions[0]):
                raise Differ("an optional change of shape")
        entries = ((p.only, m) for p in parts(self.form.root) for m in (p.entry.member, p.entry.container))
        has = {id(member): only for only, member in entries}
        for node in (*self.form.nodes, self.form.returned):
            if any(has.get(id(m), node.only) != node.only for m in inner_members(node)):
                raise Differ("an optional part with a submodule that is not its own")
            for value in node.operands:
                if value.node is not None and self._is_inner(value.node, node):
                    raise Differ("an optional part with several results")

    def _is_inner(self, maker: Node, user: Node) -> bool:
        """True if a node takes the value of another optional part that is not its result."""
        block = self.block_of.get(maker)
        if block is None or block.only is None or self.block_of.get(user) is block:
            return False
        return maker is not block.last or maker.skip is None or not maker.is_simple

    def _identity(self, block: Block) -> Part | None:
        """Return the submodule of a part that only calls it with one value: `nn.Identity` can replace it."""
        member = _only_call(block)
        if member is None:
            return None
        part: Part | None = self.form.root
        for name in member.path[len(self.form.scope.path) :]:
            part = part.below.get(name) if part is not None and not part.entry.is_list else None
        if part is None:  # the member of another instance has another path
            own = self.form.root.below.values()
            part = next((p for p in own if p.entry.member is member or p.entry.container is member), None)
        uses = sum(m is member for node in (*self.form.nodes, self.form.returned) for m in inner_members(node))
        return part if part is not None and part.only == block.last.only and uses == 1 else None

    def _pair(self, block: Block) -> None:
        """Note the part before this one that just the other instances have, if only this one uses its value."""
        last = block.last
        if block.only is None or block.passes is not None or last.skip is None or len(block.nodes) > 1:
            return
        value = last.operands[last.skip]
        other = self.block_of.get(value.node) if value.node is not None else None
        if other is None or other.only != self.all - block.only or other.passes is not None or len(other.nodes) > 1:
            return
        everything = (*self.form.nodes, self.form.returned)
        if sum(d.node is other.last for node in everything for d in node.operands) == 1:
            block.otherwise, other.is_other = other, True


class _Writing:
    """Writes the blocks as statements, with the literals that `fill` chooses and `flag`'s names.

    `names`: the current names of the values.
    """

    def __init__(self, body: Body, fill: Fill, flag: Callable[[Flag], str]) -> None:
        self.body, self.fill, self.flag = body, fill, flag
        self.names: dict[Def, str] = {Def(None, i): argument.value for i, argument in enumerate(body.form.scope.inputs)}
        self.last_use: dict[Def, int] = {}
        for i, block in enumerate([*body.blocks, Block([body.form.returned], None)]):
            for node in block.nodes:
                for value in node.operands:
                    self.last_use[value] = i

    def run(self) -> tuple[list[Statement], list[ast.expr]]:
        statements: list[Statement] = []
        for i, block in enumerate(self.body.blocks):
            if block.only is None or block.passes is not None:
                statements.extend(self._statement(node) for node in block.nodes)
            elif block.otherwise is not None:
                statements.append(self._choice(i, block, block.otherwise))
            elif not block.is_other:
                statements.extend(self._part(i, block))
        result = self._expression(self.body.form.returned, 0)
        assert isinstance(result, ast.Tuple)
        return statements, result.elts

    def _part(self, now: int, block: Block) -> list[Statement]:
        """Put an optional part under `if self.flag:`. The value that replaces its own is in the same variable."""
        inner = [self._statement(node) for node in block.nodes[:-1]]
        last = block.last
        value = Def(last, 0)
        while value.node is not None and self.body.block_of[value.node] is block:
            if value.node.skip is None:
                raise Differ("an optional value that nothing replaces")
            value = value.node.operands[value.node.skip]
        test = ast.Attribute(SELF, self.flag(block.flag), ast.Load())
        before = self.names[value]
        if self.last_use[value] <= now:
            final = self._statement(last, before)
            return [If(test, [*inner, final], [], (before,), final.scope)]
        final = self._statement(last)
        start = Assign(final.targets, Ref(before), final.scope)
        return [start, If(test, [*inner, final], [], final.targets, final.scope)]

    def _choice(self, now: int, block: Block, other: Block) -> Statement:
        """Put two parts of which each instance has one under `if self.flag:` and `else:`."""
        assert other.last.skip is not None
        value = other.last.operands[other.last.skip]
        target = self.names[value] if self.last_use[value] <= now else block.last.targets[0]
        before = self.names[value]
        otherwise = self._statement(other.last, target)
        self.names[Def(other.last, 0)] = before
        then = self._statement(block.last, target)
        test = ast.Attribute(SELF, self.flag(block.flag), ast.Load())
        return If(test, [then], [otherwise], (target,), then.scope)

    def _statement(self, node: Node, name: str = "") -> Statement:
        statement = node.statement
        assert statement is not None
        values = iter([self._expression(node, i) for i in range(len(node.expressions))])
        copy = copied([statement])[0]
        replace_in(copy, lambda expression: next(values))  # the whole expressions, in order of evaluation
        if name:
            copy.targets = (name,)
        if not isinstance(statement, Assign):
            self._check_carried(node)
        for i, target in enumerate(copy.targets):
            self.names[Def(node, i)] = target
        return copy

    def _check_carried(self, node: Node) -> None:
        """Check that a loop assigns the variables that it starts with."""
        inside = set(node.targets)
        for value in node.operands:
            if value.node is not None and not isinstance(value.node.statement, Assign):
                continue
            original = value.node.targets[value.index] if value.node is not None else ""
            if original in inside and self.names[value] != original:
                raise Differ("a value that a loop carries in another variable")

    def _expression(self, node: Node, index: int) -> ast.expr:
        """Return an expression of a node, with the current names of its values."""
        inner = set() if isinstance(node.statement, Assign) or node.statement is None else set(assigned(node.statement))
        count = sum(value not in inner for e in node.expressions[:index] for value in refs(e))
        operands = iter(node.operands[count:])

        def change(tree: ast.AST) -> ast.expr | None:
            if isinstance(tree, Ref) and tree.value not in inner:
                return Ref(self.names[next(operands)])
            return None

        return rewrite(self.fill(node, index, node.expressions[index]), change)


def _only_call(block: Block) -> Member | None:
    """Return the submodule that an optional part calls with one value, if it does nothing else."""
    node = block.last
    if block.only is None or len(block.nodes) > 1 or node.skip != 0 or not isinstance(node.statement, Assign):
        return None
    value = node.expressions[0]
    if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
        return None
    return callee(value) if isinstance(value.args[0], Ref) else None


def _is_choice(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, (ast.Add, ast.Mult))
    return function_of(value) in APPLIED | {"F.dropout"}


def flag_name(node: Node) -> str:
    """Return a name for the flag of an optional part: after its submodule, or after what its last statement does."""
    for member in inner_members(node):
        names = [name for name in member.path if not name.isdigit()]
        if names:
            return identifier(names[-1])
    value = node.expressions[0]
    if isinstance(value, ast.BinOp):
        return {ast.Add: "residual", ast.Mult: "scale"}.get(type(value.op), "extra")
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return identifier(value.func.attr)
    return "extra"
