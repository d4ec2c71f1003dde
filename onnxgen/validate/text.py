"""Execute a generated file on symbols: its classes are instantiated and called as Python would.

The checker follows constructor arguments, flags, `nn.Sequential`, lists and the loops over them,
`nn.Identity` for a layer that an instance lacks, and tied weights.

The definitions of the file are checked first: every name is defined once, and has the meaning that the network expects.
So the checker may take every name as torch's, Python's, or a class of the file.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from copy import deepcopy
from functools import cache
from typing import Any

from onnxgen.code.class_tree import is_alias, same
from onnxgen.code.copied import FRAME, helpers
from onnxgen.code.quote import last_step, parsed
from onnxgen.code.torch_api import dotted
from onnxgen.common.names import MODULE_ATTRIBUTES
from onnxgen.validate.expressions import Lazy
from onnxgen.validate.flat import Specification
from onnxgen.validate.statements import Statements
from onnxgen.validate.values import (
    FileClass,
    Graph,
    Holder,
    Leaf,
    LocalVariables,
    Node,
    Once,
    Unreadable,
    Value,
    divides,
    is_fixed,
)

METHODS = {"__init__", "forward", "tie_weights"}
PYTHONS = frozenset(dir(builtins))


def module_names(tree: ast.Module) -> frozenset[str]:
    """Return the names that a file defines. Each must be defined once, and none may shadow Python's or another
    module's.
    """
    names: list[str] = []
    needed: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names += _imported(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
            needed |= _needs_of(node)
        elif is_alias(node):
            needed |= {"Model", "from_pretrained"}
        elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            names += map(dotted, node.targets)
        elif not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            raise Unreadable(f"a file with a {type(node).__name__}")
    if len(set(names)) < len(names) or not PYTHONS.isdisjoint(names):
        raise Unreadable("a file defines what has a meaning already")
    if missing := needed.difference(names):
        raise Unreadable(f"the file does not define {min(missing)}")
    return frozenset(names)


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the names that a statement imports. None may be known as something else."""
    for alias in node.names:
        origin = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        if FRAME.get(alias.asname or alias.name, origin) != origin:
            raise Unreadable("an import under the name of something else")
    return [alias.asname or alias.name for alias in node.names]


def _needs_of(node: ast.FunctionDef | ast.ClassDef) -> frozenset[str]:
    if node.name in helpers():
        code, needs = _helper(node.name)
        if _code(node) != code:
            raise Unreadable(f"{node.name} is not the helper of that name")
        return needs
    if isinstance(node, ast.FunctionDef):
        return _needs(node)
    methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
    annotations = [t for m in methods for t in (*(a.annotation for a in m.args.args), m.returns) if t is not None]
    return _needs(ast.Tuple(annotations, ast.Load()))


@cache
def _helper(name: str) -> tuple[str, frozenset[str]]:
    """Return the code of a helper, and the names that it needs."""
    tree = helpers()[name].tree
    return _code(deepcopy(tree)), _needs(tree)


def _needs(tree: ast.AST) -> frozenset[str]:
    """Return the names that a function or class reads and does not define itself."""
    nodes = list(ast.walk(tree))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    own |= {str(n.name) for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))}
    own |= {a.asname or a.name for n in nodes if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names}
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return frozenset(read - own - PYTHONS - {"__file__"})


def check_variables(definition: ast.ClassDef, taken: frozenset[str]) -> None:
    """Check that no method assigns a name that the file defines: the name would be unbound before the assignment."""
    for method in definition.body:
        for node in ast.walk(method):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in taken:
                raise Unreadable(f"the variable {node.id} hides what the file calls so")


def _code(definition: ast.stmt) -> str:
    """Return the code of a function or class, without docstrings."""
    for node in ast.walk(definition):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(definition)


def check_body(definition: ast.ClassDef, stubs: set[str]) -> None:
    """Check that a class defines only usual members of modules, and nothing that changes how modules work."""
    for node in definition.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        name = node.name if isinstance(node, ast.FunctionDef) else ""
        own = name[:1].isalpha() and name not in MODULE_ATTRIBUTES  # its own code calls it, and no torch
        if not own and name not in METHODS | stubs - MODULE_ATTRIBUTES:
            raise Unreadable(f"class {definition.name} has something else than the methods of a module")


CONTAINERS = ("Module", "Sequential", "ModuleList", "ModuleDict")
DRAWS = "nn.init.trunc_normal_"  # numbers into a parameter, which those of the file replace
MAX_MODULE_DEPTH = 200  # largest nesting depth of modules

_FALSE = ast.dump(ast.Constant(False))


class Text(Statements):
    """Executes a generated file.

    Attributes:
        classes: those of the network itself; helpers and plugins are only names, as torch's are.
        ties: pairs of paths, (kept, tied).
        began: the number of nodes when `forward` began.
        parts: for each result of `x.unbind()` and its like that the specification unpacks, into how many. A text may
            loop over it instead.
    """

    names_of = staticmethod(module_names)

    def __init__(self, tree: ast.Module, specification: Specification) -> None:
        super().__init__(specification.graph.copy())
        self.specification = specification
        self.immovable = specification.program.immovable
        self.repeatable, self.measuring = specification.program.repeatable, specification.program.measuring
        defined = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.classes = {name: FileClass(node) for name, node in defined.items() if name not in specification.opaque}
        self.globals = self.names_of(tree)
        for file_class in self.classes.values():
            check_variables(file_class.definition, self.globals)
        self.ties: set[tuple[str, str]] = set()
        self.tying: list[Value] = []
        self.leaves: dict[str, Leaf] = {}
        self.depth = 0
        self.began = 0
        self.parts = _unpacked(self.graph)
        self.containers = {self.graph.dotted(f"nn.{name}"): name for name in CONTAINERS}
        # calls of these make a layer; calls of other functions make a tensor or another value
        self.makers = {self.make("name", name) for name in defined} | {self.graph.dotted("nn.Parameter")}
        self.modules = self.make("name", "nn")
        own = ("attribute", self.make("name", "self"))
        self.open = {node.key[2] for node in self.graph.since(0) if node.key[:2] == own}

    def root(self, name: str) -> Value:
        """Make the root module and call it. Returns its result."""
        if name not in self.classes:
            raise Unreadable(f"there is no class {name}")
        self.building = True
        root = self._construct(self.classes[name].definition, [], {})
        self.building = False
        self.began = len(self.graph)
        self._place(root, "")
        self._tie(root)
        inputs = [self.make("input", i, annotation) for i, annotation in enumerate(_input_annotations(root))]
        if len(inputs) != self.specification.inputs:
            raise Unreadable(f"forward takes {len(inputs)} arguments, not {self.specification.inputs}")
        return self._forward(root, inputs, {})

    def stays_whole(self, source: range) -> bool:
        return self.place(source) in self.specification.program.whole

    def iterate(self, value: Value) -> list[Value] | None:
        if isinstance(value, Node) and value in self.parts:
            return [self.make("part", value, i, self.parts[value]) for i in range(self.parts[value])]
        return super().iterate(value)

    def lend(self, values: list[Value]) -> list[Value]:
        self.lent.update((id(value), value) for value in values if isinstance(value, (list, Node, Lazy)))
        return values

    def known(self, name: str) -> Value:
        if name not in self.globals and name not in PYTHONS:
            raise Unreadable(f"the file does not define {name}")
        return self.classes.get(name) or self.make("name", name)

    # ------------------------------------------------------------------------------------------ making modules

    def _construct(self, definition: ast.ClassDef, args: list[Value], kwargs: dict[str, Value]) -> Holder:
        base = dotted(definition.bases[0]) if len(definition.bases) == 1 else ""
        if base not in ("nn.Module", "nn.Sequential") or definition.decorator_list or definition.keywords:
            raise Unreadable(f"class {definition.name} of another base")
        instance, init = Holder(base.removeprefix("nn."), definition), _method(definition, "__init__")
        check_body(definition, self.open)
        self._enter(definition.name)
        first, *rest = init.body
        begin = first.value if isinstance(first, ast.Expr) else None
        if not isinstance(begin, ast.Call) or begin.keywords or not same(parsed("super().__init__"), begin.func):
            raise Unreadable(f"{definition.name} does not begin with super().__init__()")
        scope = self._bound(init, instance, args, kwargs)
        layers = self._several(begin.args, scope)
        if layers and instance.kind == "Module":
            raise Unreadable("an nn.Module takes no arguments")
        for i, item in enumerate(layers):
            self._register(instance, str(i), item)
        self.run(rest, scope)
        self.depth -= 1
        return instance

    def _enter(self, name: str) -> None:
        self.depth += 1
        if self.depth > MAX_MODULE_DEPTH:
            raise Unreadable(f"class {name} within itself")

    def _bound(
        self, method: ast.FunctionDef, own: Holder, args: list[Value], kwargs: dict[str, Value]
    ) -> LocalVariables:
        """Return the variables of a method: its arguments."""
        parameters = method.args
        if any((parameters.vararg, parameters.kwarg, parameters.kwonlyargs, parameters.posonlyargs)):
            raise Unreadable(f"{method.name} takes its arguments in another way")
        if method.decorator_list:
            raise Unreadable(f"{method.name} takes its arguments in another way")
        names = [a.arg for a in parameters.args][1:]
        defaults = dict(zip(reversed(names), reversed(parameters.defaults)))
        values = dict(zip(names, args))
        if len(args) > len(names) or kwargs.keys() & values.keys() or not kwargs.keys() <= set(names):
            raise Unreadable(f"arguments that {method.name} does not take")
        values |= kwargs
        for name in names:
            if name in values:
                continue
            if name not in defaults:
                raise Unreadable(f"{method.name} lacks an argument")
            if not is_fixed(defaults[name]):
                raise Unreadable(f"the default of {name} is made once, for all calls")
            values[name] = self.evaluate(defaults[name], LocalVariables())
        if self.globals & {"self", *values}:
            raise Unreadable(f"an argument of {method.name} hides what the file calls so")
        return LocalVariables({"self": own, **values})

    def assign(self, target: ast.expr, value: Value, scope: LocalVariables) -> None:
        if isinstance(target, ast.Attribute) and self.building:
            self._register(self.evaluate(target.value, scope), target.attr, value)
        else:
            super().assign(target, value, scope)

    def _register(self, holder: Value, name: str, value: Value, kind: str = "") -> None:
        """Execute `holder.name = value`, or the registration of a buffer."""
        if kind:
            value = Leaf(self.node(value.build if isinstance(value, Leaf) else value), kind)
        elif isinstance(value, Node):
            value = Leaf(value)
        if not isinstance(holder, (Holder, Leaf)) or not name.isidentifier() and not name.isdigit():
            raise Unreadable("an attribute of what is no module")
        if name in MODULE_ATTRIBUTES or name.startswith("__"):
            raise Unreadable(f"{name} is something else of every module")
        before = holder.children.get(name)
        if before is not None and kind:
            raise Unreadable(f"{name} is there already, and is to be a buffer")
        if before is not None and not (isinstance(before, Leaf) and self.layers.is_identity(before.build)):
            raise Unreadable(f"{name} is assigned twice")
        holder.children[name] = value

    def _effect(self, value: ast.expr, scope: LocalVariables) -> None:
        if self.building and isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if self._registers(value, value.func, scope):
                return
        super()._effect(value, scope)

    def _registers(self, tree: ast.Call, function: ast.Attribute, scope: LocalVariables) -> bool:
        """Execute a statement of `__init__` that registers something. Returns False if it does not."""
        name = function.attr
        if name == "requires_grad_" and [ast.dump(argument) for argument in tree.args] == [_FALSE]:
            of, key = self._tensor(function.value, scope)
            of.frozen.add(key)
            return True
        if name == "trunc_normal_" and self.evaluate(function, scope) is self.graph.dotted(DRAWS):
            self._draw(self.evaluate(tree.args[0], scope), self.keywords(tree, scope))
            return True
        if name in ("register_buffer", "add_module", "register_parameter"):
            key, value = self._several(tree.args, scope)
            options = self.keywords(tree, scope)
            if options not in ({}, {"persistent": False}):
                raise Unreadable(f"{name} with other arguments")
            kind = "" if name != "register_buffer" else "transient" if options else "persistent"
            self._register(self.evaluate(function.value, scope), key, value, kind)
            return True
        if name == "tie_weights" and not tree.args and not tree.keywords:
            self.tying.append(self.evaluate(function.value, scope))  # evaluated once all modules have their paths
            return True
        return False

    def _draw(self, leaf: Value, options: dict[str, Value]) -> None:
        """Execute `nn.init.trunc_normal_(self.weight, std=0.02)`: the specification draws where it makes the tensor."""
        zeros: tuple[Any, ...] = leaf.build.key[2][0].key if isinstance(leaf, Leaf) and self._is_parameter(leaf) else ()
        if options != {"std": 0.02} or zeros[:2] != ("call", self.graph.dotted("torch.zeros")):
            raise Unreadable("numbers are drawn otherwise than into a parameter of zeros")
        tensor = super().call(self.graph.dotted("torch.normal"), [0.0, 0.02, tuple(zeros[2])], dict(zeros[3]))
        leaf.build = super().call(leaf.build.key[1], [tensor], {})

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(function, FileClass):
            if not self.building:
                raise Unreadable("a module is made outside of __init__")
            return self._construct(function.definition, args, kwargs)
        if isinstance(function, tuple) and isinstance(function[0], (Holder, Leaf)):
            owner, name = function
            return self._method_result(owner, name, args, kwargs)
        if not self.building:
            return self._invoke(function, args, kwargs)
        if function in self.containers:
            return self._container(self.containers[function], args, kwargs)
        result = super().call(function, args, kwargs)
        layer = function.key[:2] == ("attribute", self.modules) and function.key[2][:1].isupper()
        return Leaf(result) if layer or function in self.makers else result

    def _method_result(self, owner: Holder | Leaf, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Return what a method of the file's class returns, or a child or the children of a module."""
        if isinstance(owner, Holder) and self._defines(owner, name):
            return self._forward(owner, args, kwargs, name)
        if len(args) != (name == "get_submodule") or kwargs:
            raise Unreadable(f"{name} with other arguments")
        if not args:
            return list(owner.children.values())
        child = owner.children[args[0]]
        if isinstance(child, Leaf) and (child.kind or self._is_parameter(child)):
            raise Unreadable(f"get_submodule({args[0]!r}) of what is no module")
        return child

    def _is_parameter(self, leaf: Leaf) -> bool:
        return leaf.build.key[:2] == ("call", self.graph.dotted("nn.Parameter"))

    def _container(self, kind: str, args: list[Value], kwargs: dict[str, Value]) -> Holder:
        container = Holder(kind)
        if kind != "Sequential" and len(args) > (kind != "Module"):
            raise Unreadable(f"an nn.{kind} of several arguments")
        children: Any = args if kind == "Sequential" else args[0] if args else []
        children = self.iterate(children) if isinstance(children, Once) else children
        for name, item in children.items() if isinstance(children, dict) else enumerate(children):
            if not isinstance(item, (Holder, Leaf)):
                raise Unreadable(f"an item of an nn.{kind} that is no module")
            self._register(container, str(name), item)
        if kwargs:
            raise Unreadable("a container with keywords")
        return container

    def _place(self, value: Value, path: str) -> None:
        """Give every module its path. A module may have only one place."""
        if not isinstance(value, (Holder, Leaf)):
            return
        if value.path is not None:
            raise Unreadable(f"{path} is {value.path} as well")
        value.path = path
        if isinstance(value, Leaf):
            self.leaves[path] = value
        for name, child in value.children.items():
            self._place(child, f"{path}.{name}" if path else name)

    def _tie(self, root: Holder) -> None:
        if not self.tying:
            return
        last = _method(root.definition, "__init__").body[-1]
        if self.tying != [root] or not same(ast.Expr(parsed("self.tie_weights()")), last):
            raise Unreadable("tie_weights is not the last that the network does")
        for statement in _method(root.definition, "tie_weights").body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Attribute):
                raise Unreadable("tie_weights does more than to tie")
            scope = LocalVariables({"self": root})
            pair = self._tensor(statement.value, scope), self._tensor(statement.targets[0], scope)
            kept, tied = (f"{of.path}.{key}" if key else str(of.path) for of, key in pair)
            self.ties.add((kept, tied))

    def _tensor(self, tree: ast.expr, scope: LocalVariables) -> tuple[Leaf, str]:
        """Return the registered member that holds a parameter in the text, and the parameter's key in it."""
        parts: list[str] = []
        while not isinstance(owner := self.evaluate(tree, scope), Leaf):
            if (step := last_step(tree)) is None:
                raise Unreadable("what is tied or frozen is no parameter")
            tree, parts = step[0], [step[1], *parts]
        return owner, ".".join(parts)

    # ------------------------------------------------------------------------------------------ calling modules

    def member(self, leaf: Leaf) -> Node:
        return self.make("member", leaf.path) if leaf.path in self.specification.members else leaf.build

    def attribute(self, value: Value, name: str) -> Value:
        if isinstance(value, (Holder, Leaf)) and name in value.children:
            return value.children[name]
        if isinstance(value, Holder) and self._defines(value, name):
            return (value, name)
        if name == "get_submodule" and isinstance(value, (Holder, Leaf)):
            return (value, name)
        if isinstance(value, Holder):
            if name == "values" and value.kind == "ModuleDict":
                return (value, name)
            return self.make("attribute", self.make("name", "self"), name)  # `training`, and methods left open
        return super().attribute(value, name)

    def _defines(self, owner: Value, name: str) -> bool:
        """True for a method besides `forward` that the class of a module defines. One that is left open is opaque."""
        definition = owner.definition if isinstance(owner, Holder) and name not in METHODS | self.open else None
        return definition is not None and _defines(definition, name)

    def _invoke(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(function, Holder):
            return self._forward(function, args, kwargs)
        if isinstance(function, Leaf):
            return self._layer(function, args, kwargs)
        return super().call(function, args, kwargs)

    def _call(self, tree: ast.Call, scope: LocalVariables) -> Value:
        if same(parsed("super().forward"), tree.func):
            (value,) = self._several(tree.args, scope)
            own = scope.find("self", None)
            if not isinstance(own, Holder) or own.kind != "Sequential" or tree.keywords:
                raise Unreadable("super().forward() of no nn.Sequential")
            return self._chain(own, value)
        if isinstance(tree.func, ast.Name) and tree.func.id == "getattr" and len(tree.args) == 2:
            of, name = self._several(tree.args, scope)
            return self.attribute(of, name)
        return super()._call(tree, scope)

    def _chain(self, holder: Holder, value: Value) -> Value:
        for item in holder.items:
            value = self._invoke(item, [value], {})
        return value

    def _forward(self, holder: Holder, args: list[Value], kwargs: dict[str, Value], name: str = "forward") -> Value:
        if holder.definition is None:
            if holder.kind != "Sequential" or kwargs or len(args) != 1:
                raise Unreadable(f"a call of an nn.{holder.kind}")
            return self._chain(holder, args[0])
        if holder.kind == "Sequential" and name == "forward" and not _defines(holder.definition, name):
            return self._chain(holder, *args)
        method = _method(holder.definition, name)
        around, self.graph.home = self.graph.home, holder.path or ""
        self._enter(holder.definition.name)
        scope, lent = self._bound(method, holder, args, kwargs), self.lent
        self.lent = {}
        self.lend(list(scope.values.values()))  # lists of the caller must not grow here
        *body, last = method.body
        if not isinstance(last, ast.Return):
            raise Unreadable("a forward that does not end in return")
        self.run(body, scope)
        result = None if last.value is None else self.evaluate(last.value, scope)
        self.lent = lent
        self.lend([value for value in scope.values.values() if value is result])
        self.depth -= 1
        self.graph.home = around
        return result

    def _layer(self, leaf: Leaf, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Return the result of calling a layer. A layer that the network lacks must do nothing, or be a function."""
        path, build = leaf.path, leaf.build
        if path in self.specification.members and not self.layers.is_identity(build):
            return super().call(self.member(leaf), args, kwargs)
        plain = len(args) == 1 and not kwargs
        if plain and self.layers.is_identity(build):
            return args[0]
        if plain and self.layers.is_stateless(build):
            return super().call(*self.layers.function(build, self.node(args[0])))
        if build.key[0] in ("name", "attribute"):  # a function stored as an attribute
            return super().call(build, args, kwargs)
        raise Unreadable(f"{path} is no layer of the network")


def _method(definition: ast.ClassDef | None, name: str) -> ast.FunctionDef:
    methods = [n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == name] if definition else []
    if len(methods) != 1:
        raise Unreadable(f"{len(methods)} methods called {name}")
    return methods[0]


def _defines(definition: ast.ClassDef, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in definition.body)


def _input_annotations(root: Holder) -> list[str]:
    parameters = _method(root.definition, "forward").args
    if parameters.defaults:
        raise Unreadable("an argument of the network that may be left out")
    return [ast.unparse(a.annotation) if a.annotation else "" for a in parameters.args[1:]]


def _unpacked(graph: Graph) -> dict[Node, int]:
    """Return the results that are unpacked, each with the number of its parts, if that is always the same."""
    unpacked = {node.key[1:4:2] for node in graph.since(0) if node.key[0] == "part" and divides(node.key[1])}
    several = Counter(whole for whole, _ in unpacked)
    return {whole: count for whole, count in unpacked if several[whole] == 1}
