"""One flat module, split into a tree of scopes.

Goes in: a flat `ModuleDef`, whose statements know the module path that they come from. Comes out: a tree of `Scope`
objects, each with the statements, arguments and members of one future class. A module whose statements cannot stand
together, because data flows out of it and back in, gets no scope: its statements stay in the class around it and reach
its parameters by their path.

A submodule that is called several times is split call by call (`repeated`). Goes in: all its statements. Comes out: the
statements of each call, or None if it is called once or if the calls differ in more than the values they are given.
Calls are told apart by the layers in them, since a layer is used as often as its submodule is called; a statement
without a layer between two calls belongs to the earlier one (`relu(norm(x))`) or, if the calls are then not alike, to
the later one.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from itertools import chain, islice
from math import gcd
from operator import attrgetter
from typing import Concatenate, NamedTuple, ParamSpec

from onnxgen.code.module_def import (
    Assign,
    If,
    Input,
    Member,
    ModuleDef,
    Statement,
    annotation,
    assigned,
    expressions,
    flattened,
    members_of,
    named_dims,
    needed_dims,
    shown,
    spelled,
    used,
)
from onnxgen.code.module_def import makers as size_makers
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, refs, value_of, walk
from onnxgen.common.names import FileText, ModulePath, common_scope, module_part
from onnxgen.lowering.roles import SIDE_INPUT_ROLES
from onnxgen.shapes.info import Info
from onnxgen.structure.literals import differing, with_names
from onnxgen.structure.order import grouped, in_cycles, topological

P = ParamSpec("P")


class ClassRef(ast.expr):
    """An instance of the class of a scope; becomes the call that makes it when the class has a name."""

    _fields = ()

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope


@dataclass
class Scope:
    """The body of one future class.

    Attributes:
        path: the module path of the first instance.
        members: what it registers, including submodules of other scopes.
        inputs: arguments of `forward`.
        outputs: the expressions that `forward` returns.
        containers: lists that are called as one (`nn.Sequential`) or looped over (`nn.ModuleList`), by path.
        nodes: the ONNX nodes that the returned expressions stand for.
        varies: it is called with values of several shapes.
        row: of a row of layers (`classes.py`), the name of its class and what all rows of that class have in common.
        methods: those that its code calls.
        is_method: it is one of them, and no class.
        given, results: the local names of its arguments and results, once it is written.
    """

    path: ModulePath
    body: list[Statement] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[ast.expr] = field(default_factory=list)
    containers: dict[ModulePath, Member] = field(default_factory=dict)
    nodes: tuple[FileText, ...] = ()
    varies: bool = False
    row: tuple[str, str] | None = None
    methods: list[Method] = field(default_factory=list)
    is_method: bool = False
    given: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def is_root(self) -> bool:
        """True if its arguments are the graph's inputs, and its results the graph's outputs."""
        return not self.path and not self.is_method

    @property
    def has_lists(self) -> bool:
        """True if it has numbered submodules."""
        level = len(self.path)
        return any(part.isdigit() for member in self.members for part in member.path[level:])

    @property
    def has_several(self) -> bool:
        """True if it has more than one statement, nested ones included."""
        return len([*islice(flattened(self.body), 2)]) > 1

    def expressions(self) -> list[ast.expr]:
        """Return all expressions of the body, nested blocks included, and the returned ones."""
        return [*(e for statement in self.body for e in expressions(statement)), *self.outputs]

    def walk(self) -> Iterator[ast.AST]:
        """Yield all nodes of these expressions."""
        return (node for tree in self.expressions() for node in walk(tree))

    def makers(self) -> dict[str, ast.expr]:
        """Return the expressions that make one value each, by the value."""
        return {s.targets[0]: s.value for s in self.body if isinstance(s, Assign) and len(s.targets) == 1}

    def uses(self) -> Counter[str]:
        """Count the uses of each value."""
        return Counter(name for tree in self.expressions() for name in refs(tree))


@dataclass
class Method:
    """A method of a class, besides `forward`.

    Attributes:
        body: its arguments, statements and results.
        alike: for each call the values that it has there, by those of the body.
    """

    name: str
    body: Scope
    alike: list[dict[str, str]]


def needs(
    has: Callable[[Scope], bool],
) -> Callable[[Callable[Concatenate[Scope, P], None]], Callable[Concatenate[Scope, P], None]]:
    """Let a step return at its door for a scope that does not have what the step works on. So it takes no time."""

    def guarded(step: Callable[Concatenate[Scope, P], None]) -> Callable[Concatenate[Scope, P], None]:
        @wraps(step)
        def at_door(scope: Scope, /, *args: P.args, **options: P.kwargs) -> None:
            if has(scope):
                step(scope, *args, **options)

        return at_door

    return guarded


LISTS: Callable[[Scope], bool] = attrgetter("has_lists")
SEVERAL: Callable[[Scope], bool] = attrgetter("has_several")


def callee(tree: ast.AST | None) -> Member | None:
    """Return the member that an expression calls, or None."""
    return tree.func.member if isinstance(tree, ast.Call) and isinstance(tree.func, MemberRef) else None


class Splitter:
    """Splits the statements of a `ModuleDef` by scope, from the root down.

    Attributes:
        plain: the scopes that are not split.
        leaves: the paths of submodules that are layers.
        worthy: the paths with members below them.
        containers: the paths all of whose parts are numbered.
        shown: the first value that has each dim.
        claimed: the paths that have a scope, or will have one.
        built: the member for each scope.
        repeated: the calls of the submodules that are called several times.
    """

    def __init__(self, module: ModuleDef, plain: frozenset[ModulePath]) -> None:
        self.module, self.plain = module, plain
        self.leaves = {m.path for m in module.members if m.kind == "module"}
        self.worthy = {m.path[:n] for m in module.members for n in range(len(m.path))}
        self.containers = _containers(module.members)
        self.scopes: dict[int, ModulePath] = {}
        self.owners: dict[ModulePath, Scope] = {}
        self.shown = shown(module.inputs, module.body, module.infos)
        self.dissolved: set[ModulePath] = set()
        self.claimed: set[ModulePath] = {()}
        self.built: dict[ModulePath, Member] = {}
        self.repeated: dict[ModulePath, Repeated | None] = {}

    def root(self, flat: bool) -> Scope:
        """Return the whole network as a tree of scopes (a single one if `flat`)."""
        scope = Scope((), inputs=list(self.module.inputs), outputs=list(self.module.outputs))
        self.owners[()] = scope
        self._fill(scope, list(self.module.body), flat)
        for member in self.module.members:
            self._owner(member.path[:-1]).members.append(member)
        for owner in self.owners.values():
            used_first = dict.fromkeys(id(member) for statement in owner.body for member in members_of(statement))
            order = {key: n for n, key in enumerate(used_first)}
            owner.members.sort(key=lambda m: order.get(id(m), len(order)))
        return scope

    def _owner(self, path: ModulePath) -> Scope:
        while path not in self.owners:
            path = path[:-1]
        return self.owners[path]

    def _scope_of(self, statement: Statement) -> ModulePath:
        """Return the class of a statement: its scope, shortened to one that exists and has the members it uses."""
        if id(statement) not in self.scopes:
            own = tuple(module_part(p) for p in statement.scope)
            path = common_scope([own, *(member.path[:-1] for member in members_of(statement))]) or ()
            for n in range(1, len(path) + 1):
                if path[:n] in self.leaves or path[:n] not in self.worthy:
                    path = path[: n - 1]
                    break
            while path in self.containers:
                path = path[:-1]
            self.scopes[id(statement)] = path
        return self.scopes[id(statement)]

    def _fill(self, scope: Scope, statements: list[Statement], flat: bool) -> None:
        """Put statements into a scope; those of deeper scopes become calls of submodules."""
        flat = flat or scope.path in self.plain
        scope.body = statements if flat else self._split(scope, statements, _Wanted(scope.outputs, self.shown))

    def _split(self, scope: Scope, statements: list[Statement], wanted: _Wanted) -> list[Statement]:
        """Replace the statements of deeper scopes in a block by calls. `wanted`: what is used after the block."""
        units = self._ordered(scope, statements)
        # before any branch is split: a submodule of this block cannot be one of a branch
        self.claimed.update(unit.key for unit in units if unit.key is not None)
        results: list[list[str]] = []
        for unit in reversed(units):
            results.append(self._results(unit, wanted))
            wanted.add(unit.statements)
        results.reverse()
        self._equalise(units, results)
        body: list[Statement] = []
        for unit, names in zip(units, results):
            if unit.key is not None:
                body.append(self._call(unit, names))
                continue
            for statement in unit.statements:
                if isinstance(statement, If):  # a loop's body reads values that it assigns later, and is not split
                    for block in (statement.then, statement.orelse):
                        block[:] = self._split(scope, block, _Wanted([Ref(t) for t in statement.targets], self.shown))
                body.append(statement)
        return body

    def _ordered(self, scope: Scope, statements: list[Statement]) -> list[Unit]:
        """Return the calls and the other statements of a block in an order of execution.

        A submodule of which data flows out and back in takes what is between, or else is dissolved.
        """
        keys = [self._key(s, scope.path) for s in statements]
        while True:
            units = self._units(statements, keys)
            edges = _edges(units, self.shown)
            order = topological(edges)
            if len(order) == len(units):
                return [units[index] for index in order]
            for cycle in in_cycles(edges):
                if not self._absorbed([units[index] for index in cycle], statements, keys):
                    for index in cycle:
                        self._dissolve(units[index], statements, keys)

    def _results(self, unit: Unit, wanted: _Wanted) -> list[str]:
        """Return the values that a submodule returns: those used after it, and those that show a dim used after it."""
        if unit.key is None:
            return []
        defined = list(dict.fromkeys(name for s in unit.statements for name in s.targets))
        has = {dim for name in defined if name in wanted.values for dim in named_dims(self.module.infos, name)}
        makers = {self.shown[dim] for dim in wanted.dims if dim not in has}
        return [name for name in defined if name in wanted.values or name in makers]

    def _equalise(self, units: list[Unit], results: list[list[str]]) -> None:
        """Let every call of one submodule return the results that are used of any of its calls."""
        by_key = grouped((unit.key, index) for index, unit in enumerate(units) if unit.key is not None)
        for key, indices in by_key.items():
            several = self.repeated[key]
            if several is not None:
                values = [several.made[units[i].call] for i in indices]
                needed = {n for i, call in zip(indices, values) for n, name in enumerate(call) if name in results[i]}
                for i, call in zip(indices, values):
                    results[i] = [call[n] for n in sorted(needed)]

    def _key(self, statement: Statement, around: ModulePath) -> ModulePath | None:
        """Return the submodule of the scope `around` that a statement belongs to.

        The statements of a branch can be of another scope than their `If`.
        """
        path = self._scope_of(statement)
        if path[: len(around)] != around:
            return None
        n = len(around) + 1
        while n < len(path) and self._is_no_class(path[:n]):
            n += 1
        free = n <= len(path) and not self._is_no_class(path[:n]) and path[:n] not in self.claimed
        return path[:n] if free else None

    def _is_no_class(self, path: ModulePath) -> bool:
        """True for a dissolved scope, and for an nn.ModuleList or nn.Sequential (all its parts are numbered)."""
        return path in self.containers or path in self.dissolved

    def _absorbed(self, units: list[Unit], statements: list[Statement], keys: list[ModulePath | None]) -> bool:
        """Take the statements between those of a submodule into it, if they have no members and there is no other.

        A name only tells where the layers are. What is computed between two layers of one module, such as the sum with
        a residual before its norm, is computed in the module.
        """
        inner = [unit for unit in units if unit.key is not None]
        between = [statement for unit in units if unit.key is None for statement in unit.statements]
        if len(inner) != 1 or any(members_of(statement) for statement in between):
            return False
        taken = {id(statement) for statement in between}
        for i, statement in enumerate(statements):
            if id(statement) in taken:
                keys[i] = self.scopes[id(statement)] = inner[0].key or ()
        return True

    def _dissolve(self, unit: Unit, statements: list[Statement], keys: list[ModulePath | None]) -> None:
        if unit.key is None:
            return
        self.dissolved.add(unit.key)
        for i, statement in enumerate(statements):
            if keys[i] == unit.key:
                keys[i] = self._key(statement, unit.key)

    def _units(self, statements: list[Statement], keys: list[ModulePath | None]) -> list[Unit]:
        """Group the statements by submodule, and those of a submodule that is called several times by call."""
        groups: dict[object, tuple[ModulePath | None, list[Statement]]] = {}
        for i, (statement, key) in enumerate(zip(statements, keys)):
            groups.setdefault(i if key is None else key, (key, []))[1].append(statement)
        units: list[Unit] = []
        for key, group in groups.values():
            several = None
            if key is not None:
                several = self.repeated[key] = repeated(group, self.module.infos)
            units += [Unit(key, call, n) for n, call in enumerate([group] if several is None else several.calls)]
        at = {target: i for i, statement in enumerate(statements) for target in statement.targets}
        first = [min((at[t] for s in unit.statements for t in s.targets), default=i) for i, unit in enumerate(units)]
        return [units[i] for i in sorted(range(len(units)), key=lambda i: first[i])]

    def _call(self, unit: Unit, outputs: list[str]) -> Assign:
        """Return the statement that calls a submodule; its first call makes its scope, too."""
        path, statements = unit.key, unit.statements
        assert path is not None
        several = self.repeated[path]
        numbers = several.numbers if several is not None else {}
        if several is not None:
            inputs = dict(zip(several.inputs[0], several.inputs[unit.call], strict=True))
        else:
            inputs = {}
            defined: set[str] = set()
            for statement in statements:
                inputs.update((name, name) for name in used(statement) if name not in defined)
                defined.update(statement.targets)
        # Masks and positions come last.
        order = sorted(inputs, key=lambda n: n in numbers or self.module.roles.get(n) in SIDE_INPUT_ROLES)
        if path not in self.built:
            parent = self._owner(path[:-1])
            arguments = [self._input(inputs[name], numbers.get(name)) for name in order]
            child = Scope(path, inputs=arguments, outputs=[Ref(name) for name in outputs])
            child.varies = parent.varies or (several is not None and several.varies)
            self.owners[path] = child
            self._fill(child, statements, False)
            self.built[path] = Member(path, ClassRef(child), "module")
            parent.members.append(self.built[path])
        args = [numbers.get(inputs[name]) or Ref(inputs[name]) for name in order]
        call = ast.Call(MemberRef(self.built[path]), args, [])
        return Assign(tuple(outputs), call, path[:-1])

    def _input(self, name: str, number: ast.expr | None = None) -> Input:
        if number is not None:
            kind = "float" if isinstance(value_of(number), float) else "int"
            self.module.infos[name], self.module.roles[name] = Info(kind=kind), "t" if kind == "float" else "n"
            return Input(name, kind)
        own = next((argument for argument in self.module.inputs if argument.value == name), None)
        return own or Input(name, annotation(self.module.infos[name]))


class _Wanted:
    """The values, and the dims that some value has to show, that are used after a point in the code."""

    def __init__(self, outputs: list[ast.expr], where: dict[str, str]) -> None:
        self.where = where
        self.values = {r for o in outputs for r in refs(o)}
        self.dims = needed_dims(outputs, where)

    def add(self, statements: list[Statement]) -> None:
        for statement in statements:
            self.values.update(used(statement))
            self.dims |= needed_dims(expressions(statement), self.where)


@dataclass
class Unit:
    """The statements of one `call` of a submodule (`key`), or a single statement."""

    key: ModulePath | None
    statements: list[Statement]
    call: int = 0


def _containers(members: list[Member]) -> set[ModulePath]:
    below: dict[ModulePath, bool] = {}
    for member in members:
        for n in range(1, len(member.path)):
            numbered = member.path[n].isdigit() and (n + 1 < len(member.path) or member.kind == "module")
            below[member.path[:n]] = below.get(member.path[:n], True) and numbered
    return {path for path, numbered in below.items() if numbered}


def _edges(units: list[Unit], where: dict[str, str]) -> list[list[int]]:
    """Return, for each unit, the units that must come before it: those that make or reassign a value that it uses.

    A dim counts as a value, which is made by the first statement that shows it.
    """
    statements = ((i, statement) for i, unit in enumerate(units) for statement in unit.statements)
    makers = grouped((name, i) for i, statement in statements for name in assigned(statement))
    before: list[list[int]] = []
    for i, unit in enumerate(units):
        names = {name for s in unit.statements for name in (*used(s), *size_makers(expressions(s), where))}
        needs = {m for name in names for m in makers.get(name, []) if m != i}
        before.append(sorted(needs))
    return before


MAX_NUMBERS = 3  # arguments of a class that are numbers


class Wired(NamedTuple):
    """What statements compute, equal for those that do the same with other values.

    Attributes:
        lines: what each statement does, and where its operands come from.
        given: the values from outside, in order of first use.
        made: the values that the statements make, in order.
    """

    lines: list[str]
    given: list[str]
    made: list[str]


@dataclass
class Repeated:
    """The calls of one submodule.

    Attributes:
        calls: the statements of each call.
        inputs: for each call the values that it is given, in one order.
        made: for each call the values that it makes, in one order.
        varies: the calls are given values of different shapes.
        numbers: those that differ from call to call, by the names that stand for them in `inputs`.
    """

    calls: list[list[Statement]]
    inputs: list[list[str]]
    made: list[list[str]]
    varies: bool
    numbers: dict[str, ast.expr]


def repeated(statements: list[Statement], infos: dict[str, Info]) -> Repeated | None:
    """Sort the statements of a submodule by call; None if it is called once, or if the calls are not alike."""
    assigns = [s for s in statements if isinstance(s, Assign) and s.targets]
    layers = [[member.path for member in members_of(s)] for s in assigns]
    counts = Counter(chain.from_iterable(layers))
    count = gcd(*counts.values())
    if count < 2 or len(assigns) < len(statements):
        return None
    by_layer = _by_layers(layers, {path: n // count for path, n in counts.items()})
    for known in (by_layer, _from_users(assigns, by_layer)) if by_layer is not None else ():
        calls: list[list[Assign]] = [[] for _ in range(count)]
        for statement, number in zip(assigns, _from_operands(assigns, known)):
            calls[number].append(statement)
        if (result := _alike(calls, infos)) is not None:
            return result
    return None


def _by_layers(layers: list[list[ModulePath]], uses: dict[ModulePath, int]) -> list[int | None] | None:
    """Return the call of each statement that has a layer; None if one has layers of several calls.

    `uses`: how often a call uses each layer.
    """
    seen: Counter[ModulePath] = Counter()
    numbers: list[int | None] = []
    for paths in layers:
        calls = set()
        for path in paths:
            calls.add(seen[path] // uses[path])
            seen[path] += 1
        if len(calls) > 1:
            return None
        numbers.append(calls.pop() if calls else None)
    return numbers


def _from_users(statements: list[Assign], known: list[int | None]) -> list[int | None]:
    """Give a statement without a call the earliest call that uses what it makes."""
    users = grouped((name, i) for i, statement in enumerate(statements) for name in refs(statement.value))
    numbers = list(known)
    for i in reversed(range(len(statements))):
        if numbers[i] is None:
            calls = [numbers[j] for t in statements[i].targets for j in users.get(t, ())]
            numbers[i] = min((n for n in calls if n is not None), default=None)
    return numbers


def _from_operands(statements: list[Assign], known: list[int | None]) -> list[int]:
    """Give a statement without a call the latest call that makes its operands, or else the call that uses it."""
    numbers = list(known)
    makers = {target: i for i, s in enumerate(statements) for target in s.targets}
    for i, statement in enumerate(statements):
        if numbers[i] is None:
            calls = [numbers[makers[name]] for name in refs(statement.value) if name in makers]
            numbers[i] = max((n for n in calls if n is not None), default=None)
    for i in reversed(range(len(statements))):  # statements that depend on nothing in the submodule
        for name in refs(statements[i].value):
            j = makers.get(name)
            if j is not None and numbers[j] is None:
                numbers[j] = numbers[i]
    return [n if n is not None else 0 for n in numbers]


def _alike(calls: list[list[Assign]], infos: dict[str, Info]) -> Repeated | None:
    """Return the calls if they do the same with what they are given; None if they don't."""
    calls, numbers = _with_arguments(calls)
    lines, inputs, values = zip(*map(wired, calls))
    facts = [[infos.get(name, Info()) for name in names] for names in inputs]
    if not _are_equal(lines) or not _are_equal([f.kind for f in own] for own in facts):
        return None
    varies = not _are_equal([str(f.shape) for f in own] for own in facts)
    if varies and any(isinstance(n, (SizeOf, DeviceOf)) for s in calls[0] for n in walk(s.value)):
        return None  # a size would be read from another value
    return Repeated([list(call) for call in calls], [*inputs], [*values], varies, numbers)


def _are_equal(rows: Iterable[list[str]]) -> bool:
    first, *others = rows
    return all(other == first for other in others)


def _with_arguments(calls: list[list[Assign]]) -> tuple[list[list[Assign]], dict[str, ast.expr]]:
    """Give names to the numbers that differ from call to call. Returns the calls with these names, and the numbers.

    Nothing is changed if there are too many of them, or if the calls differ in more.
    """
    kinds: dict[tuple[str, ...], int] = {}
    numbers: dict[str, ast.expr] = {}
    names: list[dict[int, str]] = [{} for _ in calls]
    for row in zip(*calls):
        for texts, column in differing(statement.value for statement in row):
            kind = kinds.setdefault(texts, len(kinds))
            for call, tree in enumerate(column):
                name = names[call][id(tree)] = f"{calls[0][0].targets[0]}%number{kind}.{call}"
                numbers[name] = tree
    if len(kinds) > MAX_NUMBERS:
        return calls, {}
    return [[with_names(s, own) for s in call] for call, own in zip(calls, names)], numbers


def wired(statements: Iterable[Assign]) -> Wired:
    """Return how the values of these statements are connected."""
    names: dict[str, str] = {}
    result = Wired([], [], [])

    def token(node: ast.AST) -> str | None:
        if isinstance(node, Ref):
            if node.value not in names:
                names[node.value] = f"%in{len(result.given)}"
                result.given.append(node.value)
            return names[node.value]
        if isinstance(node, MemberRef):
            return "%" + ".".join(node.member.path)
        return f"%{node.dim}" if isinstance(node, SizeOf) else None

    for statement in statements:
        result.lines.append(spelled(statement, token))
        for target in statement.targets:
            names[target] = f"%{len(names)}"
            result.made.append(target)
    return result
