"""Give each module its own view of a vector of equal numbers that an exporter stored once for several modules.

Biases are equal before training, and the dynamo exporter merges equal tensors and then equal nodes. So the attentions
of a decoder all read one Split of an encoder's `in_proj_bias`. With a node in each module, the parameter is that
module's own. A tied weight has no equal numbers once it is trained.
"""

from __future__ import annotations

from collections import defaultdict

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, STANDS_FOR, copy_all, is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import MOVES
from onnxgen.options import Options
from onnxgen.passes.rewrite import drop, names_of
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import is_uniform, stored


def shared_views(model: ir.Model, options: Options) -> None:
    """Copy every such node into the scopes of its users."""
    for node in all_nodes(model.graph):
        x = node.inputs[0] if is_a(node, MOVES) else None
        tensor = stored(x)
        if x is None or tensor is None or not is_trained(x) or not is_uniform(tensor) or not _is_cut(node, tensor):
            continue
        users: dict[ModulePath, list[tuple[ir.Node, int, int]]] = defaultdict(list)
        for place, output in enumerate(node.outputs):
            for user, index in output.uses():
                users[SCOPE.get(user)].append((user, index, place))
        if () in users or (len(users) == 1 and len(x.uses()) == 1):
            continue
        for scope in [s for s in users if _is_apart(s, SCOPE.get(node))]:
            copy = _copy(node, scope)
            for user, index, place in users[scope]:
                user.replace_input_with(index, copy.outputs[place])
        drop(node)


def _is_cut(node: ir.Node, tensor: ir.TensorProtocol) -> bool:
    """True if each output has less than all elements."""
    shapes = [info(output).shape for output in node.outputs]
    return all(s and all(isinstance(d, int) and d < tensor.size for d in s) and len(s) == 1 for s in shapes)


def _is_apart(a: ModulePath, b: ModulePath) -> bool:
    """True if neither module is in the other."""
    return any(x != y for x, y in zip(a, b))


def _copy(node: ir.Node, scope: ModulePath) -> ir.Node:
    attributes, count = list(node.attributes.values()), len(node.outputs)
    copy = ir.Node("", node.op_type, node.inputs, attributes, num_outputs=count, version=node.version, name=node.name)
    copy_all(node, copy)
    SCOPE.set(copy, scope)
    STANDS_FOR.set(copy, names_of(node))
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        set_info(new, info(old))
    assert node.graph is not None
    node.graph.insert_before(node, copy)
    return copy
