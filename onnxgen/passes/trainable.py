"""Which stored tensors are trained: `TRAINABLE` for each of floating point.

A tensor is trained if it reaches an output differentiably, wherever the exporter put it (initializer or Constant),
except one-element constants without a parameter's name, masks, arange and triangles, and the input's mean and
deviation. The options `trainable` and `frozen` overrule. Nothing here changes the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import BLOCKED, KEEPS_STATE, KEPT, PRODUCER, RECORDED, ROOT, STILL, TRAINABLE, is_trained
from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.domains import is_foreign
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.gradients import reason
from onnxgen.graph.nodes import all_nodes, subgraphs
from onnxgen.graph.traits import NORM, PASSES_ON, VIEW
from onnxgen.options import Options
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.info import info
from onnxgen.weights.stored import folded_from, is_uniform, leading, stored

COMPLEX = {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
CONTINUOUS = re.compile("float|double|complex")  # in the name of a type in a schema

SIGNATURE = "pkg.torch.export.graph_signature.InputSpec.kind"  # torch's dynamo exporter, on each initializer
PERSISTENT = "pkg.torch.export.graph_signature.InputSpec.persistent"
WRITTEN = re.compile(r"reorder|\w+_token_\d+|val_\d+")  # what onnxruntime, and the dynamo exporter, call what they make


def trainable(model: ir.Model, options: Options) -> None:
    """Decide for every stored tensor of floating point.

    Raises:
        OnnxgenError: an option's pattern is in the name of none of them.
    """
    reached = differentiable(model.graph)
    by_torch = model.producer_name == "pytorch"
    PRODUCER.set(model.graph, model.producer_name)
    KEEPS_STATE.set(model.graph, by_torch and any(map(param_path, model.graph.initializers)))
    # torch's dynamo exporter says of each parameter that it is one
    RECORDED.set(model.graph, any(SIGNATURE in v.metadata_props for v in model.graph.initializers.values()))
    _note_root_names(model.graph)
    inputs = set(model.graph.inputs) - set(model.graph.initializers.values())
    names = []
    for value in stored_values(model.graph):
        tensor = stored(value)
        if tensor is None or tensor.dtype not in FLOATS:
            continue
        names.append(value.name or "")
        TRAINABLE.set(value, _decide(value, tensor, value in reached, inputs, model.graph, options))
    _note_kept(model.graph)
    for option, pattern in (("trainable", options.trainable), ("frozen", options.frozen)):
        if pattern and not any(re.search(pattern, name) for name in names):
            what = f"--{option} {pattern!r} matches the name of no floating-point initializer"
            raise OnnxgenError(what, help="onnxgen inspect lists the names")


def _note_kept(graph: ir.Graph) -> None:
    """Mark what is not computed away although its elements are known: whoever takes it takes the original's buffer.

    The legacy exporter names only what is in the state dict; the dynamo exporter records what is not.
    """
    for value in stored_values(graph):
        named = param_path(value.name or "") is not None or ROOT.has(value)
        if named and value.metadata_props.get(PERSISTENT) != "False":
            KEPT.set(value, not is_trained(value))
    for node in all_nodes(graph):
        if is_a(node, PASSES_ON) and node.inputs and node.inputs[0] is not None:
            for output in node.outputs if KEPT.get(node.inputs[0]) else ():
                KEPT.set(output, True)


def _op(node: ir.Node) -> str:
    """What these tables know an operator by: those of domains that only plugins know mean what their names may not."""
    return "" if is_foreign(node.domain) else node.op_type


def _note_root_names(graph: ir.Graph) -> None:
    """Mark initializers that are parameters or buffers of the root, whose names have no dot (`temperature`).

    Only in files by PyTorch's legacy exporter: there, an initializer that is none has a name that is no identifier
    (`onnx::MatMul_24`), unless onnxruntime wrote it. The dynamo exporter records what it stores, and calls others
    `val_3`; without the record (onnxslim and onnxsim drop it) what they fold there has a node's name, `mul_2`.
    """
    values = list(graph.initializers.values())
    if KEEPS_STATE.get(graph) and not RECORDED.get(graph) and not _is_by_dynamo(graph):
        values += [o for v in values for u in v.uses() if _op(u.node) == "Identity" for o in u.node.outputs]
        for value in values:
            name = value.name or ""
            if re.fullmatch(r"[A-Za-z_]\w*", name) and not WRITTEN.fullmatch(name) and not folded_from(value):
                ROOT.set(value, True)


def _is_by_dynamo(graph: ir.Graph) -> bool:
    names = (v.name or "" for node in graph for v in (*node.inputs, *node.outputs) if v is not None)
    return any(re.fullmatch(r"val_\d+", name) for name in names)


def stored_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Every initializer and Constant output of a graph and its subgraphs."""
    yield from graph.initializers.values()
    for node in graph:
        if node.op_type == "Constant":
            yield from node.outputs
        for subgraph in subgraphs(node):
            yield from stored_values(subgraph)


def differentiable(graph: ir.Graph) -> set[ir.Value]:
    """The values from which a gradient can come: those that an output of floating point depends on differentiably."""
    reached = {o for o in graph.outputs if o.dtype is None or o.dtype in FLOATS}
    _reach(graph, reached)
    return reached


def _reach(graph: ir.Graph, reached: set[ir.Value]) -> None:
    for node in reversed(graph):
        if reason(node.domain, node.op_type) is not None or not any(o in reached for o in node.outputs):
            continue
        if node.op_type == "Cast" and node.domain in STANDARD and node.attributes["to"].value not in FLOATS:
            continue
        blocked = BLOCKED.get(node) or known(node).still
        reached.update(v for i, v in enumerate(node.inputs) if v is not None and i not in blocked and not _counts(v))
        for subgraph in subgraphs(node):
            reached.update(subgraph.outputs)
            _reach(subgraph, reached)


def _counts(value: ir.Value) -> bool:
    """Whether a value is no number of floating point: one that chooses what Gather takes hands on no gradient."""
    if value.dtype is not None:
        return value.dtype not in FLOATS | COMPLEX
    node = value.producer()
    return node is not None and value.index() in _counted("" if node.domain in STANDARD else node.domain, node.op_type)


@cache
def _counted(domain: str, op: str) -> frozenset[int]:
    """The outputs that an operator's schema knows to be integers, truth values or text, as TopK's indices."""
    try:
        outputs = onnx.defs.get_schema(op, domain).outputs
    except onnx.defs.SchemaError:
        return frozenset()
    return frozenset(i for i, output in enumerate(outputs) if not any(CONTINUOUS.search(t) for t in output.types))


def _decide(
    value: ir.Value, tensor: ir.TensorProtocol, reached: bool, inputs: set[ir.Value], graph: ir.Graph, options: Options
) -> tuple[bool, str]:
    name = value.name or ""
    if options.frozen and re.search(options.frozen, name):
        return False, "--frozen says so"
    if options.trainable and re.search(options.trainable, name):
        return True, "--trainable says so"
    if not reached:
        return False, STILL.get(value) or "no gradient reaches it from an output"
    kind = value.metadata_props.get(SIGNATURE)
    if kind == "PARAMETER":
        return True, "the exporter recorded it as a parameter"
    if _says_not_affine(value, graph):
        return False, "a normalisation scale of 1 or bias of 0, not named like a parameter"
    keeps_state = KEEPS_STATE.get(graph)
    if keeps_state and value.producer() is not None:
        return False, "a Constant node: PyTorch exports parameters as initializers"
    role = next((f"{node.op_type} weight" for node, i in _slots(value) if i in known(node).weights), None)
    if role is not None:  # a buffer, too: exporters store equal tensors once
        return True, role
    if kind == "BUFFER":
        return False, "the exporter recorded it as a buffer"
    if any(_is_bias(use.node, use.idx, tensor) for use in value.uses()):
        return True, "the bias of a product with a weight"
    path = param_path(folded_from(value) or name)
    named = path is not None or ROOT.has(value)
    if not named and tensor.size == 1:
        return False, "a one-element constant, not named like a parameter"
    if not (named and path is not None and re.search("(^|_)(weight|bias)(_|$)", path[-1])):
        if any(_op(i) in ("Sub", "Div") and _normalises(i, value, inputs) for i in (u.node for u in value.uses())):
            return False, "the mean or standard deviation of the input"
        if _multiplies(value) and not tensor.numpy().any():
            return True, "a matrix of zeros that multiplies, as LoRA's second one begins"
        form = _form(tensor)
        if form and not (keeps_state and not RECORDED.get(graph) and _is_fresh(tensor)):
            return False, form
    return True, f"parameter {name}" if named else "a gradient reaches it from an output"


def _says_not_affine(value: ir.Value, graph: ir.Graph) -> bool:
    """A nameless scale of ones or bias of zeros of a norm: what exporters write where the layer has no parameters.

    Only InstanceNormalization, which torch's layer has no parameters for unless asked (and which carries GroupNorm),
    and any norm in a file by PyTorch, whose exporters keep the names of parameters.
    """
    tensor = stored(value)
    if tensor is None or param_path(folded_from(value) or value.name or "") is not None or tensor.size < 1:
        return False
    by_pytorch = PRODUCER.get(graph) == "pytorch"
    slots = [(node, index) for node, index in _slots(value) if not is_a(node, PASSES_ON)]
    if not slots or not all(is_a(node, NORM) and index in (1, 2) for node, index in slots):
        return False
    if not by_pytorch and any(node.op_type != "InstanceNormalization" for node, _ in slots):
        return False
    return all(bool((tensor.numpy() == (1 if index == 1 else 0)).all()) for _, index in slots)


def _is_bias(node: ir.Node, index: int, tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is added to a product with a stored matrix, one element a column: be they zeros, or only one."""
    if _op(node) != "Add" or len(tensor.shape) == 0 or tensor.size != tensor.shape[-1]:
        return False
    operand = node.inputs[1 - index]
    product = None if operand is None else operand.producer()
    matrix = stored(product.inputs[1]) if product is not None and _op(product) == "MatMul" else None
    return matrix is not None and len(matrix.shape) == 2 and matrix.shape[1] == tensor.size and not _form(matrix)


def _slots(value: ir.Value, depth: int = 0) -> Iterator[tuple[ir.Node, int]]:
    """(node, input index) of every use of a tensor, also behind views of it."""
    for use in value.uses():
        yield use.node, use.idx
        if is_a(use.node, PASSES_ON) and depth < 8:
            for output in use.node.outputs:
                yield from _slots(output, depth + 1)


def _normalises(node: ir.Node, value: ir.Value, inputs: set[ir.Value]) -> bool:
    """Whether `node` subtracts or divides by `value` on a graph input that nothing but such steps has touched."""
    data = node.inputs[0] if node.inputs[1] is value else None
    for _ in range(8):
        if data is None or data in inputs:
            return data is not None
        producer = data.producer()
        if producer is None or not (is_a(producer, VIEW) or _op(producer) in ("Cast", "Sub", "Div")):
            return False
        data = producer.inputs[0]
    return False


def _multiplies(value: ir.Value) -> bool:
    """Return True if a tensor is the matrix of a product, as a layer's weight is."""
    return any(known(node).matrix == index for node, index in _slots(value))


def _form(tensor: ir.TensorProtocol) -> str:
    """What kind of constant a tensor of rank >= 1 is by its elements, "" if it looks like a weight."""
    if tensor.size < 2:
        return ""
    if np.unique(leading(tensor, 4096)).size <= 4 and _is_mask(tensor.numpy().reshape(-1)):
        return "a mask (only 0, 1 and one number below -100, such as -inf)"
    if tensor.size < 3 or max(tensor.shape.numpy()) != tensor.size:  # no vector
        return ""
    flat = tensor.numpy().reshape(-1)
    if _is_arange(flat.astype(np.float64)):
        return "evenly spaced numbers"
    if tensor.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and _is_geometric(flat):
        return "a geometric progression (the frequencies of a positional encoding)"
    return ""


def _is_fresh(tensor: ir.TensorProtocol) -> bool:
    """A vector of ones or of zeros, as layers start with: in a file that stores constants apart, this is no mask."""
    return is_uniform(tensor) and tensor.numpy().flat[0] in (0, 1)


def _is_mask(flat: NDArray[Any]) -> bool:
    low = flat.min() if bool((flat == 0).any()) else np.finfo(np.float16).min  # Swin's is -100, BERT's was -10000
    lowest = np.finfo(np.float32).min
    return bool(((flat == 0) | (flat == 1) | (flat <= lowest) | ((flat == low) & (flat <= -100))).all())


def _is_geometric(flat: NDArray[Any]) -> bool:
    """Positive numbers with one constant ratio other than 1, to the precision of their type."""
    if not bool((flat > 0).all()):
        return False
    ratios = flat[1:].astype(np.float64) / flat[:-1]
    return bool(ratios[0] != 1 and (np.abs(ratios / ratios[0] - 1) < 32 * np.finfo(flat.dtype).eps).all())


def _is_arange(flat: NDArray[Any]) -> bool:
    steps = np.diff(flat)
    return bool(steps[0] != 0 and (steps == steps[0]).all())


def add_used(graph: ir.Graph, taken: set[ir.Value]) -> None:
    """Add every value that the graph's outputs depend on, but for branches that are known not to be taken."""
    taken.update(graph.outputs)
    for node in reversed(graph):
        if not taken.intersection(node.outputs):
            continue
        taken.update(value for value in node.inputs if value is not None)
        known = info(node.inputs[0]).constant if node.op_type == "If" else None
        dead = None if known is None or known.size != 1 else "else_branch" if known.item() else "then_branch"
        for name, attribute in node.attributes.items():
            if name != dead and attribute.type == ir.AttributeType.GRAPH:
                add_used(attribute.as_graph(), taken)
