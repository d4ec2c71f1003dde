"""The region of a claim: the nodes between two values and points where both graphs are known to be equal."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir

from onnxgen.paranoid.claims import Claim, Difference, difference
from onnxgen.paranoid.picture import Made, Picture

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
        found: dict[ir.Value, ir.Value] = {}
        for cone in (self.after, self.before):
            found.update({key: value for value, key in cone.cuts.items()})
        return found


class Regions:
    """Finds the regions of one difference.

    Attributes:
        same: values that were compared, and the key that they are drawn as.
    """

    def __init__(self, found: Difference) -> None:
        self.found = found
        self.same: dict[Picture_, dict[ir.Value, ir.Value]] = {"before": {}, "after": {}}

    @cached_property
    def order(self) -> list[dict[ir.Node, int]]:
        """Return the place of each node, of the pictures before and after."""
        pictures = self.found.before, self.found.after
        return [{node: place for place, node in enumerate(picture.nodes)} for picture in pictures]

    def holds(self, claim: Claim) -> None:
        """Record that a claim holds. Later regions are cut at its values."""
        if self.found.is_shared(claim.after):
            self.same["before"].setdefault(claim.before, claim.after)
        else:
            key = self.same["before"].get(claim.before, claim.before)
            self.same["before"][claim.before] = self.same["after"][claim.after] = key

    def of(self, claim: Claim, opened: set[ir.Value]) -> Region:
        """Return the region of a claim. Keys in `opened` are computed, not drawn. Raises `Untold`."""
        before = self._cone("before", self.found.before, claim.before, opened)
        after = self._cone("after", self.found.after, claim.after, opened)
        return Region(claim, before, after, self.found.fixed)

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
        for picture, order in zip((self.found.before, self.found.after), self.order):
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
            made = picture.maker.get(value)
            if computed:
                assert made is not None
                if made.node not in placed:
                    placed.add(made.node)
                    cone.steps.append(made)
                continue
            if value in done:
                continue
            done.add(value)
            key = self._key(side, picture, value)
            if key is not None and (key not in opened or made is None):
                cone.cuts[value] = key
            elif made is None:
                if value not in picture.stored and not picture.is_known(value):
                    raise Untold(f"{picture.names.get(value, value.name)} has no elements")
                cone.constants.append(value)
            else:
                if len(done) > MAX_SIDE_VALUES:
                    raise Untold(f"more than {MAX_SIDE_VALUES} values")
                stack.append((value, True))
                stack += [(v, False) for v in uses(picture, made)]
        return cone

    def _key(self, side: Picture_, picture: Picture, value: ir.Value) -> ir.Value | None:
        if value not in picture.moving:
            return None
        found = self.same[side].get(value)
        return found if found is not None else value if self.found.is_shared(value) else None


Picture_ = str  # "before" or "after"


def uses(picture: Picture, made: Made) -> Sequence[ir.Value]:
    """Return the values that a node uses: its inputs, and outer values that its subgraphs read."""
    found = picture.used.get(made.node)
    if found is None:
        found = [v for v in made.inputs if v is not None]
        for body in made.bodies:
            inside = set(picture.graphs[body][0]) | set(body.initializers.values())
            inner = [*picture.graphs[body][1]]
            for step in picture.members.get(body, ()):
                inside.update(step.outputs)
                inner += uses(picture, step)
            found += [v for v in inner if v not in inside]
        if made.bodies:
            picture.used[made.node] = found
    return found


def decision(before: Picture, after: Picture) -> Difference | None:
    """Return what deciding conditions changed, or None if it changed nothing.

    With some sizes the network took the other branch, and failed behind it. So nothing behind a condition is compared
    by itself, but the outputs of graphs are, with the sizes with which the graph before has any.
    """
    found = difference(before, after)
    if found is None:
        return None
    behind = set[ir.Value]()
    for node, made in after.nodes.items():
        old = before.nodes.get(node)
        if old is None or old.inputs != made.inputs or not behind.isdisjoint(uses(after, made)):
            behind.update(made.outputs)
            found.kept.discard(node)
            found.inner.update(made.bodies)
    return found


# ------------------------------------------------------------------------------------------------- equal regions


def digest(region: Region) -> Hashable | None:
    """Return what is equal for regions with the same computation and sizes, or None if that is unknown."""
    numbers: dict[ir.Value, int] = {}
    found: list[Hashable] = []
    for cone in (region.before, region.after):
        own: dict[ir.Value, str] = {}
        for value, key in sorted_cuts(cone):
            own[value] = f"d{numbers.setdefault(key, len(numbers))}"
            facts = cone.picture.facts[value]
            found.append((own[value], facts.kind, facts.dtype, facts.shape))
        for value in cone.constants:
            own[value] = f"c{len(own)}"
            constant = _constant(cone, value)
            if constant is None:
                return None
            found.append((own[value], constant))
        for step in cone.steps:
            if step.bodies:
                return None
            inputs = tuple("" if v is None else own[v] for v in step.inputs)
            own.update({v: f"v{len(own) + i}" for i, v in enumerate(step.outputs)})
            outputs = tuple(own[v] for v in step.outputs)
            found.append((outputs, step.domain, step.op, step.version, inputs, _attributes(step)))
        found.append((own[cone.end], cone.picture.facts[cone.end].shape))
    return tuple(found)


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
    found = CONTENTS.get(tensor)
    if found is None:
        found = CONTENTS[tensor] = f"{tensor.dtype} {_bytes(np.asarray(tensor.numpy()))}"
    return found


def _bytes(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    return f"{array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}"


def _attributes(step: Made) -> str:
    found = []
    for name, attribute in sorted(step.attributes.items()):
        held = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            held = _content(held)
        found.append(f"{name}={held!r}")
    return str(found)
