"""Turns one scope into a class: trees, which `code/printer.py` prints."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TypeVar

from onnxgen.code import printer
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.kinds import annotation
from onnxgen.code.module_def import Assign, If, Loop, Member, ModuleDef, Statement, With
from onnxgen.code.quote import MemberRef, Ref, rewrite, tensor_of, walk
from onnxgen.common.names import UNUSED, FileText, LocalName, printable
from onnxgen.shapes.info import Info
from onnxgen.structure.clues import agree
from onnxgen.structure.copies import drop_copies
from onnxgen.structure.layout import SELF, Layout, layout
from onnxgen.structure.naming import Names
from onnxgen.structure.nesting import LINE, copied, nest
from onnxgen.structure.scopes import ClassRef, Scope
from onnxgen.structure.tree import Place, tree

Made = TypeVar("Made", bound=ast.stmt)
ALIKE = 4  # elements of a tuple's type that are written out where they are all the same


class ClassWriter:
    """Writes the class of one scope, or of several that share it; every scope has one, to lead to its members."""

    def __init__(
        self, module: ModuleDef, scope: Scope, built: dict[int, ast.expr], writers: dict[int, ClassWriter]
    ) -> None:
        self.module, self.scope, self.built, self.writers = module, scope, built, writers
        self.names: dict[str, LocalName] = {}
        self.alike: list[Mapping[str, str]] = []
        self.varies = False
        self.reach: dict[int, ast.expr] = {}
        self.layout: Layout = layout(tree(scope.path, scope.members, scope.containers), self._text)
        self.reach = self.layout.reach
        self.outside = dict(self.reach)

    def write(
        self, root: Place | None, alike: list[Mapping[str, str]], stored: list[str], varies: bool = False
    ) -> ClassTree:
        """The class.

        `root`: what it registers, if it is shared by scopes that are not equal. `alike`: for each instance its own
        names of the values; a comment stands where it is true of all. `stored`: the constructor's parameters that
        `forward` reads. `varies`: it is called with values of several shapes.
        """
        if root is not None:
            self.layout = layout(root, self._text)
            self.reach = self.layout.reach
        self.alike = alike
        self.varies = varies
        drop_copies(self.scope)
        self._lay_out()
        stored_here: list[ast.stmt] = [
            printer.assigned(ast.Attribute(SELF, name), ast.Name(name, ast.Load())) for name in stored
        ]
        made = ClassTree("", setup=stored_here + self._init(), body=self._forward(), result=self._returns())
        made.items = [self._final(value) for value in self.layout.layers]
        for argument in self.scope.inputs:
            made.inputs.append(ast.arg(self.names[argument.value], printer.annotation(argument.annotation)))
        made.stubs = [stub for stub in self.module.stubs if _calls(made.body, stub.name)]
        if not self.scope.path:
            made.ties = [(self._key(t.kept, t.kept_key), self._key(t.tied, t.tied_key)) for t in self.module.ties]
        return made

    def _lay_out(self) -> None:
        """Short chains into one line each, and the values' names; once more where with these a line is too long."""
        scope, clues = self.scope, agree(self.module, self.alike)
        body, outputs, nodes = copied(scope.body), list(scope.outputs), scope.nodes
        nest(scope, self.module)
        self.names = Names(scope, self.module.infos, clues, self.module.reserved).run()
        if any(len(line) > LINE for line in printer.lines(self._forward())):
            scope.body, scope.outputs, scope.nodes = body, outputs, nodes
            nest(scope, self.module, self.names)
            self.names = Names(scope, self.module.infos, clues, self.module.reserved).run()

    def _init(self) -> list[ast.stmt]:
        """What `__init__` registers; lines under one flag are one `if`."""
        block: list[ast.stmt] = []
        flag = ""
        for line in self.layout.lines:
            value = self._final(line.value)
            made: ast.stmt = ast.Expr(value)
            if line.target is not None:
                made = printer.assigned(self._final(line.target), value)
            if line.flag and line.flag == flag and isinstance(block[-1], ast.If):
                block[-1].body.append(made)
            else:
                block.append(ast.If(ast.Name(line.flag, ast.Load()), [made], []) if line.flag else made)
            flag = line.flag
        return block

    def _key(self, member: Member, key: str) -> ast.expr:
        return tensor_of(self.member(MemberRef(member)), key)

    def _returns(self) -> ast.expr:
        kinds = []
        if any(isinstance(output, ast.Starred) for output in self.scope.outputs):
            return printer.annotation("tuple[Tensor, ...]")
        for output in self.scope.outputs:
            facts = self.module.infos.get(output.value, Info()) if isinstance(output, Ref) else Info()
            kinds.append(annotation(facts))
        if len(kinds) == 1:
            return printer.annotation(kinds[0])
        if len(kinds) > ALIKE and len(set(kinds)) == 1:
            return printer.annotation(f"tuple[{kinds[0]}, ...]")
        return printer.annotation(f"tuple[{', '.join(kinds)}]" if kinds else "None")

    def _forward(self) -> list[ast.stmt]:
        """The body of `forward`."""
        results = [self._final(output) for output in self.scope.outputs]
        value: ast.expr | None = ast.Tuple(results, ast.Load()) if results else None
        if len(results) == 1 and not isinstance(results[0], ast.Starred):
            value = results[0]
        return [*self._block(self.scope.body), self._remarked(ast.Return(value), self.scope.nodes)]

    def _block(self, block: list[Statement]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in block:
            if isinstance(statement, Assign):
                made += self._assign(statement)
            elif isinstance(statement, If):
                then, orelse = self._block(statement.then) or [ast.Pass()], self._block(statement.orelse)
                made.append(self._remarked(ast.If(self._final(statement.test), then, orelse), statement.nodes))
            elif isinstance(statement, With):
                items = [ast.withitem(self._final(statement.context))]
                made.append(self._remarked(ast.With(items, self._block(statement.body)), statement.nodes))
            else:
                made.append(self._remarked(self._loop(statement), statement.nodes))
        return made

    def _loop(self, loop: Loop) -> ast.stmt:
        body = self._block(loop.body)
        if loop.iterable is None:
            test = self._final(loop.stop) if loop.stop is not None else ast.Constant(True)
            return ast.While(test, body or [ast.Pass()], [])
        if loop.stop is not None:
            body.insert(0, ast.If(ast.UnaryOp(ast.Not(), self._final(loop.stop)), [ast.Break()], []))
        turn = printer.target([self.names[name] for name in loop.turn] or [UNUSED], loop.form)
        return ast.For(turn, self._final(loop.iterable), body or [ast.Pass()], [])

    def _assign(self, statement: Assign) -> list[ast.stmt]:
        """A statement; none for `x = x`, which carries a value into a loop that already has its name."""
        value = self._final(statement.value)
        if not statement.targets:
            return [self._remarked(ast.Expr(value), statement.nodes)]
        names = [self.names[target] for target in statement.targets]
        if isinstance(value, ast.Name) and names == [value.id]:
            return []
        made = ast.Assign([printer.target(names, statement.form)], value)
        return [self._remarked(made, statement.nodes, self._comment(statement))]

    def _remarked(self, statement: Made, nodes: tuple[FileText, ...], dims: str = "") -> Made:
        return printer.remarked(statement, dims, nodes if self.module.annotate else ())

    def _comment(self, statement: Assign) -> str:
        """The dims of what a statement makes, where they differ from those of what it is made of."""
        if len(statement.targets) != 1 or self.varies or isinstance(statement.value, Ref):  # a name to carry on
            return ""
        target, *needed = statement.targets[0], *(n.value for n in walk(statement.value) if isinstance(n, Ref))
        texts = set()
        for own in self.alike:
            if target in own:
                texts.add(self._dims(own[target], [own.get(name, name) for name in needed]))
        return texts.pop() if len(texts) == 1 else ""

    def _dims(self, target: str, needed: list[str]) -> str:
        shape = self.module.infos.get(target, Info()).shape
        if not shape or len(shape) < 2 or shape in [self.module.infos.get(name, Info()).shape for name in needed]:
            return ""
        text = ", ".join(printable(str(d), 24) for d in shape)
        return "" if "." in text or "?" in text else f"[{text}]"

    def _text(self, tree: ast.expr) -> str:
        return ast.unparse(self._final(tree))

    def _final(self, tree: ast.expr) -> ast.expr:
        """An expression with names for values, and what leads to members."""
        made: ast.expr = rewrite(tree, self._reached)
        return made

    def _reached(self, node: ast.AST) -> ast.expr | None:
        if isinstance(node, Ref):
            return ast.Name(self.names[node.value], ast.Load())
        if isinstance(node, MemberRef):
            return self.member(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ClassRef):
            return self.built[id(node.func.scope)]
        return None

    def member(self, node: MemberRef) -> ast.expr:
        member = node.member
        if id(member) not in self.reach:
            self.reach[id(member)] = self._through_child(member, self.reach)
        return self.reach[id(member)]

    def from_outside(self, member: Member) -> ast.expr:
        """What leads from an instance to one of its members, whoever shares its class."""
        if id(member) not in self.outside:
            self.outside[id(member)] = self._through_child(member, self.outside)
        return self.outside[id(member)]

    def _through_child(self, member: Member, reach: Mapping[int, ast.expr]) -> ast.expr:
        """A member of a submodule that is a class of its own: what leads to the submodule, and from there to it."""
        for child in self.scope.members:
            made = child.build
            if (
                member.path[: len(child.path)] == child.path
                and isinstance(made, ast.Call)
                and isinstance(made.func, ClassRef)
            ):
                inner = self.writers[id(made.func.scope)].from_outside(member)
                return _from(reach[id(child)], inner)
        raise AssertionError(f"nothing leads from {self.scope.path} to {member.path}")


def _from(here: ast.expr, inner: ast.expr) -> ast.expr:
    """An expression that starts from `self`, seen from where that object is called `here`."""
    found: ast.expr = rewrite(inner, lambda n: here if isinstance(n, ast.Name) and n.id == "self" else None)
    return found


def _calls(block: list[ast.stmt], method: str) -> bool:
    """Whether statements call a method of the class."""
    calls = (node.func for statement in block for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == method and _is_self(f.value) for f in calls)


def _is_self(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Name) and tree.id == SELF.id
