"""`--restore-batchnorm`: put back BatchNorm layers that an export for inference folded into convolutions.

    y = (conv(x) - mean) / sqrt(var + eps) * weight + bias         (Ioffe & Szegedy 2015, arXiv 1502.03167)

Their numbers are lost: the file only has the convolution's weight times s = weight / sqrt(var + eps), and the bias bias
+ (b - mean) * s. So each norm is restored as the identity (mean 0, var 1 - eps, weight 1), takes over the convolution's
bias, and learns its statistics in training. Writing back folds it again (`provenance.Fold`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import RESTORED, SCOPE, TRAINABLE
from onnxgen.graph.nodes import FLOATS, all_nodes
from onnxgen.graph.operators import having_all, is_a, known
from onnxgen.graph.traits import NORM, PRODUCT, RECTIFIER, SAMPLES, VIEW
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import input_at, insert_behind
from onnxgen.passes.roles import holds_folded_norm, is_by_pytorch, is_in_norm
from onnxgen.scopes.origin import param_path, recorded_scope
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.provenance import Fold, Source
from onnxgen.weights.stored import stored

EPSILON = 1e-5
MAX_FOLLOWING = 64  # nodes behind a layer that are looked at


@dataclass(frozen=True)
class Restored:
    """One BatchNorm that was put back, by names of tensors.

    Attributes:
        weight, bias: of the convolution in the file; they hold the folded norm.
        variance: the norm's running variance.
        made: the new tensors: the norm's weight, mean and variance, and its bias if the convolution keeps its own.
        keeps_bias: True if the convolution had its own bias beside the norm's.
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
    """Return the layers that have a BatchNorm folded in, by the names and metadata that exporters leave.

    The legacy exporter computes a convolution's weight only to fold a norm. Before PyTorch 1.12 the names of computed
    tensors were numbers.
    """
    numbered = is_by_pytorch(model) and any(map(param_path, model.graph.initializers))
    layers = [n for n in all_nodes(model.graph) if known(n).bias is not None and len(n.inputs) > 1]
    return [n for n in layers if is_in_norm(n) or _is_renamed(n) or (numbered and _is_numbered(n))]


def _is_renamed(node: ir.Node) -> bool:
    return any(holds_folded_norm(_stored_name(value)) for value in node.inputs[1:3])


def _is_numbered(node: ir.Node) -> bool:
    """True for a convolution whose weight's name is a number."""
    return (info(node.inputs[1]).rank or 0) > 2 and _stored_name(node.inputs[1]).isdigit()


def _stored_name(value: ir.Value | None) -> str:
    """Return the name of the stored tensor behind a value, perhaps through nodes of one input; else ""."""
    while value is not None and stored(value) is None:
        producer = value.producer()
        value = producer.inputs[0] if producer is not None and len(producer.inputs) == 1 else None
    return "" if value is None else value.name or ""


def restore_batchnorm(model: ir.Model, options: Options) -> None:
    """Put a BatchNormalization behind every convolution that had one.

    If the file does not tell which ones had, all convolutions with a bias are taken that no norm follows and that are
    not the last layer. A kind of convolution (Conv or ConvTranspose) is left out if the file still has norms behind it.
    """
    if not options.restore_batchnorm:
        return
    groups: dict[ir.Value, list[ir.Node]] = {}
    for node in standard_nodes(model, *having_all(PRODUCT, SAMPLES)):
        if node.inputs[1] is not None:
            groups.setdefault(node.inputs[1], []).append(node)
    recorded, paths = set(folded_layers(model)), _Paths(model)
    lacking = set() if recorded else _lacking_norms(model.graph, [n for nodes in groups.values() for n in nodes])
    restored = []
    for weight, nodes in groups.items():  # a module that is called several times gets one norm
        if (not recorded.isdisjoint(nodes) or lacking.issuperset(nodes)) and _is_own(weight, nodes):
            restored.append(_restore(model, nodes, paths, bool(recorded)))
    RESTORED.set(model, restored)


def _lacking_norms(graph: ir.Graph, layers: list[ir.Node]) -> set[ir.Node]:
    """Return the layers that may have had a norm, in a file that does not tell."""
    leads_on = _leading_to_layers(graph)
    kept = {node.op_type for node in layers if _is_normed(node)}
    return {node for node in layers if node.op_type not in kept and _lacks_norm(node, leads_on)}


def _is_normed(node: ir.Node) -> bool:
    return any(use.node.op_type == "BatchNormalization" for use in node.outputs[0].uses())


def _is_own(weight: ir.Value, nodes: list[ir.Node]) -> bool:
    """True if weight and bias are stored, all these convolutions share them, and nothing else uses the weight."""
    bias = input_at(nodes[0], 2)
    tensors = stored(weight), stored(bias)
    if any(t is None or t.dtype not in FLOATS for t in tensors) or any(input_at(n, 2) is not bias for n in nodes):
        return False
    return len(weight.uses()) == len(nodes) and not weight.is_graph_output()


def _leading_to_layers(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that a later layer with weights depends on."""
    values: set[ir.Value] = set()
    for node in reversed(graph):
        is_layer = known(node).matrix is not None and node.op_type != "Gather"
        if is_layer or values.intersection(node.outputs):
            values.update(value for value in node.inputs if value is not None)
    return values


def _lacks_norm(node: ir.Node, leads_on: set[ir.Value]) -> bool:
    """True if no norm follows a convolution, and it is not the last layer on its path (a head never had one)."""
    following = list(_following(node))
    if any(is_a(n, NORM) for n in following):
        return False
    return node.outputs[0] in leads_on or any(is_a(n, RECTIFIER) for n in following)


def _following(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the users of a layer's result, also behind activations, sums and changes of layout."""
    seen, todo = {node}, [node]
    for _ in range(MAX_FOLLOWING):
        if not todo:
            return
        for use in todo.pop().outputs[0].uses():
            if use.node not in seen:
                seen.add(use.node)
                yield use.node
                if is_a(use.node, VIEW, RECTIFIER) or use.node.op_type in ("Add", "Cast"):
                    todo.append(use.node)


def _restore(model: ir.Model, nodes: list[ir.Node], paths: _Paths, is_recorded: bool) -> Restored:
    """Put one BatchNorm behind the calls of one convolution. `is_recorded`: True if the file shows that it had one."""
    conv = nodes[0]
    weight, bias = conv.inputs[1], conv.inputs[2]
    assert weight is not None and bias is not None
    tensor = stored(bias)
    assert tensor is not None
    scope, prefix = paths.of_norm(conv)
    dtype = tensor.dtype.numpy()
    one, zero = np.ones(tensor.size, dtype), np.zeros(tensor.size, dtype)
    # an exporter that leaves traces of the norm also keeps the name of the convolution's own bias
    keeps = is_recorded and (param_path(bias.name or "") or ("",))[-1] == "bias"
    arrays = {"weight": one, "running_mean": zero, "running_var": (one - EPSILON).astype(dtype)}
    arrays |= {"bias": zero} if keeps else {}
    values = {key: _initializer(model, f"{prefix}.{key}", array) for key, array in arrays.items()}
    for node in nodes:
        inputs = [values["weight"], values.get("bias", bias), values["running_mean"], values["running_var"]]
        inputs = [node.outputs[0], *inputs]
        norm = ir.node("BatchNormalization", inputs, {"epsilon": EPSILON}, version=15, name=node.name)
        SCOPE.set(norm, scope)
        insert_behind(node.outputs[0], norm, "folded")
        if not keeps:
            node.resize_inputs(2)
    axis = 1 if conv.op_type == "ConvTranspose" else 0
    group = conv.attributes.get_int("group", 1) if axis else 1
    new, variance = frozenset(map(_stored_name, values.values())), _stored_name(values["running_var"])
    return Restored(_stored_name(weight), _stored_name(bias), variance, new, keeps, axis, group)


def _initializer(model: ir.Model, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
    while name in model.graph.initializers:
        name = f"{name}_"
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    TRAINABLE.set(value, ("running" not in name, "a BatchNorm that was put back"))
    set_info(value, Info(tensor.dtype, array.shape))
    model.graph.register_initializer(value)
    return value


def folds(restored: list[Restored], keys: Mapping[str, Source]) -> dict[str, Fold]:
    """Return the `Fold` of each state-dict tensor that belongs to such a layer, by key."""
    by_name: dict[str, list[str]] = {}
    for key, source in keys.items():
        for name in source.names:
            by_name.setdefault(name, []).append(key)
    by_key: dict[str, Fold] = {}
    for layer in restored:
        for variance in by_name.get(layer.variance, []):
            norm = variance.rpartition(".")[0]
            fold = Fold(norm, EPSILON, "weight", layer.axis, layer.groups)
            for key in by_name[layer.weight]:
                by_key[key] = fold
                if layer.keeps_bias:
                    by_key[key.removesuffix("weight") + "bias"] = replace(fold, part="bias")
            if not layer.keeps_bias:
                by_key[f"{norm}.bias"] = replace(fold, part="norm bias")
    return by_key


class _Paths:
    """Module paths for the norms: those that the exporter recorded, else derived from the convolution's.

    Attributes:
        taken: the paths of all modules.
        weights: by scope, the weights of the layers in it.
        count: norms without a path so far.
    """

    def __init__(self, model: ir.Model) -> None:
        nodes = all_nodes(model.graph)
        scopes = {SCOPE.get(node) for node in nodes}
        names = [path[:-1] for path in map(param_path, model.graph.initializers) if path is not None]
        self.taken = {path[:n] for path in (*scopes, *names) for n in range(1, len(path) + 1)}
        self.weights: dict[ModulePath, set[ir.Value]] = {}
        for node in nodes:
            if known(node).bias is not None and node.inputs[1] is not None:
                self.weights.setdefault(SCOPE.get(node), set()).add(node.inputs[1])
        self.count = 0

    def of_norm(self, conv: ir.Node) -> tuple[ModulePath, str]:
        """Return the scope of the norm, and the prefix of its tensors' names."""
        scope = SCOPE.get(conv)
        is_own = len(self.weights[scope]) == 1
        recorded = recorded_scope(conv) if is_in_norm(conv) else None
        beside = _beside(scope) if is_own else None
        path = next((p for p in (recorded, beside) if p and p not in self.taken), None)
        if path is not None:
            self.taken.add(path)
            return path, ".".join(path)
        self.count += 1  # no path: the norm is in the module that has the convolution, and named by its role later
        scope = scope[:-1] if is_own else scope
        while is_own and scope and scope[-1].isdigit():
            scope = scope[:-1]
        return scope, f"onnxgen::bn_{self.count}"


def _beside(scope: ModulePath) -> ModulePath | None:
    """Return a norm's path beside a convolution's: `bn1` for `conv1`, `dwbn` for `dwconv`, `4` for `3`, `proj_bn`."""
    if not scope:
        return None
    *outer, last = scope
    if last.isdigit():
        return (*outer, str(int(last) + 1))
    changed = re.sub("conv(olution)?(?![a-z])", "bn", last)
    return (*outer, changed if changed != last else f"{last}_bn")
