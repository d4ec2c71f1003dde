"""Properties that passes guarantee for the graph that they leave, which no computation shows."""

from __future__ import annotations

from collections.abc import Iterator, Set

import onnx_ir as ir

from onnxgen.graph.annotations import DECIDED, FREED
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import find
from onnxgen.graph.traits import MOVES
from onnxgen.options import Options
from onnxgen.paranoid.freed import misplaced, mixed_samples
from onnxgen.paranoid.picture import Picture
from onnxgen.paranoid.single import Single
from onnxgen.paranoid.trained import wrong_decisions
from onnxgen.shapes.info import info

COMPARE = ("Equal", "Unique")  # text that stands for numbers, too
FLAGS = frozenset(
    "keepdims ceil_mode count_include_pad exclusive reverse transA transB allowzero select_last_index largest sorted "
    "is_causal noop_with_empty_axes layout align_corners exclude_outside center_point_box".split()
)  # standard attributes that must be 0 or 1, which kernels need not check
EXPAND = "expand"


def broken(
    name: str, model: ir.Model, options: Options, before: Picture, after: Picture, known: Set[ir.Node], single: Single
) -> Iterator[str]:
    """Yield the guarantees that the pass of this name broke. `propagate` answers for `trainable`, as it finds types.

    Args:
        known: `known_nodes` before the pass `EXPAND`.
    """
    for made in (made for node, made in after.nodes.items() if node not in before.nodes and not made.domain):
        wrong = [f for f in FLAGS & made.attributes.keys() if made.attributes[f].value not in (0, 1)]
        yield from (f"{f} of {made.op} {made.name} is neither 0 nor 1" for f in wrong)
    if name == "propagate" and not DECIDED.has(model):
        DECIDED.set(model, True)
        yield from map(str, wrong_decisions(model, options))
    elif name == "decide":
        yield from _conditions(before, after)
    elif name == "text":
        yield from _text_that_is_moved(after)
    elif name == "dynamic_batch" and options.dynamic_batch:
        yield from _fixed_batch(model, options, before)
        yield from mixed_samples(model, before, after, single)
    elif name == EXPAND:  # a composition of other operators may round differently
        gone = (before.nodes[node] for node in known - after.nodes.keys())
        yield from (f"it expands {made.op} {made.name}, whose operator is known" for made in gone)


def _conditions(before: Picture, after: Picture) -> Iterator[str]:
    for node, made in after.nodes.items():
        condition = made.inputs[0] if "then_branch" in node.attributes and made.inputs else None
        if condition is not None and made.inputs != before.nodes[node].inputs:
            chosen = after.facts[condition].data
            if chosen is None or chosen.size != 1:
                yield f"{made.name} is not given one condition"


def _text_that_is_moved(after: Picture) -> Iterator[str]:
    for made in after.nodes.values():
        texts = [after.facts[v].dtype == ir.DataType.STRING for v in made.inputs if v is not None]
        moves = is_a(made.node, MOVES) and made.op != "Identity" or made.op in COMPARE
        if moves and not made.domain and any(texts):
            yield f"{made.op} {made.name} is given text"
        elif made.op == "TextCodes" and not all(texts):
            yield f"{made.name} makes numbers of values that are not text"
        elif made.op == "TextAt":
            if texts != [True, False] or after.facts[made.outputs[0]].dtype != ir.DataType.STRING:
                yield f"{made.name} does not make text of numbers"


def known_nodes(model: ir.Model) -> frozenset[ir.Node]:
    """Return the nodes whose operators are known."""
    opsets = model.opset_imports
    nodes = ((n, find(n.domain, n.op_type, n.version or opsets.get(n.domain, 1))) for n in all_nodes(model.graph))
    return frozenset(node for node, operator in nodes if operator is not None and operator.takes(node))


def _fixed_batch(model: ir.Model, options: Options, before: Picture) -> Iterator[str]:
    freed = FREED.get(model)
    if freed is None:
        yield "it recorded no batch"
        return
    axes = options.batch_axes
    given = [v for v in model.graph.inputs if v.name not in model.graph.initializers and info(v).kind == "tensor"]
    shapes = [info(v).shape for v in given if axes.get(v.name or "", 0) is not None]
    first = [shape[0] for shape in shapes if shape]
    stated = any(axis is not None for axis in axes.values())
    if not freed.inputs and (stated or (first and all(isinstance(dim, int) and dim for dim in first))):
        yield "it freed no batch of an input"
    yield from misplaced(model, before)
    sides = (model.graph.inputs, freed.inputs), (model.graph.outputs, freed.outputs)
    for value, axis in ((v, axes[v.name]) for values, axes in sides for v in values if v.name in axes):
        shape = info(value).shape
        if shape is not None and isinstance(shape[axis], int):
            yield f"axis {axis} of {value.name!r} is still {shape[axis]}"
