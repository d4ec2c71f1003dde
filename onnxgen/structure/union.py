"""Two forms of one role, united into one class with optional parts.

Goes in: two forms. Comes out: one form that has the instances of both, or `Differ`. The rule: two forms unite if they
become equal when, in either of them, some values are replaced by one of their own operands. So a submodule that only
some instances call is skipped in the others (`x = self.downsample(x)`), and so is a residual (`x = x + identity`),
together with the statements that only this value needs. Items of an `nn.Sequential` may be missing too, and lists of
equal items may differ in length; of other lists, half of the shorter one must be in both. Everything else must be equal
but for literals.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from onnxgen.code.module_def import Assign, Member
from onnxgen.code.quote import MemberRef, rewrite
from onnxgen.common.names import ModulePath
from onnxgen.structure.forms import Def, Differ, Form, Node, Part, add_node, inner_members, outline, parts, reachable

MAX_OPTIONAL_STATEMENTS = 12  # statements between the value of an optional part and the value that replaces it
MAX_STATEMENTS = 400  # statements of a body; longer bodies are not united
Item = TypeVar("Item", Node, str)


def unite(form: Form, other: Form) -> None:
    """Add the instances of another form to `form`.

    Raises:
        Differ: they are not variants of one class. `form` must not be used any more.
    """
    forms = (form, other)
    for each in forms:
        if each.effects or len(each.nodes) > MAX_STATEMENTS or len(reachable(each)) != len(each.nodes):
            raise Differ("statements without a value that is used, or too many statements")
    if [a.annotation for a in form.scope.inputs] != [a.annotation for a in other.scope.inputs]:
        raise Differ("different arguments")
    before = [*_outlines(form), *_outlines(other)]
    members: dict[int, Member] = {}
    mentioned = [m.path for f in forms for n in (*f.nodes, f.returned) for m in inner_members(n)]
    fixed = {path[:n] for path in mentioned for n in range(len(path) + 1)}
    _Trees(members, fixed).unite(form.root, other.root)
    matched = _Match(form, other)
    matched.run()
    matched.insert(members)
    _rename(form, other, matched.renamed())
    form.instances += other.instances
    form.variants += [other.instances[0], *other.variants]
    if _outlines(form) != before:
        raise Differ("an instance would compute something else")


def _outlines(form: Form) -> list[list[str]]:
    return [outline(form, i) for i in (form.instances[0], *form.variants)]


def _rename(form: Form, other: Form, renamed: dict[str, str]) -> None:
    """Note the names of the values in the instances of the other form."""
    first = form.names[form.instances[0]]
    theirs = other.names[other.instances[0]]
    for instance in other.instances:
        own = {name: other.names[instance].get(name, name) for name in theirs}
        form.names[instance] = {mine: own[its] for mine, its in renamed.items() if its in own}
    for mine in renamed:
        first.setdefault(mine, mine)


class _Match:
    """Pairs the nodes of two forms, from the returned values backwards.

    Attributes:
        mine: the counterparts of the first form's nodes.
        its: the counterparts of the other form's nodes.
        skipped: the nodes that only the first form has, and which operand replaces their value.
        extra: the same for the nodes that only the other form has.
        rewired: the operands (a node, and which) that become values of such extra nodes.
        chained: the operands of such extra nodes that become values of skipped nodes: no instance has both.
        inserted: the extra nodes, as a set that keeps their order.
    """

    def __init__(self, form: Form, other: Form) -> None:
        self.form, self.other = form, other
        self.mine: dict[Node, Node] = {}
        self.its: dict[Node, Node] = {}
        self.skipped: dict[Node, int] = {}
        self.extra: dict[Node, int] = {}
        self.rewired: list[tuple[Node, int, Def]] = []
        self.chained: list[tuple[Node, int, Def]] = []
        self.inserted: dict[Node, None] = {}

    def run(self) -> None:
        pending: list[tuple[Node, int, Def, Def]] = []
        self._pair(self.form.returned, self.other.returned, pending)
        while pending:
            consumer, operand, a, b = pending.pop()
            left, right = self._alike(a, b)
            if left and right and b.node is not None:  # the other form's value follows the first one's
                self.chained.append((b.node, right[0], a))
            a = _skip(a, left, self.mine, self.skipped)
            if right:
                self.rewired.append((consumer, operand, b))
                b = _skip(b, right, self.its, self.extra)
            if a.node is not None and b.node is not None:
                self._pair(a.node, b.node, pending)

    def _pair(self, a: Node, b: Node, pending: list[tuple[Node, int, Def, Def]]) -> None:
        if self.mine.get(a) is b:
            return
        if a in self.mine or b in self.its or a.head != b.head or a in self.skipped or b in self.extra:
            raise Differ(f"{a.head} and {b.head}")
        self.mine[a], self.its[b] = b, a
        pending.extend((a, i, x, y) for i, (x, y) in enumerate(zip(a.operands, b.operands)))

    def _alike(self, a: Def, b: Def) -> tuple[list[int], list[int]]:
        """Return the operands to follow, in one of the forms, until both are the same value."""
        if self._same(a, b):
            return [], []
        left = _nearest(a, lambda d: self._same(d, b))
        right = _nearest(b, lambda d: self._same(a, d))
        if left and (not right or len(left) <= len(right)):
            return left, []
        if right:
            return [], right
        has_layers = any(d.node is not None and any(inner_members(d.node)) for d in (a, b))
        for i, x in enumerate([] if has_layers else _operands(a)):  # other layers make another class
            for j, y in enumerate(_operands(b)):
                if x.node is not None and self._same(x, y):
                    return [i], [j]
        raise Differ("no common value")

    def _same(self, a: Def, b: Def) -> bool:
        if a.index != b.index or a.node is None or b.node is None:
            return a == b
        if a.node in self.mine or b.node in self.its:
            return self.mine.get(a.node) is b.node
        return a.node.head == b.node.head and a.node not in self.skipped and b.node not in self.extra

    def insert(self, members: dict[int, Member]) -> None:
        """Insert the nodes that only the other form has into the first one, and add the other's instances to it."""
        for node in self.other.nodes:
            if node not in self.its:
                self._insert(node, members)
        shared = ((self.its.get(node, node), node in self.its) for node in self.other.nodes)
        self.form.nodes = _interleaved(self.form.nodes, shared)
        for a, b in self.mine.items():
            add_node(a, b)
        for node, operand in self.skipped.items():
            if node.skip not in (None, operand):
                raise Differ("a value that two operands replace")
            node.skip = operand
        for extra, operand, value in self.chained:
            extra.operands[operand] = value
        for consumer, operand, value in self.rewired:
            consumer.operands[operand] = self._translated(value)

    def _insert(self, node: Node, members: dict[int, Member]) -> None:
        if not isinstance(node.statement, Assign) or any(id(m) not in members for m in inner_members(node)):
            raise Differ("an optional loop, or an optional part of a submodule")

        def change(tree: ast.AST) -> ast.expr | None:
            return MemberRef(members[id(tree.member)]) if isinstance(tree, MemberRef) else None

        node.expressions = [rewrite(e, change) for e in node.expressions]
        node.operands = [self._translated(d) for d in node.operands]
        node.skip = self.extra.get(node, node.skip)
        self.inserted[node] = None

    def _translated(self, value: Def) -> Def:
        if value.node is None or value.node in self.inserted:
            return value
        if value.node not in self.its:
            raise Differ("a value that is used before it is made")
        return Def(self.its[value.node], value.index)

    def renamed(self) -> dict[str, str]:
        """Return the other form's names of the values, by their names in the united form."""
        names = {a.value: b.value for a, b in zip(self.form.scope.inputs, self.other.scope.inputs)}
        for a, b in self.mine.items():
            names.update(zip(a.targets, b.targets))
        for node in self.inserted:
            names.update((t, t) for t in node.targets)
        return names


def _operands(value: Def) -> list[Def]:
    """Return the operands of the statement that makes a value; [] if it makes several."""
    return value.node.operands if value.node is not None and value.node.is_simple else []


def _skip(value: Def, path: list[int], paired: Mapping[Node, Node], skipped: dict[Node, int]) -> Def:
    """Follow operands from a value, and note the nodes on the way as skipped."""
    for operand in path:
        node = value.node
        assert node is not None
        if node in paired or skipped.setdefault(node, operand) != operand:
            raise Differ("a value that two operands replace")
        value = node.operands[operand]
    return value


def _interleaved(mine: list[Item], its: Iterable[tuple[Item, bool]]) -> list[Item]:
    """Insert the items that only another list has, each before the item that follows it there.

    `its`: the items of the other list, in order, and whether `mine` has them.
    """
    before: dict[Item, list[Item]] = {}
    waiting: list[Item] = []
    for item, is_shared in its:
        if is_shared:
            before[item], waiting = waiting, []
        else:
            waiting.append(item)
    return [*(each for item in mine for each in (*before.get(item, ()), item)), *waiting]


def _nearest(start: Def, is_it: Callable[[Def], bool]) -> list[int]:
    """Return the operands that lead from a value to the nearest wanted one, breadth first; [] if there is none."""
    queue: deque[tuple[Def, list[int]]] = deque([(start, [])])
    seen = {start}
    while queue:
        value, path = queue.popleft()
        if path and is_it(value):
            return path
        if value.node is None or len(path) == MAX_OPTIONAL_STATEMENTS or not value.node.is_simple:
            continue
        for i, operand in enumerate(value.node.operands):
            if operand not in seen:
                seen.add(operand)
                queue.append((operand, [*path, i]))
    return []


class _Trees:
    """Unites the trees of members of two forms.

    Attributes:
        members: for each member of the other form (by id) its counterpart in the united form; is filled here.
        fixed: the paths of members that statements use, and of all modules around them.
    """

    def __init__(self, members: dict[int, Member], fixed: set[ModulePath]) -> None:
        self.members, self.fixed = members, fixed

    def unite(self, a: Part, b: Part) -> None:
        if a.head != b.head:
            raise Differ(f"{a.head} and {b.head}")
        for mine, its in ((a.entry.member, b.entry.member), (a.entry.container, b.entry.container)):
            if mine is not None and its is not None:
                self.members[id(its)] = mine
            elif mine is not its:
                raise Differ("a member or container that only one of them has")
        if a.entry.is_list and self._is_free(a) and self._is_free(b):
            self._items(a, b)
        else:
            self._by_name(a, b)
        a.slots.add(b.slots)
        a.only |= b.only

    def _is_free(self, part: Part) -> bool:
        """True for a list that the code only uses as a whole, so that its items may be renumbered."""
        inner = [p.entry for below in part.below.values() for p in parts(below)]
        paths = [m.path for p in inner for m in (p.member, p.container) if m is not None]
        return part.entry.container is not None and not any(path in self.fixed for path in paths)

    def _by_name(self, a: Part, b: Part) -> None:
        if a.entry.is_list and set(a.below) != set(b.below):
            raise Differ("lists of different items that are used item by item")
        for name, part in b.below.items():
            if name in a.below:
                self.unite(a.below[name], part)
            else:
                self._insert(part)
        names = _interleaved(list(a.below), ((name, name in a.below) for name in b.below))
        a.below = {name: a.below[name] if name in a.below else b.below[name] for name in names}

    def _insert(self, part: Part) -> None:
        for below in parts(part):
            for member in (below.entry.member, below.entry.container):
                if member is not None:
                    self.members[id(member)] = member

    def _items(self, a: Part, b: Part) -> None:
        mine, its = list(a.below.values()), list(b.below.values())
        if len(mine) == len(its) and not a.moved and a.uniform is None:
            for x, y in zip(mine, its):
                self.unite(x, y)
        elif not a.moved and _is_uniform(mine) and _is_uniform(its):
            a.uniform = a.uniform or dict.fromkeys(a.only, len(mine))
            a.uniform.update(dict.fromkeys(b.only, len(its)))
            self.unite(mine[0], its[0])
            a.below = {"0": mine[0]}
        elif a.uniform is not None or any(_has_frozen_weights(p.entry.member) for p in (*mine, *its)):
            raise Differ("lists of different lengths")
        else:
            a.below = {str(i): part for i, part in enumerate(self._merged(mine, its))}
            a.moved = True

    def _merged(self, mine: list[Part], its: list[Part]) -> list[Part]:
        """Return the items of two lists, those that both have once."""
        pairs = _aligned(mine, its)
        if 2 * sum(None not in pair for pair in pairs) < min(len(mine), len(its)):
            raise Differ("lists of which most items are others")
        merged: list[Part] = []
        for left, right in pairs:
            if left is not None and right is not None:
                self.unite(left, right)
            elif right is not None:
                self._insert(right)
            merged += [part for part in (left, right) if part is not None][:1]
        return merged


def _is_uniform(items: list[Part]) -> bool:
    """True if all items are made alike in each instance, and by one expression: no tensor of them is frozen."""
    if any(_has_frozen_weights(p.entry.member) for item in items for p in parts(item)):
        return False
    first = _with_literals(items[0])
    return all(_with_literals(item) == first for item in items[1:])


def _has_frozen_weights(member: Member | None) -> bool:
    return member is not None and not all(map(member.is_buffer, member.frozen))


def _with_literals(part: Part) -> object:
    texts = [
        {key: {i: ast.unparse(s.value) for i, s in column.items()} for key, column in p.slots.values.items()}
        for p in parts(part)
    ]
    return _heads(part), texts


def _aligned(a: list[Part], b: list[Part]) -> list[tuple[Part | None, Part | None]]:
    """Align two lists, so that as many and as similar items as possible are side by side (Needleman, Wunsch 1970)."""
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = max(best[i + 1][j + 1] + _likeness(a[i], b[j]), best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[Part | None, Part | None]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if best[i][j] == best[i + 1][j]:
            pairs.append((a[i], None))
            i += 1
        elif best[i][j] == best[i][j + 1]:
            pairs.append((None, b[j]))
            j += 1
        else:
            pairs.append((a[i], b[j]))
            i, j = i + 1, j + 1
    return [*pairs, *((x, None) for x in a[i:]), *((None, y) for y in b[j:])]


def _likeness(a: Part, b: Part) -> float:
    """Return 0 for items that are not variants of each other, else more for every literal that they share."""
    if _heads(a) != _heads(b):
        return 0.0
    shared = total = 0
    for mine, its in zip(parts(a), parts(b)):
        for key, column in mine.slots.values.items():
            total += 1
            other = its.slots.values.get(key, {})
            shared += {ast.unparse(s.value) for s in column.values()} >= {ast.unparse(s.value) for s in other.values()}
    return 2.0 + shared / max(total, 1)


def _heads(part: Part) -> list[str]:
    return [p.head for p in parts(part)]
