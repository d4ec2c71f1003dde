"""The oracle for `--dynamic-batch`: it runs a file with a fixed batch several times and stacks the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.common.json_text import json_object
from onnxgen.passes.batch import Freed
from onnxgen.record.module import noted
from onnxgen.verify.oracle import Oracle, Refused


def freed_of(space: Mapping[str, Any]) -> Freed | None:
    """Return the batch that a generated file made free, as its sidecar records; None if it did not."""

    def parsed(text: str) -> Freed:
        found = json_object(text)
        return Freed(int(found["size"]), dict(found["inputs"]), dict(found["outputs"]))

    return noted(space, "batch", parsed)


def is_free(model: ir.Model, freed: Freed) -> bool:
    """Return True if a freshly read model already has a free batch."""
    shapes = {value.name or "": value.shape for value in model.graph.inputs}
    return all(
        (shape := shapes.get(name)) is None or not isinstance(shape[axis], int) for name, axis in freed.inputs.items()
    )


def free_inputs(model: ir.Model, freed: Freed) -> None:
    """Give the inputs of a freshly read model a free batch, to draw samples for."""
    for value in model.graph.inputs:
        axis = freed.inputs.get(value.name or "")
        if axis is not None and value.shape is not None:
            dims: list[int | ir.SymbolicDim] = list(value.shape)
            dims[axis] = ir.SymbolicDim("batch")
            value.shape = ir.Shape(dims)


class Stacked:
    """Runs the file once per portion of the batch, and concatenates the results."""

    def __init__(self, oracle: Oracle, freed: Freed, outputs: list[str]) -> None:
        self.oracle, self.freed, self.outputs = oracle, freed, outputs
        self.seconds = oracle.seconds
        self.name = f"{oracle.name}, stacked runs of {freed.size}"

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        counts = {feeds[name].shape[axis] for name, axis in self.freed.inputs.items()}
        if len(counts) != 1 or 0 in counts:
            raise Refused("the inputs do not have the same number of samples")
        (count,) = counts
        runs = [self.oracle.run(part) for part in self._parts(feeds, count)]
        return [self._joined(name, [run[i] for run in runs], count) for i, name in enumerate(self.outputs)]

    def _parts(self, feeds: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
        """Yield the samples in portions of the file's batch. The last one is filled up with the last sample."""
        for start in range(0, count, self.freed.size):
            chosen = [min(start + i, count - 1) for i in range(self.freed.size)]
            yield {
                name: np.take(value, chosen, self.freed.inputs[name]) if name in self.freed.inputs else value
                for name, value in feeds.items()
            }

    def _joined(self, name: str, parts: list[Any], count: int) -> Any:
        """Return the rows of an output from all runs. An output without a batch is that of the first run."""
        axis = self.freed.outputs.get(name)
        if axis is None:
            return parts[0]
        rows = parts[0].shape[axis] // self.freed.size
        return np.take(np.concatenate(parts, axis), range(count * rows), axis)
