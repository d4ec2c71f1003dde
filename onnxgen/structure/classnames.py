"""What classes are called.

The rule: as the exporter recorded it, else by the attribute (`attention` is an `Attention`, `layers.3` a `Layer`). An
attribute that says nothing (`block`, `layer1.0`, `features.4`) gives way to what the layers are known as together
(`BasicBlock`, `Bottleneck`). The attribute of a wrapper (`fn`), and the number of an item of a list in a list, give way
to what is done there (`Attention`, `PreNorm`; where there are several such, `PreNormAttention`). Where classes that
differ would have one name, each is named by what it is part of, as far as that tells them apart (`EncoderLayer`,
`DecoderLayer`); else they are numbered.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from onnxgen.code.module_def import ModuleDef, expressions
from onnxgen.code.quote import Ref, walk
from onnxgen.code.torch_api import CONVOLUTIONS, TRANSPOSED, function_of
from onnxgen.common.names import RESERVED, ModulePath, Namer, class_name, singular
from onnxgen.structure.literals import is_number
from onnxgen.structure.scopes import ClassRef, Scope
from onnxgen.structure.sublayers import sublayer, wrapped

# attributes that say nothing of what is in them
VAGUE = frozenset("""
    body block blk cell conv conv_block double_conv feature inc layer main module net res res_block stage unit
    """.split())
WRAPPED = frozenset(
    "f fn func function inner sublayer wrapped".split()
)  # what a wrapper calls its child, whatever it is
WHOLE = frozenset("backbone base base_model model net network".split())  # attributes that hold nearly everything
SHORTCUT = re.compile("down_?sample|short_?cut|identity|skip|proj_res|residual", re.IGNORECASE)
WORDS = {
    "attn": "attention",
    "self_attn": "self_attention",
    "cross_attn": "cross_attention",
    "encoder_attn": "cross_attention",
    "blk": "block",
    "feature": "block",
    "h": "block",
    "features": "features",
    "ff": "feed_forward",
    "ffn": "feed_forward",
    "se": "squeeze_excitation",
}
# what layers are known as together: kinds of convolutions, and whether their result is added to what they got
FAMILY = {"DepthwiseSeparable": "InvertedResidual"}  # variants of one thing, if their bodies unite
TOGETHER = {
    (("conv", "conv"), True): "BasicBlock",
    (("conv", "conv"), False): "DoubleConv",
    (("point", "conv", "point"), True): "Bottleneck",
    (("point", "depth", "point"), True): "InvertedResidual",
    (("point", "depth", "point"), False): "InvertedResidual",
    (("depth", "point"), True): "InvertedResidual",
    (("depth", "point"), False): "DepthwiseSeparable",
}


class ClassNames:
    """Gives the classes of a file their names."""

    def __init__(self, module: ModuleDef, scopes: Iterable[Scope], reserved: Iterable[str]) -> None:
        self.module = module
        self.namer = Namer(reserved)
        self.parts: dict[str, set[ModulePath]] = defaultdict(set)  # short name: the roles that would have it
        self.known: dict[int, str] = {}  # what layers are known as together, by scope
        self.does: dict[int, str] = {}  # by scope, where only what it does says what it is
        self.inside: dict[int, str] = {}  # by scope: what does the work below a wrapper, and below the wrappers in it
        self.same: dict[ModulePath, ModulePath] = {}  # roles of which some are known as the same thing
        first: dict[str, ModulePath] = {}
        for scope in scopes:
            if scope.path and scope.path not in module.classes:
                self.parts[_short(module, scope)].add(role_path(scope.path))
                vague = _word(scope.path) in VAGUE or _is_numbered(scope.path)
                known = self.known[id(scope)] = _together(scope) if vague else ""
                role = role_path(scope.path)
                if not known and _says_nothing(scope.path):
                    self.does[id(scope)] = sublayer(scope)
                    self.inside[id(scope)] = self._inside(scope)
                if known:
                    self.same.setdefault(role, first.setdefault(FAMILY.get(known, known), role))

    def role(self, scope: Scope) -> object:
        """What two scopes must have in common to be variants of one class."""
        recorded = self.module.classes.get(scope.path)
        role = role_path(scope.path)
        return recorded or self.same.get(role, role)

    def take(self, scopes: list[Scope]) -> str:
        """The name of a class that these scopes share."""
        recorded = self.module.classes.get(scopes[0].path)
        found = {self.known.get(id(scope), "") for scope in scopes} - {""}
        known = next((name for name in sorted(found) if FAMILY.get(name) not in found), "")
        if recorded or known:
            return self._free(class_name(recorded) if recorded else known)
        does = self._does(scopes)
        if does:
            return self._free(class_name(does))
        short = self._common(scopes)
        mine = {role_path(scope.path) for scope in scopes}
        others = self.parts[short] - mine
        elsewhere = {word for path in others for word in path}
        telling = [word for word in reversed(role_path(scopes[0].path)[:-1]) if word not in elsewhere]
        if others and telling and len(mine) == 1:
            return self._free(class_name(f"{singular(telling[0].removesuffix('_model'))}_{short}"))
        return self._free(short)

    def _does(self, scopes: list[Scope]) -> str:
        """What a class does, in words, of one wrapper among several also to what; "" if that is not sure."""
        found = {self.does.get(id(scope), "") for scope in scopes}
        name = found.pop() if len(found) == 1 else ""
        alike = {self.inside[key] for key, does in self.does.items() if does == name}
        inside = {self.inside[id(scope)] for scope in scopes} if name and len(alike) > 1 else set()
        return f"{name}_{inside.pop()}" if len(inside) == 1 else name

    def _inside(self, scope: Scope) -> str:
        child = wrapped(scope)
        below = [] if child is None else [m for m in scope.members if m.path[: len(child.path)] == child.path]
        inner = [
            id(m.build.func.scope)
            for m in below
            if isinstance(m.build, ast.Call) and isinstance(m.build.func, ClassRef)
        ]
        found = {self.inside.get(key, "") or self.does.get(key, "") for key in inner} - {"norm"}
        return found.pop() if len(found) == 1 else ""

    def _common(self, scopes: list[Scope]) -> str:
        """The short name of a class: of one that has several roles, the last word that they share."""
        shorts = list(dict.fromkeys(_short(self.module, scope) for scope in scopes))
        words = [re.findall("[A-Z][a-z0-9]*", short) for short in shorts]
        last = {w[-1] for w in words if w}
        if len(shorts) == 1 or len(last) != 1:
            return shorts[0] if len(shorts) == 1 or not _is_projection(scopes[0]) else "Projection"
        name = last.pop()
        return f"{name}Block" if name in RESERVED else name

    def _free(self, name: str) -> str:
        """The name, or with the first number that is free."""
        free, n = name, 2
        while free in self.namer:
            free, n = f"{name}{n}", n + 1
        return self.namer.take(free)


def role_path(path: ModulePath) -> ModulePath:
    """A path without numbers: what scopes of one role have in common."""
    words = (re.sub(r"\d+", "", part).strip("_") for part in path)
    return tuple(word for word in words if word)


def _word(path: ModulePath) -> str:
    """The attribute that a scope is known by: items of a list are what its name says one of them is."""
    words = [part for part in path if not part.isdigit()]
    if path[-1].isdigit() and path[-2:-1] and path[-2].isdigit():
        return "block"
    word = words[-1].rstrip("0123456789").rstrip("_") or words[-1] if words else "block"
    return singular(word) if path[-1].isdigit() else word


def _says_nothing(path: ModulePath) -> bool:
    """`layers.0.1.fn`, and `layers.0.1`: what a wrapper holds, and an item of a list in a list."""
    in_list = path[-1].isdigit() and len(path) > 1 and path[-2].isdigit()
    return in_list or _word(path) in WRAPPED


def _is_numbered(path: ModulePath) -> bool:
    """`layer1.0`: an item of a list that itself is one of several."""
    words = [part for part in path if not part.isdigit()]
    return path[-1].isdigit() and bool(words) and words[-1][-1].isdigit()


def _short(module: ModuleDef, scope: Scope) -> str:
    word = _word(scope.path)
    if word in WHOLE:
        nested = sum(part in WHOLE for part in scope.path) > 1  # `model.model`
        return "Backbone" if nested or module.name.endswith("Model") else class_name(f"{module.name}_model")
    name = class_name("block" if _is_numbered(scope.path) and word == "layer" else WORDS.get(word, word))
    around = [part for part in scope.path[:-1] if not part.isdigit()]
    if name == f"{word.capitalize()}Model" and around:  # Python has another use for `Self`: BERT's `attention.self`
        name = class_name(f"{word}_{WORDS.get(around[-1], around[-1])}")
    return f"{name}Block" if name in RESERVED else name


def _together(scope: Scope) -> str:
    """What the layers of a scope are known as; "" if they are nothing that has a name."""
    kinds = [
        kind
        for member in scope.members
        for kind in [_kind(member.build)]
        if kind and not any(SHORTCUT.search(part) for part in member.path[len(scope.path) :])
    ]
    values = [e for s in scope.body for e in expressions(s)] + scope.outputs
    adds = any(isinstance(v, ast.BinOp) and isinstance(v.op, ast.Add) and _is_sum(v) for e in values for v in walk(e))
    if kinds == ["point", "point"] and any(isinstance(v, ast.BinOp) and isinstance(v.op, ast.Mult) for v in values):
        return "SqueezeExcitation"
    return TOGETHER.get((tuple(kinds), adds), "")


def _is_projection(scope: Scope) -> bool:
    """Nothing but a product with a matrix of its own."""
    return all(member.kind == "parameter" for member in scope.members) and len(scope.members) in (1, 2)


def _is_sum(tree: ast.BinOp) -> bool:
    return isinstance(tree.left, Ref) and isinstance(tree.right, Ref)


def _kind(build: ast.expr) -> str:
    """ "point", "depth" or "conv" of a convolution; "other" of another layer with a matrix; "" of anything else."""
    if not isinstance(build, ast.Call):
        return ""
    name = function_of(build)
    if name in TRANSPOSED | {"nn.Linear", "nn.Embedding", "nn.LSTM", "nn.GRU"}:
        return "other"
    if name not in CONVOLUTIONS or len(build.args) < 3:
        return ""
    channels, kernel = build.args[0], build.args[2]
    groups = next((k.value for k in build.keywords if k.arg == "groups"), ast.Constant(1))
    if not is_number(groups, 1) and ast.dump(groups) == ast.dump(channels):
        return "depth"
    sizes = kernel.elts if isinstance(kernel, ast.Tuple) else [kernel]
    return "point" if all(is_number(size, 1) for size in sizes) else "conv"
