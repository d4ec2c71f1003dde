"""`for` loops over a list of submodules that are called in the same way."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace

from onnxgen.code.module_def import Assign, Loop, Member, ModuleDef, Statement, used
from onnxgen.code.quote import MemberRef, Ref, call, quote, refs, rewrite
from onnxgen.common.names import FileText, identifier, singular
from onnxgen.shapes.info import Info
from onnxgen.structure.copies import rename, replace_in
from onnxgen.structure.scopes import Scope
from onnxgen.structure.sublayers import work
from onnxgen.structure.turns import Items

Result = tuple[int, int]  # what a turn makes: a statement, and which of its targets


def make_loop(
    scope: Scope, items: Items, turns: list[list[Assign]], uses: Counter[str], module: ModuleDef
) -> list[Statement] | None:
    """Replace the turns (see `find_turns`) by a loop over a list of submodules, or over calls of one.

    `uses`: how often each value is used in the scope.

    Returns:
        The statements that stand for the turns. None, and nothing changed, if that can't be.
    """
    run = _Run(scope, items, turns, uses, module)
    return run.write() if run.is_regular and run.arrange() else None


class _Run:
    """What each turn of a run takes and gives: from the one before, from outside, for each its own.

    Attributes:
        made: the values that the turns make, by the turn, and what of it: the statement and which of its targets.
        reads: what each operand of each statement is: a value of the turn itself or of outside (None), one that is
            carried from the turn before, or one of those that each turn has its own of (their number).
        starts: what each carried value is before the first turn.
        own: the values of outside that differ from turn to turn.
        outside: the values that are used outside the turns.
        kept: the results of which not only the last turn's is used later.
    """

    def __init__(
        self, scope: Scope, items: Items, turns: list[list[Assign]], uses: Counter[str], module: ModuleDef
    ) -> None:
        self.scope, self.items, self.turns, self.module = scope, items, turns, module
        self.made: dict[str, tuple[int, Result]] = {}
        for i, turn in enumerate(turns):
            for s, statement in enumerate(turn):
                self.made.update({target: (i, (s, t)) for t, target in enumerate(statement.targets)})
        self.reads: list[list[Result | int | None]] = []
        self.starts: dict[Result, str] = {}
        self.own: list[tuple[str, ...]] = []
        self.is_regular = all([items.text(s) for s in turn] == [items.text(s) for s in turns[0]] for turn in turns)
        if self.is_regular:
            for statements in zip(*turns):
                columns = zip(*(refs(s.value) for s in statements))
                self.reads.append([self._operand(len(self.reads), column) for column in columns])
        self.is_regular = self.is_regular and bool(self.starts)
        inside = Counter(name for turn in turns for s in turn for name in refs(s.value))
        self.uses, self.outside = uses, {name for name in self.made if uses[name] > inside[name]}
        later = Counter(self.made[name][1] for name in self.outside if not self._ends(*self.made[name]))
        self.kept = sorted(later)
        if len(turns[0]) > 1:  # in a run of statements, what only some turns are asked for makes them special
            self.is_regular = self.is_regular and all(count >= max(2, len(turns) - 1) for count in later.values())

    def _ends(self, turn: int, result: Result) -> bool:
        """Whether a value is what the loop ends with."""
        return turn == len(self.turns) - 1 and result in self.starts

    def _operand(self, at: int, names: tuple[str, ...]) -> Result | int | None:
        """What an operand of the statements at this place is; where it is nothing regular, no loop can be."""
        found = [self.made.get(name) for name in names]
        first = found[-1]
        if first is None:
            self.is_regular = self.is_regular and not any(found)
            if len(set(names)) == 1:
                return None
            if names not in self.own:
                self.own.append(names)
            return self.own.index(names)
        last, result = len(self.turns) - 1, first[1]
        if found == [(i, result) for i in range(last + 1)]:
            self.is_regular = self.is_regular and result[0] < at
            return None
        carried = found == [None, *((i, result) for i in range(last))] and result[0] >= at
        self.is_regular = self.is_regular and carried and self.starts.setdefault(result, names[0]) == names[0]
        return result

    def arrange(self) -> bool:
        """Sort the statements between those of the turns into those before the loop and those after it."""
        mine = {id(s) for turn in self.turns for s in turn}
        late = set(self.made)
        needed = {name for turn in self.turns for s in turn for name in used(s)} - late
        at = [i for i, statement in enumerate(self.scope.body) if id(statement) in mine]
        self.before, self.after = self.scope.body[: at[0]], []
        begun = {name for statement in self.before for name in statement.targets}
        for statement in self.scope.body[at[0] : at[-1] + 1]:
            if id(statement) in mine:
                if any(name in late and name not in self.made for name in used(statement)):
                    return False
            elif late & set(used(statement)):
                late.update(statement.targets)
                self.after.append(statement)
            elif needed & begun & set(statement.targets):  # a variable, read between
                return False
            else:
                self.before.append(statement)
        self.after += self.scope.body[at[-1] + 1 :]
        return True

    def write(self) -> list[Statement]:
        scope, last = self.scope, self.turns[-1]
        lists: list[ast.expr] = []
        if self.items.path is not None:
            container = scope.containers[self.items.path] = Member(self.items.path, quote("nn.ModuleList"), "module")
            lists.append(MemberRef(container))
        parts = self._parts()
        own = [self._value(f"own{n}", self._role(Ref(names[0]))) for n, names in enumerate(self.own)]
        lists += [ast.Tuple([Ref(name) for name in names], ast.Load()) for names in self.own]
        results = [self._collected(result) for result in self.kept]
        begun: list[Statement] = [Assign((self._name(r),), Ref(start), scope.path) for r, start in self.starts.items()]
        begun += [Assign((name,), ast.List([], ast.Load()), scope.path) for name in results]
        body: list[Statement] = []
        for s in range(len(last)):
            body.append(self._statement(s, parts, own))
            for name, result in zip(results, self.kept):
                if result[0] == s:
                    append = ast.Attribute(Ref(name), "append", ast.Load())
                    body.append(Assign((), ast.Call(append, [Ref(self._name(result))], []), scope.path))
        turn, form = [*parts.values(), *own], ""
        if len(parts) > 1:
            form = ", ".join(["{}"] * len(parts))
            form = ", ".join([f"({form})", *["{}"] * len(own)]) if own else form
        if not lists:
            turn.append(self._value("count", ""))
            lists.append(call("range", len(self.turns)))
        iterable = lists[0] if len(lists) == 1 else call("zip", *lists)
        around = (*map(self._name, self.starts), *results)
        loop = Loop(tuple(turn), iterable, None, body, around, scope.path, form=form)
        self._forget_sizes()
        self._reuse(loop)
        if self.kept:
            self._read_lists(dict(zip(self.kept, results)))
        scope.body = [*self.before, *begun, loop, *self.after]
        return [*begun, loop]

    def _forget_sizes(self) -> None:
        """A value that has other dims in another turn has none that a comment could tell."""
        infos = self.module.infos
        for name, (_, (s, t)) in self.made.items():
            here = infos.get(name, Info())
            if any(infos.get(turn[s].targets[t], Info()).shape != here.shape for turn in self.turns):
                last = self._name((s, t))
                infos[last] = replace(infos.get(last, Info()), shape=None)

    def _parts(self) -> dict[int, str]:
        """The value that each part of an item is, by number; those that only stand for a gap are never used."""
        if self.items.path is None:
            return {}
        parts = self.items.parts[0]
        names = [part for part in self.items.path if not part.isdigit()]
        role = identifier(singular(_unnumbered(names[-1] if names else "layer")))
        if -1 in parts:
            return {-1: self._value("item", role)}
        works = {n: work(member, self.scope, self.module.classes) or role for n, member in parts.items()}
        return {n: self._value(f"item{n}", works.get(n, "")) for n in range(max(parts) + 1)}

    def _statement(self, s: int, parts: dict[int, str], own: list[str]) -> Assign:
        """A statement of the body: that of the last turn, with what stands there for what each turn has of its own."""
        statement, reads = self.turns[-1][s], iter(self.reads[s])

        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, MemberRef) and id(node.member) in self.items.number:
                return Ref(parts[self.items.number[id(node.member)]]) if parts else None
            if not isinstance(node, Ref):
                return None
            read = next(reads)
            if read is None:
                return None
            return Ref(own[read] if isinstance(read, int) else self._name(read))

        nodes = tuple(name for turn in self.turns for name in turn[s].nodes)
        return Assign(statement.targets, rewrite(statement.value, change), statement.scope, nodes, statement.form)

    def _name(self, result: Result) -> str:
        """What a value of the turns is called in the loop: as in the last turn."""
        return self.turns[-1][result[0]].targets[result[1]]

    def _reuse(self, loop: Loop) -> None:
        """Let what a turn makes on its way be called as what it is carried to, where that has no value meanwhile.

        x = attention(x) + x; x = feed_forward(x) + x
        """
        body, all_carried = loop.body, set(map(self._name, self.starts))
        for carried in map(self._name, self.starts):
            made = next(i for i, s in enumerate(body) if carried in s.targets)
            free = max(i for i, s in enumerate(body) if carried in used(s))
            for i, statement in enumerate(body[:made]):
                name = statement.targets[0] if len(statement.targets) == 1 else ""
                if name in all_carried:
                    continue
                users = [j for j, s in enumerate(body) if name in used(s)]
                alone = self.uses[name] == 1 and users == [i + 1] and not _calls_item(body[i + 1])
                if i >= free and users and users[-1] <= made and not alone and self._is_alike(name, carried):
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

    def _role(self, tree: ast.expr) -> str:
        """What one of several values is called: as the first one, without its number."""
        name = self.module.roles.get(tree.value, "") if isinstance(tree, Ref) else ""
        hint = self.module.hints.get(tree.value) if isinstance(tree, Ref) else None
        words = [w for w in (hint or FileText("")).identifier().split("_") if w and not w.isdigit()]
        return name or ("_".join(words) if 0 < len(words) <= 4 and all(w.isalpha() for w in words) else "")

    def _collected(self, result: Result) -> str:
        """The list of one result of all turns."""
        name = self._role(Ref(self.turns[0][result[0]].targets[result[1]]))
        role = "hidden_states" if result in self.starts else f"{name}s" if name else "outputs"
        value = self._value(f"list{result[0]}.{result[1]}", role)
        self.module.infos[value] = Info(kind="sequence")
        return value

    def _read_lists(self, results: dict[Result, str]) -> None:
        """Where a result of one turn was used, it is an item of its list."""
        at = {
            name: (results[result], i)
            for name, (i, result) in self.made.items()
            if result in results and not self._ends(i, result)
        }
        whole = {tuple(turn[s].targets[t] for turn in self.turns): name for (s, t), name in results.items()}

        def change(node: ast.AST) -> ast.expr | None:
            if isinstance(node, ast.List) and all(isinstance(e, Ref) for e in node.elts):
                name = whole.get(tuple(e.value for e in node.elts if isinstance(e, Ref)))
                return Ref(name) if name else None
            if isinstance(node, Ref) and node.value in at:
                name, i = at[node.value]
                return quote("items[i]", items=Ref(name), i=i)
            return None

        for statement in self.after:
            replace_in(statement, change)
        self.scope.outputs = _starred([rewrite(o, change) for o in self.scope.outputs], len(self.turns))


def _starred(outputs: list[ast.expr], count: int) -> list[ast.expr]:
    """`*items` for all items of a list one after another."""
    made: list[ast.expr] = []
    i = 0
    while i < len(outputs):
        texts = [_item(o) for o in outputs[i : i + count]]
        name = texts[0][0] if texts[0] is not None else None
        if name is not None and texts == [(name, n) for n in range(count)]:
            made.append(ast.Starred(Ref(name), ast.Load()))
            i += count
        else:
            made.append(outputs[i])
            i += 1
    return made


def _item(tree: ast.expr) -> tuple[str, int] | None:
    if isinstance(tree, ast.Subscript) and isinstance(tree.value, Ref) and isinstance(tree.slice, ast.Constant):
        index = tree.slice.value
        return (tree.value.value, index) if isinstance(index, int) else None
    return None


def _calls_item(statement: Statement) -> bool:
    value = statement.value if isinstance(statement, Assign) else None
    return isinstance(value, ast.Call) and isinstance(value.func, Ref)


def _unnumbered(word: str) -> str:
    return word.rstrip("0123456789").rstrip("_") or word
