"""The specification of a generated file: the flat `ModuleDef` before structure."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, If, Loop, Member, ModuleDef, Statement, assigned
from onnxgen.code.quote import Ref, SizeOf
from onnxgen.code.torch_api import BATCH_NORMS, PURE, function_of
from onnxgen.errors import WrongTranslation
from onnxgen.shapes.dims import Dim, substitute, symbol, symbols
from onnxgen.shapes.info import Info, Shape
from onnxgen.validate.expressions import Lazy
from onnxgen.validate.statements import Statements
from onnxgen.validate.values import Graph, Leaf, LocalVariables, Node, Unreadable, Value, variable


@dataclass
class Specification:
    """The members that a generated file must register, and the values that it must compute.

    Attributes:
        graph: the graph with all nodes.
        members: by path, the node that makes each member, and its kind of registration.
        frozen: the paths of the tensors, and of the whole layers, that are not trained.
        ties: pairs of paths, (kept, tied).
        inputs: the number of arguments of `forward`.
        result: the result of `forward`.
        program: the executed program, with its effects and loops.
        opaque: the names that the network itself uses: none of them is a class to look into.
    """

    graph: Graph
    members: dict[str, tuple[Node, str]]
    frozen: frozenset[str]
    ties: frozenset[tuple[str, str]]
    inputs: int
    result: Node
    program: _Flat
    opaque: frozenset[str]


def specify(module: ModuleDef, before: Specification | None = None) -> Specification:
    """Execute the flat module. `before`: the module before `--dropout` added layers, which may change nothing else.

    Raises:
        Unreadable: the checker does not understand the module.
        WrongTranslation: without the added layers it differs from `before`.
    """
    if before is not None:
        _hold_without_dropout(module, before)
    return _specified(module, Graph(), frozenset())


def same_either_way(module: ModuleDef, joined: ModuleDef, condition: str) -> bool:
    """Return True if two modules compute the same, whether the value `condition` is true or false.

    Every `if` of that condition is decided beforehand in both, so it does not matter where in the body they stand.
    What the second says of the shapes of its values must be what the first says of the same values.
    """
    if any(Counter(name for s in m.body for name in assigned(s))[condition] > 1 for m in (module, joined)):
        return False
    for taken in (True, False):
        graph = Graph()
        try:
            wanted, other_specification = (
                _specified(each, graph, frozenset(), (variable(condition), taken)) for each in (module, joined)
            )
        except Unreadable:
            return False
        one, other = wanted.program, other_specification.program
        same = wanted.result is other_specification.result and (one.nexts, one.stops) == (other.nexts, other.stops)
        if not same or (one.effects, one.seen) != (other.effects, other.seen):
            return False
        if any(not shapes <= one.noted.get(node, set()) for node, shapes in other.noted.items()):
            return False
    return True


def _hold_without_dropout(module: ModuleDef, before: Specification) -> None:
    """Check that the module equals the former one if every new `nn.Dropout` is skipped."""
    new = {".".join(m.path): m.build for m in module.members if ".".join(m.path) not in before.members}
    after = _specified(module, before.graph, frozenset(new))
    kept = {path: member for path, member in after.members.items() if path not in new}
    same = after.result is before.result and kept == before.members
    same = same and (after.program.nexts, after.program.stops) == (before.program.nexts, before.program.stops)
    same = same and after.program.effects == before.program.effects
    if not same or any(isinstance(build, ast.Call) and function_of(build) != "nn.Dropout" for build in new.values()):
        raise WrongTranslation("--dropout changed more than it should: the network is another one in evaluation, too")


def _specified(
    module: ModuleDef, graph: Graph, passed_by: frozenset[str], decided: tuple[str, bool] | None = None
) -> Specification:
    program = _Flat(graph, module, passed_by, decided)
    scope = LocalVariables()
    for i, argument in enumerate(module.inputs):
        program.bind(variable(argument.value), graph.make("input", i, argument.annotation), scope)
    result = program.run([*map(_python, module.body), returns(module.outputs)], scope)
    ties = frozenset((first, second) for first, second in (tie.names for tie in module.ties))
    names = {node.key[1] for node in graph.since(0) if node.key[0] == "name"}
    members = {".".join(m.path): (program.build(m.build), kind(m)) for m in module.members}
    names |= {node.key[1] for node in graph.since(0) if node.key[0] == "name"}
    frozen = {m.state_key(key) for m in module.members for key in m.frozen_parts}
    opaque, count = frozenset(names), len(module.inputs)
    return Specification(graph, members, frozenset(frozen), ties, count, program.node(result), program, opaque)


def kind(member: Member) -> str:
    """Return how a member is registered: as a persistent or transient buffer, or by assignment."""
    return "" if member.kind != "buffer" else "persistent" if member.keys else "transient"


def returns(outputs: list[ast.expr]) -> ast.Return:
    """Return the return statement for outputs: one value as it is, several as a tuple."""
    if len(outputs) == 1 and not isinstance(outputs[0], ast.Starred):
        return ast.Return(outputs[0])
    return ast.Return(ast.Tuple(list(outputs), ast.Load()) if outputs else None)


MAX_UNROLLED_ITERATIONS = 8  # iterations that are executed one by one; counts of nested loops are multiplied


class _Flat(Statements):
    """Executes the statements of a flat module, and records the known dims of its values.

    `passed_by`: members whose call returns its argument. `whole`: the positions of loops over a range that are executed
    as one. Loops of few turns are executed turn by turn, since structure also writes such loops for repeated layers.
    `decided`: a variable that is true or false where an `if` asks for it. `noted`: the shapes that values have.
    `sizes`: in a loop that is executed turn by turn, what the dims that its variables show are in the turn at hand.
    """

    def __init__(
        self, graph: Graph, module: ModuleDef, passed_by: frozenset[str], decided: tuple[str, bool] | None
    ) -> None:
        super().__init__(graph)
        self.sizes = dict[str, Dim]()
        self.rules[SizeOf] = self._size
        self.decided, self.noted = decided, dict[Node, set[Shape]]()
        self.passed_by = {graph.make("member", path) for path in passed_by}
        self.infos = {variable(name): facts for name, facts in module.infos.items()}
        self.whole: set[tuple[object, ...]] = set()
        self.repeatable, self.measuring = (
            frozenset(graph.make("member", ".".join(m.path)) for m in module.members if m.layer in kinds)
            for kinds in (PURE, BATCH_NORMS)
        )
        inputs = any(argument.annotation == "Tensor" for argument in module.inputs)
        self.immovable = not inputs and not any(m.kind != "module" or m.keys for m in module.members)

    def _size(self, tree: SizeOf, scope: LocalVariables) -> Dim:
        """Return a dim. Of what branches or a loop leave, perhaps nothing else is read than its size."""
        for size in symbols(tree.dim).values():
            name = variable(size.source[0]) if size.source else ""
            if name and isinstance(scope.find(name, None), Lazy):
                self.read(name, scope)
        return substitute(tree.dim, self.sizes) if self.sizes else tree.dim

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.passed_by and function in self.passed_by and len(args) == 1 and not kwargs:
            return args[0]
        return super().call(function, args, kwargs)

    def test(self, tree: ast.expr, scope: LocalVariables) -> Value:
        if self.decided is not None and isinstance(tree, Ref) and variable(tree.value) == self.decided[0]:
            return self.decided[1]
        return super().test(tree, scope)

    def stays_whole(self, source: range) -> bool:
        if not source[MAX_UNROLLED_ITERATIONS // self.turns :]:
            return False
        self.whole.add(self.place(source))
        return True

    def build(self, tree: ast.expr) -> Node:
        """Return the node that makes a member."""
        self.building = True
        value = self.evaluate(tree, LocalVariables())
        node = value.build if isinstance(value, Leaf) else self.node(value)
        self.building = False
        return node

    def bind(self, name: str, value: Value, scope: LocalVariables) -> None:
        if isinstance(value, Node) and value.key[0] in ("end", "last"):  # its dims belonged to an iteration
            self.graph.shapes.pop(value, None)
        self._note(name, value)
        scope.values[name] = value

    def read(self, name: str, scope: LocalVariables) -> Value:
        value = super().read(name, scope)
        if isinstance(value, Node) and value not in self.graph.shapes:
            self._note(name, value)
        return value

    def _note(self, name: str, value: Value) -> None:
        facts = self.infos.get(name, Info())
        if isinstance(value, Node) and facts.kind == "tensor" and facts.shape is not None:
            shown = _shown(name, facts.shape)
            for size in shown:
                self.sizes.pop(size, None)
            shape = tuple(substitute(d, self.sizes) for d in facts.shape) if self.sizes else facts.shape
            known = self.graph.shapes.setdefault(value, shape)
            if len(known) == len(shape):
                self.sizes.update({s: known[axis] for s, axis in shown.items() if known[axis] != shape[axis]})
            if self.decided is not None:
                self.noted.setdefault(value, set()).add(facts.shape)


def _shown(name: str, shape: Shape) -> dict[str, int]:
    """Return the dims that a variable is the first to show, each with its axis."""
    axes = {s: axis for axis, dim in enumerate(shape) for s in symbols(dim).values() if dim == symbol(s.name)}
    return {s.name: axis for s, axis in axes.items() if s.source and variable(s.source[0]) == name}


def _python(statement: Statement) -> ast.stmt:
    """Return a statement of a flat module as Python. Variables are named like the values."""
    if isinstance(statement, Assign):
        if not statement.targets:
            return ast.Expr(statement.value)
        return ast.Assign([_target(statement.targets, statement.form)], statement.value)
    if isinstance(statement, If):
        return ast.If(statement.test, [*map(_python, statement.then)], [*map(_python, statement.orelse)])
    body = [*map(_python, statement.body)]
    if not isinstance(statement, Loop):
        return ast.With([ast.withitem(statement.context)], body)
    if statement.iterable is None:
        return ast.While(statement.stop if statement.stop is not None else ast.Constant(True), body, [])
    if statement.stop is not None:
        body.insert(0, ast.If(ast.UnaryOp(ast.Not(), statement.stop), [ast.Break()], []))
    target = _target(statement.turn, statement.form) if statement.turn else ast.Name("_", ast.Store())
    return ast.For(target, statement.iterable, body, [])


def _target(names: tuple[str, ...], form: str) -> ast.expr:
    """Return the target of an assignment: one name, or several in a tuple, in their written form."""
    names = tuple(map(variable, names))
    if not form:
        targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
        return targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
    parsed = ast.parse(form.format(*(f"_{i}" for i in range(len(names)))) + " = 0").body[0]
    assert isinstance(parsed, ast.Assign)
    for node in ast.walk(parsed.targets[0]):
        if isinstance(node, ast.Name):
            node.id = names[int(node.id[1:])]
    return parsed.targets[0]
