"""What a file was exported for, as far as it shows: whoever wants to train the module should know it."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.annotations import FREED, QUANTISED_NOTES, RESTORED
from onnxgen.options import Options
from onnxgen.passes.folded import folded_layers
from onnxgen.shapes.info import info

SHOWN = 3  # names of inputs in one note


def inference_notes(model: ir.Model, options: Options) -> list[str]:
    """Sentences about what was lost or fixed because a file was exported for inference; after `simplify`."""
    freed = FREED.get(model)
    return [
        *QUANTISED_NOTES.get(model),
        *_folded_norms(model),
        *(_fixed_batch(model, options) if freed is None else freed.notes),
    ]


def _folded_norms(model: ir.Model) -> list[str]:
    """How many layers have a BatchNorm folded in, or how many of these were put back."""
    restored = RESTORED.get(model)
    if restored:
        many = "1 BatchNorm" if len(restored) == 1 else f"{len(restored)} BatchNorms"
        return [f"{many} put back as the identity: train them to get statistics"]
    if restored is not None:
        return ["--restore-batchnorm found no convolution to put a BatchNorm after"]
    found = len(folded_layers(model))
    if not found:
        return []
    many = "1 layer" if found == 1 else f"{found} layers"
    return [
        f"exported for inference: BatchNorm is folded into the weights of {many}; to train with it, export in "
        "training mode, or put it back with --restore-batchnorm"
    ]


def _fixed_batch(model: ir.Model, options: Options) -> list[str]:
    """Inputs whose first axis the file fixes at 1: what it computes may hold for one example only."""
    inputs = {v.name or "": info(v).shape or () for v in model.graph.inputs}
    inputs = {name: shape for name, shape in inputs.items() if len(shape) > 1}
    if not inputs or any(shape[0] != 1 or name in options.input_shapes for name, shape in inputs.items()):
        return []
    names = ", ".join(map(printable, list(inputs)[:SHOWN])) + (", ..." if len(inputs) > SHOWN else "")
    return [
        f"exported for a batch of 1 ({names}): other sizes may fail; to train in batches, export with a dynamic axis, "
        "or free it with --dynamic-batch"
    ]
