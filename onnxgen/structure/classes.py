"""The classes of a file, shared by scopes.

Goes in: the tree of scopes. Comes out: one `ClassTree` for each class, those used by others first. Classes are made
level by level, innermost first: equal scopes share one class, and scopes of one role that are nearly equal share one
with parameters.

Equal rows of layers that differ in numbers have one class, too (`share_rows`):

    nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())     ConvBlock(3, 8)
    nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())    ConvBlock(8, 16)

An `nn.Sequential` that `runs.py` found becomes a scope of its own that `share.py` can give constructor parameters. Keys
of the state dict stay: the class is itself an `nn.Sequential`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import Assign, Input, Loop, Member, ModuleDef, flattened
from onnxgen.code.printer import note_merged
from onnxgen.code.quote import MemberRef, Ref, SizeOf, walk
from onnxgen.code.torch_api import CONVOLUTIONS, function_of
from onnxgen.common.names import ModulePath, printable
from onnxgen.errors import OnnxgenError
from onnxgen.structure.classnames import ClassNames, attributes_of, role_path
from onnxgen.structure.forms import Differ, Form, FormMaker, add, parts, values
from onnxgen.structure.literals import Signature
from onnxgen.structure.loops import Run
from onnxgen.structure.methods import divide, extract
from onnxgen.structure.nesting import replace_in
from onnxgen.structure.order import grouped
from onnxgen.structure.runs import Place, collect_calls, collect_runs, fill_gaps, has_one, slice_lists
from onnxgen.structure.scopes import ClassRef, Scope, callee
from onnxgen.structure.share import Shared, share
from onnxgen.structure.sizes import resolve_sizes, unpack_shapes
from onnxgen.structure.stretches import roll
from onnxgen.structure.union import unite
from onnxgen.structure.writer import ClassWriter

MAX_NESTED_ROLES = 10
FEW_PARAMETERS = 5  # of a class for several roles; a class with much in it may have more
MAX_VARIANTS = 8  # of one role; with more the role says little

Groups = list[list[Scope]]  # scopes of one class; those of an inner list are equal
Candidate = tuple[Groups, Form, Shared]  # a class before it is written


def write_classes(module: ModuleDef, root: Scope, plain: frozenset[ModulePath], share: float = 1.0) -> list[ClassTree]:
    """Write every class once, after the classes that it uses.

    Scopes of `plain` stay as they are: no loops, no named sizes, a class of their own. `share`: how much of the
    statements of the root stays in `forward`; parts of the rest become methods.
    """
    order = list(_bottom_up(root))
    _resolve(order, root, module)
    shaped = [scope for scope in order if scope.path not in plain]
    loops: dict[Place, Run] = {}
    for scope in sorted(shaped, key=has_one):
        unpack_shapes(scope, module)
        own = {id(statement) for statement in scope.body}
        collect_runs(scope, module, loops)
        roll(scope, module, [s for s in scope.body if isinstance(s, Loop) and id(s) not in own])
        collect_calls(scope, module)
        fill_gaps(scope)
        slice_lists(scope)
    share_rows(shaped, module.reserved)
    order = list(_bottom_up(root))
    if root.path not in plain:
        extract(root, module)
        divide(root, module, share)
    classes = Classes(module, root, order, plain)
    for level in _levels(order, classes.names):
        classes.add(level)
    return classes.in_order_of_use(order)


def _resolve(order: list[Scope], root: Scope, module: ModuleDef) -> None:
    """Resolve the sizes of all scopes, each before those around it, which give what a scope lacks."""
    callers = _callers(order)
    for scope in order:
        missing = resolve_sizes(scope, module.infos)
        if missing and scope is root:
            names = ", ".join(printable(str(size.dim)) for size in missing if isinstance(size, SizeOf))
            raise OnnxgenError(f"the graph computes with the dims {names}, but no input has them")
        for caller in callers[id(scope)] if missing else ():
            call = caller.value
            assert isinstance(call, ast.Call)
            caller.value = ast.Call(call.func, [*call.args, *missing], call.keywords)


class Classes:
    """The classes of a file, made level by level: those that use no others first.

    Attributes:
        built: the expression that makes the instance of each scope, by the scope's id.
        writers: the writer of each scope, by its id.
        sources: the class of each scope, by its id.
        signatures: the constructors of the classes, by name.
    """

    def __init__(self, module: ModuleDef, root: Scope, scopes: list[Scope], plain: frozenset[ModulePath]) -> None:
        self.module, self.root, self.plain = module, root, plain
        self.names = ClassNames(module, scopes, module.reserved | {module.name})
        self.built: dict[int, ast.expr] = {}
        self.writers: dict[int, ClassWriter] = {}
        self.sources: dict[int, ClassTree] = {}
        self.signatures: dict[str, Signature] = {}
        self.forms = FormMaker(self.built, self.signatures, module.reserved)

    def add(self, level: list[Scope]) -> None:
        """Write the classes of one level."""
        for scope in level:
            self.writers[id(scope)] = ClassWriter(self.module, scope, self.built, self.writers)
        if level == [self.root]:
            source = self.writers[id(self.root)].write(None, [{v: v for v in values(self.root)}], {})
            source.paths, source.name = [""], self.module.name
            self.sources[id(self.root)] = source
            return
        order = {id(scope): i for i, scope in enumerate(level)}
        candidates = self._across_roles(
            [candidate for groups in self._roles(level) for candidate in self._variants(groups)]
        )
        candidates.sort(key=lambda candidate: min(order[id(s)] for scopes in candidate[0] for s in scopes))
        for groups, form, shared in candidates:
            self._finish(groups, form, shared, order)

    def _roles(self, level: list[Scope]) -> list[Groups]:
        """Group the scopes by role. Scopes that are equal in everything are together, whatever their role."""
        equal: dict[str, list[Scope]] = {}
        for scope in level:
            alone = f"{scope.path} " if scope.path in self.plain else ""
            same = equal.setdefault(alone + self.forms.make(scope, 0).exact, [])
            same.append(scope)
            note_merged(same[0].nodes, scope.nodes)
            for mine, its in zip(flattened(same[0].body), flattened(scope.body)):
                note_merged(mine.nodes, its.nodes)
        own = (scopes[0].path if scopes[0].path in self.plain else () for scopes in equal.values())
        return [*grouped(((path, self.names.role(s[0])), s) for path, s in zip(own, equal.values())).values()]

    def _across_roles(self, candidates: list[Candidate]) -> list[Candidate]:
        """Merge classes of several roles that differ in a few numbers, unless their names were recorded or found.

        Blocks that were found by their layers are told apart by them: a depthwise convolution before a 1x1 one is not
        one behind it, though both are two convolutions with other numbers.
        """
        forms: dict[str, list[int]] = {}
        for i, (groups, form, _) in enumerate(candidates):
            recorded = any(
                (s.path in self.module.classes and not s.row) or s.path in self.plain for group in groups for s in group
            )
            if not form.variants and not recorded:
                forms.setdefault(form.key, []).append(i)
        gone: set[int] = set()
        for alike in forms.values():
            merged: list[int] = []  # all of them, or else as many as one class may serve
            for i in alike:
                n, both = next(self._merged(candidates, merged, i), (i, None))
                if both is None:
                    merged.append(i)
                else:
                    candidates[n] = both
                    gone.add(i)
        return [candidate for i, candidate in enumerate(candidates) if i not in gone]

    def _merged(self, candidates: list[Candidate], merged: list[int], i: int) -> Iterator[tuple[int, Candidate]]:
        """Yield the classes that one candidate can join, as they are then, each with its place in `candidates`."""
        for n in merged:
            both = self._shared([candidates[n][0], candidates[i][0]])
            if both is not None and len(both[2].parameters) <= _most_parameters(both[1]):
                yield n, both

    def _variants(self, groups: Groups) -> list[Candidate]:
        """Return the classes of one role: as few as the rules of `union` and `parameters` allow."""
        keys = grouped((self.forms.make(group[0], 0).key, group) for group in groups)
        candidates: list[Candidate] = []
        for alike in sorted(keys.values(), key=lambda g: -len(g[0][0].body)):
            for n, (before, _, _) in enumerate(candidates):
                both = self._shared([before, alike]) if len(keys) <= MAX_VARIANTS else None
                if both is not None:
                    candidates[n] = both
                    break
            else:
                one = self._shared([alike])
                for each in [one] if one is not None else [self._shared([[group]]) for group in alike]:
                    assert each is not None  # one group alone always has a class
                    candidates.append(each)
        return candidates

    def _shared(self, variants: list[Groups]) -> Candidate | None:
        """Return one class for groups of equal scopes, if there can be one. Each group counts as one instance."""
        everything = [group for groups in variants for group in groups]
        forms: dict[str, Form] = {}
        for instance, group in enumerate(everything):
            form = self.forms.make(group[0], instance)
            if form.key in forms:
                add(forms[form.key], form)
            else:
                forms[form.key] = form
        first, *others = forms.values()
        try:
            for other in others:
                unite(first, other)
            return everything, first, share(first, self.forms)
        except Differ:
            return None

    def _finish(self, groups: Groups, form: Form, shared: Shared, order: Mapping[int, int]) -> None:
        """Write and name a class, and note the expression that makes each of its instances."""
        scope = form.scope
        if scope.path not in self.plain:
            shared = share(form, self.forms, gives_widths=True)
        writer = self.writers[id(scope)]
        alike = [names for i, group in enumerate(groups) for names in _names_in(group, form.names[i])]
        scope.body, scope.outputs = shared.body, shared.outputs
        scopes = sorted((s for group in groups for s in group), key=lambda s: order[id(s)])
        root = shared.root if len(groups) > 1 or shared.parameters else None
        source = writer.write(root, alike, shared.stored, any(s.varies for s in scopes))
        for one in scopes:
            one.given, one.results = scope.given, scope.results
            self.sources[id(one)] = source
        source.name = self.names.take(scopes)
        source.parameters = shared.parameters
        source.paths = [".".join(s.path) for s in scopes]
        self.signatures[source.name] = shared.signature
        for i, group in enumerate(groups):
            self.built.update(dict.fromkeys(map(id, group), shared.made(source.name, i)))

    def in_order_of_use(self, order: list[Scope]) -> list[ClassTree]:
        """Return the classes in the order of their first instances, but each after the classes that it uses."""
        instances = grouped((id(self.sources[id(scope)]), scope) for scope in order)
        ordered: list[ClassTree] = []
        begun: set[int] = set()

        def visit(scope: Scope) -> None:
            source = self.sources[id(scope)]
            if id(source) not in begun:
                begun.add(id(source))
                for instance in instances[id(source)]:
                    for child in _children(instance):
                        visit(child)
                ordered.append(source)

        for scope in order:
            visit(scope)
        return ordered


def _names_in(group: list[Scope], names: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the values of equal scopes, by those of the class. `names`: those of the first scope."""
    first = values(group[0])
    for scope in group:
        own = dict(zip(first, values(scope)))
        yield {mine: own[its] for mine, its in names.items() if its in own}


def _children(scope: Scope) -> list[Scope]:
    """Return the scopes of the submodules of a class that have classes of their own."""
    return [node.scope for member in scope.members for node in walk(member.build) if isinstance(node, ClassRef)]


def _levels(order: list[Scope], names: ClassNames) -> list[list[Scope]]:
    """Sort the scopes by how deep classes are nested in them; possible variants of one class are on one level."""
    role = _kin(order, names)
    height = _heights(order, {})
    for _ in range(MAX_NESTED_ROLES):
        level: dict[object, int] = {}
        for scope in order:
            level[role[id(scope)]] = max(level.get(role[id(scope)], 0), height[id(scope)])
        raised = _heights(order, {key: level[role[key]] for key in role})
        if raised == height:
            break
        height = raised
    else:  # a role within itself
        height = _heights(order, {})
    return [level for _, level in sorted(grouped((height[id(scope)], scope) for scope in order).items())]


def _kin(order: list[Scope], names: ClassNames) -> dict[int, object]:
    """Return a key for each scope, by its id, that is equal for those of one role which have members in common.

    A list of unlike modules is one role, too: what has no name in common there is no variant of one class.
    """
    role = {id(scope): names.role(scope) for scope in order}
    groups: dict[object, list[set[str]]] = {}
    for scope in order:
        mine = attributes_of(scope)
        apart = [group for group in groups.get(role[id(scope)], []) if mine and group and not mine & group]
        joined = [group for group in groups.get(role[id(scope)], []) if not mine or not group or mine & group]
        groups[role[id(scope)]] = [*apart, mine.union(*joined)]
    keys: dict[int, object] = {}
    for scope in order:
        mine = attributes_of(scope)
        group = next(i for i, group in enumerate(groups[role[id(scope)]]) if mine <= group)
        keys[id(scope)] = (role[id(scope)], group)
    return keys


def _most_parameters(form: Form) -> int:
    """Return how many numbers may differ in a class for several roles: one for two lines that are written once."""
    return max(FEW_PARAMETERS, (len(form.nodes) + len(parts(form.root))) // 2)


def _heights(order: list[Scope], least: Mapping[int, int]) -> dict[int, int]:
    """Return the height of each scope above its innermost child, but at `least` that given for it."""
    height: dict[int, int] = {}
    for scope in order:
        above = max((height[id(child)] + 1 for child in _children(scope)), default=0)
        height[id(scope)] = max(above, least.get(id(scope), 0))
    return height


def _callers(scopes: list[Scope]) -> dict[int, list[Assign]]:
    """Return the statements that call each child scope, by the scope's id."""
    callers: dict[int, list[Assign]] = {}
    for statement in flattened(statement for scope in scopes for statement in scope.body):
        member = callee(statement.value) if isinstance(statement, Assign) else None
        if isinstance(statement, Assign) and member is not None and isinstance(member.build, ClassRef):
            callers.setdefault(id(member.build.scope), []).append(statement)
    return callers


def _bottom_up(scope: Scope) -> Iterator[Scope]:
    """Yield a scope after all scopes in it; siblings in the order of their calls."""
    for child in _children(scope):
        yield from _bottom_up(child)
    yield scope


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
    roles = Counter(role_path(scope.path) for scope in scopes)
    alone = (scope for scope in scopes if roles[role_path(scope.path)] == 1)
    candidates = (_row(scope, container) for scope in alone for container in scope.containers.values())
    for key, rows in grouped((maker.make(row.own, 0).key, row) for row in candidates if row is not None).items():
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
    argument, result = ".".join((*path, "in")), ".".join((*path, "out"))
    call = Assign((result,), ast.Call(MemberRef(container), [Ref(argument)], []), path)
    own = Scope(path, [call], members, [Input(argument, "Tensor")], [Ref(result)], {path: container})
    own.varies = True
    return Row(scope, container, own)


def _is_worth(rows: list[Row], maker: FormMaker) -> bool:
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
    kinds = [function_of(member.build) for member in members]
    if any(kind in CONVOLUTIONS for kind in kinds):
        return "ConvBlock"
    return "LinearBlock" if "nn.Linear" in kinds else "Block"
