"""Unites two forms of one role into one class, some parts of which are optional.

The rule: two forms unite if they become equal when, in either of them, some values are replaced by one of the operands
that they are made of, at the same place in the flow of data. So a submodule that only some instances call passes its
input on in the others (`x = self.downsample(x)`), and a residual that only some add is left out (`x = x + identity`).
What only such a value needs is a part of it. Items of an `nn.Sequential` may be missing likewise, and lists of equal
items may differ in length. Everything else must be the same but for literals.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable

from onnxgen.code.annotations import note_merged
from onnxgen.code.module_def import Assign, Member, is_statistic
from onnxgen.code.quote import MemberRef, rewrite
from onnxgen.common.names import ModulePath
from onnxgen.structure.forms import Def, Differ, Form, Node, Part, inner_members, outline, parts, reachable

FAR = 12  # how many statements an optional part's value may be away from what it replaces
LONG = 400  # statements of a body; longer ones are no blocks of anything


def unite(form: Form, other: Form) -> None:
    """Make `form` one of the instances of both.

    Raises:
        Differ: they are no variants of one class. `form` is then in no use any more.
    """
    for each in (form, other):
        if each.effects or len(each.nodes) > LONG or len(reachable(each)) != len(each.nodes):
            raise Differ("statements without a value that is used, or too many")
    if [a.annotation for a in form.scope.inputs] != [a.annotation for a in other.scope.inputs]:
        raise Differ("arguments")
    variants = [form.instances[0], *form.variants, other.instances[0], *other.variants]
    before = [outline(f, i) for f in (form, other) for i in (f.instances[0], *f.variants)]
    members: dict[int, Member] = {}
    mentioned = [m.path for f in (form, other) for n in (*f.nodes, f.returned) for m in inner_members(n)]
    fixed = {path[:n] for path in mentioned for n in range(len(path) + 1)}
    _Trees(members, fixed).unite(form.root, other.root)
    matched = _Match(form, other)
    matched.run()
    matched.insert(members)
    _rename(form, other, matched.renamed())
    form.instances += other.instances
    form.variants += [other.instances[0], *other.variants]
    if [outline(form, i) for i in variants] != before:
        raise Differ("not the same again")


def _rename(form: Form, other: Form, renamed: dict[str, str]) -> None:
    """Note what the values are called in the instances of the other form."""
    first = form.names[form.instances[0]]
    theirs = other.names[other.instances[0]]
    for instance in other.instances:
        own = {name: other.names[instance].get(name, name) for name in theirs}
        form.names[instance] = {mine: own[its] for mine, its in renamed.items() if its in own}
    for mine in renamed:
        first.setdefault(mine, mine)


class _Match:
    """Pairs the nodes of two forms, from what is returned backwards."""

    def __init__(self, form: Form, other: Form) -> None:
        self.form, self.other = form, other
        self.mine: dict[Node, Node] = {}  # of the first form's nodes: their partners
        self.its: dict[Node, Node] = {}
        self.skipped: set[Node] = set()  # of the first form's nodes: those that the other one does not have
        self.extra: dict[Node, int] = {}  # of the other form's nodes: which operand they pass on
        self.rewired: list[tuple[Node, int, Def]] = []
        self.made: dict[Node, Node] = {}

    def run(self) -> None:
        pending: list[tuple[Node, int, Def, Def]] = []
        self._pair(self.form.returned, self.other.returned, pending)
        while pending:
            consumer, operand, a, b = pending.pop()
            left, right = self._alike(a, b)
            if left:
                a = self._skip(a, left)
            if right:
                self.rewired.append((consumer, operand, b))
                b = self._follow(b, right)
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
        """The operands to pass through, on one side, until both are the same value."""
        if self._same(a, b):
            return [], []
        left = _nearest(a, lambda d: self._same(d, b))
        right = _nearest(b, lambda d: self._same(a, d))
        if left and (not right or len(left) <= len(right)):
            return left, []
        if right:
            return [], right
        raise Differ("no common value")

    def _same(self, a: Def, b: Def) -> bool:
        if a.index != b.index or a.node is None or b.node is None:
            return a == b
        if a.node in self.mine or b.node in self.its:
            return self.mine.get(a.node) is b.node
        return a.node.head == b.node.head and a.node not in self.skipped and b.node not in self.extra

    def _skip(self, a: Def, path: list[int]) -> Def:
        for operand in path:
            assert a.node is not None
            if a.node in self.mine or a.node.skip not in (None, operand):
                raise Differ("passed on in two ways")
            a.node.skip = operand
            self.skipped.add(a.node)
            a = a.node.operands[operand]
        return a

    def _follow(self, b: Def, path: list[int]) -> Def:
        for operand in path:
            assert b.node is not None
            if b.node in self.its or self.extra.get(b.node, operand) != operand:
                raise Differ("passed on in two ways")
            self.extra[b.node] = operand
            b = b.node.operands[operand]
        return b

    def insert(self, members: dict[int, Member]) -> None:
        """Put what only the other form has into the first one, and make its instances those of both."""
        order: list[Node] = []
        position = {id(n): i for i, n in enumerate(self.form.nodes)}
        before: dict[int, list[Node]] = {}
        waiting: list[Node] = []
        for node in self.other.nodes:
            if node in self.its:
                before.setdefault(position[id(self.its[node])], []).extend(waiting)
                waiting = []
                continue
            waiting.append(self._inserted(node, members))
        for i, node in enumerate(self.form.nodes):
            order += [*before.get(i, []), node]
        self.form.nodes = [*order, *waiting]
        for a, b in self.mine.items():
            a.slots.add(b.slots)
            a.only |= b.only
            if a.statement is not None and b.statement is not None:
                note_merged(a.statement.nodes, b.statement.nodes)
        for consumer, operand, value in self.rewired:
            consumer.operands[operand] = self._translated(value)

    def _inserted(self, node: Node, members: dict[int, Member]) -> Node:
        if not isinstance(node.statement, Assign) or any(id(m) not in members for m in inner_members(node)):
            raise Differ("an optional loop, or a part of a submodule")
        node.expressions = [rewrite(e, lambda n: _swapped(n, members)) for e in node.expressions]
        node.operands = [self._translated(d) for d in node.operands]
        node.skip = self.extra.get(node, node.skip)
        self.made[node] = node
        return node

    def _translated(self, value: Def) -> Def:
        if value.node is None or value.node in self.made:
            return value
        if value.node not in self.its:
            raise Differ("out of order")
        return Def(self.its[value.node], value.index)

    def renamed(self) -> dict[str, str]:
        """The other form's names of the values, by those that they have now."""
        names = {a.value: b.value for a, b in zip(self.form.scope.inputs, self.other.scope.inputs)}
        for a, b in self.mine.items():
            names.update(zip(a.targets, b.targets))
        for node in self.made:
            names.update((t, t) for t in node.targets)
        return names


def _swapped(node: ast.AST, members: dict[int, Member]) -> ast.expr | None:
    return MemberRef(members[id(node.member)]) if isinstance(node, MemberRef) else None


def _nearest(start: Def, is_it: Callable[[Def], bool]) -> list[int]:
    """The operands that lead from a value to the nearest one wanted, breadth first; empty if there is none."""
    queue: deque[tuple[Def, list[int]]] = deque([(start, [])])
    seen = {start}
    while queue:
        value, path = queue.popleft()
        if path and is_it(value):
            return path
        if value.node is None or len(path) == FAR or not value.node.is_simple:
            continue
        for i, operand in enumerate(value.node.operands):
            if operand not in seen:
                seen.add(operand)
                queue.append((operand, [*path, i]))
    return []


class _Trees:
    """Unites what two forms register. `members` gets, for each member of the other form, the one that it became."""

    def __init__(self, members: dict[int, Member], fixed: set[ModulePath]) -> None:
        self.members, self.fixed = members, fixed

    def unite(self, a: Part, b: Part) -> None:
        if a.head != b.head:
            raise Differ(f"{a.head} and {b.head}")
        for mine, its in ((a.place.member, b.place.member), (a.place.container, b.place.container)):
            if mine is not None and its is not None:
                self.members[id(its)] = mine
            elif mine is not its:
                raise Differ("a container that is called, and one that is not")
        if a.place.is_list and self._is_free(a) and self._is_free(b):
            self._items(a, b)
        else:
            self._by_name(a, b)
        a.slots.add(b.slots)
        a.only |= b.only

    def _is_free(self, part: Part) -> bool:
        """A list that the code only uses as a whole, so that its items may be numbered anew."""
        inner = [p.place for below in part.below.values() for p in parts(below)]
        paths = [m.path for p in inner for m in (p.member, p.container) if m is not None]
        return part.place.container is not None and not any(path in self.fixed for path in paths)

    def _by_name(self, a: Part, b: Part) -> None:
        merged: dict[str, Part] = {}
        waiting: list[tuple[str, Part]] = []
        before: dict[str, list[tuple[str, Part]]] = {}
        for name, part in b.below.items():
            if name in a.below:
                self.unite(a.below[name], part)
                before[name], waiting = waiting, []
            else:
                self._inserted(part)
                waiting.append((name, part))
        if a.place.is_list and (waiting or any(before.values()) or set(a.below) - set(b.below)):
            raise Differ("items of a list that is used piece by piece")
        for name, part in a.below.items():
            merged.update(before.get(name, ()))
            merged[name] = part
        merged.update(waiting)
        a.below = merged

    def _inserted(self, part: Part) -> None:
        for below in parts(part):
            for member in (below.place.member, below.place.container):
                if member is not None:
                    self.members[id(member)] = member

    def _items(self, a: Part, b: Part) -> None:
        mine, its = list(a.below.values()), list(b.below.values())
        if len(mine) == len(its) and not a.moved and a.uniform is None:
            for x, y in zip(mine, its):
                self.unite(x, y)
            return
        if not a.moved and _is_uniform(mine) and _is_uniform(its):
            a.uniform = a.uniform or dict.fromkeys(a.only, len(mine))
            a.uniform.update(dict.fromkeys(b.only, len(its)))
            self.unite(mine[0], its[0])
            a.below = {"0": mine[0]}
            return
        if a.uniform is not None or any(_is_held(p.place.member) for p in (*mine, *its)):
            raise Differ("lists")
        merged: list[Part] = []
        for left, right in _aligned(mine, its):
            if left is not None and right is not None:
                self.unite(left, right)
            elif right is not None:
                self._inserted(right)
            merged += [part for part in (left, right) if part is not None][:1]
        a.below = {str(i): part for i, part in enumerate(merged)}
        a.moved = True


def _is_uniform(items: list[Part]) -> bool:
    """All items are made alike, in each instance, and in one expression: of none is a part not trained."""
    if any(_is_held(p.place.member) for item in items for p in parts(item)):
        return False
    first = _whole(items[0])
    return all(_whole(item) == first for item in items[1:])


def _is_held(member: Member | None) -> bool:
    return member is not None and not all(map(is_statistic, member.frozen))


def _whole(part: Part) -> object:
    texts = [
        {key: {i: ast.unparse(s.value) for i, s in found.items()} for key, found in p.slots.values.items()}
        for p in parts(part)
    ]
    return _heads(part), texts


def _aligned(a: list[Part], b: list[Part]) -> list[tuple[Part | None, Part | None]]:
    """Both lists in one: items of equal head side by side, as many and as like as can be (Needleman, Wunsch 1970)."""
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = max(best[i + 1][j + 1] + _likeness(a[i], b[j]), best[i + 1][j], best[i][j + 1])
    made: list[tuple[Part | None, Part | None]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if best[i][j] == best[i + 1][j]:
            made.append((a[i], None))
            i += 1
        elif best[i][j] == best[i][j + 1]:
            made.append((None, b[j]))
            j += 1
        else:
            made.append((a[i], b[j]))
            i, j = i + 1, j + 1
    return [*made, *((x, None) for x in a[i:]), *((None, y) for y in b[j:])]


def _likeness(a: Part, b: Part) -> float:
    """0 for what is no variant of the other, else more for every literal that they share."""
    if _heads(a) != _heads(b):
        return 0.0
    shared = total = 0
    for mine, its in zip(parts(a), parts(b)):
        for key, found in mine.slots.values.items():
            total += 1
            other = its.slots.values.get(key, {})
            shared += {ast.unparse(s.value) for s in found.values()} >= {ast.unparse(s.value) for s in other.values()}
    return 2.0 + shared / max(total, 1)


def _heads(part: Part) -> list[str]:
    return [p.head for p in parts(part)]
