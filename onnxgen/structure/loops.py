"""`for` loops over a list of submodules that are called in the same way."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Loop, Member, ModuleDef, Path, Statement, used
from onnxgen.code.quote import MemberRef, Ref, call, quote, refs, rewrite
from onnxgen.names import identifier, singular
from onnxgen.propagate.info import Info
from onnxgen.structure.copies import replace_in
from onnxgen.structure.scopes import Scope


@dataclass
class Turn:
    """A statement that calls one item, where it stands in the body."""

    statement: Assign
    value: ast.Call

    @property
    def member(self) -> Member:
        assert isinstance(self.value.func, MemberRef)
        return self.value.func.member

    @property
    def targets(self) -> tuple[str, ...]:
        return self.statement.targets


def make_loop(
    scope: Scope, path: Path | None, turns: list[Turn], uses: Counter[str], module: ModuleDef
) -> list[Statement] | None:
    """Replace the calls of all items of the list at `path` by a loop over it, or those of one submodule (no path).

    `uses`: how often each value is used in the scope.

    Returns:
        The statements that stand for the calls. None, and nothing changed, if that can't be.
    """
    first = turns[0]
    if any(len(t.value.args) != len(first.value.args) or len(t.targets) != len(first.targets) for t in turns):
        return None
    run = _Run(scope, path, turns, uses, module)
    return run.write() if run.is_regular and run.arrange() else None


class _Run:
    """What each call of a run takes and gives: from the one before, from outside, for each its own.

    Attributes:
        carried: for each argument that comes from the call before, which of its results it is.
        own: the arguments that differ from call to call.
        kept: the results of which not only the last call's is used later.
    """

    def __init__(
        self, scope: Scope, path: Path | None, turns: list[Turn], uses: Counter[str], module: ModuleDef
    ) -> None:
        self.scope, self.path, self.turns, self.module = scope, path, turns, module
        self.made = {target for t in turns for target in t.targets}
        self.carried: dict[int, int] = {}
        self.own: list[int] = []
        self.is_regular = True
        for position in range(len(turns[0].value.args)):
            self._argument(position)
        inside = Counter(r for t in turns for r in refs(t.value))
        width = range(len(turns[0].targets))
        self.kept = [j for j in width if any(uses[t.targets[j]] > inside[t.targets[j]] for t in turns[:-1])]
        self.is_regular = self.is_regular and bool(self.carried) and self._is_told_apart()

    def _argument(self, position: int) -> None:
        arguments = [t.value.args[position] for t in self.turns]
        for j in range(len(self.turns[0].targets)):
            pairs = zip(self.turns, arguments[1:])
            if all(isinstance(a, Ref) and a.value == t.targets[j] for t, a in pairs):
                if self.made & set(refs(arguments[0])):
                    break
                self.carried[position] = j
                return
        if any(self.made & set(refs(a)) for a in arguments):
            self.is_regular = False
        elif len({ast.dump(rewrite(a, _dumped)) for a in arguments}) > 1:
            self.own.append(position)
            self.is_regular = self.is_regular and all(isinstance(a, Ref) for a in arguments)

    def _is_told_apart(self) -> bool:
        """No result is carried to two arguments with different beginnings."""
        starts: dict[int, set[str]] = {}
        for position, j in self.carried.items():
            starts.setdefault(j, set()).add(ast.dump(rewrite(self.turns[0].value.args[position], _dumped)))
        return all(len(found) == 1 for found in starts.values())

    def arrange(self) -> bool:
        """Sort the statements between the calls into those before the loop and those after it."""
        calls = {id(t.statement) for t in self.turns}
        late = set(self.made)
        at = [i for i, statement in enumerate(self.scope.body) if id(statement) in calls]
        self.before, self.after = self.scope.body[: at[0]], []
        for statement in self.scope.body[at[0] : at[-1] + 1]:
            if id(statement) in calls:
                if any(name in late and name not in self.made for name in used(statement)):
                    return False
            elif late & set(used(statement)):
                late.update(statement.targets)
                self.after.append(statement)
            else:
                self.before.append(statement)
        self.after += self.scope.body[at[-1] + 1 :]
        return True

    def write(self) -> list[Statement]:
        scope, first, last = self.scope, self.turns[0], self.turns[-1]
        arguments: list[ast.expr] = list(first.value.args)
        turn: list[str] = []
        lists: list[ast.expr] = []
        function = first.value.func
        if self.path is not None:
            container = scope.containers[self.path] = Member(self.path, quote("nn.ModuleList"), "module")
            item = identifier(singular(_unnumbered(next((p for p in reversed(self.path) if not p.isdigit()), "layer"))))
            turn.append(self._value("item", item))
            lists.append(MemberRef(container))
            function = Ref(turn[0])
        for position in self.own:
            own = [t.value.args[position] for t in self.turns]
            turn.append(self._value(f"own{position}", self._role(own[0])))
            lists.append(ast.Tuple(own, ast.Load()))
            arguments[position] = Ref(turn[-1])
        begun: list[Statement] = []
        for position, j in self.carried.items():
            arguments[position] = Ref(last.targets[j])
        for j in dict.fromkeys(self.carried.values()):
            position = next(p for p, other in self.carried.items() if other == j)
            begun.append(Assign((last.targets[j],), first.value.args[position], scope.path))
        results = [self._collected(j) for j in self.kept]
        begun += [Assign((name,), ast.List([], ast.Load()), scope.path) for name in results]
        nodes = tuple(name for t in self.turns for name in t.statement.nodes)
        body: list[Statement] = [Assign(last.targets, ast.Call(function, arguments, []), last.statement.scope, nodes)]
        for name, j in zip(results, self.kept):
            append = ast.Attribute(Ref(name), "append", ast.Load())
            body.append(Assign((), ast.Call(append, [Ref(last.targets[j])], []), scope.path))
        if not lists:
            turn.append(self._value("count", ""))
            lists.append(call("range", len(self.turns)))
        iterable = lists[0] if len(lists) == 1 else call("zip", *lists)
        around = (*(last.targets[j] for j in dict.fromkeys(self.carried.values())), *results)
        loop = Loop(tuple(turn), iterable, None, body, around, scope.path)
        if self.kept:
            self._read_lists(dict(zip(self.kept, results)))
        scope.body = [*self.before, *begun, loop, *self.after]
        return [*begun, loop]

    def _value(self, kind: str, role: str) -> str:
        value = f"{'.'.join(self.turns[0].member.path if self.path is None else self.path)}%{kind}"
        if role:
            self.module.roles[value] = role
        return value

    def _role(self, tree: ast.expr) -> str:
        """What one of several values is called: as the first one, without its number."""
        name = self.module.roles.get(tree.value, "") if isinstance(tree, Ref) else ""
        hint = self.module.hints.get(tree.value, "") if isinstance(tree, Ref) else ""
        words = [w for w in identifier(hint).split("_") if w and not w.isdigit()]
        return name or ("_".join(words) if 0 < len(words) <= 4 and all(w.isalpha() for w in words) else "")

    def _collected(self, j: int) -> str:
        """The list of one result of all calls."""
        name = self._role(Ref(self.turns[0].targets[j]))
        role = "hidden_states" if j in self.carried.values() else f"{name}s" if name else "outputs"
        value = self._value(f"list{j}", role)
        self.module.infos[value] = Info(kind="sequence")
        return value

    def _read_lists(self, results: dict[int, str]) -> None:
        """Where a result of one call was used, it is an item of its list."""
        at = {
            t.targets[j]: (name, i)
            for j, name in results.items()
            for i, t in enumerate(self.turns)
            if t is not self.turns[-1] or j not in self.carried.values()
        }
        whole = {tuple(t.targets[j] for t in self.turns): name for j, name in results.items()}

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


def _dumped(node: ast.AST) -> ast.expr | None:
    """References by name, so that `ast.dump` tells them apart."""
    if isinstance(node, Ref):
        return ast.Name(f"%{node.value}", ast.Load())
    return ast.Name(f"%{id(node.member)}", ast.Load()) if isinstance(node, MemberRef) else None


def _unnumbered(word: str) -> str:
    return word.rstrip("0123456789").rstrip("_") or word
