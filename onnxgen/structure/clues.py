"""Clues to the names of values: roles, names in the file, and the expressions that make them.

Goes in: the roles and the names in the file of the values of one class, for each of its instances. Comes out: `Clues`,
one answer for all instances. Of an expression comes out `Made`, with the names that its layer, its function and its
operator suggest. `naming.py` names the local variables by both.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from onnxgen.code.module_def import Assign, Input, ModuleDef, Statement
from onnxgen.code.quote import MemberRef, Ref, members, refs, walk
from onnxgen.code.torch_api import ACTIVATIONS, NORMS
from onnxgen.common.names import FileText, ModulePath, identifier, singular
from onnxgen.lowering.roles import called, is_number, seen_through
from onnxgen.shapes.info import Info
from onnxgen.structure.order import grouped

# names that exporters give to unnamed values: functions and operators of torch and ONNX
_OPERATIONS = frozenset(
    """
    abs add addmm all any arange argmax argmin as_strided avg_pool batch_norm bmm cast cat ceil chunk clamp clip clone
    concat constant contiguous conv conv1d conv2d convolution cos div dropout einsum elu embedding eq equal erf exp
    expand flatten floor full gather ge gelu gemm getitem group_norm gt hardswish identity index index_select input
    instance_norm layer_norm le leaky_relu linear log logsoftmax lt masked_fill matmul max max_pool maximum mean min
    minimum mul native_layer_norm ne neg ones out output pad permute pow prelu reciprocal reduce_mean reduce_sum
    reducemean reducesum relu repeat reshape result rsqrt scalar_tensor scaled_dot_product_attention select shape
    sigmoid silu sin slice softmax split sqrt squeeze stack sub sum sym_size tanh tensor tile to topk transpose tril
    triu unflatten unsqueeze val var view where zeros item detach alias copy expand_as size reshape_ type_as float
    amax amin baddbmm bitwise_and bitwise_not bitwise_or clamp_max clamp_min cumsum empty fill flip full_like
    grid_sampler gru hardsigmoid hardtanh index_put lift_fresh linalg_vector_norm linspace log1p log_softmax
    logical_and logical_not logical_or logsumexp lstm max_pool1d max_pool2d max_pool3d mm new_full new_ones new_zeros
    nonzero ones_like pixel_shuffle prod remainder repeat_interleave roll round scatter scatter_add scatter_reduce
    selu sign softplus sort split_split split_with_sizes split_with_sizes_split tmp unbind unfold unsafe_split
    unsafe_split_split view_as zeros_like
    """.split()
)
_NOUNS = frozenset("embedding identity index input mean out output result shape size sum".split())
_MEANINGFUL = re.compile(r"[a-z][a-z_]{2,23}")
_COUNTED = re.compile(r"onnx::\w+|\d+|input\.\d+|.*_output_\d+")  # PyTorch's legacy exporter
_NUMBERS = re.compile(r"(_\d+)+$")
LONGEST = 24  # characters of a name from the file or of a layer's
Text = TypeVar("Text", str, FileText)


@dataclass
class Clues:
    """What is known about the values of one class, by id.

    Attributes:
        roles: the role of each value that has one ("q", "mask").
        hints: the name that each value has in the file.
        own: that name, if it looks as if a person gave it.
        given: the values that are inputs of the graph, in every instance.
        makers: the name of the layer that makes a value, in every instance, if it says something.
        assigned: the variable that the author's source assigns a value to in this class.
        becoming: the variable that the line assigns which makes a value on the way.
        outside: the variable that a value is where the class is called, in every instance.
    """

    roles: dict[str, str]
    hints: dict[str, FileText]
    own: dict[str, str]
    given: frozenset[str] = frozenset()
    makers: Mapping[str, str] = field(default_factory=dict)
    assigned: Mapping[str, str] = field(default_factory=dict)
    becoming: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)

    def hint(self, value: str) -> FileText:
        """Return the name of a value in the file."""
        return self.hints.get(value) or FileText(value)


def is_operation(name: FileText) -> bool:
    """True for an exporter's name of a result that says only which operator makes it: `clamp`, `add_3`."""
    word = _NUMBERS.sub("", name.word())
    return word in _OPERATIONS and word not in _NOUNS


def input_name(
    argument: Input, is_root: bool, infos: Mapping[str, Info], roles: Mapping[str, str], hints: Mapping[str, FileText]
) -> str:
    """Return the name of an argument that has a fixed one, else "".

    Fixed are the graph's names at the root, roles, and the graph's names of integer tensors (token ids) everywhere.
    """
    value = argument.value
    name = hints.get(value) or FileText(value)
    hint = name.without("size.").identifier()
    if is_root and not is_made_up(name):
        return hint
    if roles.get(value, "x") != "x":
        return roles[value]
    dtype = infos.get(value, Info()).dtype
    is_index = dtype is not None and not dtype.is_floating_point()
    is_named = hint.isidentifier() and hint.islower() and not is_made_up(name)
    return hint if argument.annotation != "Tensor" or (is_index and is_named) else ""


def is_made_up(name: FileText) -> bool:
    """True if an exporter gave a value its name: `onnx::Gemm_0`, `input.1`, `12`, `linear_8`, `view_4_1`."""
    word = _NUMBERS.sub("", name.word())
    return name.fits(_COUNTED) or (word in _OPERATIONS and word not in ("output", "result", name.word()))


def says_what(name: FileText) -> bool:
    """True if the name of a result in the file says what it is: `boxes`, but not `clamp_3`."""
    return 0 < len(name.word()) <= LONGEST and not is_made_up(name) and not is_operation(name)


def is_general(name: FileText) -> bool:
    """True for a name that any result may have: `output0`, `result`, `y`, `h2`, `final_output`."""
    word = name.word().rstrip("_0123456789").rstrip("s")
    return len(word) < 2 or word.removeprefix("final_").removeprefix("model_") in ("out", "output", "result")


def own_name(hint: FileText) -> str:
    """Return a value's name in the file if it is an identifier and not made from an operator's name, else ""."""
    name = hint.word()
    plain = name.strip("_")
    is_made = plain in _OPERATIONS or any(part == "val" for part in plain.split("_"))
    return name if _MEANINGFUL.fullmatch(name) and len(plain) > 2 and not is_made else ""


def agree(module: ModuleDef, alike: list[Mapping[str, str]], path: ModulePath) -> Clues:
    """Return the clues of a class; where its instances differ, the majority decides.

    `alike`: for each instance its own values, by the values of the class. `path`: of the instance whose values these
    are, which alone says what the author's source calls them.
    """
    columns = grouped(pair for own in alike for pair in own.items())
    roles = {v: _commonest(module.roles.get(its, "") for its in column) for v, column in columns.items()}
    hints = {v: _commonest(map(module.hint, column)) for v, column in columns.items()}
    graph = {argument.value for argument in module.inputs}
    inputs = frozenset(v for v, column in columns.items() if graph.issuperset(column))
    own_names = _named({v: own_name(hint) for v, hint in hints.items()})
    sure = {v: role for v, role in _named(roles).items() if v not in inputs or v not in own_names}
    makers = _named({v: _one({module.makers.get(its, "") for its in column}) for v, column in columns.items()})
    return Clues(sure, hints, own_names, inputs, makers, *_variables(module, columns, path))


def _named(names: Mapping[str, str]) -> dict[str, str]:
    return {value: name for value, name in names.items() if name}


def _variables(module: ModuleDef, columns: Mapping[str, list[str]], path: ModulePath) -> tuple[dict[str, str], ...]:
    """Return the author's variables: those assigned in a module, those that values become there, and those around."""
    assigned: dict[str, str] = {}
    becoming: dict[str, str] = {}
    outside: dict[str, str] = {}
    for value, alike in columns.items():
        for module_path, variable in module.variables.get(value, {}).items():
            name = variable.name.identifier()
            if len(name) > LONGEST or name.endswith("_"):
                continue
            if module_path == path:
                (assigned if variable.is_whole else becoming)[value] = name
            elif variable.is_whole and module_path == path[: len(module_path)]:
                if all(variable in module.variables.get(its, {}).values() for its in alike):
                    outside[value] = name
    return assigned, becoming, outside


def _one(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else ""


def _commonest(texts: Iterator[Text]) -> Text:
    return Counter(texts).most_common(1)[0][0]


# functions whose result has the name of their operand; a hardsigmoid makes a gate
SAME_NAME = {name.rpartition(".")[2] for name in ACTIVATIONS} - {"hardsigmoid"} | {"dropout", "clamp"}
GATE, PROBABILITIES = "gate", "probs"  # the result of a sigmoid that is a factor of a product, and of any other
NORMED = "normed"  # the result of a norm
# names of the results of functions
RESULTS = {
    "mean": "mean", "var": "var", "std": "std", "vector_norm": "norm", "rsqrt": "scale", "sigmoid": GATE,
    "softmax": "probs", "log_softmax": "log_probs", "argmax": "index", "argmin": "index", "nonzero": "index",
    "argsort": "order", "adaptive_avg_pool1d": "pooled", "adaptive_avg_pool2d": "pooled",
    "adaptive_avg_pool3d": "pooled", "adaptive_max_pool2d": "pooled", "scaled_dot_product_attention": "attn",
}  # fmt: skip
# what functions do, for values without any other name
PLAIN = {
    "amax": "highest", "amin": "lowest", "grid_sample": "sampled", "arange": "positions", "new_zeros": "zeros",
    "zeros": "zeros", "ones": "ones", "zeros_like": "zeros", "ones_like": "ones",
}  # fmt: skip
# the same, where the name of a branch is taken
WEAK = {
    "sum": "total", "cumsum": "total", "stack": "stacked", "cat": "joined", "einsum": "product", "prod": "product",
    "conv1d": "conv", "conv2d": "conv", "where": "chosen", "scatter_add": "summed", "index_add": "summed",
    "index_select": "picked", "gather": "picked", "take_along_dim": "picked",
}  # fmt: skip
# what is beside the main chain
ASIDE = frozenset("positions highest lowest zeros ones diff normed norm dot inverse".split())
# functions whose result is what their operand is, elsewhere or of another size
RESAMPLED = {
    "pad": "padded", "interpolate": "resized", "normalize": NORMED,
    **{f"{kind}_pool{n}d": "pooled" for kind in ("max", "avg") for n in (1, 2, 3)},
}  # fmt: skip
# what a layer is called, and what its result is then called
NOUNS = {
    "encoder": "encoded", "decoder": "decoded", "backbone": "features", "classifier": "logits", "pooler": "pooled",
    "cls": "logits", "embedding": "emb", "embeddings": "emb", "embed": "emb", "features": "features",
    "body": "features", "trunk": "features", "stages": "features", "feature_extractor": "features", "cnn": "features",
    "enc": "encoded", "dec": "decoded",
}  # fmt: skip
# what the main chain becomes, whose every step is otherwise `x`
EMBEDDINGS, MAGNITUDE, DISTANCE, POOLED = "embeddings", "magnitude", "dist", "pooled"
NO_TREES: Mapping[str, ast.expr] = {}
BOXES = "boxes"
OUTPUT = "output"  # what a recurrent layer returns beside its states
STAGES = frozenset([*NOUNS.values(), *"attn probs log_probs index logits".split()])
STAGES |= {EMBEDDINGS, MAGNITUDE, DISTANCE, POOLED, OUTPUT, BOXES}
# names of layers that say nothing about their result
VAGUE = frozenset(
    "conv fc linear dense norm bn ln gn layer block module model net act relu gelu proj lin op stage head dropout "
    "constant self attn self_attn mlp ffn out output input part seq sequential h".split()
)
ATTENTION = frozenset("attn attention self_attn self_attention cross_attn cross_attention multihead_attn".split())
SHORTCUTS = frozenset("downsample down_sample shortcut identity residual res_conv skip_conv proj_shortcut".split())


@dataclass
class Made:
    """What an expression says about its value. Each is "" if it says nothing.

    Attributes:
        base: the value that it is, but for views, activations and factors.
        result: the name of a function's result ("mean").
        layer: the name of the layer that computes it, if that says something.
        vague: a name that only distinguishes it from others, of the layer ("conv3") or the operation ("product").
        plain: what the outermost operation does ("total").
        is_features: a layer computes it.
    """

    base: str = ""
    result: str = ""
    layer: str = ""
    vague: str = ""
    plain: str = ""
    is_features: bool = False


def made_by(tree: ast.expr, trees: Mapping[str, ast.expr] = NO_TREES) -> Made:
    """Return what an expression says about its value. `trees`: what makes the values that it uses."""
    node, origin, is_scaled = seen_through(tree), Made(), False
    if _is_joined(node) and _is_of_embeddings(node, trees):
        return _of_tables(node)
    while True:
        name, operands = called(node)
        origin.result = _meaning(node, trees) or RESULTS.get(name, "mean" if is_scaled and name == "sum" else "")
        if origin.result:
            return origin
        if (root := _root_of_sum(node, trees)) is not None:
            origin.result = _of_root(root, trees)
            origin.plain = "" if origin.result else "norm"
            return origin
        inner = _inner(node)
        if inner is None:
            break
        origin.plain = origin.plain or RESAMPLED.get(name, "")
        is_scaled = is_scaled or _has_number(node)
        node = seen_through(inner)
    if isinstance(node, Ref):
        origin.base = "" if origin.plain else node.value
        return origin
    return _of_layers(origin, node, trees)


def _of_root(root: ast.AST, trees: Mapping[str, ast.expr]) -> str:
    return MAGNITUDE if _is_of_parts(root) else DISTANCE if _is_of_difference(root, trees) else ""


def _of_tables(node: ast.AST) -> Made:
    """Return what tables of embeddings say that are joined."""
    tables = [one for one in walk(node) if isinstance(one, MemberRef) and one.member.layer == "nn.Embedding"]
    return Made(result=EMBEDDINGS, layer=_of_layer(tables[0])[0] if tables else "", is_features=True)


def _inner(node: ast.AST) -> ast.expr | None:
    """Return the operand of which a value has its name: of an activation, or of a product with a number."""
    name, operands = called(node)
    if operands and name in SAME_NAME | RESAMPLED.keys():
        return operands[0]
    return _scaled(node) if isinstance(node, ast.BinOp) else None


def _has_number(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and (is_number(node.left) or is_number(node.right))


def _of_layers(origin: Made, node: ast.AST, trees: Mapping[str, ast.expr]) -> Made:
    """Add what the innermost expression says, which is no value: a layer, a tensor of the module, or an operation."""
    member = node.func if isinstance(node, ast.Call) else node
    if isinstance(member, MemberRef):
        origin.is_features = isinstance(node, ast.Call)
        origin.layer, origin.vague = _of_layer(member)
        origin.layer = NOUNS.get(origin.layer, origin.layer) if origin.is_features else origin.layer
        if member.member.layer in NORMS and isinstance(node, ast.Call):
            normed = seen_through(node.args[0])
            if _is_of_embeddings(normed, trees):
                origin.result = EMBEDDINGS
            elif isinstance(normed, Ref):
                origin.layer = NORMED
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        origin.is_features = bool(members(node.right))
    if not origin.is_features:
        origin.result = EMBEDDINGS if _is_of_embeddings(node, trees) else ""
        origin.plain = origin.plain or _plain(node)
        origin.vague = "" if origin.plain else _weak(node)
    return origin


def layer_names(body: Iterable[Statement]) -> dict[str, str]:
    """Return the names of the layers that make values, as far as they say something, by value."""
    names: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, Assign) and len(statement.targets) == 1:
            origin = made_by(statement.value)
            name = origin.layer if origin.is_features else names.get(origin.base, "")
            if name not in ("", NORMED):
                names[statement.targets[0]] = name
    return names


def _source(node: ast.AST, trees: Mapping[str, ast.expr]) -> ast.AST:
    """Return what makes a value, but for views; the expression itself if it is no value or an argument."""
    node = seen_through(node)
    return seen_through(trees[node.value]) if isinstance(node, Ref) and node.value in trees else node


def _root_of_sum(node: ast.AST, trees: Mapping[str, ast.expr]) -> ast.AST | None:
    """Return the sum of which an expression is the square root, but for a small number that keeps it from zero."""
    name, operands = called(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        inner: ast.AST | None = node.left if node.right.value == 0.5 else None
    else:
        inner = operands[0] if name == "sqrt" else None
    while isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) and isinstance(inner.right, ast.Constant):
        inner = inner.left
    if inner is not None and not _is_of_parts(inner):
        inner = _source(inner, trees)
        inner = inner if called(inner)[0] == "sum" else None
    return inner


def _is_of_parts(node: ast.AST) -> bool:
    """True for the sum of two squares, as of the real and the imaginary part of a spectrum."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else ()
    return len(sides) == 2 and all(_is_square(side) for side in sides)


def _is_square(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Pow):
        return isinstance(node.right, ast.Constant) and node.right.value == 2
    return isinstance(node.op, ast.Mult) and isinstance(node.left, Ref) and ast.dump(node.left) == ast.dump(node.right)


def _meaning(node: ast.AST, trees: Mapping[str, ast.expr]) -> str:
    """Return the name of a formula that stands for one thing, or ""."""
    name, operands = called(node)
    if name == "mean" and isinstance(operands[0], ast.BinOp) and isinstance(operands[0].op, ast.Pow):
        return "variance"
    return BOXES if _is_of_corners(node) else _mean_of(node, trees)


def _is_of_corners(node: ast.AST) -> bool:
    """True for points less one thing beside the same points and another one: two opposite corners of boxes."""
    name, operands = called(node)
    items = operands[0].elts if name == "cat" and isinstance(operands[0], ast.List) else []
    sides = [(item.left, item.op, item.right) for item in items if isinstance(item, ast.BinOp)]
    if len(items) != 2 or [type(op) for _, op, _ in sides] != [ast.Sub, ast.Add]:
        return False
    return ast.dump(sides[0][0]) == ast.dump(sides[1][0]) and all(isinstance(right, Ref) for _, _, right in sides)


def _is_joined(node: ast.AST) -> bool:
    return called(node)[0] == "cat" or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add))


def _is_of_embeddings(node: ast.AST, trees: Mapping[str, ast.expr]) -> bool:
    """True for what tables of embeddings give side by side, or for its sum with stored tensors."""
    name, operands = called(node)
    if isinstance(node, Ref) and node.value in trees:
        return _is_of_embeddings(_source(node, trees), trees)
    if name == "cat" and operands and isinstance(operands[0], ast.List):
        return all(_is_of_embeddings(seen_through(item), trees) for item in operands[0].elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        others = [side for side in map(seen_through, (node.left, node.right)) if not _is_of_embeddings(side, trees)]
        return len(others) < 2 and all(isinstance(side, MemberRef) or not refs(side) for side in others)
    return isinstance(node, ast.Call) and _looks_up(node.func)


def _looks_up(layer: ast.expr) -> bool:
    if not isinstance(layer, MemberRef) or layer.member.layer != "nn.Embedding":
        return False
    return all(source.shape[-1] != 1 for source in layer.member.keys.values())  # a bias for each item is none


def _factors(node: ast.AST) -> list[ast.expr]:
    """Return the two factors of which an expression is the sum of products; [] of any other."""
    name, operands = called(node)
    if name == "einsum" and len(operands) == 3:
        return operands[1:]
    inner = seen_through(operands[0]) if name == "sum" else None
    is_product = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult)
    return [inner.left, inner.right] if is_product and isinstance(inner, ast.BinOp) else []


def _mean_of(node: ast.AST, trees: Mapping[str, ast.expr]) -> str:
    """Return the name of a mean that probabilities weight: `mean_x` of what is stored as `xs`; "" of others."""
    factors = [seen_through(factor) for factor in _factors(node)]
    for weights, other in zip(factors, reversed(factors)):
        if _is_of_softmax(weights, trees) and not _is_of_softmax(other, trees):
            word = other.member.path[-1] if isinstance(other, MemberRef) else ""
            item = singular(word)
            return f"mean_{identifier(item)}" if item != word else "mean"
    return ""


def _is_of_softmax(node: ast.AST, trees: Mapping[str, ast.expr]) -> bool:
    """True for probabilities that a softmax makes, or for sums of them."""
    name, operands = called(node)
    if isinstance(node, Ref) and node.value in trees:
        return _is_of_softmax(_source(node, trees), trees)
    if name == "sum":
        return _is_of_softmax(seen_through(operands[0]), trees)
    return name == "softmax"


def _is_of_difference(node: ast.AST, trees: Mapping[str, ast.expr]) -> bool:
    """True for the sum of the squares of a difference of two values."""
    _, operands = called(node)
    square = _source(operands[0], trees) if operands else node
    side = _source(square.left, trees) if isinstance(square, ast.BinOp) and _is_square(square) else None
    return isinstance(side, ast.BinOp) and isinstance(side.op, ast.Sub) and all(map(refs, (side.left, side.right)))


def pools(tree: ast.expr, rank: int | None) -> bool:
    """True for the mean or the maximum over places: a vector for each sample, of what has places.

    A mean may be weighted, as that of the places that a mask leaves, and several may stand side by side.
    """
    name, operands = called(tree)
    if name == "cat" and isinstance(operands[0], ast.List):
        return all(pools(item, rank) for item in operands[0].elts)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        return rank == 2 and bool(weights_of(tree))
    if name not in ("mean", "amax") or rank != 2 or isinstance(seen_through(operands[0]), ast.BinOp):
        return False
    return isinstance(tree, ast.Call) and all(keyword.arg != "keepdim" for keyword in tree.keywords)


def weights_of(tree: ast.BinOp) -> str:
    """Return the value that weights a mean, `(x * mask).sum(1) / mask.sum(1)`; "" for another quotient."""
    factors = {factor.value for factor in map(seen_through, _factors(tree.left)) if isinstance(factor, Ref)}
    name, operands = called(tree.right)
    name, operands = called(operands[0]) if name == "clamp" else (name, operands)
    total = seen_through(operands[0]) if name == "sum" else None
    return total.value if isinstance(total, Ref) and total.value in factors and len(factors) == 2 else ""


def _scaled(node: ast.BinOp) -> ast.expr | None:
    """Return the operand of arithmetic whose other one is a number or a stored tensor; None of any other."""
    if isinstance(node.op, ast.Pow):
        return None
    if is_number(node.right):
        return node.left
    if isinstance(node.op, ast.Mult) and (is_number(node.left) or isinstance(node.left, MemberRef)):
        return node.right
    return node.left if isinstance(node.right, MemberRef) and isinstance(node.op, (ast.Mult, ast.Add)) else None


def _of_layer(layer: MemberRef) -> tuple[str, str]:
    """Return the names of a layer's result: one that says something, and one that only distinguishes it."""
    last = _attribute(layer.member.path)
    if last in ATTENTION:
        return "attn", ""
    if last in SHORTCUTS:
        return "identity" if last.startswith("down") else last.removesuffix("_conv"), ""
    word = re.sub(r"(_proj|_layer|_linear|_conv|_fc)?_?\d*$", "", last).removeprefix("to_")
    words = word.split("_")
    if word in ("", *"xyz") or "from" in words or words[0] == "norm" or words[-1] in VAGUE or len(last) > LONGEST:
        embedding = "emb" if layer.member.layer == "nn.Embedding" else ""
        return embedding, last if len(last) <= LONGEST and re.fullmatch(r"(?!to_)[a-z][a-z_]+\d*", last) else ""
    return last if last[-1].isdigit() else word, ""


def _attribute(path: ModulePath) -> str:
    """Return the attribute of a layer, of an item of a list the singular; "" for others, and for the root."""
    if not path or not path[-1].isdigit():
        return identifier(path[-1]) if path else ""
    return identifier(singular(path[-2])) if len(path) > 1 and not path[-2][-1].isdigit() else ""


def _plain(node: ast.AST) -> str:
    """Return what an operation does: "diff" for the difference of two values."""
    name, _ = called(node)
    if name in PLAIN:
        return PLAIN[name]
    if name == "sum" and len({refs(factor) for factor in _factors(node)}) == 2:
        return "dot" if all(isinstance(seen_through(factor), Ref) for factor in _factors(node)) else ""
    if not isinstance(node, ast.BinOp):
        return ""
    left, right = seen_through(node.left), seen_through(node.right)
    if isinstance(node.op, ast.Sub):
        return "" if isinstance(left, (ast.BinOp, ast.Constant)) or is_number(right) else "diff"
    if isinstance(node.op, ast.Div):
        if isinstance(left, ast.Constant):
            return "inverse"
        mine, its = set(refs(node.left)), set(refs(node.right))
        return NORMED if mine and mine == its else ""
    return ""


def _weak(node: ast.AST) -> str:
    """Return what an operation does that is a step like any other, for where several values are at hand."""
    if not isinstance(node, ast.BinOp):
        return WEAK.get(called(node)[0], "")
    if isinstance(node.op, ast.Pow):
        return "squared" if isinstance(node.right, ast.Constant) and node.right.value == 2 else ""
    return "product" if isinstance(node.op, ast.Mult) else ""
