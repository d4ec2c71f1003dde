"""What a value is called after the expression that makes it.

Goes in: an expression. Comes out: `Made`, with the names that its layer, its function and its operator suggest.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from onnxgen.code.module_def import Assign, Statement
from onnxgen.code.quote import MemberRef, Ref, members, refs
from onnxgen.code.torch_api import ACTIVATIONS, NORMS
from onnxgen.common.names import identifier, singular
from onnxgen.lowering.roles import called, is_number, seen_through
from onnxgen.structure.clues import LONGEST

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
ASIDE = frozenset("positions highest lowest zeros ones diff normed norm inverse".split())
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
EMBEDDINGS, MAGNITUDE, POOLED = "embeddings", "magnitude", "pooled"
OUTPUT = "output"  # what a recurrent layer returns beside its states
STAGES = frozenset(
    (*NOUNS.values(), "attn", "probs", "log_probs", "index", EMBEDDINGS, MAGNITUDE, POOLED, OUTPUT, "logits")
)
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


def made_by(tree: ast.expr) -> Made:
    """Return what an expression says about its value."""
    node, made, is_scaled = seen_through(tree), Made(), False
    while True:
        name, operands = called(node)
        if name == "mean" and isinstance(operands[0], ast.BinOp) and isinstance(operands[0].op, ast.Pow):
            made.result = "variance"
            return made
        if name in RESULTS or (is_scaled and name == "sum"):
            made.result = RESULTS.get(name, "mean")
            return made
        if (root := _root_of_sum(node)) is not None:
            made.result, made.plain = (MAGNITUDE, "") if _is_of_parts(root) else ("", "norm")
            return made
        inner = _scaled(node) if isinstance(node, ast.BinOp) else None
        if operands and name in SAME_NAME | RESAMPLED.keys():
            inner = operands[0]
            made.plain = made.plain or RESAMPLED.get(name, "")
        if inner is None:
            break
        is_scaled = is_scaled or (isinstance(node, ast.BinOp) and (is_number(node.left) or is_number(node.right)))
        node = seen_through(inner)
    if isinstance(node, Ref):
        made.base = "" if made.plain else node.value
        return made
    member = node.func if isinstance(node, ast.Call) else node
    if isinstance(member, MemberRef):
        made.is_features = isinstance(node, ast.Call)
        made.layer, made.vague = _of_layer(member)
        made.layer = NOUNS.get(made.layer, made.layer) if made.is_features else made.layer
        if member.member.layer in NORMS and isinstance(node, ast.Call) and isinstance(seen_through(node.args[0]), Ref):
            made.layer = NORMED
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        made.is_features = bool(members(node.right))
    if not made.is_features:
        made.result = EMBEDDINGS if _is_of_embeddings(node) else ""
        made.plain = made.plain or _plain(node, name, operands)
        made.vague = "" if made.plain else _weak(node, name)
    return made


def layer_names(body: Iterable[Statement]) -> dict[str, str]:
    """Return the names of the layers that make values, as far as they say something, by value."""
    found: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, Assign) and len(statement.targets) == 1:
            made = made_by(statement.value)
            name = made.layer if made.is_features else found.get(made.base, "")
            if name not in ("", NORMED):
                found[statement.targets[0]] = name
    return found


def _root_of_sum(node: ast.AST) -> ast.AST | None:
    """Return the sum of which an expression is the square root, but for a small number that keeps it from zero."""
    name, operands = called(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        inner: ast.AST | None = node.left if node.right.value == 0.5 else None
    else:
        inner = operands[0] if name == "sqrt" else None
    while isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) and isinstance(inner.right, ast.Constant):
        inner = inner.left
    is_sum = inner is not None and (called(seen_through(inner))[0] == "sum" or _is_of_parts(inner))
    return inner if is_sum else None


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


def _is_of_embeddings(node: ast.AST) -> bool:
    """True for what tables of embeddings give side by side, or for its sum with stored tensors."""
    name, operands = called(node)
    if name == "cat" and operands and isinstance(operands[0], ast.List):
        return all(_is_of_embeddings(seen_through(item)) for item in operands[0].elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        sides = [seen_through(side) for side in (node.left, node.right)]
        others = [side for side in sides if not _is_of_embeddings(side)]
        return len(others) < 2 and all(isinstance(side, MemberRef) or not refs(side) for side in others)
    layer = node.func if isinstance(node, ast.Call) else None
    if not isinstance(layer, MemberRef) or layer.member.layer != "nn.Embedding":
        return False
    return all(source.shape[-1] != 1 for source in layer.member.keys.values())  # a bias for each item is none


def pools(tree: ast.expr, rank: int | None) -> bool:
    """True for the mean or the maximum over places: a vector for each sample, of what has places."""
    name, operands = called(tree)
    if name not in ("mean", "amax") or rank != 2 or isinstance(seen_through(operands[0]), ast.BinOp):
        return False
    return isinstance(tree, ast.Call) and all(keyword.arg != "keepdim" for keyword in tree.keywords)


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
    path = layer.member.path
    if not path:  # a root that is an nn.Sequential
        return "", ""
    last = identifier(path[-1])
    if path[-1].isdigit():
        last = identifier(singular(path[-2])) if len(path) > 1 and not path[-2][-1].isdigit() else ""
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


def _plain(node: ast.AST, name: str, operands: list[ast.expr]) -> str:
    """Return what an operation does: "diff" for the difference of two values."""
    if name in PLAIN:
        return PLAIN[name]
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


def _weak(node: ast.AST, name: str) -> str:
    """Return what an operation does that is a step like any other, for where several values are at hand."""
    if not isinstance(node, ast.BinOp):
        return WEAK.get(name, "")
    if isinstance(node.op, ast.Pow):
        return "squared" if isinstance(node.right, ast.Constant) and node.right.value == 2 else ""
    return "product" if isinstance(node.op, ast.Mult) else ""
