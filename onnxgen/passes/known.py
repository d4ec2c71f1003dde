"""What is known already no longer counts as a use of what it was computed from.

Exporters compute shapes beside the data: `Shape -> Gather -> Concat -> Reshape`. Once the elements are known, the nodes
that made them only hide the idioms (a value "with one user" has two). They are removed; their results stay as values
without a producer, whose elements `shapes.info` has. Nodes that nothing uses go too. Only integers: known floats
may be stored tensors that are not trained, whose way back goes through the nodes. And no views of a buffer that the
state dict keeps.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import KEPT
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.shapes.info import info, set_info, shown_dims


def known(model: ir.Model, options: Options) -> None:
    """Remove every node whose results are all known or unused, users before what they use."""
    for node in reversed(all_nodes(model.graph)):
        if node.graph is None or not node.inputs or any(o.is_graph_output() or shown_dims(o) for o in node.outputs):
            continue
        used = [o for o in node.outputs if o.uses()]
        if all(_is_known(o) for o in used):
            for old in used:
                new = ir.Value(name=old.name, shape=old.shape, type=old.type)
                set_info(new, info(old))
                ir.convenience.replace_all_uses_with(old, new)
            node.graph.remove(node, safe=True)


def _is_known(value: ir.Value) -> bool:
    facts = info(value)
    if KEPT.get(value):
        return False
    return facts.data is not None and facts.dtype is not None and not facts.dtype.is_floating_point()
