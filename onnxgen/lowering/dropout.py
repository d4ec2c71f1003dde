"""`--dropout SCOPE=P`: an `nn.Dropout` after what a module computes.

Exporters drop Dropout in evaluation mode; who wants to train puts it back where the network's paper has it. It is the
identity in evaluation, and holds no tensor: nothing else of the file changes.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping

from onnxgen.code.module_def import (
    Assign,
    Member,
    ModuleDef,
    Statement,
    blocks,
    change_own,
    expressions,
    used,
)
from onnxgen.code.quote import MemberRef, Ref, call, quote, refs, rewrite, unless, walk
from onnxgen.common.names import ModulePath, module_part, printable
from onnxgen.errors import Problem, Problems

SHOWN = 8  # module paths that an error lists


def add_dropout(module: ModuleDef, dropout: Mapping[str, float]) -> None:
    """Put an `nn.Dropout` after every module that a pattern matches; of several patterns the last counts.

    Args:
        module: the flat module; its statements and members are changed in place.
        dropout: probability by pattern (see `matches`).

    Raises:
        OnnxgenError: a pattern matches no module, or one that does not return exactly one tensor; all at once.
    """
    if not dropout:
        return
    adding = _Adding(module)
    problems = Problems()
    chosen: dict[ModulePath, float] = {}
    for pattern, p in dropout.items():
        found = [path for path in adding.paths if matches(pattern, path)]
        if not found:
            problems.add(adding.unknown(pattern))
        chosen.update(dict.fromkeys(found, p))
    # inner modules before what holds them
    for path in sorted((path for path in adding.paths if path in chosen), key=lambda path: -len(path)):
        if problem := adding.add(path, chosen[path]):
            problems.add(problem)
    problems.raise_if_any()


def matches(pattern: str, path: ModulePath) -> bool:
    """Whether a module path is what a pattern says: `*` and `?` stand within one part, `**` for any number of parts.

    `encoder.layers.*.mlp` is the mlp of every layer, `**.conv1` every conv1.
    """
    return _expression(pattern).fullmatch(".".join(path)) is not None


def _expression(pattern: str) -> re.Pattern[str]:
    text = ""
    for token in re.findall(r"\*\*\.|\.\*\*|\*\*|\*|\?|[^*?.]+|\.", pattern):
        text += {"**.": r"(?:.+\.)?", ".**": r"(?:\..+)?", "**": ".*", "*": r"[^.]*", "?": r"[^.]"}.get(
            token, re.escape(token)
        )
    return re.compile(text)


class _Adding:
    """The modules of a network, and where the value that each returns is made.

    Attributes:
        paths: of every module but the root, in order of use.
    """

    def __init__(self, module: ModuleDef) -> None:
        self.module = module
        self.leaves = {m.path: m for m in module.members if m.kind == "module"}
        self.taken = {m.path[:n] for m in module.members for n in range(1, len(m.path) + 1)}
        self.numbered = {p for p in self.taken if p not in self.leaves and self._is_numbered(p)}
        tensors = {m.path for m in module.members if m.kind != "module"}
        inner = [m.path[:n] for m in module.members for n in range(1, len(m.path) + 1)]
        self.paths = [path for path in dict.fromkeys(inner) if path not in tensors]

    def _is_numbered(self, path: ModulePath) -> bool:
        """Whether all that is below a path has a number: an nn.Sequential or nn.ModuleList."""
        below = [p for p in self.taken if len(p) == len(path) + 1 and p[:-1] == path]
        return bool(below) and all(p[-1].isdigit() for p in below)

    def unknown(self, pattern: str) -> Problem:
        paths = [".".join(path) for path in self.paths]
        near = difflib.get_close_matches(pattern, paths, SHOWN, 0.5) or paths[:SHOWN]
        known = ", ".join(map(printable, near)) + (", ..." if len(paths) > len(near) else "")
        what = f"--dropout: no module is called {printable(pattern)}"
        return Problem(what, help=f"similar modules: {known}" if paths else "the network has no modules")

    def add(self, path: ModulePath, p: float) -> Problem | None:
        """Put it after one module; what is wrong, if anything."""
        return self._after_leaf(path, p) if path in self.leaves else self._after_scope(path, p)

    def _member(self, home: ModulePath, p: float) -> Member:
        name, number = "dropout", 0
        while (*home, name) in self.taken:
            number += 1
            name = f"dropout{number}"
        member = Member((*home, name), call("nn.Dropout", unless(p, 0.5)))
        self.taken.add(member.path)
        self.module.members.append(member)
        return member

    def _home(self, path: ModulePath) -> ModulePath:
        """The module that holds what stands after a module: the nearest that is no list."""
        path = path[:-1]
        while path in self.numbered:
            path = path[:-1]
        return path

    # after a layer: around its calls

    def _after_leaf(self, path: ModulePath, p: float) -> Problem | None:
        leaf = self.leaves[path]
        trees = [*(e for s in self.module.body for e in expressions(s)), *self.module.outputs]
        if not any(_is_call(n, leaf) for tree in trees for n in walk(tree)):
            return Problem(
                f"--dropout: {printable('.'.join(path))} is never called for a value", help="name another module"
            )
        following = (*path[:-1], str(int(path[-1]) + 1)) if path[-1].isdigit() else path
        if path[:-1] in self.numbered and following not in self.taken:  # the place in an nn.Sequential that it had
            member = Member(following, call("nn.Dropout", unless(p, 0.5)))
            self.taken.add(following)
            self.module.members.append(member)
        else:
            member = self._member(self._home(path), p)
        for block, statement in [(b, s) for b in _blocks(self.module.body) for s in b]:
            if isinstance(statement, Assign) and statement.targets and _is_call(statement.value, leaf):
                self._rename(block, statement, statement.targets[0], member, [])  # of a recurrent layer its sequence
            else:
                change_own(statement, lambda node: self._wrapped(node, leaf, member))
        self.module.outputs = [rewrite(o, lambda node: self._wrapped(node, leaf, member)) for o in self.module.outputs]
        return None

    def _wrapped(self, node: ast.AST, leaf: Member, member: Member) -> ast.expr | None:
        if not _is_call(node, leaf):
            return None
        assert isinstance(node, ast.Call)
        arguments = [rewrite(a, lambda inner: self._wrapped(inner, leaf, member)) for a in node.args]
        return quote("d(x)", d=MemberRef(member), x=ast.Call(node.func, arguments, node.keywords))

    # after a module with modules in it: at the end of it

    def _after_scope(self, path: ModulePath, p: float) -> Problem | None:
        body = self.module.body
        inside = [s for s in body if tuple(map(module_part, s.scope))[: len(path)] == path]
        inner = {id(s) for s in inside}
        wanted = {r for o in self.module.outputs for r in refs(o)}
        wanted.update(name for s in body if id(s) not in inner for name in used(s))
        results = [name for s in inside for name in s.targets if name in wanted]
        maker = next((s for s in inside if results[:1] == [t for t in s.targets if t == results[0]]), None)
        if len(results) != 1 or not isinstance(maker, Assign):
            return self._several(path, results)
        home = self._home(path) if path in self.numbered else path
        self._rename(body, maker, results[0], self._member(home, p), inside, home)
        return None

    def _several(self, path: ModulePath, results: list[str]) -> Problem:
        name = printable(".".join(path))
        if not results:
            return Problem(
                f"--dropout: the result of {name} is unknown: it runs inside a branch or a loop, or no other "
                "module uses its values",
                help="name a module inside it",
            )
        values = ", ".join(self.module.hint(r).printable() for r in results[:SHOWN])
        return Problem(
            f"--dropout: {name} returns {len(results)} values ({values}), but Dropout needs one",
            help="name a module inside it",
        )

    def _rename(
        self,
        block: list[Statement],
        maker: Assign,
        name: str,
        member: Member,
        inside: list[Statement],
        scope: ModulePath | None = None,
    ) -> None:
        """Let `name` be what the dropout makes of what it was; the statements `inside` still use that."""
        before = _fresh(self.module, name)

        def change(node: ast.AST) -> ast.expr | None:
            return Ref(before) if isinstance(node, Ref) and node.value == name else None

        maker.targets = tuple(before if t == name else t for t in maker.targets)
        for statement in (s for outer in inside for s in _every([outer])):
            change_own(statement, change)
        scope = member.path[:-1] if scope is None else scope
        drop = Assign((name,), quote("d(x)", d=MemberRef(member), x=Ref(before)), scope, maker.nodes)
        block.insert(next(i for i, s in enumerate(block) if s is maker) + 1, drop)


def _fresh(module: ModuleDef, name: str) -> str:
    made, number = f"{name}%dropout", 1
    while made in module.infos:
        number += 1
        made = f"{name}%dropout{number}"
    module.infos[made], module.hints[made] = module.infos[name], module.hint(name)
    if name in module.roles:
        module.roles[made] = module.roles[name]
    return made


def _blocks(body: list[Statement]) -> Iterator[list[Statement]]:
    yield body
    for statement in list(body):
        for block in blocks(statement):
            yield from _blocks(block)


def _every(body: list[Statement]) -> Iterator[Statement]:
    for block in _blocks(body):
        yield from block


def _is_call(node: ast.AST, leaf: Member) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, MemberRef) and node.func.member is leaf
