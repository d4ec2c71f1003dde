"""The module paths of blocks and their parts, noted as `SCOPE` as if the exporter had recorded them.

The names of blocks and their parts come from the role of their layers (`part_name`, `base_name`).
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import FOUND, SCOPE
from onnxgen.graph.nodes import subgraphs
from onnxgen.scopes.regions import Flow, kind
from onnxgen.scopes.repeats import Arranger
from onnxgen.scopes.tokens import Token, has_attention
from onnxgen.shapes.info import info

_CLASSES = {"mlp": "Mlp", "conv_module": "ConvModule", "cross_attn": "CrossAttention"}  # of parts
_CLASSES |= {"branches": "BranchBlock", "attn": "Attention", "self_attn": "Attention", "dense": "DenseBlock"}
_ONLY_LAYER = {"conv": "conv", "point": "conv", "depth": "conv", "deconv": "deconv", "linear": "fc", "recurrent": "rnn"}
_ENDS = ("norm", "drop", "scale")  # behind a part, these belong to the block around it


class Writer:
    """Gives blocks their paths.

    Attributes:
        classes: class names by path.
    """

    def __init__(self, flow: Flow, arranger: Arranger, taken: set[str]) -> None:
        self.flow, self.arranger, self.taken = flow, arranger, taken
        self.classes: dict[ModulePath, str] = {}

    def sequence(self, tokens: list[Token], path: ModulePath, listed: bool = False) -> None:
        """Write the paths of the runs and blocks in the sequence of the module at `path`.

        `listed`: a block alone is an item of a list, too, since equal modules have several.
        """
        repeated = [token for token in tokens if token.kind in ("run", "block")]
        groups = [group for token in repeated for group in self._groups(token, not path)]
        bases = self._bases(groups, path, listed)
        for group, name in zip(groups, _numbered(bases)):
            for i, block in enumerate(group):
                here = (*path, name, str(i)) if len(group) > 1 or listed else (*path, name)
                self.classes[here] = class_of(block)
                self.block(block, here)

    def _bases(self, groups: list[list[Token]], path: ModulePath, listed: bool) -> list[str]:
        """Return the attributes for groups of blocks, without numbers."""
        bases = [base_name(group[0], len(group) > 1 or listed, self._is_chain(group), not path) for group in groups]
        if "decoder_layers" in bases:
            bases = _replaced(bases, "layers", "encoder_layers")
        sources = [self._source(group) if base == "layers" else "" for base, group in zip(bases, groups)]
        sourced = [*map("".join, zip(sources, bases))]
        bases = sourced if len(set(sourced)) == len(sourced) and bases.count("layers") > 1 else bases
        if bases.count("blocks") > 1:
            bases = _replaced(bases, "blocks", "stage")
        return bases if path else [f"{base}_" if base in self.taken else base for base in bases]

    def _groups(self, token: Token, staged: bool) -> list[list[Token]]:
        """Divide the blocks of a run into containers: blocks that feed each other, divided at changes of size if
        `staged`; or all blocks, if none feeds another (heads on several scales)."""
        if token.kind == "block":
            return [[token]]
        chains = [[token.parts[0]]]
        for before, after in zip(token.parts, token.parts[1:]):
            if not self.arranger.chained([before], [after]):
                chains.append([])
            chains[-1].append(after)
        if len(chains) == len(token.parts):
            return [token.parts]
        return [group for chain in chains for group in (self._stages(chain) if staged else [chain])]

    def _source(self, group: list[Token]) -> str:
        """Return what transformer layers process: "vision_" after a convolution, "text_" after an embedding."""
        inside = set(group[0].nodes)
        pending = [j for i in inside for j in self.flow.before[i] if j not in inside]
        seen = set(pending)
        kinds = set()
        while pending and len(seen) < 64:
            i = pending.pop()
            if self.flow.weighs[i]:
                kinds.add(kind(self.flow, i))
                continue
            new = [j for j in self.flow.before[i] if j not in seen]
            seen.update(new)
            pending += new
        return "vision_" if "conv" in kinds else "text_" if "embedding" in kinds else ""

    def _is_chain(self, group: list[Token]) -> bool:
        return len(group) < 2 or self.arranger.chained(group[:1], group[1:2])

    def _stages(self, chain: list[Token]) -> list[list[Token]]:
        groups = [list(group) for _, group in groupby(chain, self._size)]
        longer = sum(len(g) > 1 for g in groups)
        return [chain] if longer < 2 or 2 * longer < len(groups) else groups

    def _size(self, block: Token) -> object:
        """Return the channels and sides of the map that a block makes; None for other results."""
        inside = set(block.nodes)
        last = [i for i in block.nodes if any(j not in inside for j in self.flow.after[i])]
        shape = info(self.flow.nodes[last[0]].outputs[0]).shape if last else None
        return tuple(map(str, shape[1:])) if shape is not None and len(shape) > 3 else None

    def block(self, block: Token, path: ModulePath) -> None:
        """Write the paths of a block's parts."""
        self._write(block.nodes, path)
        if self._is_row(block, path):
            del self.classes[path]  # it is a list, whose items are its own
            for i, part in enumerate(block.parts[0].parts):
                here = (*path, str(i))
                self.classes[here] = class_of(part)
                self.block(part, here)
            return
        parts = [p for p in block.parts if p.is_layer]
        if len(parts) == 1 and parts[0].is_region:
            self._body(parts[0], path)
            return
        if len(parts) == 1:  # the block has more than this layer, perhaps an activation
            self._write(parts[0].nodes, (*path, _ONLY_LAYER.get(parts[0].kind, "layer")))
        roles = _part_names(parts)
        for part, role in zip(parts, _numbered(roles)):
            if role:
                self._part(part, (*path, role))
        if not any(roles):
            self._gates(block.parts, path)
        self.sequence(block.parts if any(roles) else self.arranger.arrange(block.parts, top=False), path)

    def _is_row(self, block: Token, path: ModulePath) -> bool:
        """True for an item of a list that is nothing but blocks which feed each other."""
        run = block.parts[0]
        return (
            path[-1].isdigit()
            and len(block.parts) == 1
            and run.kind == "run"
            and all(self.arranger.chained([a], [b]) for a, b in zip(run.parts, run.parts[1:]))
        )

    def _body(self, region: Token, path: ModulePath) -> None:
        """Write the paths of a block that is a single region, whose layers are the block's own."""
        own = [p for p in region.parts if p not in region.skip]
        self._gates(own, path)
        self._downsample(region.skip, path)
        self.sequence(self.arranger.arrange(own, top=False), path, region.label in self.arranger.tokenizer.repeats)

    def _part(self, region: Token, path: ModulePath) -> None:
        """Write the path of a part of a block, without the norm before it and the addition, which are the block's."""
        inner = _without_ends(list(region.parts[:-1]) if region.kind in ("add", "mul") else list(region.parts))
        nodes = sorted(i for p in inner for i in p.nodes)
        self._write(nodes, path)
        self.classes[path] = _CLASSES.get(path[-1].rstrip("0123456789"), "Branches")
        names = projections(self.flow, nodes) or gates(self.flow, nodes)
        for i, name in names.items():
            self._write([i], (*path, name))
        if not names:
            self._gates(inner, path)
            listed = region.label in self.arranger.tokenizer.repeats
            self.sequence(self.arranger.arrange(inner, top=False), path, listed)

    def _gates(self, parts: list[Token], path: ModulePath) -> None:
        for part in parts:
            if part.kind == "gate":
                inside = (*path, "se")
                self._write(part.nodes, inside)
                self.classes[inside] = "SqueezeExcite"
            elif part.is_region:
                self._gates(part.parts, path)

    def _downsample(self, tokens: list[Token], path: ModulePath) -> None:
        if len(tokens) == 1:
            self._write(tokens[0].nodes, (*path, "downsample"))
        for n, token in enumerate(tokens if len(tokens) > 1 else ()):
            self._write(token.nodes, (*path, "downsample", str(n)))

    def _write(self, nodes: list[int], path: ModulePath) -> None:
        for i in nodes:
            set_scope(self.flow.nodes[i], path)


def _replaced(names: list[str], old: str, new: str) -> list[str]:
    return [new if name == old else name for name in names]


def _numbered(names: list[str]) -> list[str]:
    """Return names with numbers where several are equal: `stage1`, `stage2`."""
    counts, turn = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        turn[name] += 1
        numbered.append(f"{name}{turn[name]}" if name and counts[name] > 1 else name)
    return numbered


def _part_names(parts: list[Token]) -> list[str]:
    """Return the names of the parts of a block, "" for layers and for branches that are its own."""
    roles = [part_name(part) if part.is_region else "" for part in parts]
    roles = ["" if role == "branches" and _is_flat(part) else role for role, part in zip(roles, parts)]
    if any(part.crosses for part in parts) and roles.count("attn") > 1:
        cross = ["cross_attn" if part.crosses else "self_attn" for part in parts]
        roles = [own if role == "attn" else role for own, role in zip(cross, roles)]
    return roles


def _is_flat(branches: Token) -> bool:
    """True if the layers of branches are the block's own: they are few, or plain and nothing mixes their results."""
    is_plain = not any(p.is_region and p.is_layer for p in branches.parts)
    return branches.weight < 4 or (is_plain and branches.parts[-1].kind.startswith("concat"))


def _without_ends(parts: list[Token]) -> list[Token]:
    """Return the tokens of a part without the norm before it (perhaps between two transpositions), and `_ENDS`."""
    at = 0
    while at < len(parts) and parts[at].is_soft:
        at += 1
    norms = [i for i, p in enumerate(parts[:at]) if p.kind == "norm"]
    if norms:
        last = norms[-1] + 1
        turned = any(p.kind == "move" for p in parts[: norms[-1]]) and last < at and parts[last].kind == "move"
        parts = parts[last + turned :]
    while parts and parts[-1].kind in _ENDS:
        parts = parts[:-1]
    return parts


def set_scope(node: ir.Node, path: ModulePath) -> None:
    """Set the scope of a node and of the nodes in its subgraphs, unless the file has one."""
    if SCOPE.get(node) and not FOUND.get(node):
        return
    SCOPE.set(node, path)
    FOUND.set(node, True)
    for graph in subgraphs(node):
        for inner in graph:
            set_scope(inner, path)


def write_branches(graph: ir.Graph, taken: set[str], least: int) -> dict[ModulePath, str]:
    """Give the branches of an `If` that have the same layers, at least so many, a module each; return their classes."""
    classes: dict[ModulePath, str] = {}
    for node in graph:
        if "then_branch" not in node.attributes or SCOPE.get(node):
            continue
        bodies = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        layers = [_layers(Flow(body)) for body in bodies]
        if layers[0] != layers[1] or len(layers[0]) < least or any(SCOPE.get(inner) for b in bodies for inner in b):
            continue
        for body in bodies:
            number = next(n for n in range(1, len(classes) + len(taken) + 2) if f"branch{n}" not in taken)
            taken.add(f"branch{number}")
            classes[(f"branch{number}",)] = "Branch"
            for inner in body:
                set_scope(inner, (f"branch{number}",))
    return classes


def _layers(flow: Flow) -> list[str]:
    return [kind(flow, i) for i, weighs in enumerate(flow.weighs) if weighs]


_SHAPES = {
    ("conv", "conv"): "BasicBlock",
    ("point", "conv", "point"): "Bottleneck",
    ("point", "depth", "point"): "InvertedResidual",
    ("depth", "point"): "DepthwiseSeparable",
}


_BEGINNINGS = {"deconv": "UpBlock", "resize": "UpBlock", "pool": "DownBlock"}


def layers(token: Token) -> list[str]:
    """Return the kinds of the layers in a token, in order, without those on a shortcut."""
    if not token.parts:
        return [token.kind] if token.is_layer else []
    return [name for part in token.parts if part not in token.skip and part.is_layer for name in layers(part)]


def part_name(token: Token) -> str:
    """Return the name of one of several parts of a block."""
    if has_attention(token):
        return "attn"
    kinds = set(layers(token))
    if token.kind == "concat":
        return "dense" if token.is_dense else "branches"
    if kinds <= {"linear", "point"}:
        return "mlp"
    return "conv_module" if kinds & {"conv", "depth"} else "branch"


def class_of(block: Token) -> str:
    """Return the class name of a block."""
    parts = [p for p in block.parts if p.is_layer]
    inner, begin = {p.kind for p in parts}, block.parts[0].kind
    if "run" in inner:
        return "Stage"
    if has_attention(block):
        return "DecoderLayer" if any(p.crosses for p in parts) else "TransformerLayer"
    if begin in _BEGINNINGS:
        return _BEGINNINGS[begin]
    if "concat" in inner and not inner & {"add", "chain"}:
        is_dense = len(parts) == 1 and parts[0].is_dense
        joins = any(p.kind.startswith("concat ") for p in block.parts)
        return "FuseBlock" if joins else "DenseBlock" if is_dense else "BranchBlock"
    return _of_layers(layers(block), bool(inner & {"add", "chain"}))


def _of_layers(kinds: list[str], is_residual: bool) -> str:
    """Return the class name of a block that is told by its layers."""
    if is_residual:
        return _SHAPES.get(tuple(kinds), "MlpBlock" if set(kinds) == {"linear"} else "ResidualBlock")
    if kinds == ["depth", "point"]:
        return "DepthwiseSeparable"
    if "recurrent" in kinds:
        return "RecurrentBlock"
    return "ConvBlock" if set(kinds) & {"conv", "point", "depth", "deconv"} else "Block"


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
    projected = [_projection(flow, value, inside) for value in _queries(flow, nodes, inside)]
    sources = [i for i in projected if i is not None]
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
    products = (i for i in nodes if kind(flow, i) == "mul" and len(flow.before[i]) == 2)
    for product in products if len(linear) == 3 else ():
        (a, a_acts), (b, b_acts) = (_side(flow, j, inside) for j in flow.before[product])
        if {a, b} == set(linear[:2]) and a_acts != b_acts:
            gate, up = (a, b) if a_acts else (b, a)
            names = {linear[2]: "down_proj", gate: "gate_proj", up: "up_proj"}
            return {i: names[i] for i in linear}
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
