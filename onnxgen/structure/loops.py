"""`for` loops over a list of submodules that are called in the same way.

Goes in: the statements of each turn (`turns.py`). Comes out: a loop over the list, if all turns do the same: each
operand is a value of the turn itself, of the turn before, or from outside the loop.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from onnxgen.code.module_def import Assign, Loop, Member, ModuleDef, Statement, spelled, used
from onnxgen.code.quote import MemberRef, Ref, call, literal, quote, refs, rewrite
from onnxgen.common.names import FileText, identifier, singular
from onnxgen.shapes.info import Info
from onnxgen.structure.classnames import work
from onnxgen.structure.clues import is_made_up
from onnxgen.structure.literals import collected, is_plain_number
from onnxgen.structure.nesting import rename, replace_in
from onnxgen.structure.scopes import Scope
from onnxgen.structure.turns import Items

LIST = "list"  # in the value of a list that a loop fills
ITEM = "%item "  # begins the name of an item of a list that differs from turn to turn
Result = tuple[int, int]  # a value that each turn makes: the index of a statement, and of one of its targets


class Run:
    """The dataflow between the turns of a run, over a list of submodules or calls of one (`find_turns`).

    If it `is_regular` and can `arrange` the statements, `write` replaces them by a loop.

    Args:
        uses: how often each value is used in the scope.

    Attributes:
        made: for each value that a turn makes, the number of the turn and which `Result` it is.
        reads: for each operand of each statement: None for a value of the same turn, or one value from outside; a
            `Result` for the value of the turn before; an index into `own` for a value that each turn has its own of.
        starts: the value that each carried result has before the first turn.
        own: values from outside, one for each turn.
        outside: the values of turns that are used outside the turns.
        kept: the results that are used later, and not only those of the last turn.
        before, after: the statements around the loop.
        first: the value that the list of a kept result begins with, if it is one from before the loop.
        beside: how many other items are in a list that has all values of a kept result.
        left: the results that only the last turn has a use for after the loop.
        numbers: what is no value and has a name because it differs from turn to turn, by name.
        halves: the values that are half of other ones in each turn, as paddings are of kernels, with those.
    """

    beside = 0
    left: Sequence[Result] = ()
    first: Mapping[Result, tuple[str, ...]] = {}
    numbers: Mapping[str, ast.expr] = {}
    halves: Mapping[int, int] = {}

    def __init__(
        self, scope: Scope, items: Items, turns: list[list[Assign]], uses: Counter[str], module: ModuleDef
    ) -> None:
        self.scope, self.items, self.turns, self.module = scope, items, turns, module
        rows = [(i, s, row) for i, turn in enumerate(turns) for s, row in enumerate(turn)]
        self.made = {target: (i, (s, t)) for i, s, row in rows for t, target in enumerate(row.targets)}
        self.reads: list[list[Result | int | None]] = []
        self.starts: dict[Result, str] = {}
        self.own: list[tuple[str, ...]] = []
        self.is_regular = self._do_the_same()
        if self.is_regular:
            self.reads = self._read()
        inside = Counter(name for *_, row in rows for name in refs(row.value))
        self.uses, self.outside = uses, {name for name in self.made if uses[name] > inside[name]}
        places = (self.made[name] for name in self.outside)
        later = Counter(result for turn, result in places if not self._ends(turn, result))
        self.kept = sorted(later)
        self.is_regular = self.is_regular and self._is_worth(later)

    def _read(self) -> list[list[Result | int | None]]:
        """Return the entries of `reads`; finds `starts` and `own`, and perhaps that turns differ."""
        rows = (zip(*(refs(statement.value) for statement in row)) for row in zip(*self.turns))
        return [[self._operand(at, column) for column in columns] for at, columns in enumerate(rows)]

    def _do_the_same(self) -> bool:
        return self.items.are_alike(self.turns)

    def _is_worth(self, later: Counter[Result]) -> bool:
        """True if a value is carried, and a result of several statements is used of nearly all turns, or not at all.

        `later`: how many turns have a result that is used after them.
        """
        nearly_all = all(count >= max(2, len(self.turns) - 1) for count in later.values())
        return bool(self.starts) and (nearly_all or len(self.turns[0]) == 1)

    def _ends(self, turn: int, result: Result) -> bool:
        """True for a value of the last turn that is read after the loop by the variable that it left."""
        return turn == len(self.turns) - 1 and (result in self.starts or result in self.left)

    def _operand(self, at: int, names: tuple[str, ...]) -> Result | int | None:
        """Return the entry of `reads` for an operand of the statements at this index. May find that turns differ."""
        makers = [self.made.get(name) for name in names]
        first = makers[-1]
        if first is None:
            self.is_regular = self.is_regular and not any(makers)
            if len(set(names)) == 1:
                return None
            if names not in self.own:
                self.own.append(names)
            return self.own.index(names)
        last, result = len(self.turns) - 1, first[1]
        if makers == [(i, result) for i in range(last + 1)]:
            self.is_regular = self.is_regular and result[0] < at
            return None
        carried = makers == [None, *((i, result) for i in range(last))] and result[0] >= at
        self.is_regular = self.is_regular and carried and self.starts.setdefault(result, names[0]) == names[0]
        return result

    def arrange(self) -> bool:
        """Move the statements between those of the turns before or after the loop; False if one cannot be moved."""
        mine = {id(s) for turn in self.turns for s in turn}
        late = set(self.made)
        needed = {name for turn in self.turns for s in turn for name in self._used(s)} - late
        at = [i for i, statement in enumerate(self.scope.body) if id(statement) in mine]
        self.before, self.after = self.scope.body[: at[0]], []
        begun = needed.intersection(name for statement in self.before for name in statement.targets)
        for statement in self.scope.body[at[0] : at[-1] + 1]:
            if id(statement) in mine:
                if not (late - self.made.keys()).isdisjoint(self._used(statement)):
                    return False
            elif not late.isdisjoint(used(statement)):
                late.update(statement.targets)
                self.after.append(statement)
            elif not begun.isdisjoint(statement.targets):  # a variable that is assigned again in between
                return False
            else:
                self.before.append(statement)
        self.after += self.scope.body[at[-1] + 1 :]
        return True

    def _used(self, statement: Statement) -> list[str]:
        """Return the values that a statement of a turn needs."""
        items = (listed(self.numbers[name]) for name in used(statement) if name in self.numbers)
        return [*used(statement), *(item[0] for item in items if item is not None)]

    def write(self) -> list[Statement]:
        """Replace the turns. Returns the statements of the loop, and those that begin its variables."""
        scope = self.scope
        lists: list[ast.expr] = []
        if self.items.path is not None:
            container = scope.containers[self.items.path] = Member(self.items.path, quote("nn.ModuleList"), "module")
            lists.append(MemberRef(container))
        parts = self._parts()
        own = [self._value(f"own{n}", self._role_of_all(names)) for n, names in enumerate(self.own)]
        modules_first = sorted(range(len(own)), key=lambda n: not self.own[n][0].startswith(ITEM))
        order = [n for n in modules_first if n not in self.halves]
        lists += [self._column(self.own[n]) for n in order]
        self.first = {result: self._first(result) for result in self.kept}
        filled = {result: self._collected(result) for result in self.kept}
        begun: list[Statement] = [
            Assign((self._name(r),), self._before(start), scope.path) for r, start in self.starts.items()
        ]
        for result, name in filled.items():
            first = ast.List([Ref(self._name(result)) for _ in self.first[result]], ast.Load())
            begun.append(Assign((name,), first, scope.path))
        turn = [*parts.values(), *(own[n] for n in order)]
        if not lists:
            turn.append(self._value("count", ""))
            lists.append(call("range", len(self.turns)))
        iterable = lists[0] if len(lists) == 1 else call("zip", *lists)
        around = (*map(self._name, self.starts), *filled.values(), *map(self._name, self.left))
        body = self._body(parts, own, filled)
        loop = Loop(tuple(turn), iterable, None, body, around, scope.path, form=_form(len(parts), len(own)))
        self._forget_sizes()
        self._reuse(loop)
        if self.kept:
            self._read_lists(filled)
        scope.body = [*self.before, *begun, loop, *self.after]
        return [*begun, loop]

    def _body(self, parts: dict[int, str], own: list[str], filled: Mapping[Result, str]) -> list[Statement]:
        """Return the statements of one turn, each with those that append its results to lists."""
        body: list[Statement] = []
        for s in range(len(self.turns[-1])):
            body.append(self._statement(s, parts, own))
            for result, name in filled.items():
                if result[0] == s:
                    append = ast.Attribute(Ref(name), "append", ast.Load())
                    body.append(Assign((), ast.Call(append, [Ref(self._name(result))], []), self.scope.path))
        return body

    def _role_of_all(self, names: tuple[str, ...]) -> str:
        return self._role(next((name for name in names if name in self.numbers), names[0]))

    def _column(self, names: tuple[str, ...]) -> ast.expr:
        return ast.Tuple([self._before(name) for name in names], ast.Load())

    def _before(self, name: str) -> ast.expr:
        return self.numbers.get(name) or Ref(name)

    def _forget_sizes(self) -> None:
        """Forget the dims of values that have other dims in another turn, so that no comment shows them."""
        infos = self.module.infos
        for statements in zip(*self.turns):
            for names in zip(*(statement.targets for statement in statements)):
                if any(infos.get(n, Info()).shape != infos.get(names[0], Info()).shape for n in names):
                    infos[names[-1]] = replace(infos.get(names[-1], Info()), shape=None)

    def _parts(self) -> dict[int, str]:
        """Return the loop variable for each part of an item, by number."""
        if self.items.path is None:
            return {}
        parts = self.items.parts[0]
        names = [part for part in self.items.path if not part.isdigit()]
        word = names[-1] if names else "layer"
        role = identifier(singular(word.rstrip("0123456789").rstrip("_") or word))
        if -1 in parts:
            return {-1: self._value("item", role)}
        works = {n: work(member, self.scope, self.module.classes) or role for n, member in parts.items()}
        return {n: self._value(f"item{n}", works.get(n, "")) for n in range(max(parts) + 1)}

    def _statement(self, s: int, parts: dict[int, str], own: list[str]) -> Assign:
        """Return a statement of the loop's body: that of the last turn, with loop variables and carried values."""
        statement, reads = self.turns[-1][s], iter(self.reads[s])

        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, MemberRef) and id(node.member) in self.items.number:
                return Ref(parts[self.items.number[id(node.member)]]) if parts else None
            if not isinstance(node, Ref):
                return None
            read = next(reads)
            if read is None:
                return None
            if isinstance(read, int) and read in self.halves:
                return quote("n // 2", n=Ref(own[self.halves[read]]))
            return Ref(own[read] if isinstance(read, int) else self._name(read))

        nodes = tuple(name for turn in self.turns for name in turn[s].nodes)
        return Assign(statement.targets, rewrite(statement.value, change), statement.scope, nodes, statement.form)

    def _name(self, result: Result) -> str:
        """Return the value that a result is in the loop: that of the last turn."""
        return self.turns[-1][result[0]].targets[result[1]]

    def _reuse(self, loop: Loop) -> None:
        """Give an intermediate value the variable of a carried one, while that is not needed.

        x = attention(x) + x; x = feed_forward(x) + x
        """
        body, all_carried = loop.body, set(map(self._name, self.starts))
        for carried in map(self._name, self.starts):
            assigned_at = next(i for i, s in enumerate(body) if carried in s.targets)
            free = _users(body, carried)[-1]
            for i, statement in enumerate(body[:assigned_at]):
                name = statement.targets[0] if len(statement.targets) == 1 else ""
                users = [] if name in all_carried else _users(body, name)
                if i < free or not users or users[-1] > assigned_at or not self._is_alike(name, carried):
                    continue
                if self.uses[name] != 1 or users != [i + 1] or _calls_item(body[i + 1]):
                    for s in body[i : users[-1] + 1]:
                        rename(s, name, carried)
                    free = users[-1]

    def _is_alike(self, name: str, other: str) -> bool:
        infos, roles = self.module.infos, self.module.roles
        mine, its = infos.get(name, Info()), infos.get(other, Info())
        inside = name not in self.outside and roles.get(name, "x") in ("x", roles.get(other, "x"))
        return inside and (mine.dtype, mine.shape, mine.kind) == (its.dtype, its.shape, its.kind)

    def _value(self, kind: str, role: str) -> str:
        path = next(iter(self.items.parts[0].values())).path if self.items.path is None else self.items.path
        value = f"{'.'.join(path)}%{kind}"
        if role:
            self.module.roles[value] = role
        return value

    def _role(self, value: str) -> str:
        """Return the role of a value, or its name in the file without numbers."""
        hint = self.module.hints.get(value) or FileText("")
        words = [w for w in hint.identifier().split("_") if w and not w.isdigit()]
        is_plain = 0 < len(words) <= 4 and all(map(str.isalpha, words)) and not is_made_up(hint)
        own = "_".join(words) if is_plain else ""
        return self.module.roles.get(value, "") or own

    def _collected(self, result: Result) -> str:
        """Return the value of the list that collects a result of all turns."""
        name = self._role(self.turns[0][result[0]].targets[result[1]])
        rank = self.module.infos.get(self._name(result), Info()).rank or 0
        carried = "features" if rank > 3 else "hidden_states" if rank == 3 else "states"
        role = carried if result in self.starts else f"{name}s" if name else "outputs"
        value = self._value(f"{LIST}{result[0]}.{result[1]}", role)
        self.module.infos[value] = Info(kind="sequence")
        names = self._collects(result)
        self.module.lengths[value] = len(names)
        self.module.items.update({name: (value, i) for i, name in enumerate(names) if i in (0, len(names) - 1)})
        return value

    def _names(self, result: Result) -> tuple[str, ...]:
        return tuple(turn[result[0]].targets[result[1]] for turn in self.turns)

    def _collects(self, result: Result) -> tuple[str, ...]:
        """Return the values in the list that collects a result."""
        return (*self.first[result], *self._names(result))

    def _first(self, result: Result) -> tuple[str, ...]:
        """Return the value before the first turn, if the list that collects a result begins with it, else ().

        It does if that value is used after the loop as one of the others is.
        """
        start = self.starts.get(result)
        if start is None:
            return ()
        names = self._names(result)[:-1]
        near = {*names, start, *refs(self._before(start))}
        users = [
            (i, s) for i, s in enumerate(self.after) if isinstance(s, Assign) and not near.isdisjoint(refs(s.value))
        ]
        ways = [(name, (text_of(s, i), at)) for i, s in users for at, name in enumerate(taken(s.value))]
        others = {way for name, way in ways if name in names}
        return (start,) if any(name == start and way in others for name, way in ways) else ()

    def _read_lists(self, results: dict[Result, str]) -> None:
        """Read results of single turns from the lists that collect them."""
        at = {
            name: (results[result], i + len(self.first[result]))
            for name, (i, result) in self.made.items()
            if result in results and not self._ends(i, result)
        }
        whole = {self._collects(result): name for result, name in results.items()}

        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, ast.List):
                shorter = with_whole(node, whole, change)
                self.beside += len(shorter.elts) - 1 if isinstance(shorter, ast.List) else 0
                return shorter
            if isinstance(node, Ref) and node.value in at:
                name, i = at[node.value]
                return quote("items[i]", items=Ref(name), i=i)
            return None

        for statement in self.after:
            for column in columns_of(statement):
                before = _arguments(statement)
                replace_in(statement, partial(_read_column, column=column, whole=whole))
                back = next((len(before) - i for i, tree in enumerate(before) if tree is column), 0)
                if isinstance(statement, Loop) and _arguments(statement)[-back] is not column:
                    self.module.roles.pop(statement.turn[-back], None)  # it is an item of that list
            replace_in(statement, change)
        self.scope.outputs = _starred([rewrite(o, change) for o in self.scope.outputs], len(self.turns))


def _form(parts: int, own: int) -> str:
    """Return how a loop unpacks each turn, `(a, b), c`; "" for values side by side."""
    if parts < 2:
        return ""
    form = ", ".join(["{}"] * parts)
    return ", ".join([f"({form})", *["{}"] * own]) if own else form


def text_of(statement: Statement, index: int) -> str:
    """Return what a statement does, without its operands, and with `%=` before each number.

    Statements with blocks, and those without a result, have texts of their own.
    """
    if not isinstance(statement, Assign) or not statement.targets:
        return f"alone {index} {id(statement)}"
    return spelled(statement, _token)


def _token(node: ast.AST) -> str | None:
    if is_operand(node) or listed(node):
        return "%"
    if isinstance(node, MemberRef):
        return f"%item {'.'.join(node.member.path[:-1])}" if is_item(node.member) else f"%{id(node.member)}"
    return f"%={ast.unparse(node)};" if is_plain_number(node) else None


def is_item(member: Member) -> bool:
    """True for a numbered module: the turns of a loop may each have an item of a list."""
    return member.kind == "module" and len(member.path) > 1 and member.path[-1].isdigit()


def is_operand(node: ast.AST) -> bool:
    """True for a value, and for a tensor of the module, which the first turn may have where others have a value."""
    return isinstance(node, Ref) or (isinstance(node, MemberRef) and node.member.kind in ("parameter", "buffer"))


def _read_column(node: ast.AST, column: ast.Tuple, whole: Mapping[tuple[str, ...], str]) -> ast.expr | None:
    """Return the part of a list that has the values of a column, if one has, in the place of the column."""
    if node is column:
        for names, name in whole.items():
            at = [names.index(value) for value in names_in(column) if value in names]
            if len(at) == len(column.elts) and is_row(at):
                return part_of(Ref(name), at, len(names))
    return None


def taken(tree: ast.expr) -> list[str]:
    """Return the values that an expression uses, those that it reads from lists included, in order."""
    nodes = collected(tree, lambda node: isinstance(node, Ref) or listed(node) is not None)
    return [node.value if isinstance(node, Ref) else listed_name(listed(node) or ("", 0)) for node in nodes]


def names_in(tree: ast.List | ast.Tuple) -> tuple[str, ...]:
    """Return the values of a list in the text; "" for an item that is something else."""
    return tuple(next(iter(taken(e)), "") if isinstance(e, Ref) or listed(e) else "" for e in tree.elts)


def is_row(numbers: list[int]) -> bool:
    """True for integers that follow each other, upwards or downwards."""
    steps = {b - a for a, b in pairwise(numbers)}
    return len(steps) < 2 and steps <= {1, -1}


def part_of(whole: ast.expr, numbers: list[int], length: int) -> ast.expr:
    """Return the items of a list with these numbers, which are a row."""
    start, end = min(numbers), max(numbers) + 1
    ends = (literal(start) if start else None, literal(end if end < length - 1 else -1) if end < length else None)
    part = ast.Subscript(whole, ast.Slice(*ends), ast.Load()) if len(numbers) < length else whole
    return part if numbers[0] == start else call("reversed", part)


def columns_of(statement: Statement) -> list[ast.Tuple]:
    """Return the values that a loop goes over, where the text has them one by one."""
    return [column for column in _arguments(statement) if isinstance(column, ast.Tuple)]


def _arguments(statement: Statement) -> list[ast.expr | None]:
    """Return what a loop goes over: the arguments of `zip`, or one list."""
    tree = statement.iterable if isinstance(statement, Loop) else None
    return [*tree.args] if isinstance(tree, ast.Call) else [tree]


def with_whole(
    tree: ast.List, whole: Mapping[tuple[str, ...], str], change: Callable[[ast.AST], ast.expr | None]
) -> ast.expr | None:
    """Return a list that has all the values of another one in a row, with `*other`, or just the other; None if not.

    Args:
        whole: the other lists, by their values.
        change: what happens to the rest.
    """
    items = tuple(e.value if isinstance(e, Ref) else "" for e in tree.elts)
    for names, other in whole.items():
        at = position(names, items)
        if at is not None:
            star = ast.Starred(Ref(other), ast.Load())
            elements = [star if i == at else rewrite(e, change) for i, e in enumerate(tree.elts)]
            del elements[at + 1 : at + len(names)]
            return ast.List(elements, ast.Load()) if len(elements) > 1 else Ref(other)
    return None


def position(names: tuple[str, ...], items: tuple[str, ...]) -> int | None:
    """Return where values are among items, all in a row, or None."""
    if names[0] not in items:
        return None
    at = items.index(names[0])
    return at if items[at : at + len(names)] == names else None


def _starred(outputs: list[ast.expr], count: int) -> list[ast.expr]:
    """Replace all items of a list in a row by `*items`."""
    starred: list[ast.expr] = []
    i = 0
    while i < len(outputs):
        texts = [_item(o) for o in outputs[i : i + count]]
        name = texts[0][0] if texts[0] is not None else None
        if name is not None and texts == [(name, n) for n in range(count)]:
            starred.append(ast.Starred(Ref(name), ast.Load()))
            i += count
        else:
            starred.append(outputs[i])
            i += 1
    return starred


def listed(tree: ast.AST) -> tuple[str, int] | None:
    """Return the list and the index of an expression that reads what a loop has collected; None for others."""
    item = _item(tree)
    return item if item is not None and f"%{LIST}" in item[0] else None


def listed_name(item: tuple[str, int]) -> str:
    """Return the name of a value that is read from a list."""
    return f"%listed {item[0]} {item[1]}"


def _item(tree: ast.AST) -> tuple[str, int] | None:
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, Ref) and isinstance(tree.slice, ast.Constant):
        index = tree.slice.value
        return (tree.value.value, index) if isinstance(index, int) else None
    return None


def _users(body: list[Statement], name: str) -> list[int]:
    return [i for i, statement in enumerate(body) if name in used(statement)]


def _calls_item(statement: Statement) -> bool:
    value = statement.value if isinstance(statement, Assign) else None
    return isinstance(value, ast.Call) and isinstance(value.func, Ref)
