"""Decide which stored tensors are trained, and note it as `TRAINABLE` of each tensor of floats.

A tensor is trained if an output depends on it differentiably, whether it is an initializer or a Constant. Exceptions
are the Constant nodes of PyTorch's exporters, which store parameters as initializers; one-element constants without a
parameter's name; exponents and bounds, and single numbers that a person types, unless PyTorch recorded parameters;
masks, and vectors of evenly or geometrically spaced numbers; kernels that are their own mirror image; the mean and
deviation of the input, which `scales_input` tells from a trained affine; and what the network measures, by its name.
The options `trainable` and `frozen` overrule all of this. The graph is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache

import onnx
import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import (
    BLOCKED,
    KEEPS_STATE,
    KEPT,
    NO_PARAMETER,
    PRODUCER,
    RECORDED,
    ROOT,
    STILL,
    TRAINABLE,
    VARIES,
    is_trained,
)
from onnxgen.graph.nodes import FLOATS, all_nodes, subgraphs, types_of
from onnxgen.graph.operators import is_a, known, reason
from onnxgen.graph.traits import (
    ADDS,
    CONVOLUTION,
    ELEMENTWISE,
    JOINS,
    NORM,
    PASSES_ON,
    SAME,
    SCALES,
    STANDARDISES,
    STRIDES,
    VIEW,
)
from onnxgen.options import Options
from onnxgen.passes import roles
from onnxgen.passes.regular import is_expectation, is_filter, is_fresh, is_spectrum, rule_of
from onnxgen.passes.roles import KIND, number, operator, slots
from onnxgen.scopes.origin import param_path, parameter_name
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.info import info
from onnxgen.weights.stored import folded_from, is_plain, stored

COMPUTED = "the exporter computed it, and not from a parameter"
SCALER = "the mean or standard deviation of the input"
COMPLEX = {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
_CONTINUOUS = re.compile("float|double|complex")  # in the name of a type in a schema


def trainable(model: ir.Model, options: Options) -> None:
    """Decide for every stored tensor of floating point.

    Raises:
        OnnxgenError: the pattern of an option matches no such tensor's name.
    """
    graph = model.graph
    reached = differentiable(graph)
    PRODUCER.set(graph, "pytorch" if roles.is_by_pytorch(model) else model.producer_name)
    KEEPS_STATE.set(graph, roles.is_by_pytorch(model) and any(map(param_path, graph.initializers)))
    RECORDED.set(graph, any(KIND in v.metadata_props for v in graph.initializers.values()))
    _note_root_names(graph)
    for value in () if KEEPS_STATE.get(graph) or RECORDED.get(graph) else roles.varying(graph):
        VARIES.set(value, True)
    inputs = set(graph.inputs) - set(graph.initializers.values())
    names = []
    for value in stored_values(graph):
        tensor = stored(value)
        if tensor is None or tensor.dtype not in FLOATS:
            continue
        names.append(value.name or "")
        TRAINABLE.set(value, _decide(value, tensor, value in reached, inputs, graph, options))
    for option, pattern in (("trainable", options.trainable), ("frozen", options.frozen)):
        if pattern and not any(re.search(pattern, name) for name in names):
            what = f"--{option} {pattern!r} matches the name of no floating-point initializer"
            raise OnnxgenError(what, help="onnxgen inspect lists the names")


def kept(model: ir.Model, options: Options) -> None:
    """Mark buffers of the state dict and their views: they are not folded, though their elements are known.

    What is trained is decided, and a second time, by now. The legacy exporter only names tensors that are in the state
    dict; the dynamo exporter records those that are not.
    """
    for value in stored_values(model.graph):
        if _is_in_state_dict(value):
            KEPT.set(value, not is_trained(value))
    for node in all_nodes(model.graph):
        if is_a(node, PASSES_ON) and node.inputs and node.inputs[0] is not None and KEPT.get(node.inputs[0]):
            for output in node.outputs:
                KEPT.set(output, True)


def _is_in_state_dict(value: ir.Value) -> bool:
    records, tensor = value.metadata_props, stored(value)
    is_named = param_path(value.name or "") is not None or ROOT.has(value)
    is_empty = tensor is not None and tensor.size == 0 and KIND not in records
    is_recorded = records.get(KIND) == "BUFFER" and roles.PERSISTENT in records
    return (is_named or is_recorded) and not is_empty and records.get(roles.PERSISTENT) != "False"


def _note_root_names(graph: ir.Graph) -> None:
    """Mark initializers that are parameters or buffers of the root, whose names have no dot (`temperature`).

    This is only done in files of PyTorch's legacy exporter. There the names of other initializers are not identifiers
    (`onnx::MatMul_24`), unless onnxruntime wrote them. In files of the dynamo exporter without its records, folded
    constants have the names of nodes (`mul_2`).
    """
    values = list(graph.initializers.values())
    if KEEPS_STATE.get(graph) and not RECORDED.get(graph) and not roles.is_by_dynamo(graph):
        values += [o for v in values for u in v.uses() if operator(u.node) == "Identity" for o in u.node.outputs]
        for value in values:
            if roles.may_be_root_name(value.name or "") and not folded_from(value):
                ROOT.set(value, True)


def stored_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every initializer and Constant output of a graph and its subgraphs."""
    yield from graph.initializers.values()
    for node in graph:
        if node.op_type == "Constant":
            yield from node.outputs
        for subgraph in subgraphs(node):
            yield from stored_values(subgraph)


def differentiable(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that a floating-point output depends on differentiably."""
    reached = {o for o in graph.outputs if o.dtype is None or o.dtype in FLOATS}
    _reach(graph, reached)
    return reached


def _reach(graph: ir.Graph, reached: set[ir.Value]) -> None:
    for node in reversed(graph):
        if reason(node.domain, node.op_type) is not None or reached.isdisjoint(node.outputs):
            continue
        if node.op_type == "Cast" and node.domain in STANDARD and node.attributes["to"].as_int() not in FLOATS:
            continue
        blocked = BLOCKED.get(node) or known(node).still
        inputs = ((i, v) for i, v in enumerate(node.inputs) if v is not None)
        reached.update(v for i, v in inputs if i not in blocked and not _is_discrete(v))
        for subgraph in subgraphs(node):
            reached.update(subgraph.outputs)
            _reach(subgraph, reached)


def _is_discrete(value: ir.Value) -> bool:
    """True if a value is known not to be floating point: no gradient flows through the indices of a Gather, say."""
    if value.dtype is not None:
        return value.dtype not in FLOATS | COMPLEX
    node = value.producer()
    return node is not None and value.index() in _discrete("" if node.domain in STANDARD else node.domain, node.op_type)


@cache
def _discrete(domain: str, op: str) -> frozenset[int]:
    """Return the outputs that the schema defines as integers, truth values or text, such as TopK's indices."""
    try:
        schema = onnx.defs.get_schema(op, domain)
    except onnx.defs.SchemaError:
        return frozenset()
    types = [types_of(schema, output) for output in schema.outputs]
    return frozenset(i for i, some in enumerate(types) if not any(map(_CONTINUOUS.search, some)))


def _decide(
    value: ir.Value, tensor: ir.TensorProtocol, reached: bool, inputs: set[ir.Value], graph: ir.Graph, options: Options
) -> tuple[bool, str]:
    """Return True if a tensor is trained, and the reason."""
    if tensor.size == 0:
        return False, "an empty tensor has no element to train"
    if asked := _asked(value.name or "", options):
        return asked
    if not reached:
        return False, STILL.get(value) or "no gradient reaches it from an output"
    kind = value.metadata_props.get(KIND)
    if kernel_reason := _made_kernel(value, tensor, graph):
        return False, kernel_reason
    if kind == "PARAMETER":
        return True, "the exporter recorded it as a parameter"
    return _by_role(value, tensor, kind, graph) or _by_elements(value, tensor, inputs, graph)


def _by_role(value: ir.Value, tensor: ir.TensorProtocol, kind: str | None, graph: ir.Graph) -> tuple[bool, str] | None:
    """Return the decision for a tensor that is where weights are, or that records or a name say something of."""
    is_computed = kind is None and RECORDED.get(graph) and roles.is_made_of_constants(value)
    why = _why_no_weight(value, tensor, graph) or _why_made(value, kind, graph)
    if why or is_computed and not is_plain(tensor):  # a plain one may stand for a parameter of equal numbers, too
        return False, why or COMPUTED
    role = next((f"{node.op_type} weight" for node, i in slots(value) if i in known(node).weights), None)
    if role is not None:  # a buffer, too: exporters store equal tensors once
        return True, role
    if statistic := _statistic(value, tensor, graph):
        return False, f"{statistic}, by its name"
    if kind == "BUFFER":
        return False, "the exporter recorded it as a buffer"
    if roles.is_bias(value, tensor):
        return True, "the bias of a product with a weight"
    return (False, COMPUTED) if is_computed else None


def _why_made(value: ir.Value, kind: str | None, graph: ir.Graph) -> str:
    """Return why the exporter's records make a tensor no parameter; "" if they do not."""
    if KEEPS_STATE.get(graph) and value.producer() is not None:
        return "a Constant node: PyTorch exports parameters as initializers"
    if kind is None and RECORDED.get(graph) and _is_made(value):  # a parameter's kind would be recorded
        return "a tensor of one number that forward made"
    if NO_PARAMETER.get(value) and kind is not None:
        return "a buffer or constant in all calls that the exporter recorded"
    return ""


def _asked(name: str, options: Options) -> tuple[bool, str] | None:
    """Return what options say of a tensor; None if they say nothing."""
    if name in options.const:
        return False, "--const gives it"
    if options.frozen and re.search(options.frozen, name):
        return False, "--frozen says so"
    if options.trainable and re.search(options.trainable, name):
        return True, "--trainable says so"
    return None


def _made_kernel(value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> str:
    """Return why the kernel of a convolution was not trained; "" if it may have been.

    Files that name parameters and buffers alike have another name for the kernels of layers than for a window, a sinc
    or a blur that `F.conv1d` is given. A kernel that was trained is no mirror image of itself.
    """
    places = list(slots(value))
    if any(is_a(node, CONVOLUTION) and i == known(node).matrix for node, i in places) and is_expectation(tensor):
        return "a kernel of the numbers 0, 1, 2, ..."
    if not places or not all(i == 1 and is_a(node, CONVOLUTION) for node, i in places):
        return ""
    if value.metadata_props.get(KIND) != "PARAMETER" and is_spectrum(tensor):
        return "the cosines and sines of a Fourier transform"
    if not _names_all(graph) or not _is_called_otherwise(value) or not is_filter(tensor):
        return ""
    return "a filter that is its own mirror image, and is not called a weight"


def _is_called_otherwise(value: ir.Value) -> bool:
    path = (value.name or "",) if ROOT.has(value) else param_path(value.name or "")
    return path is not None and "weight" not in path[-1]


def _names_all(graph: ir.Graph) -> bool:
    """True for a file that names parameters and buffers alike."""
    return KEEPS_STATE.get(graph) and not RECORDED.get(graph)


def _statistic(value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> str:
    """Return what the name of a tensor says that the network itself measures; "" if it says no such thing."""
    name = value.name or ""
    if re.search(r"(^|\.)running_(mean|var)$", name):
        return "" if any(known(node).matrix == i for node, i in slots(value)) else "a running statistic"
    is_beside = re.search(r"\w_[uv]$", name) is not None and f"{name[:-2]}_orig" in graph.initializers
    return "a vector that spectral norm improves" if is_beside and len(tensor.shape) == 1 else ""


def _by_elements(
    value: ir.Value, tensor: ir.TensorProtocol, inputs: set[ir.Value], graph: ir.Graph
) -> tuple[bool, str]:
    """Return True if a tensor without a telling role is trained, and the reason."""
    path = _parameter_path(value)
    is_named = path is not None or ROOT.has(value)
    if not is_named and tensor.size == 1:
        is_varied = VARIES.get(value)
        places = "a number that differs between places which are alike"
        return is_varied, places if is_varied else "a one-element constant, not named like a parameter"
    is_recorded = KEEPS_STATE.get(graph) or KIND in value.metadata_props
    if not is_recorded and (why := _why_setting(value, tensor)):
        return False, why
    if not _is_called_weight(path):
        if not is_recorded and _is_typed(value, tensor, path):
            return False, roles.TYPED
        if decision := _by_place(value, tensor, inputs, graph):
            return decision
    if not is_named:
        return True, "a gradient reaches it from an output"
    fresh = " (equal numbers: it may be a buffer)" if _may_be_fresh(tensor, graph) else ""
    return True, f"parameter {value.name or ''}{fresh}"


def _parameter_path(value: ir.Value) -> ModulePath | None:
    return parameter_name(folded_from(value) or value.name or "")


def _is_called_weight(path: ModulePath | None) -> bool:
    return path is not None and re.search("(^|_)(weight|bias)(_|$)", path[-1]) is not None


def _is_typed(value: ir.Value, tensor: ir.TensorProtocol, path: ModulePath | None) -> bool:
    """True for a number that a person types, unless it has a name and is one that parameters begin with."""
    is_counted = path is not None and path[-1].isdigit()  # `constant.3`: the name tells nothing
    return tensor.size == 1 and roles.is_typed(number(tensor)) and (is_counted or not roles.is_beginning(value, tensor))


def _why_setting(value: ir.Value, tensor: ir.TensorProtocol) -> str:
    measured = "a statistic of a BatchNorm, by its place"
    return roles.setting(value, tensor) or (measured if roles.is_measured(value) else "")


def _by_place(
    value: ir.Value, tensor: ir.TensorProtocol, inputs: set[ir.Value], graph: ir.Graph
) -> tuple[bool, str] | None:
    """Return the decision for a tensor that is not called a weight or a bias; None if it is trained as any other."""
    users = (use.node for use in value.uses())
    if any(operator(node) in ("Sub", "Div") and _normalises(node, value, inputs) for node in users):
        return False, SCALER
    if scales_input(value, tensor, inputs):
        return False, SCALER
    if any(known(node).matrix == i for node, i in slots(value)) and not tensor.numpy().any():
        return True, "a matrix of zeros that multiplies, as LoRA's second one begins"
    rule = rule_of(tensor)
    return (False, rule.reason) if rule is not None and not _may_be_fresh(tensor, graph) else None


def _may_be_fresh(tensor: ir.TensorProtocol, graph: ir.Graph) -> bool:
    """True for a vector of ones or zeros in a file that names parameters and buffers alike."""
    return _names_all(graph) and is_fresh(tensor)


def _is_made(value: ir.Value) -> bool:
    """True for what `torch.zeros` and its like made, if it is no weight, too: equal tensors may be stored once."""
    weight = any(use.idx in known(use.node).weights for use in value.uses())
    return roles.FILL.fullmatch(value.name or "") is not None and not weight


def _why_no_weight(value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> str:
    """Return why a tensor is none although it is where weights are; "" if it may be one."""
    if _says_not_affine(value, tensor, graph):
        return "a normalisation scale of 1 or bias of 0, not named like a parameter"
    if _fills_a_place(value, tensor, graph):
        return "a bias of zeros that several kernels share: the format has no layer without one"
    if _is_spread(value, tensor):
        return "a number that is repeated as often as the input says"
    if KIND not in value.metadata_props and roles.is_buffer_name(value.name or ""):  # a fixed transform
        return "a buffer, by its name"
    return ""


def _fills_a_place(value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> bool:
    """True for zeros that are the bias of several kernels, as TensorFlow Lite's converter writes them."""
    if PRODUCER.get(graph) == "pytorch" or tensor.numpy().any():
        return False
    places = [*slots(value)]
    kernels = {node.inputs[1] for node, index in places if is_a(node, CONVOLUTION) and index == 2}
    return len(kernels) > 1 and all(is_a(node, CONVOLUTION) and index == 2 for node, index in places)


def _is_spread(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """True for one number, not named like a parameter, that an Expand to a computed size puts where weights are.

    TensorFlow computes the LayerNorm of Keras by a BatchNorm over the batch, with ones and zeros of its size.
    """
    if tensor.size != 1 or _parameter_path(value) is not None:
        return False
    weights = [use for use in value.uses() if use.idx in known(use.node).weights]
    sizes = [use.node.inputs[1] for use in value.uses() if operator(use.node) == "Expand"]
    return not weights and bool(sizes) and all(size is not None and stored(size) is None for size in sizes)


def _says_not_affine(value: ir.Value, tensor: ir.TensorProtocol, graph: ir.Graph) -> bool:
    """True for a nameless scale of ones or bias of zeros, which exporters write for a norm without parameters.

    PyTorch's exporters keep the names of parameters, so in their files this holds for any norm. In others it holds only
    for InstanceNormalization: torch's layer has no parameters by default, and exporters write GroupNorm with it.
    """
    if _parameter_path(value) is not None or tensor.size < 1:
        return False
    places = [(node, index) for node, index in slots(value) if not is_a(node, PASSES_ON)]
    if PRODUCER.get(graph) != "pytorch" and any(node.op_type != "InstanceNormalization" for node, _ in places):
        return False
    usual = {1: 1, 2: 0}  # by the index of the input
    is_of_norms = all(is_a(node, NORM) and index in usual for node, index in places)
    return bool(places) and is_of_norms and all(bool((tensor.numpy() == usual[index]).all()) for _, index in places)


def _normalises(node: ir.Node, value: ir.Value, inputs: set[ir.Value]) -> bool:
    """True if `node` subtracts `value` from graph inputs or divides them by `value`, perhaps after other such steps."""
    data = {node.inputs[0]} if node.inputs[1] is value else set()
    for _ in range(8):
        if data <= inputs:
            return bool(data)
        makers = {v.producer() for v in data - inputs if v is not None}
        if None in data or not all(
            m and (is_a(m, VIEW, STRIDES, JOINS, SAME) or operator(m) in ("Sub", "Div")) for m in makers
        ):
            return False
        data &= inputs
        data.update(v for m in makers if m for v in (m.inputs if is_a(m, JOINS) else m.inputs[:1]))
    return False


def add_used(graph: ir.Graph, taken: set[ir.Value]) -> None:
    """Add every value that the graph's outputs depend on, except through branches that are known not to run."""
    taken.update(graph.outputs)
    for node in reversed(graph):
        if taken.isdisjoint(node.outputs):
            continue
        taken.update(value for value in node.inputs if value is not None)
        condition = info(node.inputs[0]).constant if node.op_type == "If" else None
        dead = None
        if condition is not None and condition.size == 1:
            dead = "else_branch" if condition.item() else "then_branch"
        for name, attribute in node.attributes.items():
            if name != dead and attribute.type == ir.AttributeType.GRAPH:
                add_used(attribute.as_graph(), taken)


_FAR = 8  # steps between an input and its scaler, and operators that compute it


def scales_input(value: ir.Value, tensor: ir.TensorProtocol, inputs: Collection[ir.Value]) -> bool:
    """Return True if a stored vector shifts or scales an input of the graph, and a layer with weights follows.

    A table with several axes may be an embedding of places that is added to the input. Without a layer behind it, a
    vector may be the weights of a product that is written as an elementwise one and a sum.
    """
    if sum(size != 1 for size in tensor.shape) > 1:
        return False
    for node, index in _uses(value):
        steps = is_a(node, STANDARDISES) and index > 0
        data = node.inputs[0] if steps else node.inputs[1 - index] if len(node.inputs) == 2 else None
        if (steps or is_a(node, ADDS, SCALES)) and _is_input(data, inputs) and _precedes_layer(node):
            return True
    return False


def _uses(value: ir.Value, depth: int = 0) -> Iterator[tuple[ir.Node, int]]:
    """Yield the uses of a stored tensor, and of what is computed from it and other stored tensors alone."""
    for use in value.uses():
        others = [v for i, v in enumerate(use.node.inputs) if i != use.idx and v is not None]
        if depth < _FAR and is_a(use.node, ELEMENTWISE, PASSES_ON) and all(_is_stored(v) for v in others):
            for output in use.node.outputs:
                yield from _uses(output, depth + 1)
        else:
            yield use.node, use.idx


def _is_stored(value: ir.Value | None, depth: int = 0) -> bool:
    """Return True if a value is stored, or computed from stored tensors alone, elementwise."""
    if stored(value) is not None:
        return True
    node = None if value is None else value.producer()
    if node is None or depth == _FAR or not is_a(node, ELEMENTWISE, PASSES_ON):
        return False
    return all(_is_stored(v, depth + 1) for v in node.inputs if v is not None)


def _is_input(value: ir.Value | None, inputs: Collection[ir.Value], depth: int = 0) -> bool:
    """Return True for an input of the graph, perhaps moved, joined, and shifted or scaled by stored tensors."""
    if value in inputs:
        return True
    node = None if value is None else value.producer()
    if node is None or depth == _FAR:
        return False
    if is_a(node, JOINS):
        return all(_is_input(v, inputs, depth + 1) for v in node.inputs)
    if is_a(node, ADDS, SCALES):
        rest = [v for v in node.inputs if not _is_stored(v)]
        return len(rest) == 1 and _is_input(rest[0], inputs, depth + 1)
    return is_a(node, VIEW, STRIDES, SAME, STANDARDISES) and _is_input(node.inputs[0], inputs, depth + 1)


def _precedes_layer(node: ir.Node) -> bool:
    """Return True if a node that takes stored numbers, and is not elementwise, depends on this one."""
    waiting, seen = [node], {node}
    while waiting:
        for use in (use for output in waiting.pop().outputs for use in output.uses()):
            layer = not is_a(use.node, ELEMENTWISE, STANDARDISES, PASSES_ON)
            if layer and any(_is_weight(v) for i, v in enumerate(use.node.inputs) if i != use.idx):
                return True
            if use.node not in seen:
                seen.add(use.node)
                waiting.append(use.node)
    return False


def _is_weight(value: ir.Value | None) -> bool:
    """Return True for stored floating-point numbers, perhaps moved."""
    for _ in range(_FAR):
        if value is None:
            return False
        if (tensor := stored(value)) is not None:
            return tensor.dtype in FLOATS and tensor.size > 1
        node = value.producer()
        if node is None or not is_a(node, PASSES_ON):
            return False
        value = node.inputs[0]
    return False
