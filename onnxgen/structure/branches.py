"""Two branches that are one network: what both compute is computed once, and only the rest depends on the condition.

Goes in: the flat body, with the `If` of a merged decoder, whose branches are one network with and without a cache.
Comes out: the body in which a statement that both branches have stands once. Where its operands differ, a small `if`
before it chooses. It belongs to the module that its statements come from, so it is split into classes like the rest.
Of branches that are two networks, such as those for two sample rates, the end that both have stands behind the `if`.

That a choice of operands is right is not argued here: the caller proves each joined body (`holds`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxgen.code.module_def import Assign, If, ModuleDef, Statement, expressions, used
from onnxgen.code.quote import Ref, SizeOf, put, rewrite
from onnxgen.code.shown import makers, shown
from onnxgen.common.names import ModulePath, common_scope
from onnxgen.shapes.info import Info
from onnxgen.structure.order import topological
from onnxgen.structure.paired import Branch, Operand, Pairs, edges, ending, tree_of

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
        given = iter(names)
        value = rewrite(mine.value, lambda n: tree_of(next(given)) if isinstance(n, (Ref, SizeOf)) else None)
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
