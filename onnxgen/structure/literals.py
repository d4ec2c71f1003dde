"""Expressions without their literals.

Goes in: an expression. Comes out: its head, a text that is equal for expressions that differ only in literals, and a
slot for each literal. `fill` puts other literals, or parameters, into an expression.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onnxgen.code.copied import arguments, helper_names
from onnxgen.code.module_def import Assign
from onnxgen.code.quote import MemberRef, Ref, rewrite, value_of
from onnxgen.code.torch_api import ACTIVATIONS, DEFAULTS, SIGNATURES, dotted

Key = tuple[int | str, ...]

# what a class in the file calls a positional argument of torch's layers and functions, as its own parameter
OWN_NAMES = {
    "num_features": "channels", "num_channels": "channels", "num_parameters": "channels", "num_groups": "groups",
    "normalized_shape": "dim", "embedding_dim": "dim", "num_embeddings": "rows", "p": "dropout",
    **dict.fromkeys(("input", "embed_dim", "d_model", "nhead", "dim_feedforward"), ""),
}  # fmt: skip

# functions and layers of one tensor and no options: a parameter of a class may be one of them
APPLIED = {*ACTIVATIONS, *ACTIVATIONS.values()}


@dataclass
class Signature:
    """The arguments of a function or constructor.

    Attributes:
        positional: the names of the positional ones.
        defaults: those of the others.
        held: sizes that a class has and that no argument gives.
    """

    positional: tuple[str, ...] = ()
    defaults: dict[str, ast.expr] = field(default_factory=dict)
    held: frozenset[int] = frozenset()


@dataclass
class Slot:
    """A literal in an expression.

    Attributes:
        value: the literal.
        wanted: its name, by its keyword or its position in a call.
        default: the value that it has if it is not written; None if it must be.
    """

    value: ast.expr
    wanted: str
    default: ast.expr | None = None

    @property
    def is_default(self) -> bool:
        return self.default is not None and ast.unparse(self.default) == ast.unparse(self.value)


@dataclass
class Traced:
    """An expression without its literals: expressions of one head differ only in their slots and in their values."""

    head: str
    slots: dict[Key, Slot]


def signature(function: str, classes: Mapping[str, Signature]) -> Signature:
    """Return what is known about a function's arguments."""
    if function in classes:
        return classes[function]
    if function in helper_names():
        names, usual = arguments(function)
        return Signature(names, {name: ast.Constant(value) for name, value in usual.items()})
    names = ("key",) if function == "constant" else SIGNATURES.get(function, ())
    defaults: dict[str, ast.expr] = {key: ast.Constant(value) for key, value in DEFAULTS.get(function, {}).items()}
    return Signature(tuple(OWN_NAMES.get(name, name) for name in names), defaults)


def is_literal(tree: ast.AST) -> bool:
    """True for a number, a boolean, text, or a tuple or list of such."""
    if isinstance(tree, ast.Constant):
        return isinstance(tree.value, (bool, int, float, str))
    if isinstance(tree, ast.UnaryOp):
        return isinstance(tree.op, ast.USub) and isinstance(tree.operand, ast.Constant)
    return isinstance(tree, (ast.Tuple, ast.List)) and bool(tree.elts) and all(is_literal(e) for e in tree.elts)


def is_number(tree: ast.AST, number: int) -> bool:
    return is_literal(tree) and bool(value_of(tree) == number)


def collected(tree: ast.AST, is_one: Callable[[ast.AST], bool]) -> list[ast.expr]:
    """Return the expressions of a kind, in order, without those within others."""
    nodes: list[ast.expr] = []

    def see(node: ast.AST) -> ast.expr | None:
        if isinstance(node, ast.expr) and is_one(node):
            nodes.append(node)
            return node
        return None

    rewrite(tree, see)
    return nodes


def numbers_of(tree: ast.AST) -> list[ast.expr]:
    """Return the numbers in an expression, in order, each with its sign. A tree that occurs twice is one number."""
    return [*{id(node): node for node in collected(tree, is_plain_number)}.values()]


def is_plain_number(tree: ast.AST) -> bool:
    """True for an integer or a float, perhaps with a sign."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        tree = tree.operand
    return isinstance(tree, ast.Constant) and type(tree.value) is not bool and isinstance(tree.value, (int, float))


def differing(trees: Iterable[ast.expr]) -> Iterator[tuple[tuple[str, ...], tuple[ast.expr, ...]]]:
    """Yield each number that differs between expressions which are else alike: its texts and its trees."""
    for column in zip(*map(numbers_of, trees)):
        texts = tuple(map(ast.unparse, column))
        if len({*texts}) > 1:
            yield texts, column


def with_names(statement: Assign, names: Mapping[int, str]) -> Assign:
    """Return a statement with values in the place of some of its trees, by the `id` of the tree."""
    value = rewrite(statement.value, lambda node: Ref(names[id(node)]) if id(node) in names else None)
    return statement if value is statement.value else replace(statement, value=value)


def trace(tree: ast.expr, token: Callable[[ast.AST], str | None], classes: Mapping[str, Signature]) -> Traced:
    """Separate an expression from its literals. `token` returns the text of a value or member."""
    slots: dict[Key, Slot] = {}
    visit = _Visit(classes, token, lambda key, slot: slots.setdefault(key, slot).value)
    visit.node(tree)
    return Traced(" ".join(visit.tokens), slots)


def fill(tree: ast.expr, choose: Callable[[Key], ast.expr | None], classes: Mapping[str, Signature]) -> ast.expr:
    """Copy an expression with the literals that `choose` returns; an argument that is None is left out."""
    filled: ast.expr = _Visit(classes, lambda n: None, lambda key, slot: choose(key)).node(tree)
    return filled


class _Visit:
    """Copies an expression, with the literals that `leaf` returns, and collects the `tokens` of its head."""

    def __init__(
        self,
        classes: Mapping[str, Signature],
        token: Callable[[ast.AST], str | None],
        leaf: Callable[[Key, Slot], ast.expr | None],
    ) -> None:
        self.classes, self.token, self.leaf = classes, token, leaf
        self.tokens: list[str] = []
        self.literals = self.calls = 0

    def node(self, tree: Any, wanted: str = "") -> Any:
        if isinstance(tree, (Ref, MemberRef)) or not isinstance(tree, ast.AST):
            self.tokens.append((self.token(tree) if isinstance(tree, ast.AST) else None) or repr(tree))
            return tree
        if is_literal(tree) and (wanted or not isinstance(tree, ast.Tuple)):
            assert isinstance(tree, ast.expr)
            self.literals += 1
            self.tokens.append("#")
            return self.leaf(("#", self.literals), Slot(tree, wanted))
        return self._call(tree) if isinstance(tree, ast.Call) else self._copy(tree)

    def _copy(self, tree: ast.AST) -> ast.AST:
        self.tokens.append(f"{type(tree).__name__}(")
        within = "scale" if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult) else ""
        copied = tree.__class__.__new__(tree.__class__)
        for name in tree._fields:
            value = getattr(tree, name, None)
            if isinstance(value, list):
                self.tokens.append(str(len(value)))
                value = [self.node(v) for v in value]
            else:
                is_factor = isinstance(value, ast.Constant) and type(value.value) in (int, float)
                value = self.node(value, within if is_factor else "")
            setattr(copied, name, value)
        self.tokens.append(")")
        return copied

    def _call(self, tree: ast.Call) -> ast.Call:
        self.calls += 1
        call = self.calls
        name = dotted(tree.func)
        if name in APPLIED and len(tree.args) == (not name.startswith("nn.")) and not tree.keywords:
            self.tokens.append("activation")
            applied = self.leaf((call, "function"), Slot(tree.func, "activation"))
            assert applied is not None
            return ast.Call(applied, [self.node(a) for a in tree.args], [])
        known = signature(name, self.classes)
        self.tokens.append("call")
        function = self.node(tree.func)
        self.tokens.append(str(len(tree.args)))
        args: list[ast.expr] = []
        for i, argument in enumerate(tree.args):
            if isinstance(argument, ast.Tuple) and _splits_heads(tree):
                args.append(self._heads(argument))
            elif isinstance(argument, ast.Tuple) and name == "F.pad":  # one side may follow from a dilation
                self.tokens.append(f"pads {len(argument.elts)}")
                args.append(ast.Tuple([self.node(e, "pad") for e in argument.elts], ast.Load()))
            else:
                args.append(self.node(argument, known.positional[i] if i < len(known.positional) else ""))
        return ast.Call(function, args, self._keywords(tree, known, call))

    def _heads(self, sizes: ast.Tuple) -> ast.Tuple:
        names = [*[""] * (len(sizes.elts) - 2), "num_heads", "head_dim"]
        self.tokens.append(f"heads {len(names)}")
        return ast.Tuple([self.node(e, name) for e, name in zip(sizes.elts, names)], ast.Load())

    def _keywords(self, tree: ast.Call, known: Signature, call: int) -> list[ast.keyword]:
        """Return the keyword arguments of a call; those with a default are slots even if they are not written."""
        keywords = []
        options: dict[str, ast.expr] = {}
        for keyword in tree.keywords:
            if keyword.arg in known.defaults and is_literal(keyword.value):
                options[keyword.arg] = keyword.value
                continue
            self.tokens.append(f"{keyword.arg}=")
            keywords.append(ast.keyword(keyword.arg, self.node(keyword.value, keyword.arg or "")))
        written = {k.arg for k in keywords}
        for name, default in known.defaults.items():
            value = None
            if name not in written:
                value = self.leaf((call, name), Slot(options.get(name, default), name, default))
            if value is not None:
                keywords.append(ast.keyword(name, value))
        order = list(known.defaults)
        return sorted(keywords, key=lambda k: order.index(k.arg) if k.arg in order else -1)


def _splits_heads(tree: ast.Call) -> bool:
    """True for a call that splits features into heads: `x.unflatten(-1, (3, 8, 64))`."""
    if not (isinstance(tree.func, ast.Attribute) and tree.func.attr == "unflatten" and len(tree.args) == 2):
        return False
    sizes = tree.args[1]
    return is_number(tree.args[0], -1) and isinstance(sizes, ast.Tuple) and len(sizes.elts) in (2, 3)
