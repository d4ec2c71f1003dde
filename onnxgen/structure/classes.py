"""Writes each scope's class as text, and lets scopes with equal bodies share one class."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from onnxgen.code.copied import helper_names
from onnxgen.code.module_def import Assign, If, Loop, Member, ModuleDef, Statement, blocks
from onnxgen.code.quote import MemberRef, Ref, SizeOf, rewrite, walk
from onnxgen.errors import OnnxgenError
from onnxgen.names import RESERVED, Namer, class_name, printable
from onnxgen.propagate.info import Info
from onnxgen.structure.clues import Clues, agree
from onnxgen.structure.copies import drop_copies
from onnxgen.structure.layout import layout
from onnxgen.structure.naming import Names
from onnxgen.structure.nesting import nest
from onnxgen.structure.parameters import Parameter, cut, merge
from onnxgen.structure.runs import collect_runs
from onnxgen.structure.scopes import ClassRef, Scope
from onnxgen.structure.sizes import resolve_sizes
from onnxgen.structure.unpacked import unpack_shapes

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
    """

    name: str
    paths: list[str] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    returns: str = "Tensor"
    ties: list[tuple[str, str]] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)

    @property
    def doc(self) -> str:
        if not self.paths or self.paths == [""]:
            return ""
        if len(self.paths) == 1:
            return f"{self.paths[0]}."
        return f"{self.paths[0]} to {self.paths[-1]} ({len(self.paths)} uses)."


def write_classes(module: ModuleDef, root: Scope, scopes: list[Scope]) -> list[ClassSource]:
    """Every class once, children before the classes that use them."""
    callers = _callers(scopes)
    order = _bottom_up(scopes)
    for scope in order:
        missing = resolve_sizes(scope, module.infos)
        if missing and scope is root:
            names = ", ".join(printable(str(size.dim)) for size in missing if isinstance(size, SizeOf))
            raise OnnxgenError(f"no tensor has the dims {names} that the graph computes with")
        if missing:
            call = callers[id(scope)].value
            assert isinstance(call, ast.Call)
            call.args.extend(missing)
    for scope in order:
        unpack_shapes(scope, module)
        collect_runs(scope, module.roles)
        drop_copies(scope)
        nest(scope, module)
    classes = Classes(module, root, agree(module, order))
    for level in _levels(order):
        classes.add(level)
    return classes.made


class Classes:
    """The classes of a file, made level by level: those that use no others first."""

    def __init__(self, module: ModuleDef, root: Scope, clues: dict[int, Clues]) -> None:
        self.module, self.root, self.clues = module, root, clues
        self.namer = Namer(RESERVED | helper_names() | {module.name})
        self.made: list[ClassSource] = []
        self.built: dict[int, ast.expr] = {}  # by scope: the expression that makes its instance
        self.writers: dict[int, _ClassWriter] = {}

    def add(self, level: list[Scope]) -> None:
        """Write the classes of one level: equal ones once, and those that differ in numbers with parameters."""
        alike: dict[tuple[object, ...], list[tuple[ClassSource, list[Scope]]]] = {}
        for scope, source in self._distinct(level):
            body = cut(source.init, [_code(line) for line in source.forward])
            role = (_role(self.module, scope[0]), body.skeleton, tuple(source.arguments), source.returns)
            alike.setdefault(role, []).append((source, scope))
        children = {c.name: tuple(p.name for p in c.parameters) for c in self.made}
        for group in alike.values():
            merged = None
            if len(group) > 1:
                forwards = [[_code(line) for line in source.forward] for source, _ in group]
                merged = merge([source.init for source, _ in group], forwards, children)
            if merged is None:
                for source, scopes in group:
                    self._finish(source, [(scope, []) for scope in scopes])
                continue
            first = group[0][0]
            first.init, first.forward, first.parameters = merged.init, merged.forward, merged.parameters
            first.paths = [path for source, _ in group for path in source.paths]
            instances = [(s, given) for (_, scopes), given in zip(group, merged.arguments) for s in scopes]
            self._finish(first, instances)

    def _distinct(self, level: list[Scope]) -> list[tuple[list[Scope], ClassSource]]:
        """The scopes with one text together; shape comments in which they differ are left out."""
        found: dict[str, tuple[list[Scope], ClassSource]] = {}
        for scope in level:
            writer = self.writers[id(scope)] = _ClassWriter(self.module, scope, self.built, self.writers)
            source = writer.write(self.clues[id(scope)])
            key = "\n".join([*source.init, "--", *source.arguments, *(_code(line) for line in source.forward)])
            if scope is self.root or key not in found:
                found[key if scope is not self.root else ""] = ([scope], source)
                continue
            scopes, first = found[key]
            scopes.append(scope)
            first.paths.extend(source.paths)
            pairs = zip(first.forward, source.forward)
            first.forward = [a if a == b else _code(a) for a, b in pairs]
        return list(found.values())

    def _finish(self, source: ClassSource, instances: list[tuple[Scope, list[str]]]) -> None:
        """Name a class, and say how each of its instances is made."""
        scope = instances[0][0]
        is_root = scope is self.root
        source.name = self.module.name if is_root else _free_name(self.namer, _class_names(self.module, scope))
        self.made.append(source)
        for instance, given in instances:
            self.built[id(instance)] = ast.parse(f"{source.name}({', '.join(given)})", mode="eval").body


def _role(module: ModuleDef, scope: Scope) -> object:
    """What two scopes must have in common to share a class with parameters."""
    recorded = module.classes.get(scope.path)
    return recorded or tuple(re.sub(r"\d+", "", part) for part in scope.path)


def _levels(order: list[Scope]) -> list[list[Scope]]:
    """The scopes by how deep classes are nested in them, those without any first."""
    height: dict[int, int] = {}
    levels: dict[int, list[Scope]] = {}
    for scope in order:
        inner = [n.scope for m in scope.members for n in walk(m.build) if isinstance(n, ClassRef)]
        height[id(scope)] = max((height[id(child)] + 1 for child in inner), default=0)
        levels.setdefault(height[id(scope)], []).append(scope)
    return [levels[n] for n in sorted(levels)]


def _says_nothing(line: str) -> bool:
    """`x = x`, which carries a value into a loop that already has its name."""
    target, _, value = line.partition(" = ")
    return target == value


def _code(line: str) -> str:
    return line.split("  # ")[0]


def _callers(scopes: list[Scope]) -> dict[int, Assign]:
    """The statement that calls each child scope."""
    found: dict[int, Assign] = {}
    pending = [statement for scope in scopes for statement in scope.body]
    while pending:
        statement = pending.pop()
        pending.extend(inner for block in blocks(statement) for inner in block)
        if isinstance(statement, Assign) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            if isinstance(function, MemberRef) and isinstance(function.member.build, ast.Call):
                if isinstance(function.member.build.func, ClassRef):
                    found[id(function.member.build.func.scope)] = statement
    return found


def _bottom_up(scopes: list[Scope]) -> list[Scope]:
    """Children before parents; among siblings, the order of the calls."""
    children: dict[int, list[Scope]] = {id(s): [] for s in scopes}
    called: set[int] = set()
    for scope in scopes:
        for member in scope.members:
            if isinstance(member.build, ast.Call) and isinstance(member.build.func, ClassRef):
                children[id(scope)].append(member.build.func.scope)
                called.add(id(member.build.func.scope))
    order: list[Scope] = []
    stack = [(scopes[0], False)]
    while stack:
        scope, done = stack.pop()
        if done:
            order.append(scope)
            continue
        stack.append((scope, True))
        stack.extend((child, False) for child in reversed(children[id(scope)]))
    return order


def _class_names(module: ModuleDef, scope: Scope) -> list[str]:
    """Names for a class, best first: the one that was recorded, its role, its role with that of what it is part of."""
    recorded = module.classes.get(scope.path, "")
    words = [p for p in scope.path if not p.isdigit()] or ["block"]
    role = words[-1]
    if scope.path[-1].isdigit() and role.endswith("s") and not role.endswith("ss"):
        role = role[:-1]
    role = role.rstrip("0123456789") or role
    names = [class_name(recorded)] if recorded else []
    within = class_name("_".join([*words[-2:-1], role]))
    return [*names, within] if role in RESERVED else [*names, class_name(role), within]


def _free_name(namer: Namer, wanted: list[str]) -> str:
    for name in wanted:
        if name not in namer:
            return namer.take(name)
    return namer.take(wanted[-1]).replace("_", "")


class _ClassWriter:
    """Turns one scope into lines."""

    def __init__(
        self, module: ModuleDef, scope: Scope, built: dict[int, ast.expr], writers: dict[int, _ClassWriter]
    ) -> None:
        self.module, self.scope, self.built, self.writers = module, scope, built, writers
        self.names: dict[str, str] = {}
        self.reach: dict[int, ast.expr] = {}
        self.layout = layout(scope.path, scope.members, scope.containers, self._text)
        self.reach = self.layout.reach

    def write(self, clues: Clues) -> ClassSource:
        self.names = Names(self.scope, self.module.infos, clues).run()
        made = ClassSource("", [".".join(self.scope.path)])
        for target, value in self.layout.lines:
            text = self._text(value)
            made.init.append(f"{self._text(target)} = {text}" if target is not None else text)
        for argument in self.scope.inputs:
            made.arguments.append(f"{self.names[argument.value]}: {argument.annotation}")
        made.forward = self._block(self.scope.body, 0)
        results = [self._text(o) for o in self.scope.outputs]
        made.forward.append("return " + ", ".join(results))
        made.returns = self._returns()
        if not self.scope.path:
            made.ties = [(self._key(t.kept, t.kept_key), self._key(t.tied, t.tied_key)) for t in self.module.ties]
        return made

    def _key(self, member: Member, key: str) -> str:
        reached = self._member(MemberRef(member))
        return ast.unparse(ast.Attribute(reached, key, ast.Load()) if key else reached)

    def _returns(self) -> str:
        kinds = []
        for output in self.scope.outputs:
            facts = self.module.infos.get(output.value, Info()) if isinstance(output, Ref) else Info()
            kinds.append({"sequence": "list[Tensor]", "optional": "Tensor | None"}.get(facts.kind, "Tensor"))
        if len(kinds) == 1:
            return kinds[0]
        return f"tuple[{', '.join(kinds)}]" if kinds else "None"

    def _block(self, block: list[Statement], level: int) -> list[str]:
        lines: list[str] = []
        for statement in block:
            if isinstance(statement, Assign):
                line = self._assign(statement, level)
                if not _says_nothing(line):
                    lines.append(INDENT * level + line)
            elif isinstance(statement, If):
                lines.append(f"{INDENT * level}if {self._text(statement.test)}:")
                lines.extend(self._block(statement.then, level + 1) or [INDENT * (level + 1) + "pass"])
                if statement.orelse:
                    lines.append(f"{INDENT * level}else:")
                    lines.extend(self._block(statement.orelse, level + 1))
            else:
                lines.extend(self._loop(statement, level))
        return lines

    def _loop(self, loop: Loop, level: int) -> list[str]:
        inner = INDENT * (level + 1)
        if loop.iterable is not None:
            target = ", ".join(self.names[name] for name in loop.turn) or "_"
            head = f"for {target} in {self._text(loop.iterable)}:"
        else:
            head = f"while {self._text(loop.stop) if loop.stop is not None else 'True'}:"
        lines = [INDENT * level + head]
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

    def _comment(self, statement: Assign) -> str:
        """The dims of what a statement makes, where they differ from those of what it is made of."""
        if len(statement.targets) != 1:
            return ""
        shape = self.module.infos.get(statement.targets[0], Info()).shape
        before = [self.module.infos.get(n.value, Info()).shape for n in walk(statement.value) if isinstance(n, Ref)]
        if not shape or len(shape) < 2 or shape in before:
            return ""
        text = ", ".join(printable(str(d), 24) for d in shape)
        return "" if "." in text or "?" in text else f"[{text}]"

    def _text(self, tree: ast.AST) -> str:
        return ast.unparse(rewrite(tree, self._final))

    def _final(self, node: ast.AST) -> ast.expr | None:
        if isinstance(node, Ref):
            return ast.Name(self.names[node.value], ast.Load())
        if isinstance(node, MemberRef):
            return self._member(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ClassRef):
            return self.built[id(node.func.scope)]
        return None

    def _member(self, node: MemberRef) -> ast.expr:
        member = node.member
        if id(member) not in self.reach:
            self.reach[id(member)] = self._through_child(member)
        return self.reach[id(member)]

    def _through_child(self, member: Member) -> ast.expr:
        """A member of a submodule that is a class of its own: what leads to the submodule, and from there to it."""
        for child in self.scope.members:
            made = child.build
            if (
                member.path[: len(child.path)] == child.path
                and isinstance(made, ast.Call)
                and isinstance(made.func, ClassRef)
            ):
                inner = self.writers[id(made.func.scope)]._member(MemberRef(member))
                here = self._member(MemberRef(child))
                return _from(here, inner)
        raise AssertionError(f"nothing leads from {self.scope.path} to {member.path}")


def _from(here: ast.expr, inner: ast.expr) -> ast.expr:
    """An expression that starts from `self`, seen from where that object is called `here`."""
    found: ast.expr = rewrite(inner, lambda n: here if isinstance(n, ast.Name) and n.id == "self" else None)
    return found
