"""Remove nodes that change nothing, have known results, or compute a value again.

Such nodes only hide idioms.

What changes nothing is Identity, casts to the type that a value already has or had, products with 1, sums with 0, the
greater of a value and -inf and the like for truth values, Slices of everything, Reshapes to the shape that a value has,
and Where with a condition that is known to be the same everywhere. The only element along an axis that was just added
is what the axis was added to. A CastLike becomes a Cast if the other tensor's type is known, since it does not use that
tensor's elements. A node that makes a graph output becomes an Identity, so that the output keeps its name. An Identity
that gives a stored tensor the name of a parameter stays, too: the legacy exporter stores equal tensors once.

Known results: exporters compute shapes beside the data (`Shape -> Gather -> Concat -> Reshape`). Once the elements are
known, the nodes that made them only hide idioms, since an inner value must have one user. Their results become values
without a producer; `shapes.info` has their elements. Unused nodes are removed, too. Known floats stay: they may be
computed from stored tensors that are not trained, which are written back through these nodes. Views of a buffer of the
state dict stay, too.

Equal nodes: PyTorch's exporters write a value once. Others write what a loop's body needs again at each place: the next
index of PaddlePaddle's decoders, three times in each turn. Only inner graphs are changed so: in the main graph a block
that is written out again is a block of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

import onnx_ir as ir

from onnxgen.graph.annotations import KEPT, ROOT, SCOPE, is_trained
from onnxgen.graph.nodes import ALIAS, all_nodes, has_subgraphs, passed_on
from onnxgen.graph.operators import is_a
from onnxgen.graph.operators import known as known_card
from onnxgen.graph.traits import COMMUTES, RANDOM, RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import elements, maker, scalar, source_of, uniform
from onnxgen.passes.rewrite import beside, drop, replace, take_facts
from onnxgen.passes.slices import Cut, cuts
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info, set_info, shown_dims
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
            take_facts(new, value)
            new.name = f"{value.name}_returned"
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
    match node.op_type:
        case "Identity":
            return None if stored(source) is not None and _is_named(output) else source
        case "Cast":
            return _of_cast(node)
        case "Where":
            return _of_where(node)
        case "Gather":
            return _of_one(node)
        case "Slice":
            is_whole = all(cut.step == 1 for cut in cuts(node) or (NO_CUT,))
        case "Reshape":
            is_whole = stored(source) is None
        case _:
            return _beside_neutral(node)
    return source if is_whole and _same(source, output) else None


def _is_named(value: ir.Value) -> bool:
    return param_path(value.name or "") is not None or ROOT.has(value)


def _of_cast(node: ir.Node) -> ir.Value | None:
    dtype, before = ir.DataType(node.attributes["to"].as_int()), source_of(node.inputs[0], "Cast")
    if dtype == ir.DataType.BOOL and info(before).dtype == dtype:
        return before  # a truth value that was a number in between
    return node.inputs[0] if info(node.inputs[0]).dtype == dtype else None


def _of_where(node: ir.Node) -> ir.Value | None:
    condition = info(node.inputs[0]).constant
    if condition is None or not condition.size or condition.all() != condition.any():
        return None
    chosen = node.inputs[1 if condition.all() else 2]
    return chosen if _same(chosen, node.outputs[0]) else None


def _beside_neutral(node: ir.Node) -> ir.Value | None:
    """Return the operand beside a number that changes nothing."""
    neutral = known_card(node).rules.neutral
    if neutral is None or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if _is(second, neutral) and _same(first, node.outputs[0]):
        return first
    return second if is_a(node, COMMUTES) and _is(first, neutral) and _same(second, node.outputs[0]) else None


def _of_one(node: ir.Node) -> ir.Value | None:
    """Return the value that a Gather takes the only element of, along an axis that a Reshape has just added to it."""
    data, axis = info(node.inputs[0]).shape, node.attributes.get_int("axis", 0)
    index, before = elements(node.inputs[1], 1), maker(node.inputs[0])
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


def equal_nodes(model: ir.Model, options: Options) -> None:
    """Merge equal nodes of every inner graph that compute with more than stored tensors.

    What is made of stored tensors alone may be two parameters: one that an exporter stored once, and named twice.
    """

    def may(node: ir.Node) -> bool:
        moves = any(value is not None and stored(value) is None and info(value).data is None for value in node.inputs)
        return node.graph is not model.graph and moves and not is_a(node, RANDOM)

    merge_equal(model, may)


def merge_equal(model: ir.Model, may: Callable[[ir.Node], bool], kept: Collection[ir.Value] = ()) -> None:
    """Let one node stand for all equal ones of a scope. `may`: the nodes it is about; `kept`: values that stay."""
    first: dict[tuple[object, ...], ir.Value] = {}
    for node in all_nodes(model.graph):
        output = node.outputs[0] if len(node.outputs) == 1 else None
        if output is None or has_subgraphs(node) or not may(node) or output in kept or output.is_graph_output():
            continue
        attributes = tuple(sorted((name, _said(a)) for name, a in node.attributes.items()))
        what = (node.op_type, node.domain, node.version, node.overload)
        key = (*what, *map(_given, node.inputs), attributes, node.graph, SCOPE.get(node))
        if node.inputs and first.setdefault(key, output) is not output:
            output.replace_all_uses_with(first[key])
            drop(node)


def _said(attribute: ir.Attr) -> str:
    """Return a text that only equal attributes have: the text of a long tensor leaves numbers out."""
    value = attribute.value
    if not isinstance(value, ir.TensorProtocol):
        return f"{attribute.type} {value}"
    return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def _given(value: ir.Value | None) -> object:
    """Return what an input is: sizes, or one number that is not trained, if they are known."""
    facts = info(value)
    if facts.data is not None:
        return (facts.dtype, tuple(facts.data.shape), *facts.data.reshape(-1).tolist())
    constant = None if value is None or is_trained(value) else facts.constant
    if constant is None or constant.size != 1:
        return value
    return (facts.dtype, constant.shape, constant.tobytes())
