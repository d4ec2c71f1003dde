"""A class of a generated file as syntax trees, which are checked against the allow-list and printed for templates."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from onnxgen.code import printer
from onnxgen.code.allowed import BUILTINS, HANDED_OVER, bound, check, check_bound, check_names
from onnxgen.code.class_source import ClassSource
from onnxgen.code.copied import helper_names
from onnxgen.code.quote import quote, walk
from onnxgen.code.stub import Stub
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import RESERVED

if TYPE_CHECKING:
    from onnxgen.structure.parameters import Parameter

_SELF = ast.Name("self", ast.Load())
_NO_ARGUMENTS = ast.arguments([], [ast.arg("self")], None, [], [], None, [])
_TIE = "tie_weights"
_INIT = frozenset(("constant", "super"))  # functions that only `__init__` calls


@dataclass
class ClassTree:
    """One class.

    Attributes:
        name: its final name.
        paths: the module paths of its instances ("" is the root).
        setup, body: the statements of `__init__` after `super().__init__(...)`, and of `forward`.
        inputs, result: the arguments of `forward`, and the annotation of its result, if it has one.
        items: the layers, if the class is an `nn.Sequential`.
        ties: of the root, pairs of attributes that share one parameter: (kept, tied).
        parameters: of the constructor.
        stubs: methods that are left open.
        own: methods that `forward` calls.
        about: what it computes, in a few words.
        says_none: methods that return nothing say so.
    """

    name: str
    paths: list[str] = field(default_factory=list)
    setup: list[ast.stmt] = field(default_factory=list)
    body: list[ast.stmt] = field(default_factory=list)
    inputs: list[ast.arg] = field(default_factory=list)
    result: ast.expr | None = field(default_factory=lambda: printer.annotation("Tensor"))
    items: list[ast.expr] = field(default_factory=list)
    ties: list[tuple[ast.expr, ast.expr]] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    stubs: list[Stub] = field(default_factory=list)
    own: list[ast.FunctionDef] = field(default_factory=list)
    about: str = ""
    says_none: bool = True

    @property
    def base(self) -> str:
        return "nn.Sequential" if self.items else "nn.Module"

    @property
    def is_row(self) -> bool:
        """True if `forward` is that of `nn.Sequential`, and need not be written. The root's says what it takes."""
        if not self.items or self.paths == [""] or len(self.inputs) != 1 or not isinstance(self.body[0], ast.Return):
            return False
        inherited = quote("super().forward(x)", x=ast.Name(self.inputs[0].arg, ast.Load()))
        return ast.dump(self.body[0].value or ast.Constant(None)) == ast.dump(inherited)

    @cached_property
    def methods(self) -> list[ast.FunctionDef]:
        """The methods in order, except those that only the templates have."""
        made = [self._init()]
        if self.ties:
            ties: list[ast.stmt] = [printer.assigned(tied, kept) for kept, tied in self.ties]
            made.append(ast.FunctionDef(_TIE, _NO_ARGUMENTS, ties, [], self._nothing))
        made += self.own
        if not self.is_row:
            arguments = ast.arguments([], [ast.arg("self"), *self.inputs], None, [], [], None, [])
            made.append(ast.FunctionDef("forward", arguments, self.body, [], self.result))
        return [*made, *(stub.tree for stub in self.stubs)]

    @cached_property
    def called(self) -> frozenset[str]:
        """The names of the functions and layers that `__init__` calls."""
        return frozenset(function_of(node) for tree in (*self.setup, *self.items) for node in walk(tree))

    def _init(self) -> ast.FunctionDef:
        begin = ast.Attribute(ast.Call(ast.Name("super", ast.Load()), [], []), "__init__", ast.Load())
        body: list[ast.stmt] = [ast.Expr(ast.Call(begin, self.items, [])), *self.setup]
        if self.ties:
            body.append(ast.Expr(ast.Call(ast.Attribute(_SELF, _TIE, ast.Load()), [], [])))
        given = [parameter.tree for parameter in self.parameters]
        defaults = [d for parameter in self.parameters if (d := parameter.default_tree) is not None]
        arguments = ast.arguments([], [ast.arg("self"), *given], None, [], [], None, defaults)
        return ast.FunctionDef("__init__", arguments, body, [], self._nothing)

    @property
    def _nothing(self) -> ast.expr | None:
        return ast.Constant(None) if self.says_none else None

    @cached_property
    def source(self) -> ClassSource:
        """The text of the class, once it has its final name."""
        return ClassSource(
            self.name,
            self.base,
            self.paths,
            printer.lines(self.setup),
            [] if self.is_row else printer.lines(self.body),
            list(map(printer.argument, self.inputs)),
            "" if self.result is None else ast.unparse(self.result),
            [(ast.unparse(kept), ast.unparse(tied)) for kept, tied in self.ties],
            self.parameters,
            list(map(ast.unparse, self.items)),
            [stub.lines for stub in self.stubs],
            list(map(_method_lines, self.own)),
            self.about,
            self.says_none,
        )


def _method_lines(method: ast.FunctionDef) -> list[str]:
    given = ", ".join(map(printer.argument, method.args.args))
    result = "" if method.returns is None else f" -> {ast.unparse(method.returns)}"
    return [f"def {method.name}({given}){result}:", *printer.lines(method.body, 1)]


def names_of(classes: Sequence[ClassTree]) -> set[str]:
    """Return the names that the code of classes has: it may need a helper or an import."""
    nodes = (node for tree in classes for method in tree.methods for node in walk(method))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def refuse_others(classes: Sequence[ClassTree], own: frozenset[str], with_plugins: bool) -> None:
    """Check classes against the allow-list. Raises `Refused`.

    Args:
        classes: of one file.
        own: the names that are copied and imported for plugins.
        with_plugins: a plugin wrote some of the code. Users may write what they like, so only names are checked.
    """
    names = {tree.name for tree in classes}
    functions = BUILTINS | helper_names() | own | names | RESERVED | _INIT
    called = functions | HANDED_OVER
    taken = (helper_names() | own | names | RESERVED) - {"self"}
    for tree in classes:
        check_names((tree.name, *(method.name for method in tree.methods)))
        left_open = {stub.name for stub in tree.stubs}  # they have no code that their arguments could hide names from
        for method in tree.methods:
            hidden = taken | _INIT if method.name == "__init__" else taken
            hidden = frozenset() if method.name in left_open else hidden
            if with_plugins:
                check_bound(_names(method), hidden)
            else:
                check(method, functions, called, hidden)


def _names(method: ast.FunctionDef) -> set[str]:
    """Return the names that a method binds. Checks that all its names are identifiers, perhaps not in ASCII."""
    nodes = list(walk(method))
    texts = (getattr(node, field, None) for node in nodes for field in ("id", "attr", "arg"))
    check_names((text for text in texts if isinstance(text, str)), in_ascii=False)
    targets = [t for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in nodes if isinstance(n, ast.For)]
    return {name for part in (method.args, *targets) for node in walk(part) for name in bound(node)}
