"""One scope as a class.

Goes in: a scope with its statements and members, and the expressions that make its submodules. Comes out: a `ClassTree`
with the statements of `__init__` and `forward`, in which values have local names and members are reached from `self`.
`code/printer.py` prints it.

Loops that do nothing but fill a list become comprehensions (`Lists`), if they fit one line; a list that only the next
statement uses is written there:

    features = []
    for layer in self.layers:
        features.append(layer(x))
    x = torch.cat(features, dim=1)

    x = torch.cat([layer(x) for layer in self.layers], dim=1)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TypeVar

from onnxgen.code import printer
from onnxgen.code.class_tree import ClassTree
from onnxgen.code.module_def import Assign, If, Loop, Member, ModuleDef, Statement, With, annotation, blocks
from onnxgen.code.quote import MemberRef, Ref, call, formula, put, quote, refs, rewrite, tensor_of, walk
from onnxgen.common.names import UNUSED, FileText, LocalName, printable
from onnxgen.shapes.info import Info
from onnxgen.structure.clues import agree
from onnxgen.structure.layout import SELF, Entry, Layout, layout, tree
from onnxgen.structure.naming import CHAINS, Names
from onnxgen.structure.nesting import LINE, called_before, copied, drop_copies, nest
from onnxgen.structure.scopes import ClassRef, Method, Scope

Made = TypeVar("Made", bound=ast.stmt)
MAX_EQUAL_RESULTS = 4  # results of one type that the return annotation lists; more are `tuple[Tensor, ...]`


class ClassWriter:
    """Writes the class of one scope, or of several that share it. Every scope has one, which knows how its members are
    reached.

    Attributes:
        built: the expression that makes an instance, by id of its scope.
        writers: the writers of all scopes, by id of the scope.
        reach: the expression that reaches each member of the class as it is written, by id.
        outside: the same for the members of this one scope, whatever class it shares.
    """

    def __init__(
        self, module: ModuleDef, scope: Scope, built: dict[int, ast.expr], writers: dict[int, ClassWriter]
    ) -> None:
        self.module, self.scope, self.built, self.writers = module, scope, built, writers
        self.members = scope.members  # the class's, in its methods, too: their scopes have none
        self.names: dict[str, LocalName] = {}
        self.alike: list[Mapping[str, str]] = []
        self.varies = False
        self.anew: set[str] = set()  # values without a comment on their shape
        self.reach: dict[int, ast.expr] = {}
        self.layout: Layout = layout(tree(scope.path, scope.members, scope.containers), self._text)
        self.reach = self.layout.reach
        self.outside = dict(self.reach)

    def write(
        self, root: Entry | None, alike: list[Mapping[str, str]], stored: Mapping[str, str], varies: bool = False
    ) -> ClassTree:
        """Write the class.

        Args:
            root: what it registers, if scopes that are not equal share it.
            alike: for each instance its own values, by the values of the class. A shape comment must hold for all.
            stored: the attributes that `forward` reads, with the constructor's parameter or the condition.
            varies: it is called with values of several shapes.
        """
        if root is not None:
            self.layout = layout(root, self._text)
            self.reach = self.layout.reach
        self.alike = alike
        self.varies = varies
        self.anew = drop_copies(self.scope)
        self._lay_out()
        self.scope.given = tuple(self.names[argument.value] for argument in self.scope.inputs)
        self.scope.results = tuple(self.names[o.value] if isinstance(o, Ref) else "" for o in self.scope.outputs)
        stored_here: list[ast.stmt] = [
            printer.assigned(ast.Attribute(SELF, name), quote(text)) for name, text in stored.items()
        ]
        source = ClassTree("", setup=stored_here + self._init(), body=self._forward(), result=self._returns())
        source.items = [self._final(value) for value in self.layout.layers]
        for argument in self.scope.inputs:
            source.inputs.append(ast.arg(self.names[argument.value], printer.annotation(argument.annotation)))
        source.own = [self._method(method) for method in self.scope.methods]
        bodies = [*source.body, *source.own]
        source.stubs = [stub for stub in self.module.stubs if _calls(bodies, stub.name)]
        if not self.scope.path:
            source.ties = [(self._key(t.kept, t.kept_key), self._key(t.tied, t.tied_key)) for t in self.module.ties]
        return source

    def _method(self, method: Method) -> ast.FunctionDef:
        writer = copy(self)
        writer.scope, writer.names, writer.alike = method.body, {}, list(method.alike)
        writer.anew = drop_copies(method.body)
        writer._lay_out()
        parameters = [
            ast.arg(writer.names[argument.value], printer.annotation(argument.annotation))
            for argument in method.body.inputs
        ]
        arguments = ast.arguments([], [ast.arg("self"), *parameters], None, [], [], None, [])
        return ast.FunctionDef(method.name, arguments, writer._forward(), [], writer._returns())

    def _lay_out(self) -> None:
        """Merge short chains into one line each and name the values; again if a line is too long with these names."""
        scope, clues = self.scope, agree(self.module, self.alike, self.scope.path)
        body, outputs, nodes = copied(scope.body), list(scope.outputs), scope.nodes
        kept = {value for value, name in clues.assigned.items() if name not in CHAINS}
        nest(scope, self.module, kept)
        self.names = Names(scope, self.module.infos, clues, self.module.reserved).run()
        if any(len(line) > LINE for line in printer.lines(self._forward())):
            scope.body, scope.outputs, scope.nodes = body, outputs, nodes
            nest(scope, self.module, kept, self.names)
            self.names = Names(scope, self.module.infos, clues, self.module.reserved).run()
        Lists(scope, self.names, self.module.turns, self._text).run()

    def _init(self) -> list[ast.stmt]:
        """Return the statements of `__init__`; lines under one flag share an `if`."""
        block: list[ast.stmt] = []
        flag = ""
        for line in self.layout.lines:
            value = self._final(line.value)
            statement: ast.stmt = ast.Expr(value)
            if line.target is not None:
                statement = printer.assigned(self._final(line.target), value)
            if line.flag and line.flag == flag and isinstance(block[-1], ast.If):
                block[-1].body.append(statement)
            else:
                block.append(ast.If(quote(line.flag), [statement], []) if line.flag else statement)
            flag = line.flag
        return block

    def _key(self, member: Member, key: str) -> ast.expr:
        return tensor_of(self.member(member, self.reach), key)

    def _returns(self) -> ast.expr:
        kinds = []
        if any(isinstance(output, ast.Starred) for output in self.scope.outputs):
            return printer.annotation("tuple[Tensor, ...]")
        for output in self.scope.outputs:
            facts = self.module.infos.get(output.value, Info()) if isinstance(output, Ref) else Info()
            kinds.append(annotation(facts))
        if len(kinds) == 1:
            return printer.annotation(kinds[0])
        if len(kinds) > MAX_EQUAL_RESULTS and len(set(kinds)) == 1:
            return printer.annotation(f"tuple[{kinds[0]}, ...]")
        return printer.annotation(f"tuple[{', '.join(kinds)}]" if kinds else "None")

    def _forward(self) -> list[ast.stmt]:
        last = self.scope.body[-1] if self.scope.body else None
        if isinstance(last, Assign) and self._is_result(last):
            before = self.scope.body[:-1]
            returned = self._remarked(ast.Return(self._final(last.value)), (*last.nodes, *self.scope.nodes))
            return [*self._block(before), returned]
        results = [self._final(output) for output in self.scope.outputs]
        value: ast.expr | None = ast.Tuple(results, ast.Load()) if results else None
        if len(results) == 1:  # a tuple for all items of a list
            value = call("tuple", results[0].value) if isinstance(results[0], ast.Starred) else results[0]
        return [*self._block(self.scope.body), self._remarked(ast.Return(value), self.scope.nodes)]

    def _is_result(self, last: Assign) -> bool:
        """True if a submodule of our own returns all that `forward` returns, as one flat tuple."""
        returned = [output.value if isinstance(output, Ref) else None for output in self.scope.outputs]
        if len(returned) < 2 or last.form or returned != list(last.targets) or not isinstance(last.value, ast.Call):
            return False
        return isinstance(last.value.func, MemberRef) and isinstance(last.value.func.member.build, ClassRef)

    def _block(self, block: list[Statement]) -> list[ast.stmt]:
        statements: list[ast.stmt] = []
        for statement in block:
            if isinstance(statement, Assign):
                statements += self._assign(statement)
            elif isinstance(statement, If):
                then, orelse = self._block(statement.then) or [ast.Pass()], self._block(statement.orelse)
                statements.append(self._remarked(ast.If(self._final(statement.test), then, orelse), statement.nodes))
            elif isinstance(statement, With):
                items = [ast.withitem(self._final(statement.context))]
                statements.append(self._remarked(ast.With(items, self._block(statement.body)), statement.nodes))
            else:
                statements.append(self._remarked(self._loop(statement), statement.nodes))
        return statements

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
        """Write an assignment. `x = x`, which carries a value into a loop, is left out."""
        value = self._final(statement.value)
        if not statement.targets:
            return [self._remarked(ast.Expr(value), statement.nodes)]
        names = [self.names[target] for target in statement.targets]
        if isinstance(value, ast.Name) and names == [value.id]:
            return []
        assignment = ast.Assign([printer.target(names, statement.form)], value)
        return [self._remarked(assignment, statement.nodes, self._comment(statement))]

    def _remarked(self, statement: Made, nodes: tuple[FileText, ...], dims: str = "") -> Made:
        return printer.remarked(statement, dims, nodes if self.module.annotate else ())

    def _comment(self, statement: Assign) -> str:
        """Return the dims of the result of a statement, if they differ from those of its operands."""
        if len(statement.targets) != 1 or self.varies or isinstance(statement.value, Ref):
            return ""
        if statement.targets[0] in self.anew:
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
        """Return an expression with the local names of values and with `self...` for members."""
        return rewrite(tree, self._reached)

    def _reached(self, node: ast.AST) -> ast.expr | None:
        if isinstance(node, Ref):
            return ast.Name(self.names[node.value], ast.Load())
        if isinstance(node, MemberRef):
            return self.member(node.member, self.reach)
        if isinstance(node, ClassRef):
            return rewrite(self.built[id(node.scope)], formula)
        return formula(node)

    def member(self, member: Member, reach: dict[int, ast.expr]) -> ast.expr:
        """Return the expression that reaches a member, directly or through a submodule with a class of its own."""
        if id(member) not in reach:
            around = ((m, m.build) for m in self.members if member.path[: len(m.path)] == m.path)
            nearest = next(((m, build) for m, build in around if isinstance(build, ClassRef)), None)
            # not a bare `next`: `map` and the like would take its StopIteration for their own end
            assert nearest is not None, f"nothing leads from {self.scope.path} to {member.path}"
            child, build = nearest
            owner, here = self.writers[id(build.scope)], reach[id(child)]  # `here` is the owner's `self`
            inner = owner.member(member, owner.outside)
            reach[id(member)] = rewrite(inner, lambda n: here if _is_self(n) else None)
        return reach[id(member)]


def _calls(block: list[ast.stmt], method: str) -> bool:
    calls = (node.func for statement in block for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == method and _is_self(f.value) for f in calls)


def _is_self(tree: ast.AST) -> bool:
    return isinstance(tree, ast.Name) and tree.id == SELF.id


LISTED = 100 - 8  # characters of a line with a comprehension, which would take three lines as a loop


class Lists:
    """Finds the loops of a body that fill a list. `text` prints an expression. `turns`: see `ModuleDef`."""

    def __init__(
        self, scope: Scope, names: Mapping[str, LocalName], turns: frozenset[str], text: Callable[[ast.expr], str]
    ) -> None:
        self.scope, self.names, self.turns, self.text, self.uses = scope, names, turns, text, scope.uses()

    def run(self) -> None:
        """Write them as comprehensions."""
        if any(isinstance(statement, Loop) for statement in self.scope.body):
            returned = Assign((), ast.Tuple(self.scope.outputs, ast.Load()), nodes=self.scope.nodes)
            self.scope.body = self._block([*self.scope.body, returned], 0)[:-1]
            assert isinstance(returned.value, ast.Tuple)
            self.scope.outputs, self.scope.nodes = returned.value.elts, returned.nodes

    def _block(self, block: list[Statement], level: int) -> list[Statement]:
        statements: list[Statement] = []
        for statement in block:
            for inner in blocks(statement):
                inner[:] = self._block(inner, level + 1)
            whole = self._comprehension(statements[-1], statement) if statements else None
            if whole is not None and self._width(whole) <= LISTED - 4 * level:
                statements[-1] = whole
                continue
            if statements and isinstance(statements[-1], Assign) and isinstance(statements[-1].value, ast.ListComp):
                self._join(statements, statement, LINE - 4 * level)
            statements.append(statement)
        return statements

    def _comprehension(self, begin: Statement, loop: Statement) -> Assign | None:
        """Return the assignment of a list for the loop that fills it; None for other statements."""
        if not isinstance(begin, Assign) or not isinstance(loop, Loop) or loop.iterable is None:
            return None
        is_begun = isinstance(begin.value, ast.List) and not begin.value.elts and loop.targets == begin.targets
        # the checker can't compare a loop of unknown length with a list
        if not is_begun or loop.stop is not None or not self.turns.isdisjoint(loop.turn):
            return None
        item = self._appended_item(loop.body, begin.targets[0])
        if item is None:
            return None
        turn = printer.target([self.names[n] for n in loop.turn] or [UNUSED], loop.form)
        comprehension = ast.ListComp(item, [ast.comprehension(turn, loop.iterable, [], 0)])
        nodes = (name for statement in (begin, loop, *loop.body) for name in statement.nodes)
        return Assign(begin.targets[:1], comprehension, begin.scope, tuple(nodes))

    def _appended_item(self, body: list[Statement], name: str) -> ast.expr | None:
        """Return what each turn appends to a list, if it does nothing else: one call, or one value made before."""
        item, first = _appended(body[-1], name), body[0]
        if len(body) == 1:
            return item
        if len(body) > 2 or not isinstance(item, Ref) or not isinstance(first, Assign) or first.form:
            return None
        return first.value if first.targets == (item.value,) and self.uses[item.value] == 1 else None

    def _join(self, statements: list[Statement], statement: Statement, room: int) -> None:
        """Write a list in the statement behind it, if that is the only one that uses it and stays one line."""
        whole = statements[-1]
        assert isinstance(whole, Assign)
        name = whole.targets[0]
        if not isinstance(statement, Assign) or self.uses[name] != 2 or name not in refs(statement.value):
            return  # one use fills it
        if called_before(statement.value, name):
            return
        value = rewrite(statement.value, put({name: whole.value}))
        if self._width(replace(statement, value=value)) <= room:
            statement.value = value
            statement.nodes = (*whole.nodes, *statement.nodes)
            statements.pop()

    def _width(self, statement: Assign) -> int:
        """Return how many characters a statement has. One without a target is the `return`."""
        target = ", ".join(self.names[name] for name in statement.targets)
        return len(f"{target or 'return'} = {self.text(statement.value)}")


def _appended(statement: Statement, name: str) -> ast.expr | None:
    """Return what a statement appends to a list, if it does nothing else."""
    tree = statement.value if isinstance(statement, Assign) and not statement.targets else None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute) or tree.func.attr != "append":
        return None
    is_list = isinstance(tree.func.value, Ref) and tree.func.value.value == name
    return tree.args[0] if is_list and refs(tree).count(name) == 1 else None
