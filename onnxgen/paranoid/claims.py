"""The claims of a pass: values that must be the same before and after it; and their regions.

A node that is there before and after a pass, with the same operator and attributes, computes the
same function. So the values that it is given must be the same ones, and so must the outputs of each
graph: these pairs are the claims. Where all of them hold, both graphs compute the same outputs,
whatever else the pass did.

The region of a claim is the nodes between its two values and points where both graphs are known to
be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ELEMENTWISE
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.shapes.dims import Sym, evaluate, symbols

# domains with processor-specific tensor layouts, and the operator that restores the usual layout
LAYOUTS = {"com.microsoft.nchwc": "ReorderOutput"}


@dataclass(frozen=True)
class Claim:
    """The claim that a value of the graph before and one of the graph after are the same.

    Attributes:
        name: the name of the value.
        needed: True if the result depends on the claim; else equal names only suggest a place to cut at.
    """

    before: ir.Value
    after: ir.Value
    name: str
    needed: bool = True


@dataclass
class Difference:
    """The pictures before and after a pass, and what they share.

    Attributes:
        kept: nodes that compute the same function before and after.
        faults: faults that are found without computing anything.
        fixed: the sizes of input dims that were numbers and now have names.
        inner: graphs of nodes whose results are compared instead of those of the graph.
    """

    before: Picture
    after: Picture
    kept: set[ir.Node] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    fixed: dict[str, int] = field(default_factory=dict)
    inner: set[ir.Graph] = field(default_factory=set)

    def is_shared(self, value: ir.Value) -> bool:
        """Return True if a value is the same on both sides, provided that the claims about its node's inputs hold."""
        before, after = self.before, self.after
        maker = after.maker.get(value)
        if maker is not None:
            return maker.node in self.kept and value in before.maker
        if value in after.stored or value in before.stored:
            return before.stored.get(value) is after.stored.get(value)
        if value in after.given and value in before.given:
            return True
        is_known = before.is_known(value) and after.is_known(value)
        return is_known and before.facts[value].data is after.facts[value].data

    def part(self, claim: Claim) -> bool:
        """Treat nodes with these input values as changed, so that their outputs are compared instead.

        Any node qualifies if the network's inputs do not reach the value: the shape [2, -1] of a Reshape may mean the
        same as [2, 8]. Otherwise only elementwise nodes do, since elements may be moved before or after them. Returns
        False, and changes nothing, if there is no node or one does not qualify.
        """
        pair = claim.before, claim.after
        users = {
            node for node in self.kept if pair in zip(self.before.nodes[node].inputs, self.after.nodes[node].inputs)
        }
        moving = claim.before in self.before.moving or claim.after in self.after.moving
        ends = any(pair in zip(old[1], self.after.graphs.get(g, old)[1]) for g, old in self.before.graphs.items())
        if not users or ends or moving and not all(is_a(n, ELEMENTWISE) for n in users):
            return False
        self.kept -= users
        return True


def difference(before: Picture, after: Picture) -> Difference | None:
    """Return what a pass changed, or None if it changed nothing."""
    change = Difference(before, after)
    changed = before.nodes.keys() != after.nodes.keys()
    for node, step in after.nodes.items():
        old = before.nodes.get(node)
        if old is not None and old.computes_as(step):
            change.kept.add(node)
            changed = changed or old is not step and old.inputs != step.inputs
        else:
            changed = True
    stored = before.stored.keys() & after.stored.keys()
    changed = changed or before.graphs != after.graphs
    changed = changed or any(before.stored[v] is not after.stored[v] for v in stored)
    _compare_frames(change)
    if not changed and not change.faults:
        return None
    change.fixed.update(_fixed(before, after))
    _part_unlike(change)
    _part_layouts(change)
    return change


def _compare_frames(change: Difference) -> None:
    """Check that the main graph has the same inputs and outputs, under the same names."""
    main = next(iter(change.before.graphs))
    if next(iter(change.after.graphs)) is not main:
        change.faults.append("the model has another graph")
        return
    for graph, frame in change.after.graphs.items():
        if [len(side) for side in change.before.graphs.get(graph, frame)] != [len(side) for side in frame]:
            change.faults.append("a graph has another number of inputs or outputs")
    for place, what in enumerate(("inputs", "outputs")):
        old, new = change.before.graphs[main][place], change.after.graphs[main][place]
        names = [change.before.names[v] for v in old], [change.after.names[v] for v in new]
        if names[0] != names[1]:
            change.faults.append(f"the graph's {what} were {', '.join(names[0])} and are {', '.join(names[1])}")


def _fixed(before: Picture, after: Picture) -> Iterator[tuple[str, int]]:
    for value in after.given & before.given:
        pairs = zip(before.facts[value].shape or (), after.facts[value].shape or ())
        for old, new in pairs:
            if isinstance(old, int) and isinstance(new, Sym):
                names = list(symbols(new))
                if len(names) == 1 and evaluate(new, {names[0]: old}) == old:
                    yield names[0], old


def _part_unlike(change: Difference) -> None:
    """Treat a node as changed if its inputs have another kind, type or shape than before."""
    for node in list(change.kept):
        old, new = change.before.nodes[node], change.after.nodes[node]
        pairs = zip(old.inputs, new.inputs) if old is not new else ()
        if any(a is not b and a is not None and b is not None and _unlike(change, a, b) for a, b in pairs):
            change.kept.discard(node)


def _part_layouts(change: Difference) -> None:
    """Treat values between points with different element order as changed."""
    laid_out: set[ir.Value] = set()
    if all(step.domain not in LAYOUTS for step in change.before.nodes.values()):
        return
    for node, step in change.before.nodes.items():
        inside = step.domain in LAYOUTS or not laid_out.isdisjoint(v for v in step.inputs if v is not None)
        if inside:
            change.kept.discard(node)
        if inside and step.op != LAYOUTS.get(step.domain):
            laid_out.update(step.outputs)


def _unlike(change: Difference, before: ir.Value, after: ir.Value) -> bool:
    a, b = change.before.facts[before], change.after.facts[after]
    if a.kind != b.kind or None not in (a.dtype, b.dtype) and a.dtype != b.dtype:
        return True
    if a.shape is None or b.shape is None:
        return False
    pairs = zip(a.shape, b.shape)
    return len(a.shape) != len(b.shape) or any(x != y and isinstance(x, int) == isinstance(y, int) for x, y in pairs)


def claims(change: Difference) -> list[Claim]:
    """Return all claims, each after those about the values that it is computed from."""
    needed = [*_of_nodes(change), *_of_outputs(change)]
    pairs = {(c.before, c.after) for c in needed}
    hints = [c for c in _of_names(change) if (c.before, c.after) not in pairs]
    unique = {(c.before, c.after): c for c in (*needed, *hints)}
    order = {value: place for place, value in enumerate(change.after.maker)}
    wanted = [c for c in unique.values() if not (c.before is c.after and change.is_shared(c.before))]
    return sorted(wanted, key=lambda c: order.get(c.after, -1))


def _of_nodes(change: Difference) -> Iterator[Claim]:
    """Yield claims about the inputs of nodes that compute the same function, except those that hold anyway."""
    shared: set[ir.Value] = set()
    for node, step in change.after.nodes.items():
        if node in change.kept:
            for a, b in zip(change.before.nodes[node].inputs, step.inputs):
                if a is None or b is None or a is b and a in shared:
                    continue
                if a is b and change.is_shared(a):
                    shared.add(a)
                else:
                    yield Claim(a, b, change.before.names[a] or step.name)


def _of_names(change: Difference) -> Iterator[Claim]:
    """Yield claims about new values that have the name of a removed one. They may be equal, and good places to cut."""
    gone = {
        change.before.names[v]: v
        for node, step in change.before.nodes.items()
        if node not in change.kept
        for v in step.outputs
    }
    for node, step in change.after.nodes.items():
        for value in step.outputs if node not in change.kept else ():
            namesake = gone.get(change.after.names[value])
            if namesake is not None and not _unlike(change, namesake, value):
                yield Claim(namesake, value, change.after.names[value], needed=False)


def _of_outputs(change: Difference) -> Iterator[Claim]:
    """Yield claims about the outputs of graphs. For a new node with graphs, its outputs are compared instead."""
    for graph, (_, outputs) in change.after.graphs.items():
        if graph in change.inner:
            continue
        old = change.before.graphs.get(graph, ((), ()))[1]
        for a, b in zip(old, outputs):
            yield Claim(a, b, change.before.names[a])


MAX_SIDE_VALUES = 2000  # largest number of values on one side
MAX_LEVELLED_NODES = 200  # nodes of both sides; larger regions are not cut at equal values
MAX_DIGEST_ELEMENTS = 1 << 16  # elements of a constant; larger constants are not compared between regions


CONTENTS: WeakKeyDictionary[ir.TensorProtocol, str] = WeakKeyDictionary()  # digests, while the tensors live


class Untold(Exception):
    """A claim cannot be decided. The text gives the reason."""


class Broken(Untold):
    """A node cannot run on inputs on which the other side runs."""


class Hopeless(Untold):
    """A larger part of the network seldom decides the claim."""


class Unable(Untold):
    """No oracle computes this version of a node's operator."""


class Refused(Untold):
    """The graph before the pass cannot run on these inputs."""


@dataclass
class Cone:
    """The computation of one value.

    Attributes:
        end: the value.
        steps: nodes, each after those that it uses.
        cuts: values that are drawn, and what they are drawn as: the same key has the same elements on both sides.
        constants: values whose elements are stored or known.
    """

    picture: Picture
    end: ir.Value
    steps: list[Made] = field(default_factory=list)
    cuts: dict[ir.Value, ir.Value] = field(default_factory=dict)
    constants: list[ir.Value] = field(default_factory=list)


@dataclass
class Region:
    """Both sides of a claim. `fixed`: see `Difference`."""

    claim: Claim
    before: Cone
    after: Cone
    fixed: dict[str, int]

    @property
    def cones(self) -> tuple[Cone, Cone]:
        return self.before, self.after

    @property
    def keys(self) -> dict[ir.Value, ir.Value]:
        """Return the drawn values by key, with the facts of the graph before if it has them."""
        key_of: dict[ir.Value, ir.Value] = {}
        for cone in (self.after, self.before):
            key_of.update({key: value for value, key in cone.cuts.items()})
        return key_of


class Regions:
    """Finds the regions of one difference.

    Attributes:
        same: values that were compared, and the key that they are drawn as.
    """

    def __init__(self, change: Difference) -> None:
        self.change = change
        self.same: dict[Picture_, dict[ir.Value, ir.Value]] = {"before": {}, "after": {}}

    @cached_property
    def order(self) -> list[dict[ir.Node, int]]:
        """Return the place of each node, of the pictures before and after."""
        pictures = self.change.before, self.change.after
        return [{node: place for place, node in enumerate(picture.nodes)} for picture in pictures]

    def holds(self, claim: Claim) -> None:
        """Record that a claim holds. Later regions are cut at its values."""
        if self.change.is_shared(claim.after):
            self.same["before"].setdefault(claim.before, claim.after)
        else:
            key = self.same["before"].get(claim.before, claim.before)
            self.same["before"][claim.before] = self.same["after"][claim.after] = key

    def of(self, claim: Claim, opened: set[ir.Value]) -> Region:
        """Return the region of a claim. Keys in `opened` are computed, not drawn. Raises `Untold`."""
        before = self._cone("before", self.change.before, claim.before, opened)
        after = self._cone("after", self.change.after, claim.after, opened)
        return Region(claim, before, after, self.change.fixed)

    def deeper(self, region: Region) -> set[ir.Value]:
        """Return the keys that can be computed on both sides instead of drawn."""
        return {key for key in region.keys if self._place(region, key) is not None}

    def levelled(self, claim: Claim, opened: set[ir.Value]) -> Region:
        """Return the region of a claim where both sides are cut at the same values, as far as that can be: what only
        one side is given is computed, the last one first. Adds to `opened`; raises `Untold`.
        """
        region = self.of(claim, opened)
        while len(region.before.steps) + len(region.after.steps) < MAX_LEVELLED_NODES:
            uneven = set(region.before.cuts.values()) ^ set(region.after.cuts.values())
            places = {key: place for key in uneven - opened if (place := self._place(region, key)) is not None}
            if not places:
                break
            opened.add(max(places, key=lambda key: places[key]))
            region = self.of(claim, opened)
        return region

    def _place(self, region: Region, key: ir.Value) -> int | None:
        """Return the distance of a value from the start, or None if no node computes it."""
        value = region.keys.get(key, key)
        for picture, order in zip((self.change.before, self.change.after), self.order):
            for one in (key, value):
                if one in picture.maker:
                    return order[picture.maker[one].node]
        return None

    def _cone(self, side: Picture_, picture: Picture, end: ir.Value, opened: set[ir.Value]) -> Cone:
        cone = Cone(picture, end)
        done: set[ir.Value] = set()
        stack: list[tuple[ir.Value, bool]] = [(end, False)]
        placed: set[ir.Node] = set()
        while stack:
            value, computed = stack.pop()
            step = picture.maker.get(value)
            if computed:
                assert step is not None
                if step.node not in placed:
                    placed.add(step.node)
                    cone.steps.append(step)
                continue
            if value in done:
                continue
            done.add(value)
            key = self._key(side, picture, value)
            if key is not None and (key not in opened or step is None):
                cone.cuts[value] = key
            elif step is None:
                if value not in picture.stored and not picture.is_known(value):
                    raise Untold(f"{picture.names.get(value, value.name)} has no elements")
                cone.constants.append(value)
            else:
                if len(done) > MAX_SIDE_VALUES:
                    raise Untold(f"more than {MAX_SIDE_VALUES} values")
                stack.append((value, True))
                stack += [(v, False) for v in uses(picture, step)]
        return cone

    def _key(self, side: Picture_, picture: Picture, value: ir.Value) -> ir.Value | None:
        if value not in picture.moving:
            return None
        key = self.same[side].get(value)
        return key if key is not None else value if self.change.is_shared(value) else None


Picture_ = str  # "before" or "after"


def uses(picture: Picture, consumer: Made) -> Sequence[ir.Value]:
    """Return the values that a node uses: its inputs, and outer values that its subgraphs read."""
    used = picture.used.get(consumer.node)
    if used is None:
        used = [v for v in consumer.inputs if v is not None]
        for body in consumer.bodies:
            inside = set(picture.graphs[body][0]) | set(body.initializers.values())
            inner = [*picture.graphs[body][1]]
            for step in picture.members.get(body, ()):
                inside.update(step.outputs)
                inner += uses(picture, step)
            used += [v for v in inner if v not in inside]
        if consumer.bodies:
            picture.used[consumer.node] = used
    return used


def decision(before: Picture, after: Picture) -> Difference | None:
    """Return what deciding conditions changed, or None if it changed nothing.

    With some sizes the network took the other branch, and failed behind it. So nothing behind a condition is compared
    by itself, but the outputs of graphs are, with the sizes with which the graph before has any.
    """
    change = difference(before, after)
    if change is None:
        return None
    behind = set[ir.Value]()
    for node, step in after.nodes.items():
        old = before.nodes.get(node)
        if old is None or old.inputs != step.inputs or not behind.isdisjoint(uses(after, step)):
            behind.update(step.outputs)
            change.kept.discard(node)
            change.inner.update(step.bodies)
    return change


# ------------------------------------------------------------------------------------------------- equal regions


def digest(region: Region) -> Hashable | None:
    """Return what is equal for regions with the same computation and sizes, or None if that is unknown."""
    numbers: dict[ir.Value, int] = {}
    parts: list[Hashable] = []
    for cone in (region.before, region.after):
        own: dict[ir.Value, str] = {}
        for value, key in sorted_cuts(cone):
            own[value] = f"d{numbers.setdefault(key, len(numbers))}"
            facts = cone.picture.facts[value]
            parts.append((own[value], facts.kind, facts.dtype, facts.shape))
        for value in cone.constants:
            own[value] = f"c{len(own)}"
            constant = _constant(cone, value)
            if constant is None:
                return None
            parts.append((own[value], constant))
        for step in cone.steps:
            if step.bodies:
                return None
            inputs = tuple("" if v is None else own[v] for v in step.inputs)
            own.update({v: f"v{len(own) + i}" for i, v in enumerate(step.outputs)})
            outputs = tuple(own[v] for v in step.outputs)
            parts.append((outputs, step.domain, step.op, step.version, inputs, _attributes(step)))
        parts.append((own[cone.end], cone.picture.facts[cone.end].shape))
    return tuple(parts)


def sorted_cuts(cone: Cone) -> list[tuple[ir.Value, ir.Value]]:
    """Return the drawn values in the order in which the steps use them."""
    order: dict[ir.Value, None] = {}
    for step in cone.steps:
        order.update(dict.fromkeys(v for v in uses(cone.picture, step) if v in cone.cuts))
    order.update(dict.fromkeys(cone.cuts))
    return [(v, cone.cuts[v]) for v in order]


def _constant(cone: Cone, value: ir.Value) -> str | None:
    tensor = cone.picture.stored.get(value)
    if tensor is not None:
        if tensor.size > MAX_DIGEST_ELEMENTS or tensor.dtype == ir.DataType.STRING:
            return None
        return _content(tensor)
    facts = cone.picture.facts[value]
    assert facts.data is not None
    symbolic = facts.data.dtype == object
    return f"{facts.dtype} " + (f"{facts.data.shape} {facts.data.tolist()}" if symbolic else _bytes(facts.data))


def _content(tensor: ir.TensorProtocol) -> str:
    """Return the type and the digest of a stored tensor, which no pass changes: it puts another in its place."""
    content = CONTENTS.get(tensor)
    if content is None:
        content = CONTENTS[tensor] = f"{tensor.dtype} {_bytes(np.asarray(tensor.numpy()))}"
    return content


def _bytes(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    return f"{array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}"


def _attributes(step: Made) -> str:
    texts = []
    for name, attribute in sorted(step.attributes.items()):
        held = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            held = _content(held)
        texts.append(f"{name}={held!r}")
    return str(texts)
