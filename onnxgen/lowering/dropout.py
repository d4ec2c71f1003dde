"""`--dropout SCOPE=P`: adds an `nn.Dropout` after the result of a module.

Exporters drop Dropout in evaluation mode. To train, a user puts it back where the network had it. It is the identity in
evaluation and has no tensors, so nothing else of the generated file changes.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count

from onnxgen.code.module_def import Assign, Member, ModuleDef, Statement, blocks, change_own, expressions, used
from onnxgen.code.quote import Change, MemberRef, Ref, call, put, quote, refs, rewrite, unless, walk
from onnxgen.common.names import MAX_LISTED_PATHS, ModulePath, matches, module_part, printable
from onnxgen.errors import Problems

_INSIDE = "name a module inside it"


def add_dropout(module: ModuleDef, dropout: Mapping[str, float]) -> None:
    """Add an `nn.Dropout` after every module that a pattern matches. If several patterns match, the last counts.

    Args:
        module: the flat module; its statements and members are changed in place.
        dropout: probability by pattern (see `matches`).

    Raises:
        OnnxgenError: a pattern matches no module, or one that does not return exactly one tensor. It reports all.
    """
    if not dropout:
        return
    adding = _Adding(module)
    chosen: dict[ModulePath, float] = {}
    for pattern, p in dropout.items():
        paths = [path for path in adding.paths if matches(pattern, path)]
        if not paths:
            adding.refuse_unknown(pattern)
        chosen.update(dict.fromkeys(paths, p))
    for path in sorted((path for path in adding.paths if path in chosen), key=len, reverse=True):  # inner modules first
        if path in adding.leaves:
            adding.after_leaf(path, chosen[path])
        else:
            adding.after_scope(path, chosen[path])
    adding.problems.raise_if_any()


class _Adding:
    """Adds layers to a network.

    Attributes:
        leaves: the layers that are members, by path.
        taken: all paths, those of tensors included.
        lists: the paths of `nn.Sequential`s and `nn.ModuleList`s, whose children are numbered.
        paths: of every module but the root, in order of use.
    """

    def __init__(self, module: ModuleDef) -> None:
        self.module, self.problems = module, Problems()
        self.leaves = {m.path: m for m in module.members if m.kind == "module"}
        self.taken = dict.fromkeys(m.path[: n + 1] for m in module.members for n in range(len(m.path)))
        tensors = {m.path for m in module.members if m.kind != "module"}
        self.paths = [path for path in self.taken if path not in tensors]
        named = {path[:-1] for path in self.taken if not path[-1].isdigit()}
        self.lists = {path[:-1] for path in self.taken if len(path) > 1} - named - self.leaves.keys()

    def refuse_unknown(self, pattern: str) -> None:
        paths = [".".join(path) for path in self.paths]
        near = difflib.get_close_matches(pattern, paths, MAX_LISTED_PATHS, 0.5) or paths[:MAX_LISTED_PATHS]
        known = ", ".join(map(printable, near)) + (", ..." if len(paths) > len(near) else "")
        what = f"--dropout: no module is called {printable(pattern)}"
        self.problems.add(what, help=f"similar modules: {known}" if paths else "the network has no modules")

    def _register(self, path: ModulePath, p: float) -> Member:
        member = Member(path, call("nn.Dropout", unless(p, 0.5)))
        self.taken[path] = None
        self.module.members.append(member)
        return member

    def _register_in(self, holder: ModulePath, p: float) -> Member:
        """Register a layer in the nearest module that is not a list."""
        while holder in self.lists:
            holder = holder[:-1]
        return self._register((*holder, _unused("dropout", lambda name: (*holder, name) in self.taken)), p)

    def after_leaf(self, path: ModulePath, p: float) -> None:
        """Add a layer around all calls of a layer."""
        leaf = self.leaves[path]
        trees = [*(e for s in self.module.body for e in expressions(s)), *self.module.outputs]
        if not any(_is_call(n, leaf) for tree in trees for n in walk(tree)):
            what = f"--dropout: {printable('.'.join(path))} is never called for a value"
            self.problems.add(what, help="name another module")
            return
        drop = self._register_behind(path, p)
        wrapped = _wrapping(leaf, drop)
        for block, statement in [(b, s) for b in _blocks(self.module.body) for s in b]:
            if isinstance(statement, Assign) and statement.targets and _is_call(statement.value, leaf):
                # a recurrent layer returns several values, the first is the sequence
                self._insert(block, statement, statement.targets[0], drop, [])
            else:
                change_own(statement, wrapped)
        self.module.outputs = [rewrite(o, wrapped) for o in self.module.outputs]

    def _register_behind(self, path: ModulePath, p: float) -> Member:
        """Register a layer behind another, in the original nn.Sequential if its place there is free."""
        following = (*path[:-1], str(int(path[-1]) + 1)) if path[-1].isdigit() else path
        if path[:-1] in self.lists and following not in self.taken:
            return self._register(following, p)
        return self._register_in(path[:-1], p)

    def after_scope(self, path: ModulePath, p: float) -> None:
        """Add a layer after the statements of a module that has modules."""
        body, name = self.module.body, printable(".".join(path))
        inside = [s for s in body if tuple(map(module_part, s.scope))[: len(path)] == path]
        wanted = self._wanted_outside(inside)
        results = [(s, value) for s in inside for value in s.targets if value in wanted]
        if len(results) == 1 and isinstance(maker := results[0][0], Assign):
            self._insert(body, maker, results[0][1], self._register_in(path, p), inside)
        elif results:
            values = ", ".join(self.module.hint(value).printable() for _, value in results[:MAX_LISTED_PATHS])
            what = f"returns {len(results)} values ({values}), but Dropout needs one"
            self.problems.add(f"--dropout: {name} {what}", help=_INSIDE)
        else:
            what = "it runs inside a branch or a loop, or no other module uses its values"
            self.problems.add(f"--dropout: the result of {name} is unknown: {what}", help=_INSIDE)

    def _wanted_outside(self, inside: list[Statement]) -> set[str]:
        inner = {id(s) for s in inside}
        wanted = {r for o in self.module.outputs for r in refs(o)}
        return wanted.union(name for s in self.module.body if id(s) not in inner for name in used(s))

    def _insert(
        self, block: list[Statement], maker: Assign, name: str, member: Member, inside: list[Statement]
    ) -> None:
        """Apply a layer to the value `name` after its statement. The statements `inside` use the value before it."""
        module, before = self.module, _unused(f"{name}%dropout", lambda name: name in self.module.infos)
        module.infos[before], module.hints[before] = module.infos[name], module.hint(name)
        if name in module.roles:
            module.roles[before] = module.roles[name]
        maker.targets = tuple(before if t == name else t for t in maker.targets)
        for statement in [s for inner in _blocks(inside) for s in inner]:
            change_own(statement, put({name: before}))
        drop = Assign((name,), quote("d(x)", d=MemberRef(member), x=Ref(before)), member.path[:-1], maker.nodes)
        block.insert(next(i for i, s in enumerate(block) if s is maker) + 1, drop)


def _wrapping(leaf: Member, drop: Member) -> Change:
    """Return what puts a layer around the calls of another."""

    def wrapped(node: ast.AST) -> ast.expr | None:
        if isinstance(node, ast.Subscript) and _is_call(node.value, leaf):  # attention returns several values
            part = ast.Subscript(called(node.value), node.slice, node.ctx)
            is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
            return quote("d(x)", d=MemberRef(drop), x=part) if is_first else part
        return quote("d(x)", d=MemberRef(drop), x=called(node)) if _is_call(node, leaf) else None

    def called(node: ast.AST) -> ast.expr:
        assert isinstance(node, ast.Call)
        return ast.Call(node.func, [rewrite(a, wrapped) for a in node.args], node.keywords)

    return wrapped


def _unused(name: str, is_taken: Callable[[str], bool]) -> str:
    """Return `name`, or `name` with the first number that makes it free."""
    names = chain([name], (f"{name}{n}" for n in count(1)))
    return next(one for one in names if not is_taken(one))


def _blocks(body: list[Statement]) -> Iterator[list[Statement]]:
    yield body
    for statement in list(body):
        for block in blocks(statement):
            yield from _blocks(block)


def _is_call(node: ast.AST, leaf: Member) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, MemberRef) and node.func.member is leaf
