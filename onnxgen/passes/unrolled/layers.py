"""Write chains of cells as ONNX's RNN, GRU and LSTM nodes, both directions of a layer as one."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE
from onnxgen.passes.exporters import RECURRENT
from onnxgen.passes.unrolled.chains import Chain, is_alone
from onnxgen.passes.unrolled.results import Results, joined
from onnxgen.passes.unrolled.writing import Moved, write
from onnxgen.scopes.origin import param_path
from onnxgen.weights.stored import Views

Place = tuple[ModulePath, str, bool]


class Layers:
    """The chains that may be layers, with the places that their weights' names tell."""

    def __init__(self, chains: Iterable[Chain], views: Views) -> None:
        self._places: dict[Chain, set[Place]] = {}
        for chain in chains:
            places = _places(chain, views) if is_alone(chain.cells) else None
            if places is not None and len(places) <= 1:
                self._places[chain] = places

    @property
    def chains(self) -> list[Chain]:
        return list(self._places)

    def write(self, chains: Iterable[Chain], moved: Moved) -> list[Chain]:
        """Write these chains. `moved`: see `writing.write`. Returns those that were written."""
        found = [Results(chain) for chain in chains]
        reverse: dict[ir.Value, list[Results]] = {}
        for results in found:
            if results.chain.is_reverse:
                reverse.setdefault(results.chain.cells[0].x.value, []).append(results)
        written: list[Chain] = []
        for results in found:
            if results.chain.is_reverse:
                continue
            others = reverse.get(results.chain.cells[0].x.value, [])
            other = next((o for o in others if o.chain not in written and self._are_directions(results, o)), None)
            directions = [results] if other is None else [results, other]
            write(directions, moved)
            written += [each.chain for each in directions]
        return written

    def _are_directions(self, forward: Results, reverse: Results) -> bool:
        """True if two chains are the directions of one layer: their sequences are only joined, or the names show it."""
        a, b = forward.chain, reverse.chain
        x, y = a.cells[0].x, b.cells[0].x
        if (x.value, x.axis, a.last.kind, a.last.relu) != (y.value, y.axis, b.last.kind, b.last.relu):
            return False
        if (a.last.hidden, a.h is None, a.c is None) != (b.last.hidden, b.h is None, b.c is None):
            return False
        if (a.gates[0].x.bias is None) != (b.gates[0].x.bias is None):
            return False
        of_a, of_b = self._places[a], self._places[b]
        if of_a and of_b:
            return {(*place[:2], True) for place in of_a} == of_b
        scope = SCOPE.get(_maker(a))
        if not bool(scope) or SCOPE.get(_maker(b)) != scope:
            return a.h is None and a.c is None and joined(forward, reverse) is not None
        return True


def _places(chain: Chain, views: Views) -> set[Place] | None:
    """Return the module, layer and direction in the weights' names; None if a name is not that of such a weight."""
    places: set[Place] = set()
    for gate in chain.gates:
        assert gate.h is not None
        rows = {"weight_ih": gate.x.matrix, "weight_hh": gate.h.matrix, "bias_ih": gate.x.bias, "bias_hh": gate.h.bias}
        for key, weight in rows.items():
            source = None if weight is None else views(weight.value)
            names = () if source is None else (*source.names, source.label)
            for path in map(param_path, names):
                found = None if path is None else RECURRENT.match(path[-1])
                if path is None:
                    continue
                if found is None or not path[-1].startswith(key):
                    return None
                places.add((path[:-1], found[1], path[-1].endswith("_reverse")))
    return places


def _maker(chain: Chain) -> ir.Node:
    node = chain.last.out.producer()
    assert node is not None
    return node
