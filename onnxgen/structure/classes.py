"""Writes each scope's class as text, and lets scopes with equal bodies share one class."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from onnxgen.code.annotations import note_merged
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import Assign, ModuleDef, Statement, blocks
from onnxgen.code.quote import MemberRef, SizeOf, walk
from onnxgen.common.names import ModulePath, printable
from onnxgen.errors import OnnxgenError
from onnxgen.structure.classnames import ClassNames
from onnxgen.structure.forms import Differ, Form, FormMaker, add, values
from onnxgen.structure.literals import Signature
from onnxgen.structure.runs import collect_runs
from onnxgen.structure.scopes import ClassRef, Scope
from onnxgen.structure.share import Shared, share
from onnxgen.structure.sizes import resolve_sizes
from onnxgen.structure.union import unite
from onnxgen.structure.unpacked import unpack_shapes
from onnxgen.structure.writer import ClassWriter

ROUNDS = 10  # roles nested in each other, as far as anyone nests them
MOST_ACROSS = 3  # parameters of a class for several roles
MOST_VARIANTS = 8  # of one role; more are no variants of one thing


def write_classes(module: ModuleDef, root: Scope, scopes: list[Scope], plain: frozenset[ModulePath]) -> list[ClassTree]:
    """Every class once, children before the classes that use them; those of `plain` as they are, for one use each."""
    callers = _callers(scopes)
    order = _bottom_up(scopes)
    for scope in order:
        missing = resolve_sizes(scope, module.infos)
        if missing and scope is root:
            names = ", ".join(printable(str(size.dim)) for size in missing if isinstance(size, SizeOf))
            raise OnnxgenError(f"the graph computes with the dims {names}, but no input has them")
        if missing:
            for caller in callers[id(scope)]:
                made = caller.value
                assert isinstance(made, ast.Call)
                caller.value = ast.Call(made.func, [*made.args, *missing], made.keywords)
    for scope in order:
        if scope.path not in plain:
            unpack_shapes(scope, module)
            collect_runs(scope, module)
    classes = Classes(module, root, order, plain)
    for level in _levels(order, classes.names):
        classes.add(level)
    return classes.in_order_of_use(order)


class Classes:
    """The classes of a file, made level by level: those that use no others first."""

    def __init__(self, module: ModuleDef, root: Scope, scopes: list[Scope], plain: frozenset[ModulePath]) -> None:
        self.module, self.root, self.plain = module, root, plain
        self.names = ClassNames(module, scopes, module.reserved | {module.name})
        self.made: list[ClassTree] = []
        self.built: dict[int, ast.expr] = {}  # by scope: the expression that makes its instance
        self.writers: dict[int, ClassWriter] = {}
        self.sources: dict[int, ClassTree] = {}  # by scope
        self.signatures: dict[str, Signature] = {}
        self.forms = FormMaker(self.built, self.signatures, module.reserved)

    def add(self, level: list[Scope]) -> None:
        """Write the classes of one level: equal scopes once, and variants of one role with parameters."""
        for scope in level:
            self.writers[id(scope)] = ClassWriter(self.module, scope, self.built, self.writers)
        if level == [self.root]:
            source = self.writers[id(self.root)].write(None, [{v: v for v in values(self.root)}], [])
            source.paths, source.name = [""], self.module.name
            self.made.append(source)
            self.sources[id(self.root)] = source
            return
        order = {id(scope): i for i, scope in enumerate(level)}
        found: list[tuple[list[list[Scope]], Form, Shared]] = []
        for equal in self._roles(level):
            found += self._variants(equal)
        found = self._across(found)
        found.sort(key=lambda item: min(order[id(s)] for scopes in item[0] for s in scopes))
        for groups, form, shared in found:
            self._finish(groups, form, shared, order)

    def _roles(self, level: list[Scope]) -> list[list[list[Scope]]]:
        """The scopes of each role; those that are equal in everything are together, whatever their role."""
        equal: dict[str, list[Scope]] = {}
        for scope in level:
            alone = f"{scope.path} " if scope.path in self.plain else ""
            same = equal.setdefault(alone + self.forms.make(scope, 0).exact, [])
            same.append(scope)
            note_merged(same[0].nodes, scope.nodes)
            _note_twins(same[0].body, scope.body)
        roles: dict[object, list[list[Scope]]] = {}
        for scopes in equal.values():
            own = scopes[0].path if scopes[0].path in self.plain else ()
            roles.setdefault((own, self.names.role(scopes[0])), []).append(scopes)
        return list(roles.values())

    def _across(
        self, found: list[tuple[list[list[Scope]], Form, Shared]]
    ) -> list[tuple[list[list[Scope]], Form, Shared]]:
        """Classes of several roles that differ in a few numbers are one, unless an exporter recorded their names."""
        made: list[tuple[list[list[Scope]], Form, Shared]] = []
        forms: dict[str, list[int]] = {}
        for groups, form, shared in found:
            recorded = any(s.path in self.module.classes or s.path in self.plain for group in groups for s in group)
            if not form.variants and not recorded:
                forms.setdefault(form.key, []).append(len(made))
            made.append((groups, form, shared))
        gone: set[int] = set()
        for places in forms.values():
            both = self._shared([[g for i in places for g in made[i][0]]]) if len(places) > 1 else None
            if both is not None and len(both[1].parameters) <= MOST_ACROSS:
                made[places[0]] = ([g for i in places for g in made[i][0]], *both)
                gone.update(places[1:])
        return [entry for i, entry in enumerate(made) if i not in gone]

    def _variants(self, groups: list[list[Scope]]) -> list[tuple[list[list[Scope]], Form, Shared]]:
        """The classes of one role: as few as the rules of `union` and `parameters` allow."""
        keys: dict[str, list[list[Scope]]] = {}
        for group in groups:
            keys.setdefault(self.forms.make(group[0], 0).key, []).append(group)
        made: list[tuple[list[list[Scope]], Form, Shared]] = []
        for alike in sorted(keys.values(), key=lambda g: -len(g[0][0].body)):
            for n, (before, _, _) in enumerate(made):
                both = self._shared([before, alike]) if len(keys) <= MOST_VARIANTS else None
                if both is not None:
                    made[n] = ([*before, *alike], *both)
                    break
            else:
                one = self._shared([alike])
                if one is not None:
                    made.append((alike, *one))
                else:
                    for group in alike:
                        single = self._shared([[group]])
                        assert single is not None
                        made.append(([group], *single))
        return made

    def _shared(self, variants: list[list[list[Scope]]]) -> tuple[Form, Shared] | None:
        """One class for groups of equal scopes, if there can be one; each group counts as one instance."""
        forms: dict[str, Form] = {}
        instance = 0
        for groups in variants:
            for group in groups:
                form = self.forms.make(group[0], instance)
                instance += 1
                if form.key in forms:
                    add(forms[form.key], form)
                else:
                    forms[form.key] = form
        first, *others = forms.values()
        try:
            for other in others:
                unite(first, other)
            return first, share(first, self.forms)
        except Differ:
            return None

    def _finish(self, groups: list[list[Scope]], form: Form, shared: Shared, order: Mapping[int, int]) -> None:
        """Write and name a class, and say how each of its instances is made."""
        scope = form.scope
        writer = self.writers[id(scope)]
        alike: list[Mapping[str, str]] = []
        for i, group in enumerate(groups):
            first = values(group[0])
            for other in group:
                own = dict(zip(first, values(other)))
                alike.append({mine: own[its] for mine, its in form.names[i].items() if its in own})
        scope.body, scope.outputs = shared.body, shared.outputs
        varies = any(s.varies for group in groups for s in group)
        source = writer.write(shared.root if len(groups) > 1 else None, alike, shared.stored, varies)
        scopes = sorted((s for group in groups for s in group), key=lambda s: order[id(s)])
        source.name = self.names.take(scopes)
        source.parameters = shared.parameters
        source.paths = [".".join(s.path) for s in scopes]
        self.made.append(source)
        positional = tuple(p.name for p in shared.parameters if p.default is None)
        defaults = {p.name: tree for p in shared.parameters if (tree := p.default_tree) is not None}
        self.signatures[source.name] = Signature(positional, defaults)
        for i, group in enumerate(groups):
            made = shared.made(source.name, i)
            for instance in group:
                self.sources[id(instance)] = source
                self.built[id(instance)] = made

    def in_order_of_use(self, order: list[Scope]) -> list[ClassTree]:
        """The classes as a reader meets them: by their first instance, but after all that they use."""
        made: dict[int, ClassTree] = {}
        instances: dict[int, list[Scope]] = {}
        for scope in order:
            instances.setdefault(id(self.sources[id(scope)]), []).append(scope)
        stack = [(scope, False) for scope in reversed(order)]
        begun: set[int] = set()
        while stack:
            scope, done = stack.pop()
            source = self.sources[id(scope)]
            if done:
                made[id(source)] = source
            elif id(source) not in begun:
                begun.add(id(source))
                stack.append((scope, True))
                inner = [child for instance in instances[id(source)] for child in _inner(instance)]
                stack.extend((child, False) for child in reversed(inner))
        return list(made.values())


def _inner(scope: Scope) -> list[Scope]:
    """The scopes of the classes that a class makes instances of."""
    return [node.scope for member in scope.members for node in walk(member.build) if isinstance(node, ClassRef)]


def _levels(order: list[Scope], names: ClassNames) -> list[list[Scope]]:
    """The scopes by how deep classes are nested in them, those without any first; those of one role together."""
    inner = {id(scope): _inner(scope) for scope in order}
    role = {id(scope): names.role(scope) for scope in order}
    height = _heights(order, inner, {})
    for _ in range(ROUNDS):
        level: dict[object, int] = {}
        for scope in order:
            level[role[id(scope)]] = max(level.get(role[id(scope)], 0), height[id(scope)])
        raised = _heights(order, inner, {key: level[role[key]] for key in role})
        if raised == height:
            break
        height = raised
    else:  # a role within itself
        height = _heights(order, inner, {})
    levels: dict[int, list[Scope]] = {}
    for scope in order:
        levels.setdefault(height[id(scope)], []).append(scope)
    return [levels[n] for n in sorted(levels)]


def _heights(order: list[Scope], inner: Mapping[int, list[Scope]], least: Mapping[int, int]) -> dict[int, int]:
    height: dict[int, int] = {}
    for scope in order:
        above = max((height[id(child)] + 1 for child in inner[id(scope)]), default=0)
        height[id(scope)] = max(above, least.get(id(scope), 0))
    return height


def _callers(scopes: list[Scope]) -> dict[int, list[Assign]]:
    """The statements that call each child scope."""
    found: dict[int, list[Assign]] = {}
    pending = [statement for scope in scopes for statement in scope.body]
    while pending:
        statement = pending.pop()
        pending.extend(inner for block in blocks(statement) for inner in block)
        if isinstance(statement, Assign) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            if isinstance(function, MemberRef) and isinstance(function.member.build, ast.Call):
                if isinstance(function.member.build.func, ClassRef):
                    found.setdefault(id(function.member.build.func.scope), []).append(statement)
    return found


def _bottom_up(scopes: list[Scope]) -> list[Scope]:
    """Children before parents; among siblings, the order of the calls."""
    children: dict[int, list[Scope]] = {id(s): [] for s in scopes}
    called: set[int] = set()
    for scope in scopes:
        for member in scope.members:
            if isinstance(member.build, ast.Call) and isinstance(member.build.func, ClassRef):
                children[id(scope)].append(member.build.func.scope)
                called.add(id(member.build.func.scope))
    order: list[Scope] = []
    stack = [(scopes[0], False)]
    while stack:
        scope, done = stack.pop()
        if done:
            order.append(scope)
            continue
        stack.append((scope, True))
        stack.extend((child, False) for child in reversed(children[id(scope)]))
    return order


def _note_twins(body: list[Statement], other: list[Statement]) -> None:
    """Two equal scopes become one class: its statements do the work of the nodes of both."""
    for mine, its in zip(body, other):
        note_merged(mine.nodes, its.nodes)
        for inner, twin in zip(blocks(mine), blocks(its)):
            _note_twins(inner, twin)
