"""`--restore-batchnorm`: BatchNorm layers that an export for inference folded into convolutions, put back.

    y = (conv(x) - mean) / sqrt(var + eps) * weight + bias         (Ioffe & Szegedy 2015, arXiv 1502.03167)

What they were is lost: all that a file has is the convolution's weight times s = weight / sqrt(var + eps), and the bias
bias + (b - mean) * s. So each comes back as the identity (mean 0, var 1 - eps, weight 1) with the convolution's bias as
its own, and learns its statistics in training. The way back folds it again (`provenance.Fold`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import RESTORED, SCOPE, TRAINABLE
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import NORM, RECTIFIER, VIEW
from onnxgen.options import Options
from onnxgen.passes.steps import input_at
from onnxgen.reader import param_path
from onnxgen.scopes.origin import recorded_scope
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.provenance import Fold, Source
from onnxgen.weights.stored import stored

WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "Linear"}  # what exporters fold a BatchNorm into
CONVOLUTIONS = {"Conv", "ConvTranspose"}
EPSILON = 1e-5
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"


@dataclass(frozen=True)
class Restored:
    """One BatchNorm that was put back, by names of tensors.

    Attributes:
        weight, bias: of the convolution, in the file: they hold the folded norm.
        variance: what the norm's running variance is made of; like its weight and mean it is no tensor of the file.
        made: every such tensor.
        keeps_bias: the convolution had a bias of its own beside the norm's.
        axis, groups: of the weight's output channels.
    """

    weight: str
    bias: str
    variance: str
    made: frozenset[str]
    keeps_bias: bool
    axis: int
    groups: int


def folded_layers(model: ir.Model) -> list[ir.Node]:
    """The layers that have a BatchNorm folded in, by what exporters leave behind.

    - PyTorch's TorchScript exporter keeps the names of parameters; weights that it computed are called
      `onnx::Conv_41` (before PyTorch 1.12 `41`), and of convolutions' weights it computes none but these.
    - Its dynamo exporter notes at the layer that it stems from a batch norm, and stores `conv1.weight_bias` where the
      layer had no bias.
    - tf2onnx calls the weights `..._fused_bn`.
    """
    numbered = model.producer_name == "pytorch" and any(map(param_path, model.graph.initializers))
    layers = [n for n in all_nodes(model.graph) if n.op_type in WEIGHTED and len(n.inputs) > 1]
    return [n for n in layers if _from_norm(n) or _is_renamed(n) or (numbered and _is_numbered(n))]


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


# ---- putting them back -----------------------------------------------------------------------------------------------


def restore_batchnorm(model: ir.Model, options: Options) -> None:
    """Put a BatchNormalization after every convolution that had one.

    Where the file tells of none, after every biased convolution that no norm follows and that is not a last layer; but
    not of a kind (transposed or not) whose norms the file still has.
    """
    if not options.restore_batchnorm:
        return
    told = set(folded_layers(model))
    leads_on = set() if told else _leading_to_layers(model.graph)
    groups: dict[ir.Value, list[ir.Node]] = {}
    for node in all_nodes(model.graph):
        if node.op_type in CONVOLUTIONS and node.domain == "" and node.inputs[1] is not None:
            groups.setdefault(node.inputs[1], []).append(node)
    kept = {n.op_type for nodes in groups.values() for n in nodes if _is_normed(n)}
    paths, restored = _Paths(model), []
    for weight, nodes in groups.items():
        if told and not told.intersection(nodes):
            continue
        if not told and not all(n.op_type not in kept and _lacks_norm(n, leads_on) for n in nodes):
            continue
        if _is_own(weight, nodes):  # one module that is called several times is still one
            restored.append(_restore(model, nodes, paths, bool(told)))
    RESTORED.set(model, restored)


def _is_normed(node: ir.Node) -> bool:
    return any(use.node.op_type == "BatchNormalization" for use in node.outputs[0].uses())


def _is_own(weight: ir.Value, nodes: list[ir.Node]) -> bool:
    """Whether weight and bias are stored, and nothing but these convolutions takes the weight."""
    bias = input_at(nodes[0], 2)
    tensors = stored(weight), stored(bias)
    if any(t is None or t.dtype not in FLOATS for t in tensors) or any(input_at(n, 2) is not bias for n in nodes):
        return False
    return len(weight.uses()) == len(nodes) and not weight.is_graph_output()


def _leading_to_layers(graph: ir.Graph) -> set[ir.Value]:
    """The values from which a later layer with weights is reached."""
    found: set[ir.Value] = set()
    for node in reversed(graph):
        if _is_layer(node) or found.intersection(node.outputs):
            found.update(value for value in node.inputs if value is not None)
    return found


def _is_layer(node: ir.Node) -> bool:
    return known(node).matrix is not None and node.op_type != "Gather"


def _lacks_norm(node: ir.Node, leads_on: set[ir.Value]) -> bool:
    """Whether no norm follows a convolution, and it is not the last layer on its way (a head never had one)."""
    following = list(_following(node))
    if any(is_a(n, NORM) for n in following):
        return False
    return node.outputs[0] in leads_on or any(is_a(n, RECTIFIER) for n in following)


def _following(node: ir.Node) -> Iterator[ir.Node]:
    """What takes a layer's result, also behind activations, sums and changes of layout."""
    seen, todo = {node}, [node]
    for _ in range(64):
        if not todo:
            return
        for use in todo.pop().outputs[0].uses():
            if use.node not in seen:
                seen.add(use.node)
                yield use.node
                if is_a(use.node, VIEW, RECTIFIER) or use.node.op_type in ("Add", "Cast"):
                    todo.append(use.node)


def _restore(model: ir.Model, nodes: list[ir.Node], paths: _Paths, known: bool) -> Restored:
    """Put one BatchNorm behind the calls of one convolution."""
    conv = nodes[0]
    weight, bias = conv.inputs[1], conv.inputs[2]
    assert weight is not None and bias is not None
    tensor = stored(bias)
    assert tensor is not None
    scope, prefix = paths.of_norm(conv)
    dtype = tensor.dtype.numpy()
    one, zero = np.ones(tensor.size, dtype), np.zeros(tensor.size, dtype)
    # exporters that note the norm keep the name of a bias that the convolution had itself
    keeps = known and (param_path(bias.name or "") or ("",))[-1] == "bias"
    made = {"weight": one, "running_mean": zero, "running_var": (one - EPSILON).astype(dtype)}
    made |= {"bias": zero} if keeps else {}
    values = {key: _initializer(model, f"{prefix}.{key}", array) for key, array in made.items()}
    for node in nodes:
        inputs = [node.outputs[0], values["weight"], values.get("bias", bias)]
        inputs += [values["running_mean"], values["running_var"]]
        _insert_after(node, inputs, scope)
        if not keeps:
            node.resize_inputs(2)
    axis = 1 if conv.op_type == "ConvTranspose" else 0
    group = conv.attributes["group"].as_int() if axis and "group" in conv.attributes else 1
    names = frozenset(value.name or "" for value in values.values())
    variance = values["running_var"].name or ""
    return Restored(weight.name or "", bias.name or "", variance, names, keeps, axis, group)


def _initializer(model: ir.Model, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
    while name in model.graph.initializers:
        name = f"{name}_"
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    TRAINABLE.set(value, ("running" not in name, "a BatchNorm that was put back"))
    set_info(value, Info(tensor.dtype, array.shape))
    model.graph.register_initializer(value)
    return value


def _insert_after(node: ir.Node, inputs: list[ir.Value], scope: tuple[str, ...]) -> None:
    result = node.outputs[0]
    norm = ir.Node("", "BatchNormalization", inputs, [ir.AttrFloat32("epsilon", EPSILON)], version=15)
    norm.name = node.name
    SCOPE.set(norm, scope)
    made = norm.outputs[0]
    made.shape, made.type = result.shape, result.type
    set_info(made, info(result))
    assert node.graph is not None
    node.graph.insert_after(node, norm)
    ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
    norm.replace_input_with(0, result)
    made.name, result.name = result.name, f"{result.name}.folded"


def folds(restored: list[Restored], keys: Mapping[str, Source]) -> dict[str, Fold]:
    """How the keys of a state dict that belong to such layers are folded again, by key."""
    by_name: dict[str, list[str]] = {}
    for key, source in keys.items():
        for name in source.names:
            by_name.setdefault(name, []).append(key)
    found: dict[str, Fold] = {}
    for made in restored:
        for variance in by_name.get(made.variance, []):
            norm = variance.rpartition(".")[0]
            fold = Fold(norm, EPSILON, "weight", made.axis, made.groups)
            for key in by_name[made.weight]:
                found[key] = fold
                if made.keeps_bias:
                    found[key.removesuffix("weight") + "bias"] = replace(fold, part="bias")
            if not made.keeps_bias:
                found[f"{norm}.bias"] = replace(fold, part="norm bias")
    return found


class _Paths:
    """Module paths for the norms: what the exporter recorded, else after the convolution's."""

    def __init__(self, model: ir.Model) -> None:
        nodes = all_nodes(model.graph)
        scopes = {SCOPE.get(node) for node in nodes}
        names = [path[:-1] for path in map(param_path, model.graph.initializers) if path is not None]
        self.taken = {path[:n] for path in (*scopes, *names) for n in range(1, len(path) + 1)}
        self.weights: dict[tuple[str, ...], set[ir.Value]] = {}  # of the layers that stand in a scope itself
        for node in nodes:
            if node.op_type in WEIGHTED and node.inputs[1] is not None:
                self.weights.setdefault(SCOPE.get(node), set()).add(node.inputs[1])
        self.count = 0

    def of_norm(self, conv: ir.Node) -> tuple[tuple[str, ...], str]:
        """The scope that the norm stands in, and what the names of its tensors begin with."""
        scope = SCOPE.get(conv)
        is_own = len(self.weights[scope]) == 1
        recorded = recorded_scope(conv) if _from_norm(conv) else None
        beside = _beside(scope) if is_own else None
        path = next((p for p in (recorded, beside) if p and p not in self.taken), None)
        if path is not None:
            self.taken.add(path)
            return path, ".".join(path)
        self.count += 1  # no name: by its role, in what holds the convolution
        scope = scope[:-1] if is_own else scope
        while is_own and scope and scope[-1].isdigit():
            scope = scope[:-1]
        return scope, f"onnxgen::bn_{self.count}"


def _beside(scope: tuple[str, ...]) -> tuple[str, ...] | None:
    """`conv1` to `bn1`, `dwconv` to `dwbn`, `3` to `4`, `proj` to `proj_bn`."""
    if not scope:
        return None
    *outer, last = scope
    if last.isdigit():
        return (*outer, str(int(last) + 1))
    changed = re.sub("conv(olution)?(?![a-z])", "bn", last)
    return (*outer, changed if changed != last else f"{last}_bn")
