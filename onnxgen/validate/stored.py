"""Check that the file's tensors are kept: a weight is in the module, trained, with its provenance.

Separate rules find the weights in the graph before any pass. They know less than
`passes/trainable.py`: a tensor that they do not classify may be trained or not.

`hold_shapes` checks keys and shapes of the tensors of torch's layers, derived from the arguments.
Source: the pages of torch.nn.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.copied import OwnCode
from onnxgen.code.module_def import Member, ModuleDef
from onnxgen.code.torch_api import PARAMETRISATIONS, SIGNATURES, function_of
from onnxgen.errors import OnnxgenError, WrongTranslation
from onnxgen.graph.annotations import TRAINABLE
from onnxgen.graph.nodes import FLOATS, NAMED, all_nodes
from onnxgen.graph.operators import everywhere, is_a, known
from onnxgen.graph.traits import BROADCASTS, PRODUCT, RECURRENT, STRIDES
from onnxgen.options import Options
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import is_uniform, peaks_in_order
from onnxgen.weights.stored import stored as tensor_of

DOMAINS = ("", "ai.onnx", "com.microsoft")
NAMELESS = re.compile(r"onnx::\w+$|\d+$|/.*/Constant\w*$")  # names that torch's exporters give to unnamed tensors
FEW_DIGITS, SEVERAL = 5, 3  # of a number that a person types; places whose numbers differ
STATISTICS = (("BatchNormalization", 3), ("BatchNormalization", 4))
MEASURED = re.compile(r"\w\.running_(mean|var)$")
# a matrix with at most this many distinct numbers among its first elements may be a mask
MAX_MASK_NUMBERS, SAMPLED_ELEMENTS = 4, 4096
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"  # torch's dynamo exporter, on each initializer
FOLDED = "pkg.onnxscript.optimizer.folded_from"


@dataclass(frozen=True)
class Stored:
    """Names in the file.

    Attributes:
        weights: tensors that are trained, unless an option says otherwise.
        fixed: tensors that are not trained: statistics and constants.
        floats: all floating point tensors.
    """

    weights: frozenset[str]
    fixed: frozenset[str]
    floats: frozenset[str]


def stored_by(graph: ir.Graph) -> Stored:
    """Return the stored tensors of a graph before any pass."""
    constants = (v for n in graph if n.op_type == "Constant" for v in n.outputs)
    tensors = {v: v.const_value for v in (*graph.initializers.values(), *constants)}
    floats = {v: t for v, t in tensors.items() if t is not None and t.dtype in FLOATS and t.size > 0}
    reached, learned = _reach(graph, set()), _perhaps_learned(floats)
    weights = [v for v in floats.keys() & reached if _is_weight(v, floats[v], reached)]
    fixed = [v for v, t in floats.items() if _is_measured(v) or _is_constant(v, t) and v not in learned]
    return Stored(_names(weights), _names(fixed), _names(floats))


def _names(values: Iterable[ir.Value]) -> frozenset[str]:
    return frozenset(value.name or "" for value in values)


def _reach(graph: ir.Graph, reached: set[ir.Value]) -> set[ir.Value]:
    """Add the values on which a float output depends through differentiable operators and branches only."""
    reached.update(output for output in graph.outputs if output.dtype in FLOATS)
    for node in reversed(graph):
        if node.domain not in DOMAINS or reached.isdisjoint(node.outputs):
            continue
        # places that are chosen have no gradient, and a cache that attention returns has none of the query
        if _is_smooth(node) and (node.outputs[0] in reached or is_a(node, STRIDES, RECURRENT)):
            barred = {*known(node).still, *known(node).chosen}
            reached.update(v for i, v in enumerate(node.inputs) if v is not None and i not in barred)
        for branch in _taken(node):
            _reach(branch, reached)
    return reached


def _is_smooth(node: ir.Node) -> bool:
    """Return True if gradients flow through an operator to its first output, and it runs no graph."""
    card = known(node)
    to = node.attributes.get_int("to", 0) if node.op_type == "Cast" else ir.DataType.FLOAT
    return (
        card.name != "" and card.rules.inner is None and everywhere(node.domain, node.op_type) is None and to in FLOATS
    )


def _taken(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs in a node's attributes, but of an If with a stored condition only the branch that it takes."""
    graphs = {name: a.as_graph() for name, a in node.attributes.items() if a.type == ir.AttributeType.GRAPH}
    condition = node.inputs[0] if node.op_type == "If" and node.inputs else None
    if condition is None or condition.const_value is None or condition.is_graph_input():
        return list(graphs.values())
    taken = "then_branch" if condition.const_value.numpy().any() else "else_branch"
    return [graph for name, graph in graphs.items() if name == taken]


def _is_weight(value: ir.Value, tensor: ir.TensorProtocol, reached: set[ir.Value]) -> bool:
    name = value.name or ""
    if _is_no_parameter(value) or _is_kernel(name, tensor):
        return False
    if re.search(r"\w\.(weight|bias)$", name):
        return True
    users = [use.node for use in value.uses() if len(tensor.shape) > 1 and _weighs(use.node, use.idx)]
    layers = {node.op_type for node in users if not reached.isdisjoint(node.outputs)}
    if layers - {"MatMul"}:
        return True
    multiplies = bool(layers) and len(tensor.shape) == 2
    return (multiplies or _is_packed(value, reached)) and _is_irregular(tensor)


def _is_no_parameter(value: ir.Value) -> bool:
    """Return True if a node makes the tensor, or if the exporter or the name says that it is no parameter."""
    if value.producer() is not None or (value.name or "").endswith("_buffer"):
        return True
    return value.metadata_props.get(KIND) in ("BUFFER", "CONSTANT_TENSOR") or _is_computed(value)


def _is_kernel(name: str, tensor: ir.TensorProtocol) -> bool:
    """Return True for a kernel that nobody trains, as its numbers say."""
    size = tensor.size
    if 4 <= size == max(tensor.shape.numpy()) and np.array_equal(tensor.numpy().ravel(), np.arange(size)):
        return True  # it computes a mean
    if len(tensor.shape) < 3:
        return False
    # a spectrum; a window or a sinc, which may be a buffer
    return peaks_in_order(tensor) or "weight" not in name.rpartition(".")[2] and _is_paired(tensor)


def _weighs(node: ir.Node, place: int) -> bool:
    """Return True for the input that a layer multiplies by."""
    is_layer = node.domain in DOMAINS and is_a(node, PRODUCT, RECURRENT)
    return is_layer and (place == known(node).matrix or place in known(node).weights)


def _is_computed(value: ir.Value) -> bool:
    """Return True if the exporter recorded that it computed a tensor, from values whose names have no module."""
    return "'" in value.metadata_props.get(FOLDED, "") and "." not in value.metadata_props[FOLDED]


def _is_irregular(tensor: ir.TensorProtocol) -> bool:
    """Return True if a tensor is neither a mask nor a regular sequence of numbers."""
    some = tensor.numpy().reshape(-1)[:SAMPLED_ELEMENTS].astype(np.float64)
    steps = np.sign(np.diff(some))
    return bool(np.unique(some).size > MAX_MASK_NUMBERS and (steps > 0).any() and (steps < 0).any())


def _is_paired(tensor: ir.TensorProtocol) -> bool:
    """Return True if many numbers occur twice, or once and once with the other sign: no training leaves that."""
    some = np.abs(tensor.numpy().reshape(-1)[:SAMPLED_ELEMENTS].astype(np.float64))
    some.sort()
    return some.size > 2 and bool(np.isclose(some[1:], some[:-1], rtol=1e-5, atol=0).mean() > 0.25)


def _is_measured(value: ir.Value) -> bool:
    """Return True for statistics: the name says so, and only a BatchNormalization uses them, as mean or variance."""
    uses = [(use.node.op_type, use.idx) for use in value.uses()]
    return bool(MEASURED.search(value.name or "")) and all(u in STATISTICS for u in uses)


def _is_constant(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Return True for a number or mask that only elementwise operators use and that has no parameter's name."""
    if not NAMELESS.match(value.name or "") or value.metadata_props.get(KIND) == "PARAMETER":
        return False
    users = {use.node for use in value.uses()}
    if any(not is_a(user, BROADCASTS) or user.domain not in DOMAINS for user in users):
        return False
    if any(_is_biased(user, value) for user in users):
        return False
    return tensor.size == 1 or _is_mask(tensor)


def _is_biased(node: ir.Node, value: ir.Value) -> bool:
    makers = [v.producer() for v in node.inputs if v is not None and v is not value]
    return any(maker.op_type in ("MatMul", "Identity") for maker in makers if maker is not None)


def _is_mask(tensor: ir.TensorProtocol) -> bool:
    numbers = np.unique(tensor.numpy())  # a single one may be a layer's initial value
    return bool(len(tensor.shape) > 1 and numbers.size > 1 and np.isin(numbers, (0, 1, -np.inf)).all())


def _perhaps_learned(floats: Mapping[ir.Value, ir.TensorProtocol]) -> set[ir.Value]:
    """Return the single numbers that differ from others in the same place of an operator, and have many digits."""
    places: dict[tuple[str, int], dict[ir.Value, float]] = {}
    for value, tensor in floats.items():
        number = float(tensor.numpy().reshape(-1)[0]) if tensor.size == 1 else 0.0
        if np.float32(f"{number:.{FEW_DIGITS}g}") != np.float32(number):
            for use in value.uses():
                places.setdefault((use.node.op_type, use.idx), {})[value] = number
    return {value for numbers in places.values() if len(set(numbers.values())) >= SEVERAL for value in numbers}


def _is_packed(value: ir.Value, reached: set[ir.Value]) -> bool:
    """Return True for weight and bias of onnxruntime's Attention, which pack those of three products."""
    nodes = (use.node for use in value.uses() if use.idx in (1, 2))
    attentions = (n for n in nodes if n.op_type == "Attention" and n.domain == "com.microsoft")
    return any(not reached.isdisjoint(node.outputs) for node in attentions)


def hold_keys(module: ModuleDef, keys: Collection[str]) -> None:
    """Check that the sidecar has exactly the state-dict keys (of tied ones only the first), with the layers' shapes.

    Raises:
        WrongTranslation: a key is missing or superfluous, or a shape differs.
    """
    hold_shapes(module.members)
    paths = {(*member.path, key) for member in module.members for key in (*member.keys, *member.extra)}
    paths -= {(*tie.tied.path, tie.tied_key) for tie in module.ties}
    wanted = {".".join(filter(None, path)) for path in paths} | set(module.constants)
    if differing := wanted.symmetric_difference(keys):
        raise WrongTranslation(f"the state dict's key {min(differing)!r} is not that of a stored tensor")


def decided(graph: ir.Graph) -> Mapping[str, bool]:
    """Return which stored tensors are to be trained, of those that any node takes after all passes."""
    taken = dict.fromkeys(v for node in all_nodes(graph) for v in node.inputs if v is not None)
    return {v.name or "": TRAINABLE.get(v)[0] for v in taken if tensor_of(v) is not None}


def hold(
    stored: Stored, module: ModuleDef, way_back: Collection[str], options: Options, decisions: Mapping[str, bool]
) -> None:
    """Check that the flat module has the file's tensors, with the right trainable flags and their provenance.

    Args:
        stored: the file's tensors.
        module: the flat module.
        way_back: names of the tensors that can be rebuilt from the state dict.
        options: `trainable` and `frozen` decide for the names that they match.
        decisions: of the passes (see `decided`).

    Raises:
        WrongTranslation: a tensor is lost, or a flag is wrong.
    """
    flags = [
        _Flag(member.state_key(key), source, key not in member.frozen and member.kind != "buffer")
        for member in module.members
        for key, source in member.keys.items()
    ]
    _hold_types(flags, options)
    trained, frozen = _names_in(flags, True), _names_in(flags, False)
    asked, barred = _matching(options.trainable, stored), _matching(options.frozen, stored) | {*options.const}
    weights = stored.weights if module.own == OwnCode() else frozenset[str]()  # a plugin may leave any weight untrained
    # an exporter stores equal vectors of several layers once, and one of these may be frozen
    several = {piece.name for flag in flags for piece in flag.source.pieces if is_uniform(piece.tensor)}
    if lost := barred & trained - (several & frozen):
        raise WrongTranslation(f"--frozen is not obeyed: {min(lost)!r} is trained")
    if lost := trained & stored.fixed - asked:
        raise WrongTranslation(f"{min(lost)!r} is a constant or a statistic, and is trained")
    if lost := (frozen - trained - barred) & (asked | weights):
        raise WrongTranslation(f"{min(lost)!r} is a weight, and is not trained")
    _hold_decisions(flags, decisions)
    if options.quantized == "keep" and (lost := set(weights.difference(way_back, barred))):
        raise WrongTranslation(f"{min(lost)!r} is a weight, and is not written back")


@dataclass(frozen=True)
class _Flag:
    """One tensor of the state dict, and whether it is trained."""

    key: str
    source: Source
    is_trained: bool


def _names_in(flags: Sequence[_Flag], is_trained: bool) -> set[str]:
    return {name for flag in flags if flag.is_trained is is_trained for name in flag.source.names}


def _hold_types(flags: Sequence[_Flag], options: Options) -> None:
    types = {NAMED[options.dtype]} if options.dtype else FLOATS
    for flag in flags:
        if flag.is_trained and flag.source.dtype not in types:
            raise WrongTranslation(f"{flag.key} is trained, and is {flag.source.dtype.name}")


def _matching(pattern: str | None, stored: Stored) -> set[str]:
    return {name for name in stored.floats if pattern and re.search(pattern, name)}


def _hold_decisions(flags: Sequence[_Flag], decisions: Mapping[str, bool]) -> None:
    for flag in flags:
        verdicts = {decisions[name] for name in flag.source.names if name in decisions}
        if verdicts and flag.is_trained not in verdicts:
            what = f"{flag.key} is {'' if flag.is_trained else 'not '}trained"
            raise WrongTranslation(f"{what}, which was decided otherwise")


Shapes = dict[str, tuple[int, ...]]
# arguments of layers: channels that must be a multiple of a number of groups
GROUPED = {
    **dict.fromkeys(("nn.Conv", "nn.ConvTranspose"), (("in_channels", "groups"), ("out_channels", "groups"))),
    "nn.GroupNorm": (("num_channels", "num_groups"),),
}


def hold_shapes(members: Sequence[Member]) -> None:
    """Check that every torch layer has the tensors that it registers, with their shapes.

    Raises:
        WrongTranslation: a tensor is missing, or in another form: the weights could not be loaded.
        OnnxgenError: a stored tensor has another shape than the layer's other tensors tell.
    """
    for member in members:
        _hold_groups(member)
        for key, wanted in registered(member.build).items():
            shape = member.keys[key].shape if key in member.keys else None
            shape = member.extra[key].shape if key in member.extra else shape
            name = ".".join((*member.path, key))
            if shape is None or (tuple(shape) != wanted and math.prod(shape) == math.prod(wanted)):
                there = "missing" if shape is None else f"of shape {list(shape)}"
                raise WrongTranslation(f"{name} is {there}, and should be {list(wanted)}")
            if tuple(shape) != wanted:  # no reshape changes how many elements there are: so the file's tensors differ
                what = f"the tensors of a layer do not fit together: {name} has the shape {list(shape)}"
                what += f", and {function_of(member.build)} takes {list(wanted)}"
                raise OnnxgenError(what, help="export the file again; if onnxruntime runs it, please report this")


def _hold_groups(member: Member) -> None:
    name = function_of(member.build)
    for channels, groups in GROUPED.get(name.rstrip("123d"), ()):
        options = arguments(member.build)
        if options is not None and options.get(channels, 0) % max(options.get(groups, 1), 1):
            what = f"the tensors of a layer do not fit together: {'.'.join(member.path)} is {name} with "
            what += f"{options[channels]} {channels} in {options[groups]} groups"
            raise OnnxgenError(what, help="export the file again; if onnxruntime runs it, please report this")


def arguments(build: ast.expr) -> dict[str, Any] | None:
    """Return the arguments that a layer is made with, by name; None if they are not all numbers and text."""
    if not isinstance(build, ast.Call):
        return None
    try:
        positional = dict(zip(SIGNATURES[function_of(build)], map(ast.literal_eval, build.args)))
        options = {k.arg: k.value for k in build.keywords if k.arg not in ("dtype", "device")}
        return positional | {str(key): ast.literal_eval(value) for key, value in options.items()}
    except (ValueError, KeyError):
        return None


def registered(build: ast.expr) -> Shapes:
    """Return the tensors that a layer registers; none if it is not in the table or its sizes are unknown."""
    name = function_of(build)
    if name in PARAMETRISATIONS and isinstance(build, ast.Call):
        return _weight_normed(build)
    rule = next((rule for names, rule in TENSOR_RULES.items() if name.rstrip("123d") in names.split()), None)
    if rule is None or not isinstance(build, ast.Call):
        return {}
    options = arguments(build)
    return {} if options is None else rule(name, options)


def _weight_normed(build: ast.Call) -> Shapes:
    """Return the tensors of a layer whose weight is made of its length and its direction."""
    layer = registered(build.args[0])
    options = {k.arg: ast.literal_eval(k.value) for k in build.keywords}
    if "weight" not in layer:
        return layer
    shape, place, dim = layer.pop("weight"), "parametrizations.weight", options.get("dim", 0)
    length = () if dim is None else tuple(n if axis == dim else 1 for axis, n in enumerate(shape))
    return layer | {f"{place}.original0": length, f"{place}.original1": shape}


def _with_bias(weight: tuple[int, ...], size: int, options: Mapping[str, Any]) -> Shapes:
    return {"weight": weight} | ({"bias": (size,)} if options.get("bias", True) else {})


def _linear(name: str, options: Mapping[str, Any]) -> Shapes:
    return _with_bias((options["out_features"], options["in_features"]), options["out_features"], options)


def _convolution(name: str, options: Mapping[str, Any]) -> Shapes:
    rank, kernel, groups = int(name[-2]), options["kernel_size"], options.get("groups", 1)
    sizes = (kernel,) * rank if isinstance(kernel, int) else tuple(kernel)
    first, second = options["out_channels"], options["in_channels"]
    channels = (second, first // groups) if "Transpose" in name else (first, second // groups)
    return _with_bias((*channels, *sizes), first, options)


def _norm(name: str, options: Mapping[str, Any]) -> Shapes:
    size = (options["num_channels" if "Group" in name else "num_features"],)
    affine = options.get("affine", "Instance" not in name)
    measures = options.get("track_running_stats", "Batch" in name)
    keys = ("weight", "bias") * affine + ("running_mean", "running_var") * (measures and "Group" not in name)
    return dict.fromkeys(keys, size)


def _last_axes(name: str, options: Mapping[str, Any]) -> Shapes:
    shape = options["normalized_shape"]
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    keys = ("weight", "bias") if options.get("bias", True) and "Layer" in name else ("weight",)
    return dict.fromkeys(keys, shape) if options.get("elementwise_affine", True) else {}


def _recurrent(gates: int, name: str, options: Mapping[str, Any]) -> Shapes:
    hidden, projected = options["hidden_size"], options.get("proj_size", 0)
    rows, state = gates * hidden, projected or hidden
    directions = ("", "_reverse") if options.get("bidirectional") else ("",)
    shapes: Shapes = {}
    for n in range(options.get("num_layers", 1)):
        for direction in directions:
            end = f"_l{n}{direction}"
            size = state * len(directions) if n else options["input_size"]
            shapes |= {f"weight_ih{end}": (rows, size), f"weight_hh{end}": (rows, state)}
            shapes |= {f"bias_{i}h{end}": (rows,) for i in "ih"} if options.get("bias", True) else {}
            shapes |= {f"weight_hr{end}": (projected, hidden)} if projected else {}
    return shapes


def _multihead(name: str, options: Mapping[str, Any]) -> Shapes:
    width = options["embed_dim"]
    sizes = (width, options.get("kdim", width), options.get("vdim", width))
    shapes: Shapes = {f"{name}_proj_weight": (width, size) for name, size in zip("qkv", sizes)}
    if set(sizes) == {width}:
        shapes = {"in_proj_weight": (3 * width, width)}
    biases: Shapes = {"in_proj_bias": (3 * width,), "out_proj.bias": (width,)} if options.get("bias", True) else {}
    return shapes | {"out_proj.weight": (width, width)} | biases


def _cell(gates: int, name: str, options: Mapping[str, Any]) -> Shapes:
    hidden, rows = options["hidden_size"], gates * options["hidden_size"]
    shapes: Shapes = {"weight_ih": (rows, options["input_size"]), "weight_hh": (rows, hidden)}
    return shapes | ({f"bias_{i}h": (rows,) for i in "ih"} if options.get("bias", True) else {})


TENSOR_RULES: dict[str, Callable[[str, Mapping[str, Any]], Shapes]] = {
    "nn.Linear": _linear,
    "nn.Conv nn.ConvTranspose": _convolution,
    "nn.BatchNorm nn.InstanceNorm nn.GroupNorm": _norm,
    "nn.LayerNorm nn.RMSNorm": _last_axes,
    "nn.Embedding": lambda name, options: {"weight": (options["num_embeddings"], options["embedding_dim"])},
    "nn.PReLU": lambda name, options: {"weight": (options.get("num_parameters", 1),)},
    "nn.LSTM": partial(_recurrent, 4),
    "nn.GRU": partial(_recurrent, 3),
    "nn.RNN": partial(_recurrent, 1),
    "nn.MultiheadAttention": _multihead,
    "nn.LSTMCell": partial(_cell, 4),
    "nn.GRUCell": partial(_cell, 3),
    "nn.RNNCell": partial(_cell, 1),
}
