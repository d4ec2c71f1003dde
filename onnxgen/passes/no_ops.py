"""Identity nodes and casts to the type that a value already has are dropped: they only hide patterns from the idioms.

One that makes a graph output stays: the output must keep its name. So does one that gives a stored tensor a parameter's
name: the legacy exporter stores equal tensors once.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.rewrite import drop
from onnxgen.passes.trainable import ROOT
from onnxgen.propagate.info import info
from onnxgen.reader.origin import param_path
from onnxgen.stored import stored


def no_ops(model: ir.Model, options: Options) -> None:
    """Drop every node that passes its input on unchanged."""
    for node in list(model.graph.all_nodes()):
        if node.domain != "" or len(node.outputs) != 1 or not _passes_on(node):
            continue
        source, output = node.inputs[0], node.outputs[0]
        if source is None or output.is_graph_output() or node.graph is None:
            continue
        ir.convenience.replace_all_uses_with(output, source)
        drop(node)


def _passes_on(node: ir.Node) -> bool:
    if node.op_type == "Identity":
        output = node.outputs[0]
        return stored(node.inputs[0]) is None or (param_path(output.name or "") is None and ROOT not in output.meta)
    if node.op_type != "Cast":
        return False
    dtype = info(node.inputs[0]).dtype
    return dtype is not None and dtype == ir.DataType(node.attributes["to"].value)
