"""What some passes promise of the graph that they leave, which no computation shows."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.paranoid.picture import Picture
from onnxgen.paranoid.trained import wrong_decisions
from onnxgen.propagate.info import info

# torch has no tensors of text: these work on numbers that stand for it
MOVERS = frozenset(
    "Compress Concat Equal Expand Flatten Gather GatherElements GatherND Pad Reshape Scatter ScatterElements ScatterND "
    "Slice Split Squeeze Tile Transpose Unique Unsqueeze Where".split()
)
DECIDED = "decided"  # in `model.meta`: it was checked which tensors are trained
FREED = "batch"  # in `model.meta`: what `dynamic_batch` did


def broken(name: str, model: ir.Model, options: Options, after: Picture) -> Iterator[str]:
    """What a pass did not do, by its name; of the pass `trainable` it is said when types are known."""
    if name == "propagate" and DECIDED not in model.meta:
        model.meta[DECIDED] = True
        yield from (f"the pass trainable is wrong: {fault}" for fault in wrong_decisions(model, options))
    elif name == "text":
        yield from (f"the pass text is wrong: {fault}" for fault in _text_that_is_moved(after))
    elif name == "dynamic_batch" and options.dynamic_batch:
        yield from (f"the pass dynamic_batch is wrong: {fault}" for fault in _fixed_batch(model, options))


def _text_that_is_moved(after: Picture) -> Iterator[str]:
    for made in after.nodes.values():
        texts = [after.facts[v].dtype == ir.DataType.STRING for v in made.inputs if v is not None]
        if made.op in MOVERS and not made.domain and any(texts):
            yield f"{made.op} {made.name} is given text"
        elif made.op == "TextCodes" and not all(texts):
            yield f"{made.name} makes numbers of what is no text"
        elif made.op == "TextAt":
            if texts != [True, False] or after.facts[made.outputs[0]].dtype != ir.DataType.STRING:
                yield f"{made.name} does not make text of numbers"


def _fixed_batch(model: ir.Model, options: Options) -> Iterator[str]:
    freed = model.meta.get(FREED)
    if freed is None:
        yield "nothing is known of the batch"
        return
    given = [v for v in model.graph.inputs if v.name not in model.graph.initializers and info(v).kind == "tensor"]
    first = [shape[0] for shape in (info(v).shape for v in given) if shape]
    if not freed.inputs and (options.batch_axes or (first and all(isinstance(dim, int) and dim for dim in first))):
        yield "no input's batch is free"
    sides = (model.graph.inputs, freed.inputs), (model.graph.outputs, freed.outputs)
    for value, axis in ((v, axes[v.name]) for values, axes in sides for v in values if v.name in axes):
        shape = info(value).shape
        if shape is not None and isinstance(shape[axis], int):
            yield f"axis {axis} of {value.name!r} is still {shape[axis]}"
