"""Splits one flat module into a tree of scopes, each of which becomes an `nn.Module` class.

A scope can be a module if its statements can stand together: no path leads out of it and back in. One that can't
(interleaved, or called twice) is dissolved: its statements stay in the surrounding class and reach its parameters by
their path.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field

from onnxgen.code.kinds import annotation
from onnxgen.code.module_def import (
    Assign,
    If,
    Input,
    Member,
    ModuleDef,
    Statement,
    assigned,
    blocks,
    expressions,
    used,
)
from onnxgen.code.quote import MemberRef, Ref, refs, walk
from onnxgen.code.shown import makers as size_makers
from onnxgen.code.shown import named_dims, needed_dims, shown
from onnxgen.common.names import FileText, ModulePath, module_part
from onnxgen.lowering.roles import SIDE_INPUT_ROLES
from onnxgen.structure.order import components, topological
from onnxgen.structure.repeated import Repeated, repeated


class ClassRef(ast.expr):
    """The class of a scope, by its final name."""

    _fields = ()

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope


@dataclass
class Scope:
    """The body of one future class.

    Attributes:
        path: the module path of (the first) instance.
        members: what it registers, submodules of other scopes included.
        inputs: arguments of `forward`.
        outputs: the expressions that `forward` returns.
        containers: numbered submodules that are called as one (`nn.Sequential`) or looped over (`nn.ModuleList`).
        nodes: the ONNX nodes whose work is done in what is returned.
        varies: it is called with values of several shapes.
    """

    path: ModulePath
    body: list[Statement] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[ast.expr] = field(default_factory=list)
    containers: dict[ModulePath, Member] = field(default_factory=dict)
    nodes: tuple[FileText, ...] = ()
    varies: bool = False


class Splitter:
    """Splits the statements of a `ModuleDef` by scope, from the root down; `plain`: scopes that are not split."""

    def __init__(self, module: ModuleDef, plain: frozenset[ModulePath]) -> None:
        self.module, self.plain = module, plain
        self.leaves = {m.path for m in module.members if m.kind == "module"}
        self.worthy = {m.path[:n] for m in module.members for n in range(len(m.path))}
        self.containers = _containers(module.members)
        self.scopes: dict[int, ModulePath] = {}
        self.owners: dict[ModulePath, Scope] = {}
        self.shown = shown(module.inputs, module.body, module.infos)
        self.dissolved: set[ModulePath] = set()
        self.claimed: set[ModulePath] = {()}  # those that have an owner, or will have one
        self.built: dict[ModulePath, Member] = {}
        self.repeated: dict[ModulePath, Repeated | None] = {}  # what is called several times

    def root(self, flat: bool) -> Scope:
        """The whole network as a tree of scopes (a single one if `flat`)."""
        scope = Scope((), inputs=list(self.module.inputs), outputs=list(self.module.outputs))
        self.owners[()] = scope
        self._fill(scope, list(self.module.body), flat)
        for member in self.module.members:
            self._owner(member.path[:-1]).members.append(member)
        for owner in self.owners.values():
            _in_order_of_use(owner)
        return scope

    def _owner(self, path: ModulePath) -> Scope:
        while path not in self.owners:
            path = path[:-1]
        return self.owners[path]

    def _scope_of(self, statement: Statement) -> ModulePath:
        """The class in which a statement belongs: its own scope, cut to what exists and to what it can reach."""
        if id(statement) not in self.scopes:
            path = tuple(module_part(p) for p in statement.scope)
            for member in _members(statement):
                path = _common(path, member.path[:-1])
            for n in range(1, len(path) + 1):
                if path[:n] in self.leaves or path[:n] not in self.worthy:
                    path = path[: n - 1]
                    break
            while path in self.containers:
                path = path[:-1]
            self.scopes[id(statement)] = path
        return self.scopes[id(statement)]

    def _fill(self, scope: Scope, statements: list[Statement], flat: bool) -> None:
        """Put `statements` into a scope, those of deeper scopes as calls of submodules."""
        flat = flat or scope.path in self.plain
        scope.body = statements if flat else self._split(scope, statements, _Wanted(scope.outputs, self.shown))

    def _split(self, scope: Scope, statements: list[Statement], wanted: _Wanted) -> list[Statement]:
        """A block of a scope, with what belongs to deeper scopes as calls; `wanted`: what is used after it."""
        keys = [self._key(s, len(scope.path)) for s in statements]
        while True:
            units = self._units(statements, keys)
            bad = [c for c in components(_edges(units, self.shown)) if len(c) > 1]
            if not bad:
                break
            for index in {i for c in bad for i in c}:
                self._dissolve(units[index], statements, keys)
        # before any branch is split: what is a submodule here is none of a branch's own
        self.claimed.update(unit.key for unit in units if unit.key is not None)
        order = topological(_edges(units, self.shown))
        results: dict[int, list[str]] = {}
        for index in reversed(order):
            results[index] = self._results(units[index], wanted)
            wanted.add(units[index].statements)
        same_results(units, results, self.repeated)
        body: list[Statement] = []
        for index in order:
            unit = units[index]
            if unit.key is not None:
                body.append(self._call(unit, results[index]))
                continue
            for statement in unit.statements:
                if isinstance(statement, If):  # a loop's body reads what it assigns later, and stays as it is
                    for block in blocks(statement):
                        block[:] = self._split(scope, block, _Wanted([Ref(t) for t in statement.targets], self.shown))
                body.append(statement)
        return body

    def _results(self, unit: Unit, wanted: _Wanted) -> list[str]:
        """What a submodule returns: the values used after it, and of the dims used those that no such value has."""
        if unit.key is None:
            return []
        made = list(dict.fromkeys(name for s in unit.statements for name in s.targets))
        results = [name for name in made if name in wanted.values]
        if wanted.dims:
            has = {dim for name in results for dim in named_dims(self.module.infos, name)}
            makers = {self.shown[dim] for dim in wanted.dims if dim not in has}
            results = [name for name in made if name in wanted.values or name in makers]
        return results

    def _key(self, statement: Statement, level: int) -> ModulePath | None:
        """The submodule of the scope at this level that a statement goes to; what is no class is looked through."""
        path = self._scope_of(statement)
        n = level + 1
        while n < len(path) and self._is_no_class(path[:n]):
            n += 1
        free = n <= len(path) and not self._is_no_class(path[:n]) and path[:n] not in self.claimed
        return path[:n] if free else None

    def _is_no_class(self, path: ModulePath) -> bool:
        """A scope that was dissolved, or all of whose parts are numbered: an nn.ModuleList or nn.Sequential."""
        return path in self.containers or path in self.dissolved

    def _dissolve(self, unit: Unit, statements: list[Statement], keys: list[ModulePath | None]) -> None:
        if unit.key is None:
            return
        self.dissolved.add(unit.key)
        for i, statement in enumerate(statements):
            if keys[i] == unit.key:
                keys[i] = self._key(statement, len(unit.key))

    def _units(self, statements: list[Statement], keys: list[ModulePath | None]) -> list[Unit]:
        """The statements of each submodule together, of one that is called several times those of each call."""
        made: list[Unit] = []
        for unit in _units(statements, keys):
            if unit.key is None:
                made.append(unit)
                continue
            found = self.repeated[unit.key] = repeated(unit.statements, self.module.infos)
            calls = found.calls if found is not None else [unit.statements]
            made += [Unit(unit.key, call, n) for n, call in enumerate(calls)]
        return made

    def _call(self, unit: Unit, outputs: list[str]) -> Assign:
        """Make a child scope of a submodule's statements, unless it is made, and the statement that calls it."""
        path, statements = unit.key, unit.statements
        assert path is not None
        several = self.repeated[path]
        if several is not None and path in self.built:
            names = zip(several.inputs[0], several.inputs[unit.call], strict=True)
            again: list[ast.expr] = [Ref(its) for _, its in sorted(names, key=lambda pair: self._is_side(pair[0]))]
            return Assign(tuple(outputs), ast.Call(MemberRef(self.built[path]), again, []), path[:-1])
        made: set[str] = set()
        inputs: dict[str, None] = {}
        for statement in statements:
            inputs.update(dict.fromkeys(name for name in used(statement) if name not in made))
            made.update(statement.targets)
        if several is not None:
            inputs = dict.fromkeys(several.inputs[unit.call])
        inputs = dict.fromkeys(sorted(inputs, key=self._is_side))
        child = Scope(path, [], [], [self._input(name) for name in inputs], [Ref(name) for name in outputs])
        child.varies = self._owner(path[:-1]).varies or (several is not None and several.varies)
        self.owners[path] = child
        self._fill(child, statements, False)
        build = ast.Call(ClassRef(child), [], [])
        member = self.built[path] = Member(path, build, "module")
        self._owner(path[:-1]).members.append(member)
        arguments: list[ast.expr] = [Ref(name) for name in inputs]
        return Assign(tuple(outputs), ast.Call(MemberRef(member), arguments, []), path[:-1])

    def _is_side(self, name: str) -> bool:
        """Whether a value is what a layer reads beside its input (a mask, positions): arguments that come last."""
        return self.module.roles.get(name) in SIDE_INPUT_ROLES

    def _input(self, name: str) -> Input:
        for argument in self.module.inputs:
            if argument.value == name:
                return argument
        return Input(name, annotation(self.module.infos[name]))


class _Wanted:
    """What is used after a place in the code, seen from the end: values, and dims that some value has to show."""

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
    """Statements that stand together: those of one `call` of a submodule (`key`), or a single one."""

    key: ModulePath | None
    statements: list[Statement]
    call: int = 0


def same_results(units: list[Unit], results: dict[int, list[str]], several: dict[ModulePath, Repeated | None]) -> None:
    """A submodule that is called several times returns each time whatever is used of any call."""
    by_key: dict[ModulePath, list[int]] = {}
    for index, unit in enumerate(units):
        if unit.key is not None and several[unit.key] is not None:
            by_key.setdefault(unit.key, []).append(index)
    for key, indices in by_key.items():
        made = several[key]
        assert made is not None
        used = {n for i in indices for n, name in enumerate(made.made[units[i].call]) if name in results[i]}
        for i in indices:
            results[i] = [made.made[units[i].call][n] for n in sorted(used)]


def _in_order_of_use(scope: Scope) -> None:
    """Members stand in `__init__` as `forward` comes upon them."""
    first: dict[int, int] = {}
    for statement in scope.body:
        for member in _members(statement):
            first.setdefault(id(member), len(first))
    scope.members.sort(key=lambda m: first.get(id(m), len(first)))


def _containers(members: list[Member]) -> set[ModulePath]:
    below: dict[ModulePath, bool] = {}
    for member in members:
        for n in range(1, len(member.path)):
            numbered = member.path[n].isdigit() and (n + 1 < len(member.path) or member.kind == "module")
            below[member.path[:n]] = below.get(member.path[:n], True) and numbered
    return {path for path, numbered in below.items() if numbered}


def _members(statement: Statement) -> list[Member]:
    return [n.member for e in expressions(statement) for n in walk(e) if isinstance(n, MemberRef)]


def _common(a: ModulePath, b: ModulePath) -> ModulePath:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return a[:n]


def _units(statements: list[Statement], keys: list[ModulePath | None]) -> list[Unit]:
    units: list[Unit] = []
    by_key: dict[ModulePath, Unit] = {}
    for statement, key in zip(statements, keys):
        if key is None:
            units.append(Unit(None, [statement]))
        elif key in by_key:
            by_key[key].statements.append(statement)
        else:
            by_key[key] = Unit(key, [statement])
            units.append(by_key[key])
    return units


def _edges(units: list[Unit], where: dict[str, str]) -> list[list[int]]:
    """For each unit the units that must come before it: those that make what it uses, or reassign it.

    A size is used too: what shows it first makes it.
    """
    makers: dict[str, list[int]] = {}
    for i, unit in enumerate(units):
        for statement in unit.statements:
            for name in assigned(statement):
                makers.setdefault(name, []).append(i)
    before: list[list[int]] = []
    for i, unit in enumerate(units):
        names = {name for s in unit.statements for name in (*used(s), *size_makers(expressions(s), where))}
        needs = {m for name in names for m in makers.get(name, []) if m != i}
        before.append(sorted(needs))
    return before


def count_uses(body: list[Statement], outputs: list[ast.expr]) -> Counter[str]:
    """How often each value is used in a body and its returned expressions."""
    uses: Counter[str] = Counter(r for o in outputs for r in refs(o))
    for statement in body:
        for expression in expressions(statement):
            uses.update(refs(expression))
    return uses
