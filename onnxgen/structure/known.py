"""Known blocks have known names: `C2f`, `SqueezeExcite`, `ConvNeXtBlock`.

Goes in: the classes of a file, a class before those that it is a part of. Comes out: new names for classes whose names
say little and whose `forward` computes what a block of the table (`LIBRARIES`) computes. Two classes compute the same
if their sketches are equal: what `forward` returns, in terms of kinds of layers, without norms, dropout, sizes and the
order of operands. Optional parts count as present.

The table has the blocks in plain PyTorch, and what tells them apart. A block is a function: the layers that it has, and
then what it computes, as the generator would write both. It is without norms and dropout, which are left out when it is
compared. Of several libraries that have a block, the one is meant of which a file has most blocks that no other library
has.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from onnxgen.code.class_tree import ClassTree
from onnxgen.code.quote import walk
from onnxgen.code.torch_api import ACTIVATIONS, CONVOLUTIONS, function_of

# names that say only that there is something, or repeat the name of an attribute
VAGUE = re.compile(
    r"(Branch(es)?|Branch|Conv|Residual|Dense)?(Block|Module|Unit|Layer)?\d*|Branches\d*|Dfl|Mlp|Cell\d*|[A-Z][a-z]?\d*"
)
SEVERAL = 2  # blocks of one library that a file must have before a convolution is called as the library calls it
PLAIN = "timm"  # of which the names are, otherwise
_PLAIN = ("nn.Ident", "nn.Drop", "F.drop", "Tensor.contiguous")  # beginnings of the names of what is left out
_NORMS = ("nn.BatchNorm", "nn.GroupNorm", "nn.LayerNorm", "nn.InstanceNorm", "F.batch_norm", "F.layer_norm")
_GATES = frozenset(name for pair in ACTIVATIONS.items() if pair[0].endswith("sigmoid") for name in pair)
_ACTS = (frozenset((*ACTIVATIONS, *ACTIVATIONS.values(), "F.hardtanh", "nn.Hardtanh")) - _GATES) | {"F.prelu"}
_MEANS = ("F.adaptive_avg_pool2d", "Tensor.mean", "torch.mean", "F.adaptive_avg_pool1d")
_COMMUTES = {ast.Add: "+", ast.Mult: "*"}


@dataclass(frozen=True, eq=False)  # without slots: those leave no room for the weak reference
class Sketch:
    """What a value is computed by.

    Equal sketches are one object, made by `sketch`. They share their parts: of a dense network, which joins what all
    layers before gave, a sketch that is written out is exponentially long.

    Attributes:
        kind: an operator, or a kind of layer.
        parts: sketches, and texts and numbers.
        number: the place among all sketches.
    """

    kind: str
    parts: tuple[Any, ...]
    number: int


_ALIVE: WeakValueDictionary[tuple[Any, ...], Sketch] = WeakValueDictionary()
_NUMBERS = count()


def sketch(kind: str, *parts: Any) -> Sketch:
    """Return the one sketch of this kind and of these parts."""
    key = (kind, *parts)
    instance = _ALIVE.get(key)
    if instance is None:
        instance = _ALIVE[key] = Sketch(kind, parts, next(_NUMBERS))
    return instance


NUMBER = sketch("number")
LIST = sketch("list")  # without items
INPUT = sketch("in", 0)


def known_names(classes: Sequence[ClassTree], taken: Collection[str], kept: Collection[str]) -> dict[str, str]:
    """Return new names by the old ones.

    Args:
        classes: of one file, the root last.
        taken: names that no class may have.
        kept: names that an exporter recorded.
    """
    blocks_of: dict[str, dict[str, str]] = {}  # by class: the block's name in each library that has it
    sketches: dict[str, Sketch] = {}
    for tree in classes[:-1]:
        whole = _whole(tree.setup, tree.body, [a.arg for a in tree.inputs], sketches)
        if whole is not None:
            sketches[tree.name] = whole
            blocks_of[tree.name] = table().get(whole, {})
    votes = Counter(library for blocks in blocks_of.values() if len(blocks) == 1 for library in blocks)
    names: dict[str, str] = {}
    used = {*taken, *(tree.name for tree in classes)}
    for tree in classes[:-1]:
        block = _voted(blocks_of.get(tree.name) or _by_members(tree, votes), votes)
        if not block or tree.name in kept or not VAGUE.fullmatch(tree.name):
            continue
        names[tree.name] = _free(block, used - {tree.name})
        used.add(names[tree.name])
    return names | _numbered([t.name for t in classes[:-1]], names, {*taken, classes[-1].name}, kept)


def _free(name: str, used: Collection[str]) -> str:
    """Return the name, with a number if it is taken."""
    return next(free for n in count(1) if (free := name if n == 1 else f"{name}{n}") not in used)


def _voted(blocks: Mapping[str, str], votes: Mapping[str, int]) -> str:
    """Return the name of a block in the library of which a file has most, or "". `blocks`: its name in each library."""
    library = max(blocks, key=lambda library: votes.get(library, 0), default="")
    if votes.get(library, 0) < (SEVERAL if PLAIN in blocks else 1):
        library = PLAIN
    return blocks.get(library, "")


def _by_members(tree: ClassTree, votes: Mapping[str, int]) -> dict[str, str]:
    """Return the name of a class with the very members of a library's, if the file has other blocks of that library."""
    own = frozenset(
        t.attr for s in tree.setup if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Attribute)
    )
    return {library: name for library, members, name in MEMBERS if members == own and votes.get(library, 0) >= SEVERAL}


def _numbered(
    old: Sequence[str], names: Mapping[str, str], taken: Collection[str], kept: Collection[str]
) -> dict[str, str]:
    """Return other numbers for classes that were told apart by one from classes which have a new name now."""
    left, renamed = [name for name in old if name not in names], dict[str, str]()
    used = {*taken, *names.values(), *left}
    for name in left:
        plain = name.rstrip("0123456789")
        if plain != name and plain in old and name not in kept:
            used.discard(name)
            renamed[name] = _free(plain, used)
            used.add(renamed[name])
    return renamed


def rename(classes: Iterable[ClassTree], names: Mapping[str, str]) -> None:
    """Give classes their new names, also where others make instances of them.

    A new name may be the old one of another class, and trees share nodes: each node is renamed once.
    """
    seen: set[int] = set()
    for tree in classes:
        tree.name = names.get(tree.name, tree.name)
        for part in (*tree.setup, *tree.items):
            for node in walk(part):
                if isinstance(node, ast.Name) and node.id in names and id(node) not in seen:
                    node.id = names[node.id]
                    seen.add(id(node))


@cache
def table() -> dict[Sketch, dict[str, str]]:
    """Return the names of the known blocks by library, by sketch."""
    names: dict[Sketch, dict[str, str]] = {}
    for library, text in LIBRARIES.items():
        inside: dict[str, Sketch] = {}
        for block in ast.parse(text).body:
            assert isinstance(block, ast.FunctionDef)
            whole = inside[block.name] = of_table(block, inside)
            names.setdefault(whole, {})[library] = block.name
    return names


def of_table(block: ast.FunctionDef, inside: Mapping[str, Sketch]) -> Sketch:
    """Return the sketch of a block of the table: a function that makes its layers and then computes with them."""
    setup = [s for s in block.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Attribute)]
    layers = [ast.Assign([target], s.value) for s in setup for target in s.targets]
    whole = _whole(layers, block.body[len(setup) :], [a.arg for a in block.args.args], inside)
    assert whole is not None, f"the table's {block.name} has no sketch"
    return whole


class _Unknown(Exception):
    """A statement that sketches do not have."""


def _whole(
    setup: Sequence[ast.stmt], body: Sequence[ast.stmt], inputs: Sequence[str], inside: Mapping[str, Sketch]
) -> Sketch | None:
    """Return the sketch of a class; None if it has none. `inside`: those of the classes that it may have inside."""
    try:
        forward = _Forward({}, inside)
        forward.see(setup)
        forward.values = {name: sketch("in", i) for i, name in enumerate(inputs)}
        return forward.block(body)
    except _Unknown:
        return None


class _Forward:
    """Follows one `forward`. `members`: what each attribute does to a value."""

    def __init__(self, members: dict[str, Sketch], inside: Mapping[str, Sketch]) -> None:
        self.members, self.inside = members, inside
        self.values: dict[str, Sketch] = {}

    def see(self, setup: Sequence[ast.stmt]) -> None:
        for statement in setup:
            if isinstance(statement, ast.If):
                self.see(statement.body)
            elif isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Attribute):
                self.members[target.attr] = self._layer(statement.value)

    def _layer(self, build: ast.expr) -> Sketch:
        """Return a sketch of the kind of a layer: "conv", "block" of a class, or "row" of the layers of a container."""
        if not isinstance(build, ast.Call):
            return NUMBER
        name = function_of(build)
        if name in ("nn.Sequential", "nn.ModuleList"):
            items = build.args[0].elts if build.args and isinstance(build.args[0], ast.List) else build.args
            kinds = [self._layer(_repeated(item)) for item in items]
            return sketch("each", kinds[0]) if len({*kinds}) == 1 else sketch("row", *kinds)
        if name in CONVOLUTIONS:
            return sketch(_kernel(build))
        if name in self.inside:
            return sketch("block", self.inside[name])  # compared as if it were written out
        return sketch("norm" if name.startswith(_NORMS) else "act" if name in _ACTS else name)

    def block(self, body: Sequence[ast.stmt]) -> Sketch:
        """Return the sketch of what a block returns."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return self.value(statement.value)
            self._step(statement)
        raise _Unknown

    def _step(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.If):
            for inner in statement.body:
                self._step(inner)
        elif isinstance(statement, ast.For):
            self._loop(statement)
        elif isinstance(statement, ast.Assign):
            self._assign(statement.targets[0], self.value(statement.value))
        else:
            raise _Unknown

    def _assign(self, target: ast.expr, value: Sketch) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Tuple):
            for i, part in enumerate(target.elts):
                self._assign(part, sketch("part", i, value))
        else:
            raise _Unknown

    def _loop(self, loop: ast.For) -> None:
        """Follow a loop over equal layers, whose results may be collected."""
        over = loop.iter.attr if isinstance(loop.iter, ast.Attribute) else ""
        kind = self.members.get(over, NUMBER)
        if kind.kind != "each":
            raise _Unknown
        match loop.target, loop.body:
            case ast.Name(layer), [ast.Assign([ast.Name(target)], ast.Call(ast.Name(called), [operand])), *rest]:
                if called != layer:
                    raise _Unknown
            case _:
                raise _Unknown
        result = _applied(kind, self.value(operand))
        self.values[target] = result
        for statement in rest:  # `features.append(x)`
            match statement:
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(collected)))):
                    self.values[collected] = sketch("list", result)
                case ast.Expr(ast.Call(ast.Attribute())):
                    pass
                case _:
                    raise _Unknown

    def value(self, tree: ast.expr | None) -> Sketch:
        """Return the sketch of an expression."""
        match tree:
            case ast.Name(name):
                return self.values.get(name, NUMBER)
            case ast.Attribute(_, name):
                return self.members.get(name, NUMBER)
            case ast.Starred(inner):  # all that a loop has collected: of equal layers
                base = self.value(inner)
                return _item(base) or base
            case ast.Tuple(elements) | ast.List(elements):
                items = _distinct([*map(self.value, elements)])
                return LIST if not items else NUMBER if {*items} == {NUMBER} else sketch("cat", *items)
            case ast.BinOp(left, operator, right):
                both = [self.value(left), self.value(right)]
                sign = _COMMUTES.get(type(operator), type(operator).__name__)
                return sketch(sign, *(sorted(both, key=_place) if type(operator) in _COMMUTES else both))
            case ast.Subscript(inner, index):
                base = self.value(inner)
                return _item(base) or sketch("at", ast.unparse(index), base)
            case ast.Call():
                return self._called(tree)
        return NUMBER

    def _called(self, tree: ast.Call) -> Sketch:
        function = tree.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
            if function.attr not in self.members or len(tree.args) != 1:
                raise _Unknown
            return _applied(self.members[function.attr], self.value(tree.args[0]))
        name = function_of(tree)
        if name.split(".")[0] in ("F", "torch", "nn"):
            operands = tree.args
        elif isinstance(function, ast.Attribute):  # a method of a tensor
            name, operands = f"Tensor.{function.attr}", [function.value, *tree.args]
        else:
            raise _Unknown
        return _function(name, [v for v in map(self.value, operands) if v is not NUMBER])


def _function(name: str, operands: list[Sketch]) -> Sketch:
    if not operands:
        return NUMBER
    if name.startswith((*_PLAIN, *_NORMS)):
        return operands[0]
    if name in _ACTS:
        return sketch("act", operands[0])
    if name in _GATES:
        return sketch("gate", operands[0])
    if name in _MEANS:
        return sketch("mean", operands[0])
    if name == "torch.cat":
        return operands[0]
    if name in ("Tensor.split", "torch.split", "torch.chunk"):
        name = "Tensor.chunk"
    return sketch(name.rpartition(".")[2], *operands)


def _item(collected: Sketch) -> Sketch | None:
    """Return what each item of a list is that a loop has filled; None for another value."""
    return collected.parts[0] if collected.kind == "list" and collected.parts else None


def _place(part: Sketch) -> int:
    return part.number


def _applied(layer: Sketch, value: Sketch) -> Sketch:
    """Return what a layer of this kind makes of a value."""
    if layer.kind == "row":
        for inner in layer.parts:
            value = _applied(inner, value)
        return value
    if layer.kind == "norm" or layer.kind.startswith(_PLAIN):
        return value
    if layer.kind == "block":
        return _written_out(layer.parts[0], value)
    if layer.kind == "each":  # however many there are
        is_again = value.kind == "each" and value.parts[0] is layer.parts[0]
        return value if is_again else sketch("each", *layer.parts, value)
    return sketch(layer.kind, *layer.parts, value)


def _written_out(block: Sketch, value: Sketch) -> Sketch:
    """Return the sketch of a block of one input, of this value."""
    inside, left = {block}, [block]
    while left:
        new = {part for part in left.pop().parts if isinstance(part, Sketch)} - inside
        inside |= new
        left += new
    replaced = {INPUT: value}
    for one in sorted(inside - {INPUT}, key=_place):  # parts before what has them
        if one.kind == "in":
            raise _Unknown
        replaced[one] = sketch(one.kind, *(replaced[part] if isinstance(part, Sketch) else part for part in one.parts))
    return replaced[block]


def _distinct(values: list[Sketch]) -> list[Sketch]:
    """Return values without those that equal the one before: results of equal layers that follow each other."""
    return [v for i, v in enumerate(values) if i == 0 or v is not values[i - 1] or v.kind != "each"]


def _repeated(item: ast.expr) -> ast.expr:
    """Return the layer that a list of equal layers repeats."""
    inner = item.value if isinstance(item, ast.Starred) else item
    return inner.elt if isinstance(inner, ast.ListComp) else inner


def _kernel(convolution: ast.Call) -> str:
    """Return "conv"; "depth" for a convolution of each channel."""
    groups = next((k.value for k in convolution.keywords if k.arg == "groups"), ast.Constant(1))
    is_one = isinstance(groups, ast.Constant) and groups.value == 1
    return "depth" if not is_one and ast.dump(groups) == ast.dump(convolution.args[0]) else "conv"


# classes of libraries that are told by the names of their members: what they compute differs from version to version
MEMBERS = (
    ("ultralytics", frozenset(("cv2", "cv3", "dfl")), "Detect"),
    ("ultralytics", frozenset(("cv2", "cv3", "cv4", "dfl")), "Pose"),
    ("ultralytics", frozenset(("cv2", "cv3", "cv4", "dfl", "proto")), "Segment"),
    ("ultralytics", frozenset(("attn", "ffn")), "PSABlock"),
)
LIBRARIES = {
    "ultralytics": """
def Conv(x):
    self.conv = nn.Conv2d(c1, c2, k)
    return F.silu(self.conv(x))

def Bottleneck(x):
    self.cv1 = self.cv2 = Conv()
    return x + self.cv2(self.cv1(x))

def C3(x):
    self.cv1 = self.cv2 = self.cv3 = Conv()
    self.m = nn.Sequential(Bottleneck())
    return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], dim=1))

def C2f(x):
    self.cv1 = self.cv2 = Conv()
    self.m = nn.Sequential(Bottleneck())
    a, b = self.cv1(x).chunk(2, dim=1)
    return self.cv2(torch.cat([a, b, self.m(b)], dim=1))

def SPPF(x):
    self.cv1 = self.cv2 = Conv()
    x = self.cv1(x)
    a = F.max_pool2d(x, 5)
    b = F.max_pool2d(a, 5)
    c = F.max_pool2d(b, 5)
    return self.cv2(torch.cat([x, a, b, c], dim=1))

def SPP(x):
    self.cv1 = self.cv2 = Conv()
    x = self.cv1(x)
    a = F.max_pool2d(x, 5)
    b = F.max_pool2d(x, 9)
    c = F.max_pool2d(x, 13)
    return self.cv2(torch.cat([x, a, b, c], dim=1))

def DFL(x):
    self.conv = nn.Conv2d(16, 1, 1)
    return self.conv(F.softmax(x.unflatten(1, (4, -1)).transpose(1, 2), dim=1)).flatten(0, 1)

def Focus(x):
    self.conv = Conv()
    a = x[..., ::2, ::2]
    b = x[..., 1::2, ::2]
    c = x[..., ::2, 1::2]
    d = x[..., 1::2, 1::2]
    return self.conv(torch.cat([a, b, c, d], dim=1))
""",
    "yolox": """
def Bottleneck(x):
    self.conv1 = nn.Conv2d(c, c, 1)
    self.conv2 = nn.Conv2d(c, c, 3)
    return F.silu(self.conv2(F.silu(self.conv1(x)))) + x

def CSPLayer(x):
    self.conv1 = self.conv2 = nn.Conv2d(a, b, 1)
    self.blocks = nn.Sequential(Bottleneck())
    self.conv3 = nn.Conv2d(2 * b, a, 1)
    x = torch.cat([self.blocks(F.silu(self.conv1(x))), F.silu(self.conv2(x))], dim=1)
    return F.silu(self.conv3(x))

def DarkStage(x):
    self.conv = nn.Conv2d(a, b, 3)
    self.csp = CSPLayer()
    return self.csp(F.silu(self.conv(x)))

def DecoupledHead(x):
    self.stem = nn.Conv2d(a, b, 1)
    self.cls_conv1 = self.cls_conv2 = nn.Conv2d(b, b, 3)
    self.cls_pred = nn.Conv2d(b, c, 1)
    self.reg_conv1 = self.reg_conv2 = nn.Conv2d(b, b, 3)
    self.reg_pred = nn.Conv2d(b, 4, 1)
    self.obj_pred = nn.Conv2d(b, 1, 1)
    x = F.silu(self.stem(x))
    probs = torch.sigmoid(self.cls_pred(F.silu(self.cls_conv2(F.silu(self.cls_conv1(x))))))
    x = F.silu(self.reg_conv2(F.silu(self.reg_conv1(x))))
    return torch.cat([self.reg_pred(x), torch.sigmoid(self.obj_pred(x)), probs], dim=1)
""",
    "timm": """
def ConvNormAct(x):
    self.conv = nn.Conv2d(c1, c2, 3)
    return F.relu(self.conv(x))

def SqueezeExcite(x):
    self.fc1 = nn.Conv2d(a, b, 1)
    self.fc2 = nn.Conv2d(b, a, 1)
    h = F.relu(self.fc1(x.mean(dim=(2, 3), keepdim=True)))
    return x * torch.sigmoid(self.fc2(h))

def ConvNeXtBlock(x):
    self.dwconv = nn.Conv2d(c, c, 7, groups=c)
    self.norm = nn.LayerNorm(c)
    self.pwconv1 = nn.Linear(a, b)
    self.pwconv2 = nn.Linear(b, a)
    self.gamma = nn.Parameter(torch.ones(c))
    h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
    h = self.gamma * self.pwconv2(F.gelu(self.pwconv1(h)))
    return x + h.permute(0, 3, 1, 2)

def RepVGGBlock(x):
    self.conv1 = nn.Conv2d(a, b, 3)
    self.conv2 = nn.Conv2d(a, b, 1)
    self.bn = nn.BatchNorm2d(b)
    return F.relu(self.conv1(x) + self.conv2(x) + self.bn(x))
""",
    "transformers": """
def SwiGLU(x):
    self.gate_proj = self.up_proj = nn.Linear(a, b)
    self.down_proj = nn.Linear(b, a)
    return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

def RMSNorm(x):
    self.weight = nn.Parameter(torch.ones(c))
    return self.weight * (x * torch.rsqrt((x**2).mean(dim=-1, keepdim=True) + 1e-6))
""",
}
