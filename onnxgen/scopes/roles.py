"""Names of blocks and their parts, by the role of their layers."""

from __future__ import annotations

from onnxgen.scopes.flow import Flow
from onnxgen.scopes.kinds import kind
from onnxgen.scopes.tokens import Token, has_attention

_SHAPES = {
    ("conv", "conv"): "BasicBlock",
    ("point", "conv", "point"): "Bottleneck",
    ("point", "depth", "point"): "InvertedResidual",
    ("depth", "point"): "DepthwiseSeparable",
}


def layers(token: Token) -> list[str]:
    """Return the kinds of the layers in a token, in order, without those on a shortcut."""
    if not token.parts:
        return [token.kind] if token.is_layer else []
    return [name for part in token.parts if part not in token.skip and part.is_layer for name in layers(part)]


def part_name(token: Token) -> str:
    """Return the name of one of several parts of a block."""
    if has_attention(token):
        return "attn"
    found = set(layers(token))
    if token.kind == "concat":
        return "dense" if token.is_dense else "branches"
    if found <= {"linear", "point"}:
        return "mlp"
    return "conv_module" if found & {"conv", "depth"} else "branch"


def class_of(block: Token) -> str:
    """Return the class name of a block."""
    parts = [p for p in block.parts if p.is_layer]
    found = layers(block)
    if any(p.kind == "run" for p in parts):
        return "Stage"
    if has_attention(block):
        return "DecoderLayer" if any(p.crosses for p in parts) else "TransformerLayer"
    if block.parts[0].kind in ("deconv", "resize"):
        return "UpBlock"
    if block.parts[0].kind == "pool":
        return "DownBlock"
    residual = [p for p in parts if p.kind in ("add", "chain")]
    if residual:
        return _SHAPES.get(tuple(found), "MlpBlock" if set(found) == {"linear"} else "ResidualBlock")
    if any(p.kind == "concat" for p in parts):
        joins = any(p.kind.startswith("concat ") for p in block.parts)
        name = "FuseBlock" if joins else "DenseBlock" if len(parts) == 1 and parts[0].is_dense else "BranchBlock"
        return name
    if found == ["depth", "point"]:
        return "DepthwiseSeparable"
    if "recurrent" in found:
        return "RecurrentBlock"
    return "ConvBlock" if set(found) & {"conv", "point", "depth", "deconv"} else "Block"


def base_name(block: Token, several: bool, is_chain: bool, is_root: bool) -> str:
    """Return the attribute for a block (or a run of `several`), without a number."""
    if not is_chain:
        return "heads" if is_root else "branches"
    name = class_of(block)
    singular = {"UpBlock": "up", "DownBlock": "down", "Stage": "stage"}.get(name)
    singular = singular or {"DecoderLayer": "decoder_layer", "TransformerLayer": "layer"}.get(name, "block")
    return singular + "s" if several else singular


def projections(flow: Flow, nodes: list[int]) -> dict[int, str]:
    """Return names for the layers around an attention: the projections of q, k and v, and of the result."""
    inside = set(nodes)
    found = [_projection(flow, value, inside) for value in _queries(flow, nodes, inside)]
    sources = [i for i in found if i is not None]
    if len(sources) < 3:
        return {}
    names = dict.fromkeys(sources, "qkv")
    if len(names) == 3:
        names = dict(zip(sources, ("q_proj", "k_proj", "v_proj")))
    elif len(names) == 2:
        names = {sources[0]: "q_proj", sources[1]: "kv_proj"} if sources[1] == sources[2] else {}
    behind = [i for i in nodes if kind(flow, i) == "linear" and i not in names]
    if names and len(behind) == 1 and behind[0] > max(names):
        names[behind[0]] = "out_proj"
    return names


def _queries(flow: Flow, nodes: list[int], inside: set[int]) -> list[int]:
    """Return the vertices that make q, k and v, of an attention that is one operator or two products."""

    def makers(i: int) -> list[int]:
        return [j for value in flow.nodes[i].inputs[:3] if (j := flow.maker(value)) is not None]

    heads = [i for i in nodes if kind(flow, i) == "attention"]
    products = [i for i in nodes if kind(flow, i) == "product"]
    if len(heads) == 1:
        return makers(heads[0])
    if len(products) != 2:
        return []
    scores, result = products
    return [*makers(scores), *(j for j in makers(result) if not _leads(flow, scores, j, inside))]


def _leads(flow: Flow, source: int, target: int, inside: set[int]) -> bool:
    """True if a path leads from one vertex to another."""
    pending, seen = [target], {target}
    while pending:
        i = pending.pop()
        if i == source:
            return True
        new = [j for j in flow.before[i] if j in inside and j >= source and j not in seen]
        seen.update(new)
        pending.extend(new)
    return False


def _projection(flow: Flow, vertex: int, inside: set[int]) -> int | None:
    """Return the layer that a value comes from, through nodes that rearrange or scale it."""
    i: int | None = vertex
    for _ in range(32):
        if i is None or i not in inside or kind(flow, i) in ("linear", "attention", "product"):
            break
        i = next((j for j in flow.before[i] if j in inside), None)
    return i if i in inside and i is not None and kind(flow, i) == "linear" else None


def gates(flow: Flow, nodes: list[int]) -> dict[int, str]:
    """Return names for the three layers of a gated feed-forward part, `down(act(gate(x)) * up(x))`."""
    inside = set(nodes)
    linear = [i for i in nodes if kind(flow, i) == "linear"]
    products = [i for i in nodes if kind(flow, i) == "mul" and len(flow.before[i]) == 2]
    for product in products if len(linear) == 3 else ():
        sides = [_side(flow, j, inside) for j in flow.before[product]]
        found = {i for i, _ in sides}
        if found == set(linear[:2]) and sides[0][1] != sides[1][1]:
            gate = next(i for i, acts in sides if acts)
            return {i: "down_proj" if i == linear[2] else "gate_proj" if i == gate else "up_proj" for i in linear}
    return {}


def _side(flow: Flow, i: int, inside: set[int]) -> tuple[int, bool]:
    """Return the layer that makes one factor of a product, and True if an activation is between them."""
    acts = False
    while kind(flow, i) != "linear" and len(before := [j for j in flow.before[i] if j in inside]) == 1:
        acts = acts or kind(flow, i) == "act"
        i = before[0]
    if kind(flow, i) == "mul" and len(flow.before[i]) == 2:  # x * sigmoid(x)
        return next((j for j in flow.before[i] if kind(flow, j) == "linear"), i), True
    return i, acts
