"""The claims of a pass: values that must be the same before and after it.

A node that is there before and after a pass, with the same operator and attributes, computes the same function. So the
values that it is given must be the same ones, and so must the outputs of each graph: these pairs are the claims. Where
all of them hold, both graphs compute the same outputs, whatever else the pass did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import ELEMENTWISE
from onnxgen.paranoid.picture import Picture
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
    found = Difference(before, after)
    changed = before.nodes.keys() != after.nodes.keys()
    for node, made in after.nodes.items():
        old = before.nodes.get(node)
        if old is not None and old.computes_as(made):
            found.kept.add(node)
            changed = changed or old is not made and old.inputs != made.inputs
        else:
            changed = True
    stored = before.stored.keys() & after.stored.keys()
    changed = changed or before.graphs != after.graphs
    changed = changed or any(before.stored[v] is not after.stored[v] for v in stored)
    _compare_frames(found)
    if not changed and not found.faults:
        return None
    found.fixed.update(_fixed(before, after))
    _part_unlike(found)
    _part_layouts(found)
    return found


def _compare_frames(found: Difference) -> None:
    """Check that the main graph has the same inputs and outputs, under the same names."""
    main = next(iter(found.before.graphs))
    if next(iter(found.after.graphs)) is not main:
        found.faults.append("the model has another graph")
        return
    for graph, frame in found.after.graphs.items():
        if [len(side) for side in found.before.graphs.get(graph, frame)] != [len(side) for side in frame]:
            found.faults.append("a graph has another number of inputs or outputs")
    for place, what in enumerate(("inputs", "outputs")):
        old, new = found.before.graphs[main][place], found.after.graphs[main][place]
        names = [found.before.names[v] for v in old], [found.after.names[v] for v in new]
        if names[0] != names[1]:
            found.faults.append(f"the graph's {what} were {', '.join(names[0])} and are {', '.join(names[1])}")


def _fixed(before: Picture, after: Picture) -> Iterator[tuple[str, int]]:
    for value in after.given & before.given:
        pairs = zip(before.facts[value].shape or (), after.facts[value].shape or ())
        for old, new in pairs:
            if isinstance(old, int) and isinstance(new, Sym):
                names = list(symbols(new))
                if len(names) == 1 and evaluate(new, {names[0]: old}) == old:
                    yield names[0], old


def _part_unlike(found: Difference) -> None:
    """Treat a node as changed if its inputs have another kind, type or shape than before."""
    for node in list(found.kept):
        old, new = found.before.nodes[node], found.after.nodes[node]
        pairs = zip(old.inputs, new.inputs) if old is not new else ()
        if any(a is not b and a is not None and b is not None and _unlike(found, a, b) for a, b in pairs):
            found.kept.discard(node)


def _part_layouts(found: Difference) -> None:
    """Treat values between points with different element order as changed."""
    laid_out: set[ir.Value] = set()
    if all(made.domain not in LAYOUTS for made in found.before.nodes.values()):
        return
    for node, made in found.before.nodes.items():
        inside = made.domain in LAYOUTS or not laid_out.isdisjoint(v for v in made.inputs if v is not None)
        if inside:
            found.kept.discard(node)
        if inside and made.op != LAYOUTS.get(made.domain):
            laid_out.update(made.outputs)


def _unlike(found: Difference, before: ir.Value, after: ir.Value) -> bool:
    a, b = found.before.facts[before], found.after.facts[after]
    if a.kind != b.kind or None not in (a.dtype, b.dtype) and a.dtype != b.dtype:
        return True
    if a.shape is None or b.shape is None:
        return False
    pairs = zip(a.shape, b.shape)
    return len(a.shape) != len(b.shape) or any(x != y and isinstance(x, int) == isinstance(y, int) for x, y in pairs)


def claims(found: Difference) -> list[Claim]:
    """Return all claims, each after those about the values that it is computed from."""
    needed = [*_of_nodes(found), *_of_outputs(found)]
    pairs = {(c.before, c.after) for c in needed}
    hints = [c for c in _of_names(found) if (c.before, c.after) not in pairs]
    unique = {(c.before, c.after): c for c in (*needed, *hints)}
    order = {value: place for place, value in enumerate(found.after.maker)}
    wanted = [c for c in unique.values() if not (c.before is c.after and found.is_shared(c.before))]
    return sorted(wanted, key=lambda c: order.get(c.after, -1))


def _of_nodes(found: Difference) -> Iterator[Claim]:
    """Yield claims about the inputs of nodes that compute the same function, except those that hold anyway."""
    shared: set[ir.Value] = set()
    for node, made in found.after.nodes.items():
        if node in found.kept:
            for a, b in zip(found.before.nodes[node].inputs, made.inputs):
                if a is None or b is None or a is b and a in shared:
                    continue
                if a is b and found.is_shared(a):
                    shared.add(a)
                else:
                    yield Claim(a, b, found.before.names[a] or made.name)


def _of_names(found: Difference) -> Iterator[Claim]:
    """Yield claims about new values that have the name of a removed one. They may be equal, and good places to cut."""
    gone = {
        found.before.names[v]: v
        for node, made in found.before.nodes.items()
        if node not in found.kept
        for v in made.outputs
    }
    for node, made in found.after.nodes.items():
        for value in made.outputs if node not in found.kept else ():
            namesake = gone.get(found.after.names[value])
            if namesake is not None and not _unlike(found, namesake, value):
                yield Claim(namesake, value, found.after.names[value], needed=False)


def _of_outputs(found: Difference) -> Iterator[Claim]:
    """Yield claims about the outputs of graphs. For a new node with graphs, its outputs are compared instead."""
    for graph, (_, outputs) in found.after.graphs.items():
        if graph in found.inner:
            continue
        old = found.before.graphs.get(graph, ((), ()))[1]
        for a, b in zip(old, outputs):
            yield Claim(a, b, found.before.names[a])
