"""Remove nodes whose results are known, so that they no longer count as users of their inputs.

Exporters compute shapes beside the data: `Shape -> Gather -> Concat -> Reshape`. Once the elements are known, the nodes
that made them only hide idioms, since an inner value must have one user. Their results become values without a
producer; `shapes.info` has their elements. Unused nodes are removed, too. Known floats stay: they may be computed from
stored tensors that are not trained, which are written back through these nodes. Views of a buffer of the state dict
stay, too.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import KEPT
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.shapes.info import info, set_info, shown_dims


def known(model: ir.Model, options: Options) -> None:
    """Remove every node whose results are all known or unused, users before their producers."""
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
    is_float = facts.dtype is None or facts.dtype.is_floating_point()
    return not KEPT.get(value) and facts.data is not None and not is_float
