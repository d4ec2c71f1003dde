"""Evaluate Python expressions on symbols: known values are computed, everything else becomes a node.

The rules know Python, not PyTorch: a node has every operand, keyword and constant. Only three facts
about PyTorch are known: `x.shape[1]` is a dim, `x.device` is the device to compute on, and
`nn.ReLU()(x)` is `F.relu(x)`. `Layers` brings torch layers that are functions to one form, with the
argument names of torch's documentation: `nn.MaxPool2d(3, 2)(x)` is `F.max_pool2d(x, 3, 2)`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from onnxgen.code.copied import arguments, helper_names
from onnxgen.code.quote import DeviceOf, MemberRef, Ref, SizeOf
from onnxgen.code.torch_api import DEFAULTS, LAYER_OF, SIGNATURES
from onnxgen.shapes.dims import Sym, TooComplex, apply, floordiv, modulo, product
from onnxgen.validate.values import (
    CONCRETE,
    MAX_ITEMS,
    PYTHON,
    FileClass,
    Graph,
    Holder,
    Leaf,
    LocalVariables,
    Node,
    Once,
    Unreadable,
    Value,
    bounds,
    is_plain,
    is_size,
    is_small,
    of_math,
    power,
    variable,
)

UNDEFINED = object()
ON_SIZES = {ast.FloorDiv: floordiv, ast.Mod: modulo}
ON_LISTS: dict[str, Callable[..., Any]] = {
    "enumerate": enumerate,
    "len": len,
    "list": list,
    "tuple": tuple,
    "reversed": reversed,
    "zip": zip,
}
DIM_FUNCTIONS = ("min", "max", "int_div", "scale_size")
# functions that draw random numbers: calls are numbered, so that each is distinct
DRAWS = """torch.rand torch.randn torch.rand_like torch.randn_like torch.randint torch.bernoulli torch.multinomial
    torch.normal torch.poisson F.dropout F.alpha_dropout F.feature_alpha_dropout F.rrelu F.gumbel_softmax""".split()
# inputs from outside of the program, which do not distinguish two programs
NO_OPERATIONS = frozenset(
    "constant name attribute member input dim tuple list dict slice starred part choice carried end number turn".split()
) | {"last", "last turn", "undefined", "then", "else", "with", "no loop", "loop", "while", "bound", "device"}
NO_TENSORS = frozenset(("constant", "name", "dim", "tuple", "list", "dict", "slice", "lambda", "compare"))


class Lazy:
    """A variable of a loop. Its node is made only if the variable is read."""

    def read(self) -> Value:
        raise NotImplementedError


class Expressions:
    """Evaluates expressions.

    Attributes:
        building: True in `__init__`, where calls make modules.
        repeatable: the members for which two calls on the same values count as one.
        measuring: the members that keep statistics of their inputs.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.make, self.building = graph, graph.make, False
        self.layers = Layers(graph)
        self.device = graph.make("device")
        self.immovable = False  # True if no tensor determines the device, which is then "cpu"
        self.draws = frozenset(map(graph.dotted, DRAWS))
        self.seen: Counter[Node | str] = Counter()
        self.repeatable: frozenset[Node] = frozenset()
        self.measuring: frozenset[Node] = frozenset()
        self.bound = 0  # nesting depth of comprehensions and lambdas
        self.loop = graph.make("no loop")
        self.under: tuple[Node, ...] = ()  # conditions of the enclosing branches
        self.contexts: tuple[Node, ...] = ()  # contexts of the enclosing `with` statements
        self.rules: dict[type[ast.AST], Callable[[Any, LocalVariables], Value]] = {
            ast.Constant: lambda tree, _: tree.value,
            ast.Name: self._name,
            Ref: lambda tree, scope: self.read(variable(tree.value), scope),
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
            ast.Tuple: lambda tree, scope: tuple(self.lend(self._several(tree.elts, scope))),
            ast.List: lambda tree, scope: self.lend(self._several(tree.elts, scope)),
            ast.Dict: self._dict,
        }

    def evaluate(self, tree: ast.AST, scope: LocalVariables) -> Value:
        rule = self.rules.get(type(tree))
        if rule is None:
            raise Unreadable(f"an expression of type {type(tree).__name__}")
        return rule(tree, scope)

    def operation(self, *key: Any) -> Node:
        """Make a node in the current contexts: `torch.enable_grad()` makes it a different computation."""
        node = self.make(*key)
        return self.make("within", self.contexts, node) if self.contexts else node

    def node(self, value: Value) -> Node:
        """Return a value as a node, to which operations can be applied."""
        if isinstance(value, Node):
            return value
        if isinstance(value, str) and value == "cpu" and self.immovable:
            return self.device
        if isinstance(value, CONCRETE):
            return self.make("constant", *constant(value))
        if isinstance(value, Sym):
            return self.make("dim", value)
        if isinstance(value, (tuple, list)):
            return self.make("list" if isinstance(value, list) else "tuple", tuple(map(self.node, value)))
        if isinstance(value, range):
            return self.make("call", self.make("name", "range"), tuple(map(self.node, bounds(value))), ())
        if isinstance(value, dict):
            return self.make("dict", tuple((self.node(k), self.node(v)) for k, v in value.items()))
        if isinstance(value, Leaf):
            return value.build if self.building else self.member(value)
        if isinstance(value, Lazy):
            return self.node(value.read())
        raise Unreadable(f"a {type(value).__name__} that is no operand")

    def lend(self, values: list[Value]) -> list[Value]:
        """Mark lists as shared, so that they may no longer grow. Returns the values."""
        return values

    def member(self, leaf: Leaf) -> Node:
        """Return the node that reads a leaf in `forward`. Subclasses that have leaves implement it."""
        raise Unreadable("a module outside of __init__")

    def known(self, name: str) -> Value:
        """Return the meaning of a name that is not a local variable."""
        return self.make("name", name)

    def read(self, name: str, scope: LocalVariables) -> Value:
        value = scope.find(name, UNDEFINED)
        if value is UNDEFINED:
            raise Unreadable("a variable that was never assigned")
        return value.read() if isinstance(value, Lazy) else value

    def _name(self, tree: ast.Name, scope: LocalVariables) -> Value:
        value = scope.find(tree.id, UNDEFINED)
        if value is UNDEFINED:
            return self.known(tree.id)
        return value.read() if isinstance(value, Lazy) else value

    def _several(self, trees: list[ast.expr], scope: LocalVariables) -> list[Value]:
        values: list[Value] = []
        for tree in trees:
            if isinstance(tree, ast.Starred):
                value = self.evaluate(tree.value, scope)
                items = self.iterate(value)
                values += items if items is not None else [self.make("starred", self.node(value))]
            else:
                values.append(self.evaluate(tree, scope))
        return values

    def iterate(self, value: Value) -> list[Value] | None:
        """Return the items if they are known individually, else None."""
        if isinstance(value, range):
            return None if value[MAX_ITEMS:] else list(value)
        if isinstance(value, (tuple, list)):
            return list(value)
        if isinstance(value, Once):
            return value.take()
        if isinstance(value, Holder) and value.kind in ("Sequential", "ModuleList"):
            return value.items
        return None

    def attribute(self, value: Value, name: str) -> Value:
        if name == "device" and self.is_tensor(value):
            return self.device
        if isinstance(value, Node):
            known = self.graph.shapes.get(value) if name == "shape" else of_math(value, name)
            return self.make("attribute", value, name) if known is None else known
        return self.attribute(self.node(value), name)

    def is_tensor(self, value: Value) -> bool:
        """Return True if a value may be a tensor: it was computed, or belongs to a module."""
        if isinstance(value, Node) and value.key[0] == "attribute":
            return self.is_tensor(value.key[1])
        if isinstance(value, Node) and value.key[0] == "compare":
            return any(map(self.is_tensor, value.key[2]))
        return isinstance(value, Node) and value.key[0] not in NO_TENSORS

    def _subscript(self, tree: ast.Subscript, scope: LocalVariables) -> Value:
        value, index = self.evaluate(tree.value, scope), self.evaluate(tree.slice, scope)
        if isinstance(value, Holder):
            if isinstance(index, str) and value.kind == "ModuleDict":
                return value.children[index]
            if isinstance(index, slice) and value.kind == "Sequential" and value.definition is None:
                return Holder("Sequential", children=dict([*value.children.items()][index]))
            value = self.iterate(value)
        if isinstance(value, Node) and isinstance(index, slice):
            value = self.iterate(value) or value
        if isinstance(value, (tuple, list)) and isinstance(index, (int, slice)):
            try:
                return value[index]
            except (IndexError, TypeError, ValueError) as error:
                raise Unreadable(str(error)) from error
        if isinstance(index, tuple):
            index = tuple(map(self._index, index))
        return self.operation("item", self.node(value), self.node(self._index(index)))

    def _slice(self, tree: ast.Slice, scope: LocalVariables) -> slice:
        parts = [None if part is None else self.evaluate(part, scope) for part in (tree.lower, tree.upper, tree.step)]
        return slice(*parts)

    def _index(self, index: Value) -> Value:
        if isinstance(index, slice):
            return self.make("slice", *map(self.node, (index.start, index.stop, index.step)))
        return index

    def _binary(self, tree: ast.BinOp, scope: LocalVariables) -> Value:
        a, b, kind = self.evaluate(tree.left, scope), self.evaluate(tree.right, scope), type(tree.op)
        try:
            if isinstance(a, Sym) or isinstance(b, Sym):
                if is_size(a) and is_size(b):
                    if kind in ON_SIZES:
                        return ON_SIZES[kind](a, b)
                    if kind in (ast.Add, ast.Sub, ast.Mult) or (
                        kind is ast.Pow and isinstance(b, int) and 0 <= b <= 16
                    ):
                        return power(a, b) if kind is ast.Pow else PYTHON[kind](a, b)
            elif isinstance(a, (*CONCRETE, tuple, list)) and isinstance(b, (*CONCRETE, tuple, list)):
                if is_small(kind, a, b):
                    return PYTHON[kind](a, b)
        except (ArithmeticError, TooComplex, TypeError, KeyError):
            pass
        return self.operation("binary", kind.__name__, self.node(a), self.node(b))

    def _unary(self, tree: ast.UnaryOp, scope: LocalVariables) -> Value:
        value, kind = self.evaluate(tree.operand, scope), type(tree.op)
        if isinstance(value, CONCRETE) or (isinstance(value, Sym) and kind is ast.USub):
            return PYTHON[kind](value)
        return self.operation("unary", kind.__name__, self.node(value))

    def _boolean(self, tree: ast.BoolOp, scope: LocalVariables) -> Value:
        """Evaluate `and` or `or`. Operands known not to decide are dropped, but not the last: `True and x` is `x`."""
        asked: list[Value] = []
        for i, part in enumerate(tree.values):
            value = self.evaluate(part, scope)
            if not isinstance(value, CONCRETE):
                asked.append(value)
            elif bool(value) is isinstance(tree.op, ast.Or) or i + 1 == len(tree.values):
                asked.append(value)
                break
        if len(asked) == 1:
            return asked[0]
        return self.operation("boolean", type(tree.op).__name__, tuple(map(self.node, asked)))

    def _compare(self, tree: ast.Compare, scope: LocalVariables) -> Value:
        values = [self.evaluate(value, scope) for value in (tree.left, *tree.comparators)]
        identity = all(isinstance(op, (ast.Is, ast.IsNot)) for op in tree.ops)
        known = all(isinstance(value, (*CONCRETE, Leaf, Holder)) if identity else is_plain(value) for value in values)
        if known and all(type(op) in PYTHON for op in tree.ops):
            return all(PYTHON[type(op)](a, b) for op, a, b in zip(tree.ops, values, values[1:]))
        return self.operation("compare", tuple(type(op).__name__ for op in tree.ops), tuple(map(self.node, values)))

    def _choice(self, tree: ast.IfExp, scope: LocalVariables) -> Value:
        test = self.evaluate(tree.test, scope)
        if isinstance(test, CONCRETE):
            return self.evaluate(tree.body if test else tree.orelse, scope)
        condition, around, sides = self.node(test), self.under, []
        for word, part in (("then", tree.body), ("else", tree.orelse)):
            self.under = (*around, self.make(word, condition))
            sides.append(self.node(self.evaluate(part, scope)))
        self.under = around
        return self.make("choice", condition, *sides)

    def _dict(self, tree: ast.Dict, scope: LocalVariables) -> dict[Value, Value]:
        if any(key is None for key in tree.keys):
            raise Unreadable("a dict that takes in another")
        keys = [self.evaluate(key, scope) for key in tree.keys if key is not None]
        return dict(zip(keys, (self.evaluate(value, scope) for value in tree.values)))

    def assign(self, target: ast.expr, value: Value, scope: LocalVariables) -> None:
        """Bind the names of a target. A tuple target unpacks the value."""
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

    def bind(self, name: str, value: Value, scope: LocalVariables) -> None:
        scope.values[name] = value

    def _call(self, tree: ast.Call, scope: LocalVariables) -> Value:
        args = self._several(tree.args, scope)
        kwargs = self.keywords(tree, scope)
        if isinstance(tree.func, ast.Name) and scope.find(tree.func.id, UNDEFINED) is UNDEFINED and not kwargs:
            result = self._builtin(tree.func.id, args)
            if result is not UNDEFINED:
                return result
        return self.call(self.evaluate(tree.func, scope), args, kwargs)

    def keywords(self, tree: ast.Call, scope: LocalVariables) -> dict[str, Value]:
        if any(keyword.arg is None for keyword in tree.keywords):
            raise Unreadable("a call with **")
        values = {k.arg: self.evaluate(k.value, scope) for k in tree.keywords if k.arg is not None}
        if len(values) < len(tree.keywords):
            raise Unreadable("a keyword that is given twice")
        return values

    def _builtin(self, name: str, args: list[Value]) -> Value:
        """Call a builtin with known arguments."""
        if name in DIM_FUNCTIONS and args and all(is_size(a) or (name == "scale_size" and a == args[1]) for a in args):
            try:
                return apply(name, *args)
            except (ArithmeticError, TooComplex, ValueError):
                return UNDEFINED
        if name == "range" and all(type(a) is int for a in args):
            return range(*args)
        if name in ON_LISTS and args and (name == "zip" or len(args) == 1):
            return self._on_lists(name, args)
        return UNDEFINED

    def _on_lists(self, name: str, args: list[Value]) -> Value:
        if name == "len" and isinstance(args[0], Once):
            raise Unreadable("how long is a generator")
        known = [items for items in map(self.iterate, args) if items is not None]
        if len(known) < len(args):
            return UNDEFINED
        result = ON_LISTS[name](*known)
        return result if isinstance(result, (int, list, tuple)) else Once(list(result))

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Return the node of a call of a function that the file does not define."""
        if isinstance(function, (FileClass, Holder, Leaf)):
            raise Unreadable("a call of a module")
        function = self.node(function)
        if function.key[0] == "attribute" and not kwargs and (number := of_math(*function.key[1:], *args)) is not None:
            return number
        if function.key[0] == "attribute" and not kwargs:
            function, args = self._of_axes(function, args)
        args, kwargs = self.layers.named(function, args, kwargs)
        options = tuple((name, self.node(kwargs[name])) for name in sorted(kwargs))
        node = self.operation("call", function, tuple(map(self.node, args)), options)
        what: Node | str = "random" if function in self.draws else function
        counts = what == "random" or (function.key[0] == "member" and function not in self.repeatable)
        if self.building or not counts:
            return node
        self.seen[what] += 1
        if function in self.measuring:  # the order of calls changes a layer's statistics, but not its results
            self.seen[self.make("measures", function, self.seen[what], node, self.loop, self.under)] = 1
            return node
        return self.make("again", node, self.seen[what], self.loop, self.under)

    def _of_axes(self, function: Node, args: list[Value]) -> tuple[Node, list[Value]]:
        """Return a view that splits or merges the last axes, and says the sizes of the others, as what does only that.

        `x.view(B, N, 4, C // 4)` is `x.unflatten(-1, (4, -1))` where B, N and C are the sizes of x.
        """
        _, value, name = function.key
        shape = self.graph.shapes.get(value) if name in ("view", "reshape") else None
        if shape is None or len(shape) < 2 or not all(map(is_size, args)):
            return function, args
        kept, last = len(shape) - 1, product(args[len(shape) - 1 :])
        if len(args) == kept and (*args,) == (*shape[:-2], product(shape[-2:])):
            return self.make("attribute", value, "flatten"), [kept - 1]
        if len(args) > len(shape) and (*args[:kept], last) == shape:
            return self.make("attribute", value, "unflatten"), [-1, (*args[kept:-1], -1)]
        return function, args


KERNEL = "kernel_size"


class Layers:
    """The functions and layers of the tables, as nodes of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        nodes, self.defaults, self.functions, self.of_layer, self.kernels = _tables()
        graph.share(nodes)
        self.identity, self.flatten = graph.dotted("nn.Identity"), graph.dotted("nn.Flatten")
        self.hardtanh = graph.dotted("nn.Hardtanh")

    def named(self, function: Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call. If the function belongs to a layer, all but the first are given by name.

        Arguments that equal torch's default are dropped. `kernel_size` and what follows it may be given in both ways.
        """
        kernel = self.kernels.get(function)
        if kernel is not None and len(args) > kernel[0] + 1:
            kwargs = dict(zip(kernel[1][kernel[0] + 1 :], args[kernel[0] + 1 :])) | kwargs
            args = args[: kernel[0] + 1]
        usual = self.defaults.get(function)
        if usual is not None:
            kwargs = {k: v for k, v in kwargs.items() if k not in usual or not _is(v, usual[k])}
        if KERNEL in kwargs and kernel is not None and kernel[0] == len(args):
            kwargs = dict(kwargs)
            args = [*args, kwargs.pop(KERNEL)]
        order = self.functions.get(function)
        if order is None or len(args) < 2:
            return args, kwargs
        if len(args) - 1 > len(order) or set(kwargs) & set(order[: len(args) - 1]):
            raise Unreadable("a call with arguments that the function does not take")
        return args[:1], dict(zip(order, args[1:])) | kwargs

    def is_identity(self, build: Node) -> bool:
        return build.key[:2] == ("call", self.identity)

    def is_stateless(self, build: Node) -> bool:
        """Return True if a layer is only a function: no tensors, no state."""
        return build.key[0] == "call" and (
            build.key[1] in self.of_layer or build.key[1] in (self.identity, self.flatten, self.hardtanh)
        )

    def function(self, build: Node, value: Any) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return what a stateless layer computes: a function, its arguments and keywords."""
        _, layer, args, kwargs = build.key
        if layer is self.flatten:
            if args or kwargs:
                raise Unreadable("an nn.Flatten of other axes than all but the first")
            return self.graph.make("attribute", value, "flatten"), [1], {}
        if layer is self.hardtanh:
            if len(args) != 2 or kwargs:
                raise Unreadable("an nn.Hardtanh without both bounds")
            return self.graph.make("attribute", value, "clamp"), list(args), {}
        function, names = self.of_layer[layer]
        if len(args) > len(names):
            raise Unreadable("a layer with more arguments than it takes")
        return function, [value], dict(zip(names, args)) | dict(kwargs)


@cache
def _tables() -> tuple[
    Graph,
    dict[Node, dict[str, Any]],
    dict[Node, tuple[str, ...]],
    dict[Node, tuple[Node, tuple[str, ...]]],
    dict[Node, tuple[int, tuple[str, ...]]],
]:
    """Return the nodes of the tables in a graph of their own; the defaults and the further arguments of functions; the
    function of each layer with its arguments; and which argument `kernel_size` is, of which ones.
    """
    graph = Graph()
    usual = DEFAULTS | {
        name: default_arguments for name in sorted(helper_names()) if (default_arguments := arguments(name)[1])
    }
    defaults = {graph.dotted(name): default_arguments for name, default_arguments in usual.items()}
    functions = {
        graph.dotted(f): SIGNATURES[f][1:] if f in SIGNATURES else SIGNATURES[layer] for f, layer in LAYER_OF.items()
    }
    of_layer = {graph.dotted(layer): (graph.dotted(f), SIGNATURES[layer]) for f, layer in LAYER_OF.items()}
    kernels = {
        graph.dotted(name): (order.index(KERNEL), order) for name, order in SIGNATURES.items() if KERNEL in order
    }
    return graph, defaults, functions, of_layer, kernels


def constant(value: Any) -> tuple[str, str]:
    """Return a constant with its type: 1, True and 1.0 differ. Floats and text may be of onnxgen's own classes."""
    for kind in (float, str):
        if isinstance(value, kind):
            return kind.__name__, kind.__repr__(value)
    return type(value).__name__, repr(value)


def _is(value: Any, usual: Any) -> bool:
    """Return True if an argument is this constant."""
    written = value.key[1:] if isinstance(value, Node) and value.key[0] == "constant" else constant(value)
    return bool(written == constant(usual))
