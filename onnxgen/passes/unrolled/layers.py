"""Write chains of cells as ONNX's RNN, GRU and LSTM nodes, both directions of a layer as one."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.passes.exporters import RECURRENT
from onnxgen.passes.unrolled.chains import Chain
from onnxgen.passes.unrolled.results import Results, joined
from onnxgen.passes.unrolled.writing import Moved, write
from onnxgen.scopes.origin import param_path
from onnxgen.weights.stored import Views


def write_layers(chains: list[Chain], views: Views) -> list[Chain]:
    """Write every chain that may be a layer. Returns those that were written."""
    found = [Results(chain) for chain in chains if _is_alone(chain) and _is_layer(chain, views)]
    reverse: dict[ir.Value, list[Results]] = {}
    for results in found:
        if results.chain.is_reverse:
            reverse.setdefault(results.chain.cells[0].x.value, []).append(results)
    written: list[Chain] = []
    moved: Moved = {}
    for results in found:
        if results.chain.is_reverse:
            continue
        others = reverse.get(results.chain.cells[0].x.value, [])
        other = next((o for o in others if o.chain not in written and _are_directions(results, o)), None)
        directions = [results] if other is None else [results, other]
        write(directions, moved)
        written += [each.chain for each in directions]
    return written


# ---- which chains are layers ----


def _is_alone(chain: Chain) -> bool:
    """True if nothing else uses what is computed inside."""
    inside = set().union(*(cell.nodes for cell in chain.cells))
    kept = {v for cell in chain.cells for v in (cell.out, cell.memory)}
    for node in inside:
        for output in node.outputs:
            if output not in kept and (output.is_graph_output() or any(u.node not in inside for u in output.uses())):
                return False
    memories = [cell.memory for cell in chain.cells[:-1] if cell.memory is not None]
    following = set(inside)
    return not any(v.is_graph_output() or any(u.node not in following for u in v.uses()) for v in memories)


def _is_layer(chain: Chain, views: Views) -> bool:
    """True if the names of the weights are those of one layer of torch, or the weights have none."""
    places: set[tuple[ModulePath, str, bool]] = set()
    for gate in chain.gates:
        assert gate.h is not None
        rows = {"weight_ih": gate.x.matrix, "weight_hh": gate.h.matrix, "bias_ih": gate.x.bias, "bias_hh": gate.h.bias}
        for key, weight in rows.items():
            source = None if weight is None else views(weight.value)
            for path in map(param_path, () if source is None else source.names):
                if path is None:
                    continue
                found = RECURRENT.match(path[-1])
                if found is None or not path[-1].startswith(key):
                    return False
                places.add((path[:-1], found[1], path[-1].endswith("_reverse")))
    return len(places) <= 1


def _are_directions(forward: Results, reverse: Results) -> bool:
    """True if two chains are the directions of one layer: their sequences are only joined."""
    a, b = forward.chain, reverse.chain
    x, y = a.cells[0].x, b.cells[0].x
    if not b.is_reverse or (x.value, x.axis, a.last.kind, a.last.relu) != (y.value, y.axis, b.last.kind, b.last.relu):
        return False
    if (a.last.hidden, a.h is None, a.c is None) != (b.last.hidden, b.h is None, b.c is None):
        return False
    if (a.gates[0].x.bias is None) != (b.gates[0].x.bias is None):
        return False
    return joined(forward, reverse) is not None
