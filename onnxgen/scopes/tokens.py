"""Tokens: the graph as a sequence of layers and regions, with equal labels for what could be one class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from onnxgen.scopes.regions import SOFT, Flow, Region, kind

_ATTENTION = ("attention", "product")
_PLAIN = ("conv", "point", "depth", "linear")
_MAX_BLOCK_LAYERS = 12  # of a region that is the only one of its kind


@dataclass(eq=False)
class Token:
    """One element of a sequence: a node, a region, or blocks that were found.

    Attributes:
        kind: the kind of a node or of a region's merge ("add", "mul", "concat"), or "gate", "block", "run", "chain".
        label: equal for what could be one class.
        nodes: its vertices, in order.
        weight: how many layers with a matrix it has.
        parts: its tokens, in order, those of a region up to its merge.
        skip: the tokens on the shortcut of a residual region.
        fork: the vertex before a region; -2 for other tokens.
        is_dense: the region's input is concatenated with its result.
        crosses: the region is cross-attention: its layers take values from outside it and its fork.
    """

    kind: str
    label: Hashable
    nodes: list[int]
    weight: int = 0
    parts: list[Token] = field(default_factory=list)
    skip: list[Token] = field(default_factory=list)
    fork: int = -2
    is_dense: bool = False
    crosses: bool = False

    @property
    def is_region(self) -> bool:
        return self.fork != -2

    @property
    def is_soft(self) -> bool:
        """True if two blocks may be alike of which only one has it."""
        return self.kind in SOFT

    @property
    def is_plain(self) -> bool:
        """True if it is soft, or a layer as a stretch of plain layers has them."""
        return self.is_soft or self.kind in _PLAIN

    @property
    def is_layer(self) -> bool:
        """True if it determines what a block is: a layer with a matrix, attention, or a token that holds one."""
        return not self.is_soft and (self.weight > 0 or self.kind in _ATTENTION)


class Tokenizer:
    """Makes tokens of vertices and regions.

    Attributes:
        counts: how many regions have each label.
        repeats: the labels of regions of which one has equal parts in a row.
    """

    def __init__(self, flow: Flow, barriers: set[int]) -> None:
        self.flow, self.barriers = flow, barriers
        self.counts: Counter[Hashable] = Counter()
        self.repeats: set[Hashable] = set()
        self._labels: dict[Hashable, int] = {}

    def sequence(self, nodes: Iterable[int], regions: list[Region]) -> list[Token]:
        """Return the tokens of these vertices, each region as one token at its end."""
        ends = {r.nodes[-1]: r for r in regions}
        inside = {i for r in regions for i in r.nodes}
        tokens = []
        for i in nodes:
            if i in ends:
                tokens.append(self.region(ends[i]))
            elif i not in inside:
                tokens.append(self.leaf(i))
        return tokens

    def leaf(self, i: int) -> Token:
        name = kind(self.flow, i)
        if i in self.barriers:
            return Token("named", ("named", i), [i], int(self.flow.weighs[i]))
        return Token(name, name, [i], int(self.flow.weighs[i]))

    def region(self, region: Region) -> Token:
        """Return a region as one token. Its label is the sequence of its layers, without repetitions."""
        parts = self.sequence(region.nodes, region.inner)
        weight = sum(p.weight for p in parts)
        merge = kind(self.flow, region.merge).split()[0]
        fed = region.fork in self.flow.before[region.merge]
        token = Token(merge, merge, region.nodes, weight, parts, [], region.fork, fed and merge == "concat")
        if not any(p.is_layer for p in parts):
            token.kind = token.label = {"mul": "act", "add": "move"}.get(merge, "glue")
        elif merge == "mul" and fed and any(p.kind == "squeeze" for p in parts):
            token.kind = token.label = "gate"
        else:
            self._label_layers(token, region)
        return token

    def _label_layers(self, token: Token, region: Region) -> None:
        token.skip = self._skip(region, token.parts) if token.kind == "add" else []
        labels = [p.label for p in token.parts if p.is_layer and p not in token.skip]
        content: tuple[Hashable, ...] = (token.kind, *collapsed(labels))
        repeats = len(content) <= len(labels)
        if has_attention(token):  # it has many spellings, even within one file
            token.crosses = self._crosses(region)
            content = ("add", "attention", token.crosses) if token.kind == "add" else content
        token.label = self.label(content)
        self.counts[token.label] += 1
        if repeats:
            self.repeats.add(token.label)

    def _crosses(self, region: Region) -> bool:
        inside = {region.fork, *region.nodes}
        looks = (i for i in region.nodes if self.flow.weighs[i] or kind(self.flow, i) in _ATTENTION)
        return any(j not in inside and self.flow.thick[j] for i in looks for j in self.flow.before[i])

    def label(self, content: Hashable) -> int:
        return self._labels.setdefault(content, len(self._labels))

    def _skip(self, region: Region, parts: list[Token]) -> list[Token]:
        """Return the tokens on the shortcut of a residual region: a single layer, perhaps with a norm."""
        at = {i: p for p in parts for i in p.nodes}
        ways = [self._way(at, start) for start in self.flow.before[region.merge]]
        if len(ways) != 2:
            return []
        alone = [[t for key, t in way.items() if key not in other] for way, other in (ways, ways[::-1])]
        short, long = sorted(alone, key=lambda tokens: sum(t.weight for t in tokens))
        if sum(t.weight for t in short) != 1 or sum(t.weight for t in long) < 2 or any(t.is_region for t in short):
            return []
        return sorted(short, key=lambda t: t.nodes[0])

    def _way(self, at: dict[int, Token], start: int) -> dict[int, Token]:
        """Return the tokens from which a path leads to a vertex, by id. `at`: the token of each vertex."""
        way: dict[int, Token] = {}
        pending = [start]
        while pending:
            i = pending.pop()
            if i in at and id(at[i]) not in way:
                way[id(at[i])] = at[i]
                pending.extend(j for k in at[i].nodes for j in self.flow.before[k])
        return way

    def opened(self, tokens: list[Token]) -> list[Token]:
        """Replace regions that are not blocks by their parts, such as those of a U-Net's long skip connections."""
        total = sum(t.weight for t in tokens)
        result: list[Token] = []
        pending = tokens[::-1]
        while pending:
            token = pending.pop()
            if token.is_region and token.weight and not self.is_block(token, total):
                pending.extend(sorted(token.parts, key=lambda t: t.nodes[-1], reverse=True))
            else:
                result.append(token)
        return result

    def is_block(self, token: Token, total: int) -> bool:
        """True if a region with layers reads as one block: there are equal ones, or it is small and not repetitive."""
        if not self.barriers.isdisjoint(token.nodes):  # what has a name lies in no block without one
            return False
        if token.is_soft or self.counts[token.label] > 1:
            return True
        if token.weight > min(_MAX_BLOCK_LAYERS, total // 2):
            return False
        inside = Counter(p.label for p in token.parts if p.is_region and p.weight > 1 and not p.is_soft)
        return not token.is_dense and max(inside.values(), default=0) < 2


def joined(kind: str, label: Hashable, parts: list[Token], fork: int = -2) -> Token:
    """Return one token for several."""
    return Token(kind, label, sorted(i for p in parts for i in p.nodes), sum(p.weight for p in parts), parts, [], fork)


def has_attention(token: Token) -> bool:
    """True if there is attention in a token: the operator, or products of two computed matrices."""
    return token.kind in _ATTENTION or any(has_attention(p) for p in token.parts)


def collapsed(labels: list[Hashable]) -> list[Hashable]:
    """Return a sequence without immediate repetitions: a b c for a b a b c."""
    for period in range(1, 9):
        kept: list[Hashable] = []
        for label in labels:
            kept.append(label)
            if len(kept) >= 2 * period and kept[-period:] == kept[-2 * period : -period]:
                del kept[-period:]
        labels = kept
    return labels
