"""Expressions cut at their literals: two that differ in nothing else have the same head."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxgen.code.quote import MemberRef, Ref
from onnxgen.code.torch_api import ACTIVATIONS, DEFAULTS, dotted

Key = tuple[int | str, ...]

# what a class of the file calls what it hands on to a layer by position
POSITIONAL = {
    "nn.Conv": ("in_channels", "out_channels", "kernel_size"),
    "nn.ConvTranspose": ("in_channels", "out_channels", "kernel_size"),
    "nn.Linear": ("in_features", "out_features"),
    "nn.BatchNorm": ("channels",),
    "nn.InstanceNorm": ("channels",),
    "nn.GroupNorm": ("groups", "channels"),
    "nn.LayerNorm": ("features",),
    "nn.RMSNorm": ("features",),
    "nn.Embedding": ("rows", "features"),
    "nn.LSTM": ("input_size", "hidden_size"),
    "nn.GRU": ("input_size", "hidden_size"),
    "nn.RNN": ("input_size", "hidden_size"),
    "nn.Dropout": ("dropout",),
    "nn.PReLU": ("channels",),
    "nn.MaxPool": ("kernel_size",),
    "nn.AvgPool": ("kernel_size",),
    "F.max_pool": ("", "kernel_size"),
    "F.avg_pool": ("", "kernel_size"),
    "F.dropout": ("", "dropout"),
    "constant": ("key",),
}

# functions and layers of one tensor and no options: a class may be told which one to apply
APPLIED = {*ACTIVATIONS, *ACTIVATIONS.values()}


@dataclass
class Signature:
    """The constructor of a class of the file: its positional parameters, and the defaults of the others."""

    positional: tuple[str, ...] = ()
    defaults: dict[str, ast.expr] = field(default_factory=dict)


@dataclass
class Slot:
    """A literal in an expression.

    Attributes:
        value: what stands there.
        wanted: what it is called where it stands: a keyword, a position in a call.
        call: which call of the expression it is an argument of.
        default: what it is where it is not written; None if it must be.
    """

    value: ast.expr
    wanted: str
    call: int
    default: ast.expr | None = None


@dataclass
class Traced:
    """An expression without its literals: equal heads differ in the values of slots and in what they refer to."""

    head: str
    slots: dict[Key, Slot]


def signature(function: str, classes: Mapping[str, Signature]) -> Signature:
    """What is known of a function's arguments."""
    if function in classes:
        return classes[function]
    layer = re.sub(r"\dd$", "", function)
    defaults = {name: ast.Constant(value) for name, value in DEFAULTS.get(function, {}).items()}
    return Signature(POSITIONAL.get(layer, ()), dict(defaults))


def is_literal(tree: ast.AST) -> bool:
    """A number, a truth value, text, or a tuple or list of such."""
    if isinstance(tree, ast.Constant):
        return isinstance(tree.value, (bool, int, float, str))
    if isinstance(tree, ast.UnaryOp):
        return isinstance(tree.op, ast.USub) and isinstance(tree.operand, ast.Constant)
    return isinstance(tree, (ast.Tuple, ast.List)) and bool(tree.elts) and all(is_literal(e) for e in tree.elts)


def is_number(tree: ast.AST, number: int) -> bool:
    return is_literal(tree) and bool(ast.literal_eval(tree) == number)


def trace(tree: ast.expr, token: Callable[[ast.AST], str | None], classes: Mapping[str, Signature]) -> Traced:
    """Cut an expression at its literals; `token` gives the text of a node that stands for something by itself."""
    slots: dict[Key, Slot] = {}
    visit = _Visit(classes, token, lambda key, slot: slots.setdefault(key, slot).value)
    visit.node(tree, "", 0)
    return Traced(" ".join(visit.tokens), slots)


def fill(tree: ast.expr, choose: Callable[[Key], ast.expr | None], classes: Mapping[str, Signature]) -> ast.expr:
    """A copy of the expression with other literals; None for one that is not to be written."""
    made: ast.expr = _Visit(classes, lambda n: None, lambda key, slot: choose(key)).node(tree, "", 0)
    return made


class _Visit:
    def __init__(
        self,
        classes: Mapping[str, Signature],
        token: Callable[[ast.AST], str | None],
        leaf: Callable[[Key, Slot], ast.expr | None],
    ) -> None:
        self.classes, self.token, self.leaf = classes, token, leaf
        self.tokens: list[str] = []
        self.literals = self.calls = 0

    def node(self, tree: Any, wanted: str, call: int) -> Any:
        if isinstance(tree, (Ref, MemberRef)) or not isinstance(tree, ast.AST):
            self.tokens.append((self.token(tree) if isinstance(tree, ast.AST) else None) or repr(tree))
            return tree
        if is_literal(tree) and (wanted or not isinstance(tree, ast.Tuple)):
            assert isinstance(tree, ast.expr)
            self.literals += 1
            self.tokens.append("#")
            return self.leaf(("#", self.literals), Slot(tree, wanted, call))
        if isinstance(tree, ast.Call):
            return self._call(tree)
        self.tokens.append(f"{type(tree).__name__}(")
        within = "scale" if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult) else ""
        copied = tree.__class__.__new__(tree.__class__)
        for name in tree._fields:
            value = getattr(tree, name, None)
            if isinstance(value, list):
                self.tokens.append(str(len(value)))
                value = [self.node(v, "", call) for v in value]
            else:
                value = self.node(value, within if _is_float(value) else "", call)
            setattr(copied, name, value)
        self.tokens.append(")")
        return copied

    def _call(self, tree: ast.Call) -> ast.Call:
        self.calls += 1
        call = self.calls
        name = dotted(tree.func)
        if name in APPLIED and len(tree.args) == (not name.startswith("nn.")) and not tree.keywords:
            self.tokens.append("activation")
            applied = self.leaf((call, "function"), Slot(tree.func, "activation", call))
            assert applied is not None
            return ast.Call(applied, [self.node(a, "", call) for a in tree.args], [])
        known = signature(name, self.classes)
        self.tokens.append("call")
        function = self.node(tree.func, "", call)
        self.tokens.append(str(len(tree.args)))
        args: list[ast.expr] = []
        for i, argument in enumerate(tree.args):
            if isinstance(argument, ast.Tuple) and _splits_heads(tree):
                args.append(self._heads(argument, call))
            else:
                args.append(self.node(argument, known.positional[i] if i < len(known.positional) else "", call))
        return ast.Call(function, args, self._keywords(tree, known, call))

    def _heads(self, sizes: ast.Tuple, call: int) -> ast.Tuple:
        names = [*[""] * (len(sizes.elts) - 2), "num_heads", "head_dim"]
        self.tokens.append(f"heads {len(names)}")
        return ast.Tuple([self.node(e, name, call) for e, name in zip(sizes.elts, names)], ast.Load())

    def _keywords(self, tree: ast.Call, known: Signature, call: int) -> list[ast.keyword]:
        """What a call is given by name; whatever has a default counts as given."""
        keywords = []
        given: dict[str, ast.expr] = {}
        for keyword in tree.keywords:
            if keyword.arg in known.defaults and is_literal(keyword.value):
                given[keyword.arg] = keyword.value
                continue
            self.tokens.append(f"{keyword.arg}=")
            keywords.append(ast.keyword(keyword.arg, self.node(keyword.value, keyword.arg or "", call)))
        missing = [name for name in known.defaults if all(k.arg != name for k in keywords)]
        for name in missing:
            default = known.defaults[name]
            value = self.leaf((call, name), Slot(given.get(name, default), name, call, default))
            if value is not None:
                keywords.append(ast.keyword(name, value))
        order = list(known.defaults)
        return sorted(keywords, key=lambda k: order.index(k.arg) if k.arg in order else -1)


def _is_float(tree: Any) -> bool:
    return isinstance(tree, ast.Constant) and isinstance(tree.value, float)


def _splits_heads(tree: ast.Call) -> bool:
    """`x.unflatten(-1, (3, 8, 64))`: features are split into heads."""
    if not (isinstance(tree.func, ast.Attribute) and tree.func.attr == "unflatten" and len(tree.args) == 2):
        return False
    sizes = tree.args[1]
    return is_number(tree.args[0], -1) and isinstance(sizes, ast.Tuple) and len(sizes.elts) in (2, 3)
