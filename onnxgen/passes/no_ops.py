"""Remove nodes that change nothing: they only hide patterns from the idioms.

These are Identity, casts to the type that a value already has or had, products with 1, sums with 0, the greater of a
value and -inf and the like for truth values, Slices of everything, Reshapes to the shape that a value has, and Where
with a condition that is known to be the same everywhere. The only element along an axis that was just added is what the
axis was added to.

A CastLike becomes a Cast if the other tensor's type is known, since it does not use that tensor's elements.

A node that makes a graph output becomes an Identity, so that the output keeps its name. An Identity that gives a
stored tensor the name of a parameter stays, too: the legacy exporter stores equal tensors once.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import ROOT
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.nodes import ALIAS, all_nodes, made_by, passed_on
from onnxgen.graph.traits import COMMUTES, RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import elements, scalar, uniform
from onnxgen.passes.rewrite import beside, drop, replace
from onnxgen.passes.slices import Cut, cuts
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import stored

NO_CUT = Cut(0, 0, 0, 0)  # of a Slice whose bounds are not known


def no_ops(model: ir.Model, options: Options) -> None:
    """Remove every node that passes an input on unchanged."""
    for node in all_nodes(model.graph):
        node = _without_like(node)
        source = _passed_on(node) if node.domain == "" and len(node.outputs) == 1 else None
        output = node.outputs[0]
        if source is None or node.graph is None:
            continue
        if output.is_graph_output():
            if not _is_alias(node):
                replace(node, ir.Node(*ALIAS, [source]))
            continue
        ir.convenience.replace_all_uses_with(output, source)
        drop(node)


def aliases(model: ir.Model, options: Options) -> None:
    """Remove every Identity of a value that a node computes or that the network is given.

    What an inner graph returns gets one: the node that makes it then is like all others for the passes.
    """
    for graph in model.graph.subgraphs():
        _name_results(graph)
    for node in all_nodes(model.graph):
        source = node.inputs[0] if _is_alias(node) else None
        if source is not None and stored(source) is None and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            drop(node)


def _name_results(graph: ir.Graph) -> None:
    for i, value in enumerate(graph.outputs):
        node = value.producer()
        if node is not None and not _is_alias(node) and isinstance(value.type, ir.TensorType):
            same = passed_on(value)
            (new,) = same.outputs
            new.name, new.shape, new.type = f"{value.name}_returned", value.shape, value.type
            set_info(new, info(value))
            beside(same, node)
            graph.outputs[i] = new
            graph.append(same)


def _is_alias(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ALIAS


def _without_like(node: ir.Node) -> ir.Node:
    """Replace a CastLike by a Cast if the type is known. Returns the node that is there now."""
    dtype = info(node.inputs[1]).dtype if (node.domain, node.op_type) == ("", "CastLike") else None
    if dtype is None or node.graph is None:
        return node
    kept = [a for name, a in node.attributes.items() if name == "saturate"]
    cast = ir.Node("", "Cast", [node.inputs[0]], [ir.AttrInt64("to", dtype), *kept], version=19)
    replace(node, cast)
    return cast


def _passed_on(node: ir.Node) -> ir.Value | None:
    """Return the input that a node passes on unchanged, else None."""
    output, source = node.outputs[0], node.inputs[0] if node.inputs else None
    if _is_alias(node):
        kept = stored(source) is not None and (param_path(output.name or "") is not None or ROOT.has(output))
        return None if kept else source
    if node.op_type == "Cast":
        dtype, before = ir.DataType(node.attributes["to"].as_int()), made_by(source, "Cast")
        if dtype == ir.DataType.BOOL and before is not None and info(before.inputs[0]).dtype == dtype:
            return before.inputs[0]  # a truth value that was a number in between
        return source if info(source).dtype == dtype else None
    if node.op_type == "Where":
        condition = info(node.inputs[0]).constant
        if condition is None or not condition.size or condition.all() != condition.any():
            return None
        chosen = node.inputs[1 if condition.all() else 2]
        return chosen if _same(chosen, output) else None
    if node.op_type == "Slice":
        return source if _same(source, output) and all(cut.step == 1 for cut in cuts(node) or (NO_CUT,)) else None
    if node.op_type == "Reshape":
        return source if stored(source) is None and _same(source, output) else None
    if node.op_type == "Gather":
        return _of_one(node)
    neutral = known(node).rules.neutral
    if neutral is not None and len(node.inputs) == 2:
        first, second = node.inputs
        if _is(second, neutral) and _same(first, output):
            return first
        if is_a(node, COMMUTES) and _is(first, neutral) and _same(second, output):
            return second
    return None


def _of_one(node: ir.Node) -> ir.Value | None:
    """Return the value that a Gather takes the only element of, along an axis that a Reshape has just added to it."""
    data, axis = info(node.inputs[0]).shape, node.attributes.get_int("axis", 0)
    index = elements(node.inputs[1], 1)
    before = None if node.inputs[0] is None else node.inputs[0].producer()
    if not data or data[axis] != 1 or index is None or index.shape != () or before is None or not is_a(before, RESHAPE):
        return None
    return before.inputs[0] if _same(before.inputs[0], node.outputs[0]) else None


def _is(value: ir.Value | None, neutral: float) -> bool:
    """True if a value is this single number or truth value, or has it everywhere, and is not trained."""
    if info(value).dtype == ir.DataType.BOOL:
        constant = info(value).constant
        return constant is not None and constant.size == 1 and bool(constant.all()) == neutral
    return scalar(value) == neutral or (stored(value) is None and uniform(value) == neutral)


def _same(value: ir.Value | None, output: ir.Value) -> bool:
    """True if a result has the type and shape of an input, that is, nothing has broadcast it."""
    facts = info(value)
    return facts.shape is not None and facts.shape == info(output).shape and facts.dtype == info(output).dtype
