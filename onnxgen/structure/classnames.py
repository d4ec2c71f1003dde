"""Names of classes.

Goes in: all scopes, and the scopes that share a class. Comes out: the name of the class. The rule: the name that the
exporter recorded, or else the attribute (`attention` is an `Attention`, `layers.3` a `Layer`). If the attribute says
nothing (`block`, `layer1.0`, `features.4`), a known sequence of layers gives the name (`BasicBlock`, `Bottleneck`). The
attribute of a wrapper (`fn`), or an item of a list in a list, is named by what it computes (`Attention`, `PreNorm`; of
several such, `PreNormAttention`). Different classes of one name are told apart by the module around them
(`EncoderLayer`, `DecoderLayer`) or else by numbers. No class but the network's own is called after the file.

`sublayer` finds the kind of a transformer's sublayer. Goes in: a scope with its statements and submodules. Comes out: a
word for what it computes ("attention", "feed_forward", "pre_norm"), and the submodule that it only wraps in a norm or a
residual. Both are empty if uncertain.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Member, ModuleDef
from onnxgen.code.quote import Ref, refs, walk
from onnxgen.code.torch_api import CONVOLUTIONS, NORMS, RECURRENT, TRANSPOSED, function_of
from onnxgen.common.names import RESERVED, ModulePath, Namer, class_name, identifier, singular
from onnxgen.lowering.roles import called, seen_through
from onnxgen.structure.literals import APPLIED, is_number
from onnxgen.structure.scopes import ClassRef, Scope, callee

# attributes that say nothing about the module
VAGUE = frozenset(
    """
    body block blk cell conv conv_block double_conv feature inc layer main module net res res_block stage unit
    """.split()
)
WRAPPED = frozenset("f fn func function inner sublayer wrapped".split())  # attributes that wrappers give any child
# attributes that only say where in a network a module stands
PLACES = frozenset("first second third last final hidden left right start end mid middle".split())
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
PROCESSED = frozenset(("text", "vision", "encoder", "decoder"))  # lists of layers (see `scopes.scopes`)
FAMILY = {"DepthwiseSeparable": "InvertedResidual"}  # variants of one class, if their bodies unite
# known sequences of layers: the kinds of convolutions, and whether their result is added to their input
KNOWN_SEQUENCES = {
    (("conv", "conv"), True): "BasicBlock",
    (("conv", "conv"), False): "DoubleConv",
    (("point", "conv", "point"), True): "Bottleneck",
    (("point", "depth", "point"), True): "InvertedResidual",
    (("point", "depth", "point"), False): "InvertedResidual",
    (("depth", "point"), True): "InvertedResidual",
    (("depth", "point"), False): "DepthwiseSeparable",
}


TELLING = 4  # parts whose names tell a class, wherever its instances stand


class ClassNames:
    """Gives the classes of a file their names."""

    def __init__(self, module: ModuleDef, scopes: Iterable[Scope], reserved: Iterable[str]) -> None:
        self.module = module
        self.namer = Namer(reserved)
        self.roles: dict[str, set[ModulePath]] = defaultdict(set)  # by short name: the roles that it would name
        self.known: dict[int, str] = {}  # by scope: the name of its known sequence of layers
        self.does: dict[int, str] = {}  # by scope whose attribute says nothing: what it computes
        self.inside: dict[int, str] = {}  # by the same scopes: what the submodule inside all wrappers computes
        # roles with one known sequence of layers, or with parts of the same names: the first of them
        self.same: dict[ModulePath, ModulePath] = {}
        self._first: dict[str, ModulePath] = {}
        for scope in scopes:
            if scope.path and scope.path not in module.classes and not scope.row:
                self._look_at(scope)

    def _look_at(self, scope: Scope) -> None:
        """Note what a scope is whose name was not recorded."""
        role, word = role_path(scope.path), _word(scope.path)
        self.roles[_short(self.module, scope)].add(role)
        is_vague = word in VAGUE or _is_numbered(scope.path)
        known = self.known[id(scope)] = _known_sequence(scope) if is_vague else ""
        # not every block of a class has a shortcut
        parts = {name for name in attributes_of(scope) if not SHORTCUT.fullmatch(name)}
        if known or len(parts) >= TELLING:
            kind = FAMILY.get(known, known) or " ".join(sorted(parts))
            self.same.setdefault(role, self._first.setdefault(kind, role))
        if not known and (_says_nothing(scope.path) or word in PLACES):
            self.does[id(scope)] = sublayer(scope) or (_of_layers(scope) if word in PLACES else "")
            self.inside[id(scope)] = self._inside(scope)

    def role(self, scope: Scope) -> object:
        """Return the role of a scope. Only scopes of equal roles can be variants of one class."""
        if scope.row is not None:
            return scope.row
        role = role_path(scope.path)
        return self.module.classes.get(scope.path) or self.same.get(role, role)

    def take(self, scopes: list[Scope]) -> str:
        """Return the name of a class that these scopes share."""
        if scopes[0].row is not None:
            return self._free(scopes[0].row[0])
        recorded = self.module.classes.get(scopes[0].path)
        candidates = {self.known.get(id(scope), "") for scope in scopes} - {""}
        known = next((name for name in sorted(candidates) if FAMILY.get(name) not in candidates), "")
        if recorded or known:
            return self._free(class_name(recorded) if recorded else known, scopes)
        if does := self._does(scopes):
            return self._free(class_name(does))
        short = self._common(scopes)
        around = self._around(scopes, short)
        return self._free(class_name(f"{around}_{short}") if around else short)

    def _around(self, scopes: list[Scope], short: str) -> str:
        """Return the word for the module around that tells a class from others of its name, or ""."""
        mine = {role_path(scope.path) for scope in scopes}
        others = self.roles[short] - mine
        elsewhere = {word for path in others for word in path}
        telling = [word for word in reversed(role_path(scopes[0].path)[:-1]) if word not in elsewhere]
        return singular(telling[0].removesuffix("_model")) if others and telling and len(mine) == 1 else ""

    def _does(self, scopes: list[Scope]) -> str:
        """Return what a class computes; of one wrapper among several also what it wraps. "" if that is not certain."""
        kinds = {self.does.get(id(scope), "") for scope in scopes}
        name = kinds.pop() if len(kinds) == 1 else ""
        alike = {self.inside[key] for key, does in self.does.items() if does == name}
        inside = {self.inside[id(scope)] for scope in scopes} if name and len(alike) > 1 else set()
        return f"{name}_{inside.pop()}" if len(inside) == 1 else name

    def _inside(self, scope: Scope) -> str:
        child = wrapped(scope)
        below = [] if child is None else [m.build for m in scope.members if m.path[: len(child.path)] == child.path]
        inner = [id(build.scope) for build in below if isinstance(build, ClassRef)]
        kinds = {self.inside.get(key, "") or self.does.get(key, "") for key in inner} - {"norm"}
        return kinds.pop() if len(kinds) == 1 else ""

    def _common(self, scopes: list[Scope]) -> str:
        """Return the short name of a class; if it has several roles, the last word that their names share."""
        shorts = list(dict.fromkeys(_short(self.module, scope) for scope in scopes))
        words = [re.findall("[A-Z][a-z0-9]*", short) for short in shorts]
        last = {w[-1] for w in words if w}
        has_only_parameters = len(shorts) > 1 and _has_only_parameters(scopes[0])
        if len(shorts) == 1 or len(last) != 1:
            return _of_parameters(scopes[0]) if has_only_parameters else shorts[0]
        name = last.pop()
        if has_only_parameters and self.roles.get(name):  # `Embeddings` is what has tables of embeddings
            return _of_parameters(scopes[0])
        return f"{name}Block" if name in RESERVED else name

    def _free(self, name: str, scopes: Sequence[Scope] = ()) -> str:
        """Return the name; if it is taken, with what the layers around it process (`VisionAttention`), or a number."""
        outermost = {scope.path[0].removesuffix("_layers") for scope in scopes}
        if name in self.namer and len(outermost) == 1 and outermost <= PROCESSED:
            name = class_name(f"{outermost.pop()}_{name}")
        free, n = name, 2
        while free in self.namer:
            free, n = f"{name}{n}", n + 1
        return self.namer.take(free)


def role_path(path: ModulePath) -> ModulePath:
    """Return a path without numbers. Scopes of one role have the same."""
    words = (re.sub(r"\d+", "", part).strip("_") for part in path)
    return tuple(word for word in words if word)


def _word(path: ModulePath) -> str:
    """Return the attribute of a scope; for an item of a list, the singular of the list's name."""
    words = [part for part in path if not part.isdigit()]
    if path[-1].isdigit() and path[-2:-1] and path[-2].isdigit():
        return "block"
    word = re.sub(r"[_\d]+$", "", words[-1]) or words[-1] if words else "block"
    return singular(word) if path[-1].isdigit() else word


def _says_nothing(path: ModulePath) -> bool:
    """True for the child of a wrapper (`layers.0.1.fn`) and an item of a list in a list (`layers.0.1`)."""
    in_list = path[-1].isdigit() and len(path) > 1 and path[-2].isdigit()
    return in_list or _word(path) in WRAPPED


def _is_numbered(path: ModulePath) -> bool:
    """True for an item of one of several numbered lists (`layer1.0`)."""
    words = [part for part in path if not part.isdigit()]
    return path[-1].isdigit() and bool(words) and words[-1][-1].isdigit()


def attributes_of(scope: Scope) -> set[str]:
    """Return the names of a scope's own attributes."""
    return {member.path[len(scope.path)] for member in scope.members if len(member.path) > len(scope.path)}


def _short(module: ModuleDef, scope: Scope) -> str:
    """Return the name of a class by the attribute of one instance."""
    word = _word(scope.path)
    if word in WHOLE and scope.path[-1][-1].isdigit():
        return "Block"
    if word in WHOLE or (word in WRAPPED and len(scope.path) == 1 and not scope.path[0][-1].isdigit()):
        return _of_whole(module, scope.path)
    name = class_name("block" if _is_numbered(scope.path) and word == "layer" else WORDS.get(word, word))
    around = [part for part in scope.path[:-1] if not part.isdigit()]
    if name == f"{word.capitalize()}Model" and around:  # `Self` is a name of Python's: BERT's `attention.self`
        name = class_name(f"{word}_{WORDS.get(around[-1], around[-1])}")
    return f"{name}Block" if name in RESERVED else name


def _of_whole(module: ModuleDef, path: ModulePath) -> str:
    """Name a class that holds nearly the whole network."""
    nested = sum(part in WHOLE for part in path) > 1  # `model.model`
    recorded = module.classes.get((), "")  # without one, the network is called after its file
    return "Backbone" if nested or not recorded or recorded.endswith("Model") else class_name(f"{recorded}_model")


def _known_sequence(scope: Scope) -> str:
    """Return the name of a known sequence of layers; "" if the scope has another one."""
    level = len(scope.path)
    layers = [m for m in _layers(scope) if not any(SHORTCUT.search(part) for part in m.path[level:])]
    kinds = tuple(kind for m in layers if (kind := _kind(m.build)))
    values = scope.expressions()
    if kinds == ("point", "point") and any(isinstance(v, ast.BinOp) and isinstance(v.op, ast.Mult) for v in values):
        return "SqueezeExcitation"
    return KNOWN_SEQUENCES.get((kinds, any(_is_sum(v) for e in values for v in walk(e))), "")


def _of_layers(scope: Scope) -> str:
    """Return what a scope is whose attribute only says where it stands: after the layers that it has."""
    kinds = [kind for m in scope.members if (kind := m.layer) in CONVOLUTIONS | TRANSPOSED | RECURRENT | {"nn.Linear"}]
    if not kinds or any(isinstance(m.build, ClassRef) for m in scope.members):
        return ""
    if CONVOLUTIONS.union(TRANSPOSED).issuperset(kinds):
        return "conv_block"
    if {*kinds} == {"nn.Linear"}:
        return "MLP" if len(kinds) > 1 else "linear_block"
    return "recurrent_block" if RECURRENT.issuperset(kinds) else ""


def _layers(scope: Scope) -> list[Member]:
    """Return the members of a scope, and those of its rows of layers."""
    inner = [m.build.scope if isinstance(m.build, ClassRef) and m.build.scope.row else None for m in scope.members]
    return [layer for m, row in zip(scope.members, inner) for layer in ([m] if row is None else row.members)]


def _has_only_parameters(scope: Scope) -> bool:
    """True for a class that has no layers, but a few tensors, such as a matrix of integers, its scale and a bias."""
    kinds = [member.kind for member in scope.members]
    return "parameter" in kinds and len(kinds) <= 3 and {*kinds} <= {"parameter", "buffer"}


def _of_parameters(scope: Scope) -> str:
    """Return the name of such a class: it looks up rows of its own table, or multiplies with it."""
    nodes = [node for tree in scope.expressions() for node in walk(tree)]
    looks_up = any(isinstance(n, ast.Subscript) and isinstance(n.slice, Ref) for n in nodes)
    return "EmbeddingTable" if looks_up else "Projection"


def _is_sum(tree: ast.AST) -> bool:
    if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.Add):
        return False
    return isinstance(tree.left, Ref) and isinstance(tree.right, Ref)


def _kind(build: ast.expr) -> str:
    """Return "point", "depth" or "conv" for a convolution, "other" for another layer with a matrix, "" for the rest."""
    if not isinstance(build, ast.Call):
        return ""
    name = function_of(build)
    if name in TRANSPOSED | RECURRENT | {"nn.Linear", "nn.Embedding"}:
        return "other"
    if name not in CONVOLUTIONS or len(build.args) < 3:
        return ""
    channels, kernel = build.args[0], build.args[2]
    groups = next((k.value for k in build.keywords if k.arg == "groups"), ast.Constant(1))
    if not is_number(groups, 1) and ast.dump(groups) == ast.dump(channels):
        return "depth"
    sizes = kernel.elts if isinstance(kernel, ast.Tuple) else [kernel]
    return "point" if all(is_number(size, 1) for size in sizes) else "conv"


# one letter for each layer: norm, linear, activation; "" for layers that do nothing when not trained; "?" for others
LETTERS = {
    "nn.Linear": "l",
    "nn.Dropout": "",
    "nn.Identity": "",
    **dict.fromkeys(APPLIED, "a"),
    **dict.fromkeys(NORMS, "n"),
}
FEED_FORWARD = re.compile("n?l(a|sap)l")  # s: split in parts, p: product
SCORES, PROBABILITIES = 1, 2  # a product of two values; the softmax of one


@dataclass
class Step:
    """A statement: a letter for each layer, the submodule that it calls, and the values it takes and makes."""

    letters: str
    callee: Member | None
    takes: list[str]
    makes: tuple[str, ...]
    is_view: bool


def sublayer(scope: Scope) -> str:
    """Return what a scope computes, such as "feed_forward" or "pre_norm"; "" if that is not certain."""
    if wrapped(scope) is not None:
        return _wrapper(scope)[0]
    steps = _steps(scope)
    if "".join(step.letters for step in steps if not step.is_view) == "n":
        return "norm"
    has_classes = any(isinstance(m.build, ClassRef) for m in scope.members)
    if not has_classes and not any("a" in step.letters for step in steps) and _attends(scope):
        return "attention"
    return "feed_forward" if _feeds_forward(scope, steps) else ""


def _feeds_forward(scope: Scope, steps: list[Step]) -> bool:
    """True for two linear layers with an activation between them, which give what they take."""
    is_chain = all(set(before.makes) & set(after.takes) for before, after in zip(steps, steps[1:]))
    layers = "".join(step.letters for step in steps)
    if not is_chain or not FEED_FORWARD.fullmatch(layers) or steps[-1].makes != _returned(scope):
        return False
    widths = [m.build.args for m in scope.members if isinstance(m.build, ast.Call) and _letters(m, scope) == "l"]
    return ast.dump(widths[0][0]) == ast.dump(widths[-1][1])


def work(member: Member, scope: Scope, recorded: Mapping[ModulePath, str]) -> str:
    """Return what a submodule of a scope computes, below all wrappers; "" if that is not certain.

    `recorded`: the class names that the exporter recorded, by path.
    """
    if isinstance(member.build, ClassRef):
        inner = member.build.scope
        child = wrapped(inner)
        name = recorded.get(inner.path, "")
        return (work(child, inner, recorded) if child else "") or (identifier(name) if name else sublayer(inner))
    if isinstance(member.build, ast.Call):
        return {"n": "norm", "l": "linear"}.get(_letters(member, scope), "")
    if FEED_FORWARD.fullmatch(_letters(member, scope)):
        return "feed_forward"
    below = [m for m in scope.members if m.path[: len(member.path)] == member.path and isinstance(m.build, ClassRef)]
    kinds = {work(m, scope, recorded) for m in below} - {"norm"}
    return kinds.pop() if len(kinds) == 1 else ""


def wrapped(scope: Scope) -> Member | None:
    """Return the submodule of a scope that only adds a norm or a residual to it."""
    return _wrapper(scope)[1]


def _wrapper(scope: Scope) -> tuple[str, Member | None]:
    """Return the kind of a wrapper, and the submodule that it wraps."""
    steps = _steps(scope)
    if len(steps) != 2 or not scope.inputs or steps[1].makes != _returned(scope):
        return "", None
    first, last = steps
    arguments = {argument.value for argument in scope.inputs}
    taken, inner, needed = set(first.takes), set(first.makes), set(last.takes)
    if _is_whole(first.callee):
        added = needed - inner
        if last.letters == "n" and tuple(last.takes) == first.makes:
            return "post_norm", first.callee
        if last.letters == "+" and len(added) == 1 and added <= arguments & taken:
            return "residual", first.callee
    is_before = first.letters == "n" and taken <= arguments - needed and inner <= needed
    return ("pre_norm", last.callee) if is_before and _is_whole(last.callee) else ("", None)


def _returned(scope: Scope) -> tuple[str, ...]:
    return tuple(output.value for output in scope.outputs if isinstance(output, Ref))


def _steps(scope: Scope) -> list[Step]:
    """Return the statements of a scope; [] if one of them is not an assignment."""
    steps = []
    for s in scope.body:
        if not isinstance(s, Assign) or not s.targets:
            return []
        member = callee(s.value)
        letters = _function(s.value) if member is None else _letters(member, scope)
        steps.append(Step(letters, member, list(refs(s.value)), s.targets, isinstance(seen_through(s.value), Ref)))
    return steps


def _function(value: ast.expr) -> str:
    if isinstance(value, ast.BinOp) and isinstance(value.left, Ref) and isinstance(value.right, Ref):
        return {ast.Add: "+", ast.Mult: "p"}.get(type(value.op), "?")
    return "s" if called(value)[0] in ("chunk", "split") else LETTERS.get(function_of(value), "?")


def _letters(member: Member, scope: Scope) -> str:
    """Return the letters of a submodule; of a list that is called as one, those of all its items."""
    if isinstance(member.build, ast.Attribute):
        items = [m for m in scope.members if m.path[: len(member.path)] == member.path]
        items.sort(key=lambda m: [int(part) if part.isdigit() else -1 for part in m.path])
        return "".join(_letters(item, scope) for item in items)
    return LETTERS.get(member.layer, "?")


def _attends(scope: Scope) -> bool:
    """True for scaled dot product attention: the function, or a softmax between two products of values."""
    stages: dict[str, int] = {}
    for s in scope.body:
        if not isinstance(s, Assign):
            return False
        value = seen_through(s.value)
        name, _ = called(value)
        if name == "scaled_dot_product_attention":
            return True
        of = max((stages.get(taken, 0) for taken in refs(value)), default=0)
        if name in ("matmul", "bmm") or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult)):
            if of == PROBABILITIES:
                return True
            of = max(of, SCORES if len(set(refs(value))) > 1 else 0)
        elif name == "softmax" and of:
            of = PROBABILITIES
        elif callee(s.value) is not None:
            of = 0
        stages.update(dict.fromkeys(s.targets, of))
    return False


def _is_whole(member: Member | None) -> bool:
    """True for a class of the file, or a list of layers that is called as one."""
    return member is not None and isinstance(member.build, (ClassRef, ast.Attribute))
