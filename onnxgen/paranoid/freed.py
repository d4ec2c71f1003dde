"""Check a freed batch: several batches at once must give the same as one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import FREED
from onnxgen.paranoid.compare import unlike
from onnxgen.paranoid.draws import STYLES, drawn, element_count, shape_counts
from onnxgen.paranoid.picture import Picture
from onnxgen.paranoid.region import Broken, Untold
from onnxgen.paranoid.run import Side
from onnxgen.paranoid.single import Single
from onnxgen.shapes.dims import symbols
from onnxgen.shapes.info import info

BATCH_COUNT = 3  # number of batches
NAMED_DIM_SIZE = 4  # size of every named dim
MAX_ELEMENTS = 20_000_000  # elements of all values of one batch; larger networks are not computed


def mixed_samples(model: ir.Model, before: Picture, after: Picture, single: Single) -> Iterator[str]:
    """Yield the outputs that differ between several batches at once and one after the other, on drawn inputs in
    float64.
    """
    freed = FREED.get(model)
    if freed is None or not freed.inputs:
        return
    numbers = {
        name: NAMED_DIM_SIZE for facts in before.facts.values() for dim in facts.shape or () for name in symbols(dim)
    }
    try:
        if element_count(shape_counts(before.facts.values()), numbers) > MAX_ELEMENTS:
            return
        batches = [_inputs(model, before, numbers, freed.inputs, turn) for turn in range(BATCH_COUNT)]
        alone = [_outputs(model, before, single, numbers, batch) for batch in batches]
    except Untold:
        return
    together = {
        name: np.concatenate([batch[name] for batch in batches], freed.inputs[name]) if name in freed.inputs else array
        for name, array in batches[0].items()
    }
    shapes = [info(v).shape or () for v in model.graph.inputs if v.name in freed.inputs]
    batch = {name: BATCH_COUNT * freed.size for shape in shapes for dim in shape for name in symbols(dim)}
    try:
        found = _outputs(model, after, single, batch | numbers, together)
    except Broken as error:
        yield f"it no longer runs: {error}"
        return
    except Untold:
        return
    for k, output in enumerate(model.graph.outputs):
        name = output.name or ""
        axis = freed.outputs.get(name)
        one = [outputs[k] for outputs in alone]
        if any(not isinstance(value, np.ndarray) for value in one):
            continue
        wanted = one[0] if axis is None else np.concatenate(one, axis)
        if wrong := unlike(wanted, found[k], wide=True, exact=False):
            yield f"of {BATCH_COUNT} batches at once the output {name!r} is another: {wrong}"


def misplaced(model: ir.Model, before: Picture) -> Iterator[str]:
    """Yield the outputs whose samples follow each other along another axis although the batch's own axis is there."""
    freed = FREED.get(model)
    assert freed is not None
    usual = set(freed.inputs.values())
    for value, output in zip(before.graphs[model.graph][1], model.graph.outputs):
        shape, axis = before.facts[value].shape, freed.outputs.get(output.name or "")
        if shape is None or axis is None or len(usual) != 1 or shape[axis] == freed.size:
            continue
        (own,) = usual
        if own < len(shape) and shape[own] == freed.size:
            yield f"the samples of {output.name!r} follow each other along axis {axis}, not {own}"


def _inputs(
    model: ir.Model, before: Picture, numbers: Mapping[str, int], freed: Mapping[str, int], turn: int
) -> dict[str, Any]:
    """Return a batch of inputs. Inputs without a batch are the same in each."""
    given = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    return {
        v.name or "": drawn(before.facts[v], numbers, STYLES[0], True, i + 100 * turn * (v.name in freed))
        for i, v in enumerate(given)
    }


def _outputs(
    model: ir.Model, picture: Picture, single: Single, numbers: Mapping[str, int], inputs: Mapping[str, Any]
) -> list[Any]:
    """Return the outputs of the whole network. Raises `Untold`, and `Broken` if an operator refuses its inputs."""
    side = Side(picture, single, numbers, wide=True)
    values = {v: inputs[v.name] for v in picture.graphs[model.graph][0] if v.name is not None and v.name in inputs}
    with np.errstate(all="ignore"):
        made = side.body(model.graph, [], values)
    if side.narrowed:
        raise Untold("an operator computes in float32 alone")
    return made
