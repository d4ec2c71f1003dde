"""Runs of numbered submodules: an `nn.Sequential` where each feeds the next, or else a `for` loop.

    x = self.layer1[0](x)                      x = self.layer1(x)
    x = self.layer1[1](x)

    x, k0 = self.layer[0](x, mask, past0)      for layer, past in zip(self.layer, (past0, past1)):
    x, k1 = self.layer[1](x, mask, past1)          x, k = layer(x, mask, past)
                                                   keys.append(k)

Goes in: a scope that calls its submodules one by one. Comes out: the scope with these calls replaced, and with the
containers that they use. `turns.py` finds the statements of each turn of a loop, `loops.py` writes the loop.

Of a list that is neither called as a whole nor looped over, gaps are filled (`fill_gaps`): a function that the exporter
noted in a gap is a layer there (`self.model[10](x)`, an `nn.Upsample`). Items of which each feeds only the next one are
called as a slice (`slice_lists`): `self.model[:5](x)`. The list is an `nn.Sequential` then, since only those have
slices that can be called.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Sequence

from onnxgen.code.module_def import Assign, Member, ModuleDef, Statement, blocks, expressions, used
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, literal, quote, refs, walk
from onnxgen.code.torch_api import LAYER_OF, function_of
from onnxgen.common.names import ModulePath
from onnxgen.structure.classnames import role_path
from onnxgen.structure.layout import fillable
from onnxgen.structure.literals import is_literal, is_number
from onnxgen.structure.loops import Run
from onnxgen.structure.scopes import LISTS, SEVERAL, Scope, callee, needs
from onnxgen.structure.stretch import OneTurn
from onnxgen.structure.turns import Items, find_turns

Chain = list[tuple[int, Member, Assign]]  # the items of an `nn.Sequential`: number, module, statement
Place = tuple[ModulePath, ModulePath]
Loose = tuple[int | None, Member, Assign]  # the same of a function; None if its scope has no number for it
RUNTIME = (Ref, SizeOf, MemberRef, DeviceOf)  # what `__init__` does not have, only `forward`


@needs(LISTS)
def collect_runs(scope: Scope, module: ModuleDef, loops: dict[Place, Run]) -> None:
    """Replace every run of calls that covers all items of a container, in order; inner containers first.

    A run that is not a chain may be a loop. For lists in a list, it is a loop over the outer list.

    Args:
        loops: those of the scopes before, to which those of this one are added. A list of one item is looped over
            where the same list of another module is.
    """
    parts = parts_of(scope)
    flow = Flow(scope)
    ones = {path for path in parts if _of_one(flow, parts, path, loops, module) is not None}
    for path in sorted(parts.keys() - ones, key=len, reverse=True):
        items = {int(name): item for name, item in parts[path].items() if item is not None}
        if len(items) < len(parts[path]):
            continue
        container = _sequence(flow, path, items)
        if container is not None and path and path[:-1] in parts:
            parts[path[:-1]][path[-1]] = container
    flow.settle()
    latest = list(reversed(parts))  # it may read what an earlier list collects, item by item until that is a loop
    for path in sorted(latest, key=len):
        run = _of_one(flow, parts, path, loops, module) if path in ones else None  # of the body as it is now
        if run is not None:
            run.write()
            flow = Flow(scope)
        elif path not in scope.containers:
            flow = _looped(flow, _items(parts, path), module, loops)


@needs(SEVERAL)
def collect_calls(scope: Scope, module: ModuleDef) -> None:
    """Replace calls of one submodule, each with the result of the call before it, by a loop."""
    called = [callee(statement.value) for statement in scope.body if isinstance(statement, Assign)]
    modules = {id(member): member for member in called if member is not None and member.kind == "module"}
    counts = Counter(map(id, called))
    flow = Flow(scope)
    for key, member in modules.items():
        if counts[key] > 2:
            flow = _looped(flow, Items(None, [{-1: member}]), module, {})


def place(scope: Scope, path: ModulePath) -> Place:
    """Return where a list is: the role of its module, and its path there."""
    return role_path(scope.path), path[len(scope.path) :]


def has_one(scope: Scope) -> bool:
    """True if a list of the scope has one item."""
    return any(len(items) == 1 for items in parts_of(scope).values())


def _of_one(
    flow: Flow,
    parts: dict[ModulePath, dict[str, Member | None]],
    path: ModulePath,
    loops: dict[Place, Run],
    module: ModuleDef,
) -> OneTurn | None:
    """Return the loop over a list of one item, if the same list of another module is looped over."""
    like = loops.get(place(flow.scope, path)) if len(parts[path]) == 1 else None
    items = _items(parts, path) if like is not None else None
    anchors = _anchors(flow, items) if items is not None else []
    if like is None or items is None or len(anchors) != 1 or len(anchors[0]) != 1:
        return None
    run = OneTurn(flow.scope, items, anchors[0][0], flow.uses, module, like)
    return run if run.is_regular and run.arrange() else None


def _looped(flow: Flow, items: Items | None, module: ModuleDef, loops: dict[Place, Run]) -> Flow:
    """Make a loop over these items, if there can be one; return the flow after that."""
    anchors = _anchors(flow, items) if items is not None else []
    if items is None or len(anchors) < 2:
        return flow
    for turns in find_turns(flow.scope.body, items, anchors):
        if items.is_inner and len(turns[0]) > 1:
            break
        run = Run(flow.scope, items, turns, flow.uses, module)
        if not run.is_regular or not run.arrange():
            continue
        run.write()
        if items.path is not None:
            loops.setdefault(place(flow.scope, items.path), run)
        return Flow(flow.scope)  # its results may be items of a list now, in all statements after it
    return flow


def _anchors(flow: Flow, items: Items) -> list[list[Assign]]:
    """Return the statements that use each item; [] if they are not all assignments of the body."""
    if items.path is None:
        users = [[statement] for statement in flow.mentions[id(items.parts[0][-1])]]
    else:
        users = [[s for part in item.values() for s in flow.mentions.get(id(part), ())] for item in items.parts]
    plain = {id(s): (i, s) for i, s in enumerate(flow.scope.body) if isinstance(s, Assign) and s.targets}
    keys = [{*map(id, statements)} for statements in users]
    if not all(keys) or not plain.keys() >= set().union(*keys):
        return []
    return [[s for _, s in sorted(map(plain.__getitem__, own))] for own in keys]


def parts_of(scope: Scope) -> dict[ModulePath, dict[str, Member | None]]:
    """Return the items of each container below a class, by number: a submodule, or None for an inner container."""
    level = len(scope.path)
    own = {member.path: member for member in scope.members}  # a layer with layers below it is not a container
    below: dict[ModulePath, dict[str, Member | None]] = {}
    for member in scope.members:
        for n in range(level, len(member.path)):
            part = own.get(member.path[: n + 1])
            whole = part is not None and part.kind == "module"
            below.setdefault(member.path[:n], {})[member.path[n]] = part if whole else None
    return {path: parts for path, parts in below.items() if path not in own and all(name.isdigit() for name in parts)}


def _items(parts: dict[ModulePath, dict[str, Member | None]], path: ModulePath) -> Items | None:
    """Return the items of a list to loop over: submodules, or lists of equally many of them; None for other lists."""
    items: list[dict[int, Member]] = []
    for name in sorted(parts[path], key=int):
        item = parts[path][name]
        inner = {-1: item} if item is not None else {int(n): m for n, m in parts.get((*path, name), {}).items()}
        whole = {n: member for n, member in inner.items() if member is not None}
        if not whole or len(whole) < len(inner) or not fillable([max(n, 0) for n in whole]):
            return None
        items.append(whole)
    names = sorted(map(int, parts[path]))
    alike = all(set(item) == set(items[0]) for item in items) and (-1 in items[0] or len(items[0]) > 1)
    return Items(path, items) if alike and names == [*range(len(items))] else None


class Flow:
    """The dataflow of a body, kept up to date while chains of its statements are replaced by one.

    Attributes:
        uses: how often each value is used.
        makers: by value, the statement that makes only this value.
        users: by value, the last statement that uses it.
        calls: the statements that call a submodule with one argument, by id of its member.
        mentions: the statements that use a member, once for each use, by id of the member.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.uses = Counter(name for output in scope.outputs for name in refs(output))
        self.makers: dict[str, Assign] = {}
        self.users: dict[str, Statement] = {}
        self.calls: dict[int, list[Assign]] = {}
        self.mentions: dict[int, list[Statement]] = {}
        self._replaced: dict[int, Statement | None] = {}  # by id of a statement that was replaced
        for statement in scope.body:
            self._enter(statement)

    def _enter(self, statement: Statement) -> None:
        self._count(statement, 1)
        if blocks(statement):  # a value that is assigned again is not part of a chain
            self.uses.update(dict.fromkeys(statement.targets, 2))
        self.users.update(dict.fromkeys(used(statement), statement))
        if isinstance(statement, Assign) and len(statement.targets) == 1:
            self.makers[statement.targets[0]] = statement
            member = called(statement)
            if member is not None:
                self.calls.setdefault(id(member), []).append(statement)

    def _count(self, statement: Statement, sign: int) -> None:
        for expression in expressions(statement):
            for node in walk(expression):
                if isinstance(node, Ref):
                    self.uses[node.value] += sign
                elif isinstance(node, MemberRef) and sign > 0:
                    self.mentions.setdefault(id(node.member), []).append(statement)
                elif isinstance(node, MemberRef):
                    self.mentions[id(node.member)] = [s for s in self.mentions[id(node.member)] if s is not statement]

    def exchange(self, old: Sequence[Statement], new: Sequence[Statement]) -> None:
        """Note that statements of the body were replaced."""
        for statement in old:
            self._count(statement, -1)
        for statement in new:
            self._enter(statement)

    def replace(self, chain: list[Assign], whole: Assign) -> None:
        """Replace a chain of statements by one, at the position of the first."""
        self._replaced.update(dict.fromkeys(map(id, chain)))
        self._replaced[id(chain[0])] = whole
        self.exchange(chain, [whole])

    def after(self, statement: Assign) -> Assign | None:
        """Return the only statement that uses the result of this one, if it is its only operand."""
        target = statement.targets[0]
        user = self.users.get(target) if self.uses[target] == 1 else None
        if not isinstance(user, Assign) or len(user.targets) != 1 or not isinstance(user.value, ast.Call):
            return None
        argument = operand(user.value)
        return user if isinstance(argument, Ref) and refs(user.value) == (target,) else None

    def settle(self) -> None:
        """Write the replacements into the scope's body."""
        body: list[Statement] = []
        for statement in self.scope.body:
            now: Statement | None = statement
            while now is not None and id(now) in self._replaced:
                now = self._replaced[id(now)]
            body += [] if now is None else [now]
        self.scope.body, self._replaced = body, {}


class _Sequence:
    """Follows a chain of calls through a body, from one item of a container to the next."""

    def __init__(self, flow: Flow, path: ModulePath, items: dict[int, Member]) -> None:
        self.flow, self.path, self.items = flow, path, items

    def runs(self) -> list[Chain] | None:
        """Return the chain of each call of the container; None if the items are no chain, or the chains differ."""
        counts = {len(self.flow.calls.get(id(m), ())) for m in self.items.values()}
        candidates = [self.run(call) for call in range(counts.pop())] if len(counts) == 1 else []
        chains = [chain for chain in candidates if chain is not None]
        forms = [[(n, n in self.items or ast.dump(member.build)) for n, member, _ in chain] for chain in chains]
        return chains if chains and len(chains) == len(candidates) and all(form == forms[0] for form in forms) else None

    def run(self, call: int) -> Chain | None:
        """Return the elements with their numbers and statements, in order; None if the items are not a chain."""
        calls = self.flow.calls
        waiting = sorted(self.items)
        first = waiting.pop(0)
        chain = [(first, self.items[first], calls[id(self.items[first])][call])]
        self._prepend(chain)
        loose: list[Loose] = []  # functions since the last item
        statement = chain[-1][2]
        while True:
            after = self.flow.after(statement)
            if after is None:
                break
            member = called(after)
            if waiting and member is self.items[waiting[0]]:
                if not self._append(chain, loose, waiting[0]):
                    return None
                chain.append((waiting.pop(0), member, after))
                loose = []
            else:
                function = self._function(after)
                if function is None:
                    break
                loose.append((*function, after))
            statement = after
        if waiting:
            return None
        own = [entry for entry in loose if entry[0] is not None or entry[2].scope[: len(self.path)] == self.path]
        if own == loose[: len(own)]:
            if all(number == i for i, (number, _, _) in enumerate(chain)):  # then no key depends on their numbers
                own = [(None, member, after) for _, member, after in own]
            self._append(chain, own, None)
        return chain

    def _prepend(self, chain: Chain) -> None:
        """Add the functions before the first item whose scope says that they belong to the container.

        Without a number, what flattens is number 0 if only that is missing: a classifier often begins with it.
        """
        while chain[0][0] > 0:
            value = chain[0][2].value
            argument = value.args[0] if isinstance(value, ast.Call) and value.args else None
            maker = self.flow.makers.get(argument.value) if isinstance(argument, Ref) else None
            function = self._function(maker) if maker is not None and self.flow.after(maker) is chain[0][2] else None
            if maker is None or function is None:
                return
            is_first = chain[0][0] == 1 and function_of(function[1].build) == "nn.Flatten"
            number = 0 if function[0] is None and is_first else function[0]
            if number is None or number >= chain[0][0]:
                return
            chain.insert(0, (number, function[1], maker))

    def _function(self, statement: Assign) -> tuple[int | None, Member] | None:
        """Return a functional layer as a module, and its number if its scope has one (`/features/features.1/Relu`)."""
        build, scope, level = as_module(statement.value), statement.scope, len(self.path)
        if build is None:
            return None
        within = scope[:level] == self.path
        part = scope[level] if within and len(scope) > level else ""
        index = int(part) if part.isdigit() and int(part) not in self.items else None
        if index is None and not within and scope != self.path[: len(scope)]:
            return None
        return index, Member((*self.path, str(index or 0)), build, "module")

    def _append(self, chain: Chain, loose: list[Loose], end: int | None) -> bool:
        """Add functions, with their numbers or the next free ones; False if there is no free number before `end`."""
        for index, member, statement in loose:
            before = chain[-1][0]
            number = index if index is not None else before + 1
            if number <= before or (end is not None and number >= end):
                return False
            member.path = (*self.path, str(number))
            chain.append((number, member, statement))
        return True


def _sequence(flow: Flow, path: ModulePath, items: dict[int, Member]) -> Member | None:
    """Replace a chain over these items by a call of an `nn.Sequential`; return that, or None if it is not a chain."""
    chains, scope = _Sequence(flow, path, items).runs(), flow.scope
    if chains is None or not fillable([index for index, _, _ in chains[0]]):
        return None
    scope.members.extend(m for index, m, _ in chains[0] if index not in items)
    container = scope.containers[path] = Member(path, quote("nn.Sequential"), "module")
    for chain in chains:
        first, last = chain[0][2], chain[-1][2]
        assert isinstance(first.value, ast.Call)
        argument = operand(first.value)
        assert argument is not None
        nodes = tuple(name for _, _, statement in chain for name in statement.nodes)
        whole = Assign(last.targets, ast.Call(MemberRef(container), [argument], []), first.scope, nodes)
        flow.replace([statement for _, _, statement in chain], whole)
    return container


def called(statement: Assign) -> Member | None:
    """Return the submodule that a statement calls with one argument."""
    value = statement.value
    is_plain = isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords
    return callee(value) if is_plain else None


def as_module(value: ast.expr) -> ast.expr | None:
    """Return the layer that computes a function of one tensor, `nn.ReLU()` for `F.relu(x)`; None if there is none.

    `__init__` has no values, sizes or devices, so a function that needs one cannot be a layer.
    """
    if not isinstance(value, ast.Call) or not isinstance(operand(value), Ref):
        return None
    if isinstance(value.func, ast.Attribute) and isinstance(value.func.value, Ref):
        return _method_layer(value.func.attr, value.args) if not value.keywords else None
    name = function_of(value)
    options = [*value.args[1:], *(k.value for k in value.keywords)]
    if name not in LAYER_OF or any(isinstance(n, RUNTIME) for option in options for n in walk(option)):
        return None
    return ast.Call(quote(LAYER_OF[name]), value.args[1:], value.keywords)


def _method_layer(method: str, args: list[ast.expr]) -> ast.expr | None:
    if method == "flatten" and len(args) == 1 and is_number(args[0], 1):
        return quote("nn.Flatten()")
    is_range = method == "clamp" and len(args) == 2 and all(map(is_literal, args))
    return ast.Call(quote("nn.Hardtanh"), args, []) if is_range else None


def operand(value: ast.expr) -> ast.expr | None:
    """Return the first operand of a layer, a function or a method."""
    if not isinstance(value, ast.Call):
        return None
    if isinstance(value.func, ast.Attribute) and refs(value.func):
        return value.func.value
    return value.args[0] if value.args else None


Neighbours = list[tuple[int, Assign]]  # calls of neighbours, each with the number of its item


@needs(LISTS)
def fill_gaps(scope: Scope) -> None:
    """Register the layers of functions in the gaps of lists that are no `nn.Sequential`, which `runs.py` fills."""
    noted = defaultdict(list)
    for statement in scope.body:
        noted[statement.scope].append(statement)
    inside = {path[:n] for path in noted for n in range(len(path))}
    for path, items in parts_of(scope).items():
        numbers = [int(name) for name in items]
        is_filled = path in scope.containers and scope.containers[path].layer == "nn.Sequential"
        gaps = {*range(max(numbers))} - {*numbers} if not is_filled and fillable(numbers) else set[int]()
        for number in sorted(gaps):
            place = (*path, str(number))
            if len(noted[place]) == 1 and place not in inside:
                _fill_gap(scope, place, noted[place][0])


def _fill_gap(scope: Scope, place: ModulePath, statement: Statement) -> None:
    """Make a layer of the function in a gap, if it can be one."""
    build = as_module(statement.value) if isinstance(statement, Assign) and len(statement.targets) == 1 else None
    if build is not None and isinstance(statement, Assign) and (argument := operand(statement.value)) is not None:
        member = Member(place, build, "module")
        scope.members.append(member)
        statement.value = ast.Call(MemberRef(member), [argument], [])


@needs(LISTS)
def slice_lists(scope: Scope) -> None:
    """Replace calls of neighbours in each list by the call of a slice."""
    for path, parts in parts_of(scope).items():
        items = {int(name): item for name, item in sorted(parts.items(), key=lambda p: int(p[0])) if item is not None}
        if path != scope.path and path not in scope.containers and len(items) == len(parts) and fillable([*items]):
            flow = Flow(scope)
            for chain in _neighbours(flow, items):
                if len(chain) > 1:
                    _replace(flow, path, chain, last=max(items))
            flow.settle()


def _neighbours(flow: Flow, items: dict[int, Member]) -> list[Neighbours]:
    chains: list[Neighbours] = []
    after: Assign | None = None  # what alone uses the result of the last call
    for n, item in items.items():
        calls = flow.calls.get(id(item), [])
        if len(calls) != 1 or len(flow.mentions[id(item)]) != 1:
            after = None
            continue
        if after is not calls[0] or called(after) is None:
            chains.append([])
        chains[-1].append((n, calls[0]))
        after = flow.after(calls[0])
    return chains


def _replace(flow: Flow, path: ModulePath, chain: Neighbours, last: int) -> None:
    container = flow.scope.containers.setdefault(path, Member(path, quote("nn.Sequential"), "module"))
    (start, first), (end, final) = chain[0], chain[-1]
    assert isinstance(first.value, ast.Call)
    ends = (literal(start) if start else None, literal(end + 1) if end < last else None)
    part = ast.Subscript(MemberRef(container), ast.Slice(*ends), ast.Load())
    nodes = tuple(name for _, statement in chain for name in statement.nodes)
    whole = Assign(final.targets, ast.Call(part, first.value.args, []), first.scope, nodes)
    flow.replace([statement for _, statement in chain], whole)
