"""Evaluates Python expressions on symbols: what can be computed is computed, everything else is a node.

The rules know Python, not PyTorch: no operand, keyword or constant is ever left out of a node. Three things of PyTorch
are known: `x.shape[1]` is a dim, `x.device` is the device to compute on, and `nn.ReLU()(x)` is `F.relu(x)`
(`layers.py`).
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf
from onnxgen.propagate.dims import Sym, TooComplex, apply, floordiv, modulo
from onnxgen.validate.layers import Layers, constant
from onnxgen.validate.values import (
    CONCRETE,
    FileClass,
    Graph,
    Holder,
    Leaf,
    Node,
    Scope,
    Unreadable,
    Value,
    is_size,
)

UNDEFINED = object()
VALUE = "%"  # before the id of a flat module's value, which may be called as anything is
LONGEST = 4096  # turns of a loop over `range(n)` that are executed one by one, those of loops in it multiplied
PYTHON: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
ON_SIZES = {ast.FloorDiv: floordiv, ast.Mod: modulo}
ON_LISTS: dict[str, Callable[..., Any]] = {
    "enumerate": enumerate,
    "len": len,
    "list": list,
    "tuple": tuple,
    "reversed": reversed,
}
DIM_FUNCTIONS = ("min", "max", "int_div", "scale_size")
# what draws numbers: each call is another one, told by how many equal calls came before
DRAWS = """torch.rand torch.randn torch.rand_like torch.randn_like torch.randint torch.bernoulli torch.multinomial
    torch.normal torch.poisson F.dropout F.alpha_dropout F.feature_alpha_dropout F.rrelu F.gumbel_softmax""".split()


class Lazy:
    """A variable of a loop, which has a node of its own only if somebody reads it."""

    def read(self) -> Value:
        raise NotImplementedError


class Expressions:
    """Evaluates expressions; `building`: in `__init__`, where calls make modules."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.make, self.building = graph, graph.make, False
        self.layers = Layers(graph)
        self.device = graph.make("device")
        self.draws = frozenset(map(graph.dotted, DRAWS))
        self.seen: Counter[Node] = Counter()
        self.bound = 0  # how many comprehensions and lambdas stand around
        self.rules: dict[type[ast.AST], Callable[[Any, Scope], Value]] = {
            ast.Constant: lambda tree, _: tree.value,
            ast.Name: self._name,
            Ref: lambda tree, scope: self.read(VALUE + tree.value, scope),
            SizeOf: lambda tree, _: tree.dim,
            DeviceOf: lambda tree, _: self.device,
            MemberRef: lambda tree, _: self.make("member", ".".join(tree.member.path)),
            ast.Attribute: lambda tree, scope: self.attribute(self.evaluate(tree.value, scope), tree.attr),
            ast.Subscript: self._subscript,
            ast.Slice: self._slice,
            ast.Call: self._call,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.BoolOp: self._boolean,
            ast.Compare: self._compare,
            ast.IfExp: self._choice,
            ast.Tuple: lambda tree, scope: tuple(self._several(tree.elts, scope)),
            ast.List: lambda tree, scope: self._several(tree.elts, scope),
            ast.Dict: self._dict,
            ast.ListComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.Lambda: self._lambda,
        }

    def evaluate(self, tree: ast.AST, scope: Scope) -> Value:
        rule = self.rules.get(type(tree))
        if rule is None:
            raise Unreadable(f"an expression of type {type(tree).__name__}")
        return rule(tree, scope)

    def node(self, value: Value) -> Node:
        """A value as a node: what an operation is applied to."""
        if isinstance(value, Node):
            return value
        if isinstance(value, CONCRETE):
            return self.make("constant", *constant(value))
        if isinstance(value, Sym):
            return self.make("dim", value)
        if isinstance(value, (tuple, list)):
            return self.make("list" if isinstance(value, list) else "tuple", tuple(map(self.node, value)))
        if isinstance(value, dict):
            return self.make("dict", tuple((self.node(k), self.node(v)) for k, v in value.items()))
        if isinstance(value, Leaf):
            return value.build if self.building else self.member(value)
        if isinstance(value, Lazy):
            return self.node(value.read())
        raise Unreadable(f"a {type(value).__name__} that is no operand")

    def member(self, leaf: Leaf) -> Node:
        """What reads a leaf in `forward`; the program that has leaves says how."""
        raise Unreadable("a module outside of __init__")

    def known(self, name: str) -> Value:
        """What a name means that is no local variable."""
        return self.make("name", name)

    def read(self, name: str, scope: Scope) -> Value:
        found = scope.find(name, UNDEFINED)
        if found is UNDEFINED:
            raise Unreadable("a variable that was never assigned")
        return found.read() if isinstance(found, Lazy) else found

    def _name(self, tree: ast.Name, scope: Scope) -> Value:
        found = scope.find(tree.id, UNDEFINED)
        if found is UNDEFINED:
            return self.known(tree.id)
        return found.read() if isinstance(found, Lazy) else found

    def _several(self, trees: list[ast.expr], scope: Scope) -> list[Value]:
        made: list[Value] = []
        for tree in trees:
            if isinstance(tree, ast.Starred):
                value = self.evaluate(tree.value, scope)
                items = self.iterate(value)
                made += items if items is not None else [self.make("starred", self.node(value))]
            else:
                made.append(self.evaluate(tree, scope))
        return made

    def iterate(self, value: Value) -> list[Value] | None:
        """The items, where they are known one by one."""
        if isinstance(value, (tuple, list, range)):
            return list(value)
        if isinstance(value, Holder) and value.kind in ("Sequential", "ModuleList"):
            return value.items
        return None

    def attribute(self, value: Value, name: str) -> Value:
        if name == "device":
            return self.device
        if isinstance(value, Node):
            shape = self.graph.shapes.get(value) if name == "shape" else None
            return self.make("attribute", value, name) if shape is None else shape
        return self.make("attribute", self.node(value), name)

    def _subscript(self, tree: ast.Subscript, scope: Scope) -> Value:
        value, index = self.evaluate(tree.value, scope), self.evaluate(tree.slice, scope)
        if isinstance(value, Holder):
            if isinstance(index, str):
                return value.children[index]
            value = value.items
        if isinstance(value, (tuple, list)) and isinstance(index, (int, slice)):
            try:
                return value[index]
            except (IndexError, TypeError, ValueError) as error:
                raise Unreadable(str(error)) from error
        if isinstance(index, tuple):
            index = tuple(map(self._index, index))
        return self.make("item", self.node(value), self.node(self._index(index)))

    def _slice(self, tree: ast.Slice, scope: Scope) -> slice:
        parts = [None if part is None else self.evaluate(part, scope) for part in (tree.lower, tree.upper, tree.step)]
        return slice(*parts)

    def _index(self, index: Value) -> Value:
        if isinstance(index, slice):
            return self.make("slice", *map(self.node, (index.start, index.stop, index.step)))
        return index

    def _binary(self, tree: ast.BinOp, scope: Scope) -> Value:
        a, b, kind = self.evaluate(tree.left, scope), self.evaluate(tree.right, scope), type(tree.op)
        try:
            if isinstance(a, Sym) or isinstance(b, Sym):
                if is_size(a) and is_size(b):
                    if kind in ON_SIZES:
                        return ON_SIZES[kind](a, b)
                    if kind in (ast.Add, ast.Sub, ast.Mult) or (kind is ast.Pow and isinstance(b, int) and b >= 0):
                        return _power(a, b) if kind is ast.Pow else PYTHON[kind](a, b)
            elif isinstance(a, (*CONCRETE, tuple, list)) and isinstance(b, (*CONCRETE, tuple, list)):
                return PYTHON[kind](a, b)
        except (ArithmeticError, TooComplex, TypeError, KeyError):
            pass
        return self.make("binary", kind.__name__, self.node(a), self.node(b))

    def _unary(self, tree: ast.UnaryOp, scope: Scope) -> Value:
        value, kind = self.evaluate(tree.operand, scope), type(tree.op)
        if isinstance(value, CONCRETE) or (isinstance(value, Sym) and kind is ast.USub):
            return PYTHON[kind](value)
        return self.make("unary", kind.__name__, self.node(value))

    def _boolean(self, tree: ast.BoolOp, scope: Scope) -> Value:
        values = [self.evaluate(value, scope) for value in tree.values]
        if all(isinstance(value, CONCRETE) for value in values):
            return all(values) if isinstance(tree.op, ast.And) else any(values)
        return self.make("boolean", type(tree.op).__name__, tuple(map(self.node, values)))

    def _compare(self, tree: ast.Compare, scope: Scope) -> Value:
        values = [self.evaluate(value, scope) for value in (tree.left, *tree.comparators)]
        known = (*CONCRETE, tuple, list, Leaf, Holder)
        if all(isinstance(value, known) for value in values) and all(type(op) in PYTHON for op in tree.ops):
            return all(PYTHON[type(op)](a, b) for op, a, b in zip(tree.ops, values, values[1:]))
        return self.make("compare", tuple(type(op).__name__ for op in tree.ops), tuple(map(self.node, values)))

    def _choice(self, tree: ast.IfExp, scope: Scope) -> Value:
        test = self.evaluate(tree.test, scope)
        if isinstance(test, CONCRETE):
            return self.evaluate(tree.body if test else tree.orelse, scope)
        both = (self.node(self.evaluate(part, scope)) for part in (tree.body, tree.orelse))
        return self.make("choice", self.node(test), *both)

    def _dict(self, tree: ast.Dict, scope: Scope) -> dict[Value, Value]:
        if any(key is None for key in tree.keys):
            raise Unreadable("a dict that takes in another")
        keys = [self.evaluate(key, scope) for key in tree.keys if key is not None]
        return dict(zip(keys, (self.evaluate(value, scope) for value in tree.values)))

    def _comprehension(self, tree: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Value:
        """A list; where the items are not known, a node whose variables are numbered by how deep they stand."""
        if len(tree.generators) > 1 or tree.generators[0].is_async:
            raise Unreadable("a comprehension of several loops")
        (loop,) = tree.generators
        source = self.evaluate(loop.iter, scope)
        items = self.iterate(source)
        if items is not None and not loop.ifs:
            made = []
            for item in items:
                inner = Scope({}, scope)
                self.assign(loop.target, item, inner)
                made.append(self.evaluate(tree.elt, inner))
            return made
        self.bound += 1
        inner = Scope({}, scope)
        self.assign(loop.target, self.make("bound", self.bound), inner)
        tests = tuple(self.node(self.evaluate(test, inner)) for test in loop.ifs)
        body = self.node(self.evaluate(tree.elt, inner))
        self.bound -= 1
        return self.make("comprehension", type(tree).__name__, self.node(source), tests, body)

    def _lambda(self, tree: ast.Lambda, scope: Scope) -> Node:
        given = tree.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs:
            raise Unreadable("a lambda with more than plain arguments")
        self.bound += 1
        names = {a.arg: self.make("bound", self.bound, i) for i, a in enumerate(given.args)}
        body = self.node(self.evaluate(tree.body, Scope(names, scope)))
        self.bound -= 1
        return self.make("lambda", len(names), body)

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind the names of a target; a tuple takes a value apart."""
        if isinstance(target, ast.Name):
            self.bind(target.id, value, scope)
            return
        if not isinstance(target, (ast.Tuple, ast.List)) or any(isinstance(t, ast.Starred) for t in target.elts):
            raise Unreadable(f"an assignment to a {type(target).__name__}")
        items = self.iterate(value)
        if items is None:
            whole = self.node(value)
            items = [self.make("part", whole, i, len(target.elts)) for i in range(len(target.elts))]
        if len(items) != len(target.elts):
            raise Unreadable(f"{len(target.elts)} variables for {len(items)} values")
        for inner, item in zip(target.elts, items):
            self.assign(inner, item, scope)

    def bind(self, name: str, value: Value, scope: Scope) -> None:
        scope.values[name] = value

    def _call(self, tree: ast.Call, scope: Scope) -> Value:
        args = self._several(tree.args, scope)
        if any(keyword.arg is None for keyword in tree.keywords):
            raise Unreadable("a call with **")
        kwargs = {k.arg: self.evaluate(k.value, scope) for k in tree.keywords if k.arg is not None}
        if len(kwargs) < len(tree.keywords):
            raise Unreadable("a keyword that is given twice")
        if isinstance(tree.func, ast.Name) and scope.find(tree.func.id, UNDEFINED) is UNDEFINED and not kwargs:
            found = self._builtin(tree.func.id, args)
            if found is not UNDEFINED:
                return found
        return self.call(self.evaluate(tree.func, scope), args, kwargs)

    def _builtin(self, name: str, args: list[Value]) -> Value:
        """A builtin of known arguments."""
        if name in DIM_FUNCTIONS and args and all(is_size(a) or (name == "scale_size" and a == args[1]) for a in args):
            try:
                return apply(name, *args)
            except (ArithmeticError, TooComplex, ValueError):
                return UNDEFINED
        if name == "range" and all(type(a) is int for a in args):
            return range(*args)
        lists = [self.iterate(a) for a in args]
        known = [items for items in lists if items is not None]
        if not known or len(known) < len(args):
            return UNDEFINED
        if name == "zip":
            return list(zip(*known))
        if name not in ON_LISTS or len(known) > 1:
            return UNDEFINED
        made = ON_LISTS[name](known[0])
        return list(made) if isinstance(made, (enumerate, reversed)) else made

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A call of what the file does not define."""
        if isinstance(function, (FileClass, Holder, Leaf)):
            raise Unreadable("a call of a module")
        if kwargs.get("device") == "cpu":  # what the device is of a network that has nothing to be moved
            kwargs = {**kwargs, "device": self.device}
        function = self.node(function)
        args, kwargs = self.layers.named(function, args, kwargs)
        given = tuple((name, self.node(kwargs[name])) for name in sorted(kwargs))
        made = self.make("call", function, tuple(map(self.node, args)), given)
        if function in self.draws:
            self.seen[made] += 1
            return self.make("draw", made, self.seen[made])
        return made


def _power(base: Any, exponent: int) -> Any:
    made: Any = 1
    for _ in range(exponent):
        made = made * base
    return made
