"""Turns one scope into the lines of a class."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxgen.code.kinds import annotation
from onnxgen.code.module_def import Assign, If, Loop, Member, ModuleDef, Statement, With
from onnxgen.code.quote import MemberRef, Ref, rewrite, walk
from onnxgen.names import printable
from onnxgen.propagate.info import Info
from onnxgen.structure.annotations import annotated
from onnxgen.structure.clues import agree
from onnxgen.structure.copies import drop_copies
from onnxgen.structure.layout import Layout, layout
from onnxgen.structure.naming import Names
from onnxgen.structure.nesting import LINE, copied, nest
from onnxgen.structure.parameters import Parameter
from onnxgen.structure.scopes import ClassRef, Scope
from onnxgen.structure.tree import Place, tree

INDENT = "    "
COMMENT_COLUMN = 88  # a shape comment that would pass it is left out


@dataclass
class ClassSource:
    """One class, ready for the template.

    Attributes:
        name: its final name.
        paths: the module paths of its instances ("" is the root).
        init, forward: lines of code, indented relative to the method's body.
        arguments: of `forward`, each `name: annotation`.
        returns: the annotation of what `forward` returns.
        ties: of the root, pairs of attributes that are to be one parameter.
        parameters: of the constructor.
        layers: what the class consists of if it is an `nn.Sequential` itself.
        stubs: lines of each method that is left open.
    """

    name: str
    paths: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    returns: str = "Tensor"
    ties: list[tuple[str, str]] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    stubs: list[list[str]] = field(default_factory=list)

    @property
    def base(self) -> str:
        return "nn.Sequential" if self.layers else "nn.Module"

    @property
    def doc(self) -> str:
        if not self.paths or self.paths == [""]:
            return ""
        if len(self.paths) == 1:
            return f"{self.paths[0]}."
        return f"{self.paths[0]} to {self.paths[-1]} ({len(self.paths)} uses)."


class ClassWriter:
    """Writes the class of one scope, or of several that share it; every scope has one, to lead to its members."""

    def __init__(
        self, module: ModuleDef, scope: Scope, built: dict[int, ast.expr], writers: dict[int, ClassWriter]
    ) -> None:
        self.module, self.scope, self.built, self.writers = module, scope, built, writers
        self.names: dict[str, str] = {}
        self.alike: list[Mapping[str, str]] = []
        self.varies = False
        self.reach: dict[int, ast.expr] = {}
        self.layout: Layout = layout(tree(scope.path, scope.members, scope.containers), self._text)
        self.reach = self.layout.reach
        self.outside = dict(self.reach)

    def write(
        self, root: Place | None, alike: list[Mapping[str, str]], stored: list[str], varies: bool = False
    ) -> ClassSource:
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
        made = ClassSource("")
        made.layers = [self._text(value) for value in self.layout.layers]
        made.init = [f"self.{name} = {name}" for name in stored] + self._init()
        for argument in self.scope.inputs:
            made.arguments.append(f"{self.names[argument.value]}: {argument.annotation}")
        made.forward = self._block(self.scope.body, 0)
        results = [self._text(o) for o in self.scope.outputs]
        made.forward += self._annotated("return " + ", ".join(results), self.scope.nodes)
        made.stubs = [s.lines for s in self.module.stubs if any(f"self.{s.name}(" in line for line in made.forward)]
        made.returns = self._returns()
        if not self.scope.path:
            made.ties = [(self._key(t.kept, t.kept_key), self._key(t.tied, t.tied_key)) for t in self.module.ties]
        return made

    def _lay_out(self) -> None:
        """Short chains into one line each, and the values' names; once more where with these a line is too long."""
        scope, clues = self.scope, agree(self.module, self.alike)
        body, outputs, nodes = copied(scope.body), list(scope.outputs), scope.nodes
        nest(scope, self.module)
        self.names = Names(scope, self.module.infos, clues, self.module.reserved).run()
        lines = [*self._block(scope.body, 0), "return " + ", ".join(self._text(o) for o in scope.outputs)]
        if any(len(line) > LINE for line in lines):
            scope.body, scope.outputs, scope.nodes = body, outputs, nodes
            nest(scope, self.module, self.names)
            self.names = Names(scope, self.module.infos, clues, self.module.reserved).run()

    def _init(self) -> list[str]:
        lines: list[str] = []
        flag = ""
        for line in self.layout.lines:
            text = self._text(line.value)
            if line.target is not None:
                text = f"{self._text(line.target)} = {text}"
            if line.flag and line.flag != flag:
                lines.append(f"if {line.flag}:")
            flag = line.flag
            lines.append(INDENT + text if flag else text)
        return lines

    def _key(self, member: Member, key: str) -> str:
        reached = self.member(MemberRef(member))
        return ast.unparse(ast.Attribute(reached, key, ast.Load()) if key else reached)

    def _returns(self) -> str:
        kinds = []
        if any(isinstance(output, ast.Starred) for output in self.scope.outputs):
            return "tuple[Tensor, ...]"
        for output in self.scope.outputs:
            facts = self.module.infos.get(output.value, Info()) if isinstance(output, Ref) else Info()
            kinds.append(annotation(facts))
        if len(kinds) == 1:
            return kinds[0]
        return f"tuple[{', '.join(kinds)}]" if kinds else "None"

    def _block(self, block: list[Statement], level: int) -> list[str]:
        lines: list[str] = []
        for statement in block:
            if isinstance(statement, Assign):
                line = self._assign(statement, level)
                if not _says_nothing(line):
                    lines += self._annotated(INDENT * level + line, statement.nodes)
            elif isinstance(statement, If):
                lines += self._annotated(f"{INDENT * level}if {self._text(statement.test)}:", statement.nodes)
                lines.extend(self._block(statement.then, level + 1) or [INDENT * (level + 1) + "pass"])
                orelse = self._block(statement.orelse, level + 1)
                if orelse:
                    lines += [f"{INDENT * level}else:", *orelse]
            elif isinstance(statement, With):
                lines += self._annotated(f"{INDENT * level}with {self._text(statement.context)}:", statement.nodes)
                lines.extend(self._block(statement.body, level + 1))
            else:
                lines.extend(self._loop(statement, level))
        return lines

    def _loop(self, loop: Loop, level: int) -> list[str]:
        inner = INDENT * (level + 1)
        if loop.iterable is not None:
            names = [self.names[name] for name in loop.turn]
            target = loop.form.format(*names) if loop.form else ", ".join(names) or "_"
            head = f"for {target} in {self._text(loop.iterable)}:"
        else:
            head = f"while {self._text(loop.stop) if loop.stop is not None else 'True'}:"
        lines = self._annotated(INDENT * level + head, loop.nodes)
        if loop.iterable is not None and loop.stop is not None:
            lines += [f"{inner}if {self._text(ast.UnaryOp(ast.Not(), loop.stop))}:", f"{inner}{INDENT}break"]
        return lines + (self._block(loop.body, level + 1) or [inner + "pass"])

    def _assign(self, statement: Assign, level: int) -> str:
        if not statement.targets:
            return self._text(statement.value)
        names = [self.names[t] for t in statement.targets]
        targets = statement.form.format(*names) if statement.form else ", ".join(names)
        line = f"{targets} = {self._text(statement.value)}"
        comment = self._comment(statement)
        room = COMMENT_COLUMN - 8 - 4 * level
        return f"{line}  # {comment}" if comment and len(line) + len(comment) + 4 <= room else line

    def _annotated(self, line: str, nodes: tuple[str, ...]) -> list[str]:
        return annotated(line, nodes) if self.module.annotate else [line]

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

    def _text(self, tree: ast.AST) -> str:
        return ast.unparse(rewrite(tree, self._final))

    def _final(self, node: ast.AST) -> ast.expr | None:
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


def _says_nothing(line: str) -> bool:
    """`x = x`, which carries a value into a loop that already has its name."""
    target, _, value = line.partition(" = ")
    return target == value
