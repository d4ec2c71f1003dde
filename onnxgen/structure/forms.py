"""The form of a scope: what it registers and computes, without its literals and the names of its values.

Goes in: a scope, whose submodules already have their classes. Comes out: a `Form`, a dataflow graph whose nodes are
statements, and a tree of `Part` objects for the members. Scopes whose forms have one key can share a class; `union.py`
unites forms that are only nearly equal.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxgen.code.module_def import Assign, If, Member, Statement, With, assigned
from onnxgen.code.printer import note_merged
from onnxgen.code.quote import MemberRef, Ref, members, rewrite
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import ModulePath
from onnxgen.structure.layout import Entry, tree
from onnxgen.structure.literals import Key, Signature, Slot, Traced, trace
from onnxgen.structure.scopes import ClassRef, Scope


class Differ(Exception):
    """Two forms are not variants of one class."""


@dataclass(frozen=True)
class Def:
    """The definition of a value: a node and which of its targets, or (without a node) which argument."""

    node: Node | None
    index: int


@dataclass(eq=False)
class Slots:
    """The literals of a statement or a member, for each of the instances that have it, by the instance's number."""

    values: dict[Key, dict[int, Slot]] = field(default_factory=dict)

    def put(self, instance: int, traced: Traced, part: str | int = "") -> None:
        for key, slot in traced.slots.items():
            self.values.setdefault((part, *key), {})[instance] = slot

    def add(self, other: Slots) -> None:
        for key, slots in other.values.items():
            self.values.setdefault(key, {}).update(slots)


@dataclass(eq=False)
class Node:
    """One statement, or the returned expressions (`statement` is then None).

    Attributes:
        head: the statement without its literals and the values that it uses.
        operands: those values, in order of occurrence.
        only: the instances that have it.
        skip: the operand that replaces its value in instances that do not have it; None if nothing does.
    """

    statement: Statement | None
    expressions: list[ast.expr]
    head: str
    operands: list[Def]
    slots: Slots
    only: set[int]
    skip: int | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        return self.statement.targets if self.statement is not None else ()

    @property
    def is_simple(self) -> bool:
        return isinstance(self.statement, Assign) and len(self.statement.targets) == 1


@dataclass(eq=False)
class Part:
    """An entry of the tree of members, as the instances of a class have it.

    Attributes:
        head: the member without its literals, or the kind of a container.
        maker: the name of the class or function that makes the member.
        only: the instances that have it.
        uniform: the length of each instance's list, if instances differ in it and all items are alike.
        moved: the items of a list were renumbered.
    """

    entry: Entry
    head: str
    maker: str
    slots: Slots
    below: dict[str, Part]
    only: set[int]
    uniform: dict[int, int] | None = None
    moved: bool = False


@dataclass(eq=False)
class Form:
    """What the instances of one class have in common.

    Attributes:
        instances: their numbers.
        names: for each instance its own names of the values, by those of the first instance.
        effects: it has statements that make no value.
        variants: one instance of each form that was united with this one.
    """

    scope: Scope
    instances: list[int]
    nodes: list[Node]
    returned: Node
    root: Part
    key: str
    names: dict[int, dict[str, str]]
    effects: bool
    variants: list[int] = field(default_factory=list)

    @property
    def exact(self) -> str:
        """The key with all literals (of a form of a single instance)."""
        slots = [*(p.slots for p in parts(self.root)), *(n.slots for n in self.nodes), self.returned.slots]
        literals = (slot.value for s in slots for column in s.values.values() for slot in column.values())
        return "\n".join([self.key, *map(ast.unparse, literals)])


def values(scope: Scope) -> list[str]:
    """Return the values of a scope, in an order that is the same in all scopes of one form."""
    return list(dict.fromkeys([*(a.value for a in scope.inputs), *(t for s in scope.body for t in assigned(s))]))


def parts(part: Part) -> list[Part]:
    """Return a part and all parts below it."""
    return [part, *(p for below in part.below.values() for p in parts(below))]


class FormMaker:
    """Makes the forms of scopes.

    Attributes:
        built: the expression that makes an instance of each scope that has a class, by the scope's id.
        classes: the constructors of the classes, by name.
    """

    def __init__(
        self, built: Mapping[int, ast.expr], classes: Mapping[str, Signature], reserved: frozenset[str]
    ) -> None:
        self.built, self.classes, self.reserved = built, classes, reserved

    def make(self, scope: Scope, instance: int) -> Form:
        root = self._part(tree(scope.path, scope.members, scope.containers), instance)
        nodes: list[Node] = []
        env = {argument.value: Def(None, i) for i, argument in enumerate(scope.inputs)}
        for statement in scope.body:
            node = self._node(scope, statement, env, instance)
            nodes.append(node)
            for i, target in enumerate(statement.targets):
                env[target] = Def(node, i)
        returned = self._returned(scope, env, instance)
        heads = [*(a.annotation for a in scope.inputs), _text(root)]
        number = {id(node): i for i, node in enumerate(nodes)}
        for node in (*nodes, returned):
            wired = [f"{number[id(d.node)] if d.node is not None else 'in'}.{d.index}" for d in node.operands]
            heads.append(f"{node.head} <- {' '.join(wired)}")
        effects = any(not s.targets for s in scope.body)
        names = {instance: {v: v for v in values(scope)}}
        return Form(scope, [instance], nodes, returned, root, "\n".join(heads), names, effects)

    def _part(self, entry: Entry, instance: int) -> Part:
        maker, traced = "", Traced("list" if entry.is_list else "holder", {})
        if entry.member is not None:
            member = entry.member
            build = self.made(member.build)
            maker, traced = function_of(build), trace(build, lambda n: None, self.classes)
            traced.head = f"{member.kind} {sorted(member.frozen)} {bool(member.keys)} {traced.head}"
        elif entry.container is not None:
            traced.head = entry.container.layer
        slots = Slots()
        slots.put(instance, traced)
        below = {name: self._part(p, instance) for name, p in entry.below.items()}
        return Part(entry, traced.head, maker, slots, below, {instance})

    def made(self, build: ast.expr) -> ast.expr:
        """Return the expression that makes a member, with the final names of the file's classes."""
        return rewrite(build, lambda n: self.built[id(n.scope)] if isinstance(n, ClassRef) else None)

    def _node(self, scope: Scope, statement: Statement, env: Mapping[str, Def], instance: int) -> Node:
        inner = list(dict.fromkeys(assigned(statement))) if not isinstance(statement, Assign) else []
        tokens = _Tokens(scope.path, env, inner)
        expressions: list[ast.expr] = []
        head = [self._statement(statement, tokens, expressions)]
        slots = Slots()
        for i, expression in enumerate(expressions):
            traced = trace(expression, tokens, self.classes)
            slots.put(instance, traced, i)
            head.append(traced.head)
        for target in statement.targets if inner else ():  # carried through a loop
            if target in env:
                tokens.operands.append(env[target])
        return Node(statement, expressions, "\n".join(head), tokens.operands, slots, {instance})

    def _statement(self, statement: Statement, tokens: _Tokens, expressions: list[ast.expr]) -> str:
        """Return a statement without its expressions, which are added to `expressions`."""
        if isinstance(statement, Assign):
            expressions.append(statement.value)
            return f"{tokens.locals(statement.targets)} {statement.form} ="
        if isinstance(statement, If):
            expressions.append(statement.test)
            blocks = [statement.then, statement.orelse]
            head = "if"
        elif isinstance(statement, With):
            expressions.append(statement.context)
            blocks = [statement.body]
            head = "with"
        else:
            expressions.extend(e for e in (statement.iterable, statement.stop) if e is not None)
            blocks = [statement.body]
            kind = statement.iterable is None, statement.stop is None
            head = f"for {tokens.locals(statement.turn)} {statement.form} {kind}"
        inner = [[self._statement(s, tokens, expressions) for s in block] for block in blocks]
        return f"{head} {tokens.locals(statement.targets)} {inner}"

    def _returned(self, scope: Scope, env: Mapping[str, Def], instance: int) -> Node:
        tokens = _Tokens(scope.path, env, [])
        value = ast.Tuple(list(scope.outputs), ast.Load())
        slots = Slots()
        traced = trace(value, tokens, self.classes) if scope.outputs else Traced("nothing", {})
        slots.put(instance, traced, 0)
        return Node(None, [value], traced.head, tokens.operands, slots, {instance})


class _Tokens:
    """The text of the values and members in a statement: values from outside are operands, its own are numbered."""

    def __init__(self, path: ModulePath, env: Mapping[str, Def], inner: list[str]) -> None:
        self.path, self.env = path, env
        self.inner = {name: f"%{i}" for i, name in enumerate(inner)}
        self.operands: list[Def] = []

    def __call__(self, node: ast.AST) -> str | None:
        if isinstance(node, Ref):
            if node.value in self.inner:
                return self.inner[node.value]
            self.operands.append(self.env[node.value])
            return "?"
        if isinstance(node, MemberRef):
            return f"self.{'.'.join(node.member.path[len(self.path) :])}"
        return None

    def locals(self, names: tuple[str, ...]) -> str:
        return " ".join(self.inner.get(name, "?") for name in names)


def _text(part: Part) -> str:
    inner = " ".join(f"{name}: {_text(below)}" for name, below in part.below.items())
    return f"{part.head} {{{inner}}}" if inner else part.head


def add(form: Form, other: Form) -> None:
    """Add the instances of an equal form."""
    for mine, its in zip(parts(form.root), parts(other.root)):
        mine.slots.add(its.slots)
        mine.only |= its.only
    for node, counterpart in zip([*form.nodes, form.returned], [*other.nodes, other.returned]):
        add_node(node, counterpart)
    first = form.names[form.instances[0]]
    for instance in other.instances:
        form.names[instance] = dict(zip(first, other.names[instance].values()))
    form.instances += other.instances


def add_node(node: Node, counterpart: Node) -> None:
    """Let one node stand for two, of different instances."""
    node.slots.add(counterpart.slots)
    node.only |= counterpart.only
    if node.statement is not None and counterpart.statement is not None:
        note_merged(node.statement.nodes, counterpart.statement.nodes)


def inner_members(node: Node) -> list[Member]:
    """Return the members that a statement uses."""
    return [member for tree in node.expressions for member in members(tree)]


def reachable(form: Form, instance: int | None = None) -> dict[Node, int]:
    """Number the nodes that the result depends on (in one instance, if it is given), from the last one back."""
    numbers: dict[Node, int] = {}
    pending = [form.returned]
    while pending:
        node = pending.pop()
        for value in reversed(node.operands):
            maker = resolved(value, instance).node
            if maker is not None and maker not in numbers:
                numbers[maker] = len(numbers)
                pending.append(maker)
    return numbers


def resolved(value: Def, instance: int | None) -> Def:
    """Return the value itself, or the value that replaces it in an instance that does not have it."""
    while instance is not None and value.node is not None and instance not in value.node.only:
        if value.node.skip is None:
            raise Differ("an optional value that nothing replaces")
        value = value.node.operands[value.node.skip]
    return value


def outline(form: Form, instance: int) -> list[str]:
    """Return what one instance computes and registers, independent of the order of its statements."""
    numbers = reachable(form, instance)
    lines = [_inner_text(form.root, instance)]
    for node in (form.returned, *numbers):
        values = [resolved(d, instance) for d in node.operands]
        wired = " ".join(f"{numbers[v.node] if v.node is not None else 'in'}.{v.index}" for v in values)
        lines.append(f"{node.head} <- {wired}")
    return lines


def _inner_text(part: Part, instance: int) -> str:
    """Return the text of a part as one instance has it."""
    below = [(name, p) for name, p in part.below.items() if instance in p.only]
    if part.uniform is not None:
        below = [(str(n), below[0][1]) for n in range(part.uniform[instance])]
    elif part.moved:
        below = [(str(n), p) for n, (_, p) in enumerate(below)]
    inner = " ".join(f"{name}: {_inner_text(p, instance)}" for name, p in sorted(below, key=lambda item: item[0]))
    return f"{part.head} {{{inner}}}" if inner else part.head
