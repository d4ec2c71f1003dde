"""What two branches have in common: the statements of one that stand for those of the other.

Goes in: the two blocks of an `if`. Comes out: pairs of statements. A statement is found again in the other branch by
its text and its operands: it uses the same member, computes from the same values, or makes what a pair takes in the
same place.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from onnxgen.code.module_def import Assign, If, ModuleDef, Statement, assigned, expressions, members_of, spelled, used
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf, put, quote, walk
from onnxgen.code.shown import makers, shown
from onnxgen.common.names import ModulePath
from onnxgen.shapes.dims import Sym, symbol, symbols
from onnxgen.structure.copies import rename, replace_in
from onnxgen.structure.nesting import copied
from onnxgen.structure.order import in_cycles

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
        self.results = {name: alias.get(name, name) for name in statement.targets}
        self.maker = {name: i for i, each in enumerate(self.block) for name in assigned(each)}
        self.known: dict[str, str] = {}
        self.operands = [operands(each.value) if isinstance(each, Assign) else [] for each in self.block]
        self._needs: dict[int, set[int]] = {}
        self.paired: set[int] = set()
        self.written: set[int] = set()

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
        found, pending = set[int](), {self.maker[n] for n in asked if n in self.maker and n not in self.known}
        while pending:
            index = pending.pop()
            found.add(index)
            needed = self.needs(index) - found if index not in self.paired else set[int]()
            pending |= {i for i in needed if not all(name in self.known for name in self.block[i].targets)}
        return found

    def code(self, names: Iterable[Operand], fresh: Callable[[str], str]) -> tuple[list[Statement], dict[str, str]]:
        """Return the statements that make these values of what is known, and the names that the values have there."""
        found = self.before(names)
        here = dict(self.known)
        made: list[Statement] = []
        for index in sorted(found):
            (each,) = copied([self.block[index]])
            for name in dict.fromkeys(assigned(each)) if index in self.written else ():
                here[name] = fresh(name)  # the statement stands in another `if`, too
                rename(each, name, here[name])
            replace_in(each, put(here))
            made.append(each)
        self.written |= found
        return made, here


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
        self.free: dict[str, list[int]] = {}
        for i, head in enumerate(self.heads[0]):
            if head:
                self.free.setdefault(head, []).append(i)

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
    found: dict[int, int] = {}
    last: list[tuple[Operand, Operand]] = [(one.results[name], other.results[name]) for name in one.results]
    for a, b in last:  # which grows: a value that several need comes again
        i, j = one.made_at(a), other.made_at(b)
        if i is None or j is None or j in found:
            continue
        mine, its = one.block[i], other.block[j]
        is_one = head_of(mine) == head_of(its) != "" and mine.targets.index(a) == its.targets.index(b)
        if is_one and mine.scope == its.scope == scope and not members_of(mine):
            if one.users(i) <= {*found.values()} and other.users(j) <= {*found}:
                found[j] = i
                last += zip(one.operands[i], other.operands[j])
    return found


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
