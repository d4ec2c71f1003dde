"""Notes on what a file lost or fixed when it was exported for inference."""

from __future__ import annotations

import re

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import counted
from onnxgen.graph.annotations import FREED, QUANTISED_NOTES, RESTORED, TRAINABLE, UNROLLED, is_trained
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.lowering.sharing import listed
from onnxgen.options import Options
from onnxgen.passes.folded import folded_layers
from onnxgen.passes.roles import CHOSEN
from onnxgen.passes.trainable import stored_values
from onnxgen.shapes.info import info
from onnxgen.weights.stored import folded_from

_LOOKED_UP = re.compile(r"(slice|embedding|select|index_select|index)(_\d+)?")


def inference_notes(model: ir.Model, options: Options) -> list[str]:
    """Return sentences about a model that was simplified."""
    freed = FREED.get(model)
    return [
        *QUANTISED_NOTES.get(model),
        *_folded_norms(model),
        *_chosen(model),
        *_unrolled(model),
        *_cut_tables(model),
        *_pinned_sizes(model),
        *(_fixed_batch(model, options) if freed is None else freed.notes),
    ]


def _folded_norms(model: ir.Model) -> list[str]:
    """Count the layers that have a BatchNorm folded in, or the BatchNorms that were put back."""
    restored = RESTORED.get(model)
    if restored:
        return [f"{counted(len(restored), 'BatchNorm')} put back as the identity: train them to get statistics"]
    if restored is not None:
        return ["--restore-batchnorm found no convolution to put a BatchNorm after"]
    count = len(folded_layers(model))
    if not count:
        return []
    return [
        f"exported for inference: BatchNorm is folded into the weights of {counted(count, 'layer')}; to train with it, "
        "export in training mode, or put it back with --restore-batchnorm"
    ]


def _chosen(model: ir.Model) -> list[str]:
    """Name the exponents and bounds that may be learned, and are not trained for their gradient."""
    stored = [v for v in stored_values(model.graph) if v.uses()]
    chosen = [v.name or "" for v in stored if TRAINABLE.get(v) == (False, CHOSEN)]
    return [f"not trained: {listed(chosen)}, {CHOSEN}; --trainable trains it"] if chosen else []


def _unrolled(model: ir.Model) -> list[str]:
    """Say that layers which the file has step by step take sequences of any length."""
    steps = sorted(UNROLLED.get(model))
    if not steps:
        return []
    numbers = " or ".join(map(str, steps))
    return [f"exported step by step, for {numbers} steps: the recurrent layers take any number, if the rest does"]


def _cut_tables(model: ir.Model) -> list[str]:
    """Name the parameters that are only a part of the original's, by the function that the dynamo exporter folded."""
    tables = [
        f"{folded_from(v) or v.name} {[*v.const_value.shape.numpy()]}"
        for v in model.graph.initializers.values()
        if v.const_value is not None and is_trained(v) and _LOOKED_UP.fullmatch(v.name or "") and v.uses()
    ]
    if not tables:
        return []
    what = f"{listed(tables)}: only what was looked up in a table (of positions, say) is stored"
    return [f"{what}; longer inputs need the original's table"]


def _pinned_sizes(model: ir.Model) -> list[str]:
    """Name the reshapes to constant sizes of a value that has any size: the exporter fixed that of its example."""
    pinned = []
    for node in all_nodes(model.graph):
        before, after = (
            (info(v).shape or () for v in (*node.inputs[:1], *node.outputs[:1])) if node.inputs else ((), ())
        )
        if is_a(node, RESHAPE) and after and all(isinstance(d, int) for d in after):
            if any(not isinstance(d, int) for d in before):
                pinned.append(f"{printable(node.outputs[0].name or '')} {[*after]}")
    if not pinned:
        return []
    return [f"exported for fixed sizes ({listed(pinned)}), though inputs may have any: other sizes fail"]


def _fixed_batch(model: ir.Model, options: Options) -> list[str]:
    """Warn of a batch size fixed at 1: the network may be right for one example only."""
    inputs = {v.name or "": info(v).shape or () for v in model.graph.inputs}
    inputs = {name: shape for name, shape in inputs.items() if len(shape) > 1}
    if not inputs or any(shape[0] != 1 or name in options.input_shapes for name, shape in inputs.items()):
        return []
    return [
        f"exported for a batch of 1 ({listed(list(inputs))}): other sizes may fail; to train in batches, export with "
        "a dynamic axis, or free it with --dynamic-batch"
    ]
