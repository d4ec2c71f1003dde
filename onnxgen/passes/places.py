"""What the place of a stored tensor says: the operators that take it, and what they do with it.

A name says nothing of a tensor where an exporter names constants as it names weights. Its place does: a number that is
added to the result of a convolution is a bias, and an exponent is nobody's weight.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.domains import is_foreign
from onnxgen.graph.traits import ADDS, CONVOLUTION, PASSES_ON, SAMPLES, SCALES
from onnxgen.passes.regular import rule_of
from onnxgen.passes.varying import is_short, is_typed
from onnxgen.weights.stored import stored

TYPED = "a number that a person types"  # the reason
CHOSEN = "an exponent or a bound, whose gradient may not be finite"  # the reason
MAX_EPSILON = 0.1  # of a normalisation


def is_bias(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Return True if a tensor is added to a product with a stored matrix or kernel, as its bias."""
    by_matrix = any(_is_bias_of_matrix(use.node, use.idx, tensor) for use in value.uses())
    return by_matrix or any(_is_bias_of_convolution(node, i, tensor) for node, i in slots(value))


def _is_bias_of_matrix(node: ir.Node, index: int, tensor: ir.TensorProtocol) -> bool:
    """True if a tensor is added to a product with a stored matrix, and has one element for each column."""
    if operator(node) != "Add" or len(tensor.shape) == 0 or tensor.size != tensor.shape[-1]:
        return False
    operand = node.inputs[1 - index]
    product = None if operand is None else operand.producer()
    matrix = stored(product.inputs[1]) if product is not None and operator(product) == "MatMul" else None
    return matrix is not None and len(matrix.shape) == 2 and matrix.shape[1] == tensor.size and rule_of(matrix) is None


def _is_bias_of_convolution(node: ir.Node, index: int, tensor: ir.TensorProtocol) -> bool:
    """True if a tensor is added to a convolution without a bias, and has one element for each channel."""
    other = node.inputs[1 - index] if operator(node) == "Add" else None
    made = None if other is None else other.producer()
    places = [*known(made).weights] if made is not None and is_a(made, SAMPLES) else []
    if made is None or len(places) != 2 or known(made).matrix != places[0]:
        return False
    kernel = stored(made.inputs[places[0]])
    if kernel is None or len(kernel.shape) < 3 or any(v is not None for v in made.inputs[places[1] : places[1] + 1]):
        return False
    is_forward, groups = is_a(made, CONVOLUTION), made.attributes.get("group")
    channels = kernel.shape.numpy()[0 if is_forward else 1] * (1 if is_forward or not groups else groups.as_int())
    if tensor.size != channels:
        return False
    if channels == 1:  # a hard sigmoid adds 3
        return not is_short(number(tensor))
    own = stored(node.inputs[index])
    return own is None or len(own.shape) >= len(kernel.shape) - 1 and own.shape[1 - len(kernel.shape)] == channels


def setting(value: ir.Value, tensor: ir.TensorProtocol) -> str:
    """Return why a tensor is a setting of the operators that take it; "" if it is none."""
    places = [(node, i) for node, i in slots(value) if not is_a(node, PASSES_ON)]
    if not places or any(i not in known(node).chosen for node, i in places):
        return ""
    return TYPED if tensor.size == 1 and is_typed(number(tensor)) else CHOSEN


def is_beginning(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """True for a factor of 1 or a summand of 0: a constant would do nothing, and parameters begin so."""
    trait = {0.0: ADDS, 1.0: SCALES}.get(number(tensor))
    return trait is not None and all(is_a(node, trait) for node, _ in slots(value) if not is_a(node, PASSES_ON))


def is_measured(value: ir.Value) -> bool:
    """True for the variance and the mean in `(x - mean) / sqrt(variance + eps)`, a BatchNorm that is spelled out."""
    if _is_variance(value):
        return True
    shifted = [use.node.outputs[0] for use in value.uses() if operator(use.node) == "Sub" and use.idx == 1]
    scaled = [use.node for v in shifted for use in v.uses() if operator(use.node) == "Div" and use.idx == 0]
    roots = [root for node in scaled if (root := _maker(node.inputs[1], "Sqrt")) is not None]
    sums = [added for root in roots if (added := _maker(root.inputs[0], "Add")) is not None]
    return len(shifted) == len(value.uses()) > 0 and any(_is_variance(v) for added in sums for v in added.inputs)


def _maker(value: ir.Value | None, name: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and operator(node) == name else None


def _is_variance(value: ir.Value | None) -> bool:
    """True for a stored tensor of which only the root is used, after a small number was added to it."""
    if value is None or stored(value) is None or not value.uses():
        return False
    return all(_is_root_beside_epsilon(use.node, use.idx) for use in value.uses())


def _is_root_beside_epsilon(node: ir.Node, place: int) -> bool:
    epsilon = stored(node.inputs[1 - place]) if operator(node) == "Add" else None
    if epsilon is None or epsilon.size != 1 or not 0 < number(epsilon) < MAX_EPSILON:
        return False
    after = {operator(use.node) for use in node.outputs[0].uses()}
    return after == {"Sqrt"}


def number(tensor: ir.TensorProtocol) -> float:
    """Return the first element."""
    return float(tensor.numpy().reshape(-1)[0])


def is_buffer_name(name: str) -> bool:
    """True for a tensor that its author called a buffer."""
    return name.endswith("_buffer")


def slots(value: ir.Value, depth: int = 0) -> Iterator[tuple[ir.Node, int]]:
    """Yield (node, input index) for every use of a tensor and of its views."""
    for use in value.uses():
        yield use.node, use.idx
        if is_a(use.node, PASSES_ON) and depth < 8:
            for output in use.node.outputs:
                yield from slots(output, depth + 1)


def operator(node: ir.Node) -> str:
    """Return the operator's name; "" for domains of plugins, where the name may have another meaning."""
    return "" if is_foreign(node.domain) else node.op_type
