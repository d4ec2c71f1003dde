"""The steps of a network that make its architecture, and their fingerprint.

A step is a layer with weights, a nonlinearity, or what joins two results. Everything else is passed over, because
exporters and optimisers change it: reshapes, casts, constant factors, added constants, BatchNorm (which is folded into
convolutions), averages, and what is done before the first layer. Dense layers of one input count as one, because some
programs fuse queries, keys and values.

A fingerprint is the digest of the multiset of steps, each with its label and the kinds of the steps that it takes. It
depends on neither names nor numbers nor the order of nodes, nor on the size of the input. The head is not in it:
`bodies` leaves out the last layers, so that the number of classes does not matter.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

DEEPEST_HEAD = 4  # layers, one behind the other
FEWEST_LAYERS = 6  # of a body: fewer say too little
WEIGHTED = ("conv", "dense", "recurrent")
Sources = frozenset[int]
NOTHING: Sources = frozenset()
Bag = Counter[str]


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: "conv", "dense", "relu", ...
        detail: what else it is known by: sizes, groups, strides.
        sources: the numbers of the steps that it takes.
    """

    kind: str
    detail: str
    sources: Sources

    @property
    def label(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


@dataclass(frozen=True)
class Table:
    """A matrix that rows are taken of (an embedding), and the inputs of the network that say which."""

    rows: int
    width: int
    chosen_by: frozenset[str] = frozenset()


@dataclass
class Network:
    """The steps of a network, each behind those that it takes.

    Attributes:
        tables: the matrices that rows are taken of.
        size: the width of the images that come in, if it is fixed.
        channels: those of the images, as the first convolutions see them.
        outputs: the steps that the results are made of; those that lead to no result are left out.
    """

    steps: list[Step] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    channels: set[int] = field(default_factory=set)
    outputs: Sources = NOTHING
    size: int | None = None
    _dense: dict[tuple[Sources, int], int] = field(default_factory=dict)

    def add(self, kind: str, detail: str, sources: Iterable[int]) -> Sources:
        """Add a step, and return the sources of what takes it."""
        self.steps.append(Step(kind, detail, frozenset(sources)))
        return frozenset({len(self.steps) - 1})

    def dense(self, wide: int, out: int, sources: Sources) -> Sources:
        """Add a dense layer. Layers of the same steps and width become one, whose outputs are those of all."""
        key = (sources, wide)
        if not sources or key not in self._dense:
            self._dense[key] = len(self.steps)
            return self.add("dense", f"{wide} {out}", sources)
        number = self._dense[key]
        before = int(self.steps[number].detail.split()[1])
        self.steps[number] = Step("dense", f"{wide} {before + out}", sources)
        return frozenset({number})

    def join(self, kind: str, detail: str, operands: Iterable[Sources]) -> Sources:
        """Add what joins several results, or return the sources if they are all of one step.

        What is concatenated of concatenated results takes their parts: lists grow in more than one way.
        """
        taken = [sources for sources in operands if sources]
        union = NOTHING.union(*taken)
        if len(taken) < 2 or len(union) < 2:
            return union
        if kind == "cat":
            union = NOTHING.union(*(self.steps[n].sources if self.steps[n].kind == kind else {n} for n in union))
        return self.add(kind, detail, union)

    def scale(self, size: int, sources: Sources) -> Sources:
        """Add the product with a stored vector. That of an instance norm is the norm's own; others may be a mask's."""
        before = [self.steps[number] for number in sources]
        if len(before) == 1 and before[0].kind == "norm":
            kind, width = before[0].detail.split()[:2]
            if kind == "instance" or int(width) != size:
                return sources
        return self.add("scale", str(size), sources)

    def attention(self, heads: str, query: Sources, key: Sources, value: Sources) -> Sources:
        """Add the steps of scaled dot products."""
        scores = self.add("product", heads, query | key)
        weights = self.add("softmax", "", scores)
        return self.add("product", heads, weights | value)

    def heights(self) -> list[int]:
        """Return for each step the most layers with weights on a way from it to a result, itself included; -1: none."""
        heights = [0 if number in self.outputs else -1 for number in range(len(self.steps))]
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            if heights[number] < 0:
                continue
            heights[number] += step.kind in WEIGHTED
            for source in step.sources:
                heights[source] = max(heights[source], heights[number])
        return heights

    def classes(self) -> int | None:
        """Return the number of outputs of the last layer, if only one is the last."""
        heights = self.heights()
        last = [s for s, height in zip(self.steps, heights, strict=True) if height == 1 and s.kind in WEIGHTED]
        return int(last[0].detail.split()[1]) if len(last) == 1 and last[0].kind == "dense" else None

    def body(self, depth: int) -> Bag:
        """Return the multiset of the steps before the last `depth` layers on each way to an output."""
        heights, steps = self.heights(), self.steps
        kinds = [step.kind for step in steps]
        bag: Bag = Counter()
        for step, height in zip(steps, heights, strict=True):
            if height > depth or (height == depth and step.kind not in WEIGHTED):
                taken = ",".join(sorted(kinds[source] for source in step.sources))
                bag[f"{step.label} < {taken}"] += 1
        return bag


def layers(bag: Bag) -> int:
    """Return the number of layers with weights in a multiset."""
    return sum(count for label, count in bag.items() if label.partition(" ")[0] in WEIGHTED)


def digest(bag: Bag) -> str:
    """Return the fingerprint of a multiset of steps, as 16 hexadecimal digits."""
    text = "\n".join(f"{count} {label}" for label, count in sorted(bag.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def weights_digest(bag: Bag) -> str:
    """Return a fingerprint of the layers with weights alone, without what they take."""
    alone: Bag = Counter()
    for label, count in bag.items():
        if label.partition(" ")[0] in WEIGHTED:
            alone[label.partition(" <")[0]] += count
    return digest(alone)
