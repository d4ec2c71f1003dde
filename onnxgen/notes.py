"""What a file was exported for, as far as it shows: whoever wants to train the module should know it."""

from __future__ import annotations

import re

import onnx_ir as ir

from onnxgen.names import printable
from onnxgen.options import Options
from onnxgen.propagate.info import info
from onnxgen.reader import param_path
from onnxgen.stored import stored

WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "Linear"}  # what exporters fold a BatchNorm into
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"
SHOWN = 3  # names of inputs in one note


def inference_notes(model: ir.Model, options: Options) -> list[str]:
    """Sentences about what was lost or fixed because a file was exported for inference; after `simplify`."""
    return [*_folded_norms(model), *_fixed_batch(model, options)]


def _folded_norms(model: ir.Model) -> list[str]:
    """How many layers have a BatchNorm folded in, by what exporters leave behind.

    - PyTorch's TorchScript exporter keeps the names of parameters; weights that it computed are called
      `onnx::Conv_41` (before PyTorch 1.12 `41`), and of convolutions' weights it computes none but these.
    - Its dynamo exporter notes at the layer that it stems from a batch norm, and stores `conv1.weight_bias` where the
      layer had no bias.
    - tf2onnx calls the weights `..._fused_bn`.
    """
    numbered = model.producer_name == "pytorch" and any(map(param_path, model.graph.initializers))
    layers = [n for n in model.graph.all_nodes() if n.op_type in WEIGHTED and len(n.inputs) > 1]
    found = sum(_from_norm(n) or _is_renamed(n) or (numbered and _is_numbered(n)) for n in layers)
    if not found:
        return []
    many = "1 layer" if found == 1 else f"{found} layers"
    return [
        f"exported for inference: BatchNorm is folded into the weights of {many}; to train with it, export in "
        "training mode"
    ]


def _from_norm(node: ir.Node) -> bool:
    """Whether the dynamo exporter says that a layer was (the end of) a batch norm."""
    return "batch_norm" in node.metadata_props.get(_HIERARCHY, "").rpartition(",")[2]


def _is_renamed(node: ir.Node) -> bool:
    names = map(_origin, node.inputs[1:3])
    return any(re.fullmatch(r"onnx::Conv(Transpose)?_\d+|.+\.weight_bias|.*_fused_bn", name) for name in names)


def _is_numbered(node: ir.Node) -> bool:
    """Whether it is a convolution whose weight has a number for a name."""
    shape = info(node.inputs[1]).shape
    return shape is not None and len(shape) > 2 and _origin(node.inputs[1]).isdigit()


def _origin(value: ir.Value | None) -> str:
    """The name of the stored tensor that a value is, perhaps passed on by others."""
    while value is not None and stored(value) is None:
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and len(producer.inputs) == 1 else None
    return "" if value is None else value.name or ""


def _fixed_batch(model: ir.Model, options: Options) -> list[str]:
    """Inputs whose first axis the file fixes at 1: what it computes may hold for one example only."""
    inputs = {v.name or "": info(v).shape or () for v in model.graph.inputs}
    inputs = {name: shape for name, shape in inputs.items() if len(shape) > 1}
    if not inputs or any(shape[0] != 1 or name in options.input_shapes for name, shape in inputs.items()):
        return []
    names = ", ".join(map(printable, list(inputs)[:SHOWN])) + (", ..." if len(inputs) > SHOWN else "")
    return [
        f"exported for a batch of 1 ({names}): other sizes may fail; to train in batches, export with a dynamic axis"
    ]
