"""Two branches that are one network: what both compute is computed once.

Goes in: the flat body, with the `If` of a merged decoder, whose branches are one network with and without a cache.
Comes out: the body in which a statement that both branches have stands once. Where its operands differ, a small `if`
before it chooses. It belongs to the module that its statements come from, so it is split into classes like the rest. Of
branches that are two networks, such as those for two sample rates, the end that both have stands behind the `if`.

`Pairs` finds the statements of one branch that stand for those of the other. A statement is found again by its text and
its operands: it uses the same member, computes from the same values, or makes what a pair takes in the same place.

That a choice of operands is right is not argued here: the caller proves each joined body (`holds`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import replace

from onnxgen.code.module_def import (
    Assign,
    If,
    ModuleDef,
    Statement,
    assigned,
    expressions,
    makers,
    members_of,
    shown,
    spelled,
    used,
)
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, put, quote, rewrite, walk
from onnxgen.common.names import ModulePath, common_scope
from onnxgen.shapes.dims import Sym, symbol, symbols
from onnxgen.shapes.info import Info
from onnxgen.structure.nesting import copied, rename, replace_in
from onnxgen.structure.order import grouped, in_cycles, topological

SHORTEST = 2  # statements of an end that is worth a choice of what it computes from
Holds = Callable[[ModuleDef, ModuleDef, str], bool]


def join_branches(module: ModuleDef, holds: Holds) -> None:
    """Join the branches of each `if` of the body that are mostly one network.

    `holds`: says if two modules compute the same, whether the value that is the condition is true or false.
    """
    for statement in list(module.body):
        if not isinstance(statement, If) or not isinstance(statement.test, Ref):
            continue
        new = replace(module, infos=dict(module.infos), roles=dict(module.roles), hints=dict(module.hints))
        new.results = dict(module.results)
        joined = _Joined(new, statement).run()
        at = next(i for i, each in enumerate(module.body) if each is statement)
        if joined is not None:
            new.body = [*module.body[:at], *joined, *module.body[at + 1 :]]
            _drop_copies(new, at + len(joined))
            if holds(module, new, statement.test.value):
                module.body, module.outputs = new.body, new.outputs
                module.infos, module.roles, module.hints = new.infos, new.roles, new.hints
                module.results = new.results


def _drop_copies(module: ModuleDef, end: int) -> None:
    """Return values themselves, not the copies before statement number `end` that nothing else uses."""
    later = module.body[end:]
    shows = shown(module.inputs, module.body, module.infos)
    needed = {name for s in later for name in (*used(s), *makers(expressions(s), shows))}
    needed |= makers(module.outputs, shows)
    while end and isinstance(copy := module.body[end - 1], Assign) and isinstance(copy.value, Ref):
        if len(copy.targets) != 1 or copy.targets[0] in needed:
            break
        own, value = copy.targets[0], copy.value
        if own in module.results:
            module.results[value.value] = module.hints[value.value] = module.results[own]
        module.outputs = [rewrite(output, put({own: value})) for output in module.outputs]
        end -= 1
        del module.body[end]


class _Joined:
    """Joins the branches of one `if`.

    Attributes:
        pairs: the statement of the first branch that stands for each statement of the second, by their numbers.
        chosen: the values that an `if` chose, by the two values that it chose from.
        asked: all pairs of values that the joined body uses as one, with the module that uses them.
        only: the module that makes every choice, if only the end is joined.
        body: the joined statements.
    """

    def __init__(self, module: ModuleDef, statement: If) -> None:
        self.module, self.statement = module, statement
        self.one, self.other = (Branch(b, statement, module) for b in (statement.then, statement.orelse))
        self.pairs: dict[int, int] = {}
        self.chosen: dict[tuple[Operand, Operand], str] = {}
        self.asked: dict[tuple[Operand, Operand], ModulePath] = {}
        self.only: ModulePath | None = None
        self.body: list[Statement] = []

    def run(self) -> list[Statement] | None:
        """Return the statements that replace the `if`; None if the branches have too little in common."""
        self.pairs = Pairs(self.one, self.other, self.module).found()
        if not self.pairs or 2 * len(self.pairs) < min(len(self.one.block), len(self.other.block)):
            self.pairs = ending(self.one, self.other, self.statement.scope)
            if len(self.pairs) < SHORTEST:
                return None
            self.only = self.statement.scope
        partner = {i: j for j, i in self.pairs.items()}
        self.one.paired, self.other.paired = set(partner), set(self.pairs)
        results: list[tuple[Operand, Operand]] = [
            (self.one.results[name], self.other.results[name]) for name in self.statement.targets
        ]
        for i, j in partner.items():
            for pair in zip(self.one.operands[i], self.other.operands[j]):
                self.asked.setdefault(pair, self.one.block[i].scope)
        for pair in results:
            self.asked.setdefault(pair, self.statement.scope)
        for i in topological(edges(self.one, self.other, self.pairs)):
            if i in partner and not self._join(i, partner[i]):
                return None
        names = self._choices(results, self.statement.scope)
        if names is None:
            return None
        for target, name in zip(self.statement.targets, names):
            if target != name:
                self.body.append(Assign((target,), tree_of(name), self.statement.scope))
        return self.body

    def _join(self, i: int, j: int) -> bool:
        """Write a statement that both branches have. Returns False if their values can't be one value."""
        mine, its = self.one.block[i], self.other.block[j]
        assert isinstance(mine, Assign) and isinstance(its, Assign)
        names = self._choices(list(zip(self.one.operands[i], self.other.operands[j])), mine.scope)
        if names is None or not all(map(self._note, mine.targets, mine.targets, its.targets)):
            return False
        values = iter(names)
        value = rewrite(mine.value, lambda n: tree_of(next(values)) if isinstance(n, (Ref, SizeOf)) else None)
        nodes = tuple(dict.fromkeys((*mine.nodes, *its.nodes)))
        self.body.append(replace(mine, value=value, nodes=nodes))
        self.one.known.update(zip(mine.targets, mine.targets))
        self.other.known.update(zip(its.targets, mine.targets))
        return True

    def _choices(self, asked: list[tuple[Operand, Operand]], scope: ModulePath) -> list[Operand] | None:
        """Return the value that is the first of each pair in one branch and the second in the other.

        `scope`: the module that needs them. Values that do not exist yet are chosen by an `if` in the module that makes
        them.
        """
        for pair in dict.fromkeys(asked):
            if self._value(pair) is None:
                where = self._home(pair, scope)
                together = [p for p, user in self.asked.items() if self._home(p, user) == where and self._is_ready(p)]
                names = {p: name for p in (pair, *together) if (name := self._named(p)) is not None}
                if pair not in names:
                    return None
                self._choose(names, where)
        return [value for pair in asked if (value := self._value(pair)) is not None]

    def _home(self, pair: tuple[Operand, Operand], user: ModulePath) -> ModulePath:
        """Return the module that makes a pair of values, or else the one that uses it."""
        if self.only is not None:
            return self.only
        where = common_scope([*self.one.scope(pair[0]), *self.other.scope(pair[1])])
        return user if where is None else where

    def _is_ready(self, pair: tuple[Operand, Operand]) -> bool:
        """Return True if a pair is not there yet, and takes nothing of joined statements that are still to come."""
        late = self.one.before([pair[0]]) & self.one.paired or self.other.before([pair[1]]) & self.other.paired
        return self._value(pair) is None and not late

    def _named(self, pair: tuple[Operand, Operand]) -> str | None:
        """Return the name of the value that is this pair; None if nothing can be both."""
        a, b = pair
        if isinstance(a, str) and isinstance(b, str):
            name = a if a == b else self._fresh(a)
            return name if self._note(name, a, b) else None
        if self.one.sizes(a) or self.other.sizes(b):
            return None
        name = self._fresh("size")
        self.module.roles[name] = "size"
        return name

    def _value(self, pair: tuple[Operand, Operand]) -> Operand | None:
        """Return the value in the joined body that is this pair of values; None if there is none yet."""
        a, b = pair
        if isinstance(a, str) and isinstance(b, str) and (a in self.one.maker or b in self.other.maker):
            if a not in self.one.known and b not in self.other.known:
                return self.chosen.get(pair)
            a, b = self.one.known.get(a, a), self.other.known.get(b, b)
        return a if a == b else self.chosen.get(pair)

    def _choose(self, names: dict[tuple[Operand, Operand], str], scope: ModulePath) -> None:
        """Write the `if` that chooses some values."""
        then = self._side(self.one, {name: pair[0] for pair, name in names.items()}, scope)
        orelse = self._side(self.other, {name: pair[1] for pair, name in names.items()}, scope)
        self.body.append(If(self.statement.test, then, orelse, tuple(names.values()), scope, self.statement.nodes))
        self.chosen.update(names)

    def _side(self, branch: Branch, values: dict[str, Operand], scope: ModulePath) -> list[Statement]:
        """Return one block of an `if`, which assigns these values of the branch to the names."""
        code, here = branch.code(values.values(), self._fresh)
        for name, value in values.items():
            own = here.get(value, value) if isinstance(value, str) else value
            code += [Assign((name,), tree_of(own), scope)] if own != name else []
        for name, value in values.items():
            if isinstance(value, str) and value in branch.maker:
                branch.known.setdefault(value, name)
        return code

    def _note(self, name: str, one: str, other: str) -> bool:
        """Note what is known of a value that is `one` or `other`. Returns False if they differ in kind or type."""
        infos, roles = self.module.infos, self.module.roles
        a, b = infos[one], infos[other]
        if (a.kind, a.dtype, a.key) != (b.kind, b.dtype, b.key):
            return False
        if one != other:
            infos[name] = Info(a.dtype, a.shape if a.shape == b.shape else None, None, a.kind, a.key)
        if role := roles.get(one) or roles.get(other):
            roles.setdefault(name, role)
        return True

    def _fresh(self, like: str) -> str:
        name, n = like, 1
        while name in self.module.infos:
            n += 1
            name = f"{like}%{n}"
        self.module.infos[name] = self.module.infos.get(like, Info(kind="int"))
        self.module.hints[name] = self.module.hint(like)
        return name


Operand = str | Sym  # a value, or a size


class Branch:
    """One branch.

    Attributes:
        block: its statements, without copies.
        results: the values that it hands on, in its own names.
        operands: those of each statement.
        maker: the statement that makes each of its values, by number.
        paired: the statements that the other branch has, too.
        known: the values that already exist in the joined body, by their names here.
        written: the statements that already stand in some `if` of the joined body.
    """

    def __init__(self, block: list[Statement], statement: If, module: ModuleDef) -> None:
        self.shown = shown(module.inputs, [*(s for s in module.body if s is not statement), *block], module.infos)
        self.infos, self.own = module.infos, {name for each in block for name in assigned(each)}
        self.block = list[Statement]()
        alias = self._without_copies(block)
        self.results = {name: alias.get(name, name) for name in statement.targets}
        self.maker = {name: i for i, each in enumerate(self.block) for name in assigned(each)}
        self.known: dict[str, str] = {}
        self.operands = [operands(each.value) if isinstance(each, Assign) else [] for each in self.block]
        self._needs: dict[int, set[int]] = {}
        self.paired: set[int] = set()
        self.written: set[int] = set()

    def _without_copies(self, block: list[Statement]) -> dict[str, str]:
        """Fill `block`; return the values that are copies of others, with these."""
        alias: dict[str, str] = {}
        first: dict[object, str] = {}  # what each text computed first: passes copy the views that they move
        for each in copied(block):
            replace_in(each, self._read)
            replace_in(each, put(alias))
            if isinstance(each, Assign) and len(each.targets) == 1:
                (target,), text = each.targets, (head_of(each), *operands(each.value))
                before = each.value.value if isinstance(each.value, Ref) else first.setdefault(text, target)
                if before != target and not members_of(each):
                    alias[target] = before
                    continue
            self.block.append(each)
        return alias

    def _read(self, tree: ast.AST) -> ast.expr | None:
        """Return `x.shape[i]` for a size that only values of this branch show, since it has no name outside."""
        name = next(iter(symbols(tree.dim)), "") if isinstance(tree, SizeOf) else ""
        value = self.shown.get(name, "")
        if not isinstance(tree, SizeOf) or value not in self.own or tree.dim != symbol(name):
            return None
        axis = (self.infos[value].shape or ()).index(tree.dim)
        return quote("x.shape[i]", x=Ref(value), i=axis)

    def needs(self, index: int) -> set[int]:
        """Return the statements that make what a statement needs: its operands, and values that show its sizes."""
        if index not in self._needs:
            each = self.block[index]
            names = (*used(each), *makers(expressions(each), self.shown))
            self._needs[index] = {self.maker[name] for name in names if name in self.maker} - {index}
        return self._needs[index]

    def made_at(self, value: Operand) -> int | None:
        """Return the number of the statement that makes a value here."""
        return self.maker.get(value) if isinstance(value, str) else None

    def users(self, index: int) -> set[int]:
        """Return the statements that need what a statement makes."""
        return {i for i in range(len(self.block)) if index in self.needs(i)}

    def sizes(self, dim: Operand) -> set[str]:
        """Return the values of this branch alone that show a size."""
        return set() if isinstance(dim, str) else makers([SizeOf(dim)], self.shown) & self.maker.keys()

    def scope(self, name: Operand) -> list[ModulePath]:
        """Return the scope of the statement that makes a value in this branch alone, as a list of one or none."""
        own = name in self.maker and name not in self.known
        return [self.block[self.maker[name]].scope] if isinstance(name, str) and own else []

    def before(self, names: Iterable[Operand]) -> set[int]:
        """Return the statements that make these values of what is known, or of joined statements still to come."""
        asked = {n for name in names for n in ({name} if isinstance(name, str) else self.sizes(name))}
        reached, pending = set[int](), {self.maker[n] for n in asked if n in self.maker and n not in self.known}
        while pending:
            index = pending.pop()
            reached.add(index)
            needed = self.needs(index) - reached if index not in self.paired else set[int]()
            pending |= {i for i in needed if not all(name in self.known for name in self.block[i].targets)}
        return reached

    def code(self, names: Iterable[Operand], fresh: Callable[[str], str]) -> tuple[list[Statement], dict[str, str]]:
        """Return the statements that make these values of what is known, and the names that the values have there."""
        indices = self.before(names)
        here = dict(self.known)
        statements: list[Statement] = []
        for index in sorted(indices):
            (each,) = copied([self.block[index]])
            for name in dict.fromkeys(assigned(each)) if index in self.written else ():
                here[name] = fresh(name)  # the statement stands in another `if`, too
                rename(each, name, here[name])
            replace_in(each, put(here))
            statements.append(each)
        self.written |= indices
        return statements, here


class Pairs:
    """Finds the statements that two branches have in common.

    Attributes:
        same: the value of the first branch that stands for each of the second.
        heads: the text of each statement without its operands; "" for one that is no assignment.
    """

    def __init__(self, one: Branch, other: Branch, module: ModuleDef) -> None:
        self.one, self.other, self.module = one, other, module
        self.pairs: dict[int, int] = {}
        self.same: dict[str, str] = {}
        self.heads = [[head_of(each) for each in branch.block] for branch in (one, other)]
        self.free = grouped((head, i) for i, head in enumerate(self.heads[0]) if head)

    def found(self) -> dict[int, int]:
        """Return, for statements of the second branch, those of the first."""
        for head, mine in list(self.free.items()):
            its = [j for j, other in enumerate(self.heads[1]) if other == head]
            if len(its) == len(mine) and members_of(self.one.block[mine[0]]):
                for i, j in zip(list(mine), its):
                    self._add(i, j)
        while self._more(whole=True) or self._more(whole=False) or self._before():
            pass
        while bad := self._out_of_order():
            self.pairs = {j: i for j, i in self.pairs.items() if i not in bad}
        return self.pairs

    def _more(self, whole: bool) -> bool:
        """Pair statements that compute from the same values; if not `whole`, from at least one that is the same."""
        before = len(self.pairs)
        for j, head in enumerate(self.heads[1]):
            for i in self.free.get(head, ()) if j not in self.pairs else ():
                mine, its = self.one.operands[i], self.other.operands[j]
                agree = [a == self._seen(b) for a, b in zip(mine, its)]
                if all(agree) or (not whole and any(agree)):
                    self._add(i, j)
                    break
        return len(self.pairs) > before

    def _before(self) -> bool:
        """Pair statements of one text whose values paired statements take in the same place."""
        before = len(self.pairs)
        taken: list[tuple[Operand, Operand]] = [
            (self.one.results[name], self.other.results[name]) for name in self.one.results
        ]
        for j, i in list(self.pairs.items()):
            taken += zip(self.one.operands[i], self.other.operands[j])
        for a, b in taken:
            if isinstance(a, str) and isinstance(b, str) and a in self.one.maker and b in self.other.maker:
                i, j = self.one.maker[a], self.other.maker[b]
                if j not in self.pairs and i in self.free.get(self.heads[1][j], ()):
                    self._add(i, j)
        return len(self.pairs) > before

    def _seen(self, name: Operand) -> Operand | None:
        return self.same.get(name) if isinstance(name, str) and name in self.other.maker else name

    def _add(self, i: int, j: int) -> None:
        self.pairs[j] = i
        self.free[self.heads[0][i]].remove(i)
        self.same.update(zip(self.other.block[j].targets, self.one.block[i].targets))

    def _out_of_order(self) -> set[int]:
        """Return the pairs that can't stand: each branch needs another order, or a size is only known in a branch."""
        cycles = {i for cycle in in_cycles(edges(self.one, self.other, self.pairs)) for i in cycle}
        inside = {i for i in cycles if i in self.pairs.values()}
        weak = {i for i in inside if not members_of(self.one.block[i])}
        alone = {i for j, i in self.pairs.items() if self._sizes(self.one, i, self.pairs.values())}
        alone |= {i for j, i in self.pairs.items() if self._sizes(self.other, j, self.pairs)}
        return alone | (weak or inside)

    def _sizes(self, branch: Branch, index: int, joined: Iterable[int]) -> bool:
        """Return True if a statement has a size that only a value of its own branch shows."""
        names = makers(expressions(branch.block[index]), branch.shown)
        return any(name in branch.maker and branch.maker[name] not in joined for name in names)


def ending(one: Branch, other: Branch, scope: ModulePath) -> dict[int, int]:
    """Return, for the statements of the second branch with which both end, those of the first.

    They are of one module, `scope`, have no members, and nothing but one another and the results needs what they make.
    """
    pairs: dict[int, int] = {}
    last: list[tuple[Operand, Operand]] = [(one.results[name], other.results[name]) for name in one.results]
    for a, b in last:  # which grows: a value that several need comes again
        i, j = one.made_at(a), other.made_at(b)
        if i is None or j is None or j in pairs:
            continue
        mine, its = one.block[i], other.block[j]
        is_one = head_of(mine) == head_of(its) != "" and mine.targets.index(a) == its.targets.index(b)
        if is_one and mine.scope == its.scope == scope and not members_of(mine):
            if one.users(i) <= {*pairs.values()} and other.users(j) <= {*pairs}:
                pairs[j] = i
                last += zip(one.operands[i], other.operands[j])
    return pairs


def edges(one: Branch, other: Branch, pairs: dict[int, int]) -> list[list[int]]:
    """Return what must come before each statement: first those of one branch, then those of the other.

    A statement of the other branch that has a partner is that one; its own number is left free.
    """
    count = len(one.block)
    before = [{*one.needs(i)} for i in range(count)] + [set[int]() for _ in other.block]
    for j in range(len(other.block)):
        before[pairs.get(j, count + j)] |= {pairs.get(k, count + k) for k in other.needs(j)}
    return [sorted(needed - {i}) for i, needed in enumerate(before)]


def head_of(statement: Statement) -> str:
    if not isinstance(statement, Assign) or not statement.targets:
        return ""
    return spelled(statement, _token)


def _token(tree: ast.AST) -> str | None:
    if isinstance(tree, MemberRef):
        return f"member {id(tree.member)}"
    return type(tree).__name__ if isinstance(tree, (Ref, SizeOf, DeviceOf)) else None


def operands(tree: ast.AST) -> list[Operand]:
    """Return the values and sizes in an expression, in order."""
    return [n.value if isinstance(n, Ref) else n.dim for n in walk(tree) if isinstance(n, (Ref, SizeOf))]


def tree_of(operand: Operand) -> ast.expr:
    return Ref(operand) if isinstance(operand, str) else SizeOf(operand)
