"""What names, places and values tell of the role of a stored tensor: parameter, buffer, bias or constant.

Names: PyTorch's legacy (TorchScript) exporter keeps the names of parameters and buffers. Tensors that it computes are
called `onnx::Conv_41`, or `41` before PyTorch 1.12. The dynamo exporter records on each tensor what it is, and calls
values that it makes `val_3`; onnxslim and onnxsim drop the records.

Places: a name says nothing of a tensor where an exporter names constants as it names weights. Its place does: a number
that is added to the result of a convolution is a bias, and an exponent is nobody's weight.

Values: a constant is the same in every copy of a block; a weight is not. So a number that scales or shifts a map, in a
place that occurs several times in the network, is learned if the numbers there differ, and are not such as a person
types (`3`, `1 / 6`, `0.044715`, `1 / sqrt(64)`). PaddleOCR's LearnableAffineBlock has two of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import is_foreign
from onnxgen.graph.nodes import FLOATS, all_nodes
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import ADDS, CONVOLUTION, MOVES, PASSES_ON, SAME, SAMPLES, SCALES
from onnxgen.passes.regular import rule_of
from onnxgen.scopes.recorded import CALL
from onnxgen.shapes.info import info
from onnxgen.weights.stored import folded_names, stored

# What the dynamo exporter calls the folded result of `torch.zeros` and its like.
FILL = re.compile(r"(new_)?(full|zeros|ones)(_like)?(_\d+)?")
# The dynamo exporter, on each initializer: "PARAMETER", "BUFFER", ...
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
# The dynamo exporter, on each initializer: "False" for a buffer that the state dict does not have.
PERSISTENT = "pkg.torch.export.graph_signature.InputSpec.persistent"
# The dynamo exporter, on each node: the classes of the modules around it.
CLASSES = "pkg.torch.onnx.class_hierarchy"
# PyTorch's names of the parameters of nn.LSTM, nn.GRU and nn.RNN, with the number of the layer.
RECURRENT = re.compile(r"(?:weight|bias)_[ih]h_l(\d+)(?:_reverse)?$")
# Those of nn.LSTMCell, nn.GRUCell and nn.RNNCell.
CELL = re.compile(r"(?:weight|bias)_[ih]h$")

# Names without a dot that no parameter of the root has: onnxruntime's, and the dynamo exporter's.
_GENERATED = re.compile(r"reorder|\w+_token_\d+|val_\d+")
# Names of tensors with a folded BatchNorm: the legacy exporter's weights, the bias that the dynamo exporter adds to a
# layer without one, and tf2onnx's weights.
_FOLDED_NORM = re.compile(r"onnx::Conv(Transpose)?_\d+|.+\.weight_bias|.*_fused_bn")
_LOOKUP = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d{1,18})[,)]")
# Names that the dynamo exporter gives to values which no parameter is: torch's functions, numbered.
_COMPUTED = re.compile(
    r"(val|(c_)?lifted_tensor|arange|zeros|ones|full|eye|linspace|(zeros|ones|full)_like|scalar_tensor|empty|add|sub|mul|"
    r"div|rsub|neg|pow|sqrt|rsqrt|exp|log|sin|cos|abs|floor|floor_divide|remainder|clamp|round|reciprocal|"
    r"_?(unsafe_)?view|reshape|unsqueeze|squeeze|expand|permute|transpose|stack|cat|repeat|tile|slice|select|flip|roll|"
    r"flatten|getitem|index|index_select|convert_element_type|_?to_copy|clone|alias|detach|lift_fresh_copy|tril|triu|"
    r"where|eq|ne|lt|gt|le|ge|logical_(not|and|or)|bitwise_(not|and|or)|constant_pad_nd|meshgrid|cumsum|sum|mean|max|"
    r"min|amax|amin|sinc|tmp|const|const_cast|pi_self|_MATH_PI|_MATH_PI_cast|int64|"
    r"(hamming|hann|bartlett|blackman|kaiser)_window)"
    r"(_default)?(_\d+)?"
)


def is_by_pytorch(model: ir.Model) -> bool:
    """True if PyTorch exported a model. optimum writes its own name into the decoders that it merges of such files."""
    return model.producer_name in ("pytorch", "optimum-onnx")


def may_be_root_name(name: str) -> bool:
    """True if a name without a dot may be that of a parameter or buffer of the root module (`temperature`)."""
    return re.fullmatch(r"[A-Za-z_]\w*", name) is not None and not _GENERATED.fullmatch(name)


def is_made_of_constants(value: ir.Value) -> bool:
    """True if the dynamo exporter recorded that it computed a tensor from such values only."""
    names = folded_names(value)
    return bool(names) and all(map(is_function_name, names))


def is_function_name(name: str) -> bool:
    """True if a name is one that the dynamo exporter gives to the result of a function."""
    return _COMPUTED.fullmatch(name) is not None


def is_by_dynamo(graph: ir.Graph) -> bool:
    """True if the dynamo exporter wrote a graph, by the names of its values."""
    names = (v.name or "" for node in graph for v in (*node.inputs, *node.outputs) if v is not None)
    return any(re.fullmatch(r"val_\d+", name) for name in names)


def holds_folded_norm(name: str) -> bool:
    """True if a tensor's name says that a BatchNorm was folded into it."""
    return _FOLDED_NORM.fullmatch(name) is not None


def padding_row(node: ir.Node) -> int | None:
    """Return the row without a gradient in a lookup, `aten.embedding(weight, ids, row)`, if the file has the call."""
    call = _LOOKUP.search(node.metadata_props.get(CALL, ""))
    return int(call[1]) if call else None


def is_in_norm(node: ir.Node) -> bool:
    """True if the dynamo exporter recorded that a node was part of a BatchNorm."""
    return "batch_norm" in node.metadata_props.get(CLASSES, "").rpartition(",")[2]


LEAST = 3  # places that are alike
DIGITS = 6  # of a number that a person types; learned ones have more
DENOMINATOR, ROOT = 256, 4096  # of fractions, and of the numbers of which a person takes roots
RATIO = 16  # the numerator and denominator of `2 / 3`
_LOGARITHMS = (math.log(2), math.log(10), 1 / math.log(2), 1 / math.log(10))  # of 2 and of 10: decibels, entropies
_STEPS = 3  # back from a place, to tell it from others
Place = tuple[object, ...]


def varying(graph: ir.Graph) -> set[ir.Value]:
    """Return the stored tensors of one element that are parameters by their numbers."""
    places: dict[Place, list[ir.Value]] = {}
    for node in all_nodes(graph):
        for value, other in _numbers(node):
            places.setdefault((node.op_type, node.inputs.index(value), _makers(other)), []).append(value)
    return {value for alike in places.values() if _are_learned(alike) for value in alike}


def _numbers(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the single numbers that a node scales or shifts a map with, each with the map."""
    if len(node.inputs) != 2 or not is_a(node, ADDS, SCALES):
        return
    for value, other in (node.inputs, reversed(node.inputs)):
        tensor = stored(value)
        if value is None or other is None or tensor is None or tensor.size != 1 or tensor.dtype not in FLOATS:
            continue
        maker, rank = other.producer(), info(other).rank
        is_map = maker is not None and not is_a(maker, SAME) and rank not in (0, 1, 2)  # a quantised map has a scale
        if is_map and stored(other) is None and not _is_raw(other):  # columns of the input have numbers of their own
            yield value, other


def _is_raw(value: ir.Value, depth: int = 8) -> bool:
    """Return True for what is computed from the network's input alone, without any layer in between."""
    node = value.producer()
    if node is None:
        return True
    is_layer = known(node).weights or known(node).matrix is not None and not is_a(node, MOVES)
    if depth == 0 or is_layer:
        return False
    return all(_is_raw(v, depth - 1) for v in node.inputs if v is not None and stored(v) is None)


def _makers(value: ir.Value | None, steps: int = _STEPS) -> Place:
    """Return the operators that make a value, back to the last layers, but a few steps at most."""
    node = value.producer() if value is not None else None
    if node is None or stored(value) is not None:
        return ("",)
    if steps == 0 or known(node).weights:
        return (node.op_type,)
    return (node.op_type, *(_makers(v, steps - 1) for v in node.inputs if v is not None and stored(v) is None))


def _are_learned(values: list[ir.Value]) -> bool:
    numbers = [float(tensor.numpy().reshape(-1)[0]) for value in values if (tensor := stored(value)) is not None]
    typed = sum(map(is_typed, numbers))
    return len(values) >= LEAST and 2 * len(set(numbers)) > len(numbers) and 4 * typed <= len(numbers)


def is_typed(number: float) -> bool:
    """Return True for a number that a person may have written: of few digits, a fraction, a root, a power of two."""
    if is_short(number):
        return True
    size, square = abs(number), number * number
    forms = [(x * factor, most) for x, most in ((size, DENOMINATOR), (square, ROOT)) for factor in (1, math.pi)]
    forms += [(size * factor, DENOMINATOR) for factor in _LOGARITHMS]
    return any(_is_fraction(x, most) for x, most in forms) or _is_root_of_root(square * square) or _is_ratio(size)


def is_short(number: float) -> bool:
    """Return True for a number of few digits, and for a power of two."""
    if not math.isfinite(number) or math.frexp(number)[0] in (0.5, -0.5):
        return True
    digits = np.format_float_scientific(np.float32(abs(number))).split("e")[0]
    return len(digits) <= DIGITS + 1


def _is_root_of_root(fourth: float) -> bool:
    """Return True for `d ** -0.25`, with which attention scales queries and keys alike. `fourth`: its fourth power."""
    whole = round(1 / fourth)
    return 2 <= whole <= ROOT and abs(fourth * whole - 1) <= 4e-7


def _is_ratio(x: float) -> bool:
    near = Fraction(x).limit_denominator(RATIO)
    return near.numerator <= RATIO and abs(float(near) - x) <= 1e-7 * x


def _is_fraction(x: float, most: int) -> bool:
    near = Fraction(x).limit_denominator(most)
    return near.numerator in (0, 1) and abs(float(near) - x) <= 2e-7 * x or abs(round(x) - x) <= 2e-7 * x


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
    product = _maker(node.inputs[1 - index], "MatMul")
    matrix = None if product is None else stored(product.inputs[1])
    return matrix is not None and len(matrix.shape) == 2 and matrix.shape[1] == tensor.size and rule_of(matrix) is None


def _is_bias_of_convolution(node: ir.Node, index: int, tensor: ir.TensorProtocol) -> bool:
    """True if a tensor is added to a convolution without a bias, and has one element for each channel."""
    operand = node.inputs[1 - index] if operator(node) == "Add" else None
    convolution = None if operand is None else operand.producer()
    kernel = None if convolution is None else _kernel_without_bias(convolution)
    if convolution is None or kernel is None:
        return False
    sizes, groups = kernel.shape.numpy(), convolution.attributes.get("group")
    channels = sizes[0] if is_a(convolution, CONVOLUTION) else sizes[1] * (groups.as_int() if groups else 1)
    if tensor.size != channels or channels == 1:  # a hard sigmoid adds 3
        return tensor.size == channels and not is_short(number(tensor))
    own = stored(node.inputs[index])
    return own is None or len(own.shape) >= len(sizes) - 1 and own.shape[1 - len(sizes)] == channels


def _kernel_without_bias(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the stored kernel of a convolution that has no bias."""
    places = [*known(node).weights] if is_a(node, SAMPLES) else []
    if len(places) != 2 or known(node).matrix != places[0]:
        return None
    kernel, bias = stored(node.inputs[places[0]]), node.inputs[places[1] : places[1] + 1]
    return None if kernel is None or len(kernel.shape) < 3 or any(v is not None for v in bias) else kernel


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
    shifted = [use.node.outputs[0] for use in value.uses() if operator(use.node) == "Sub" and use.idx == 1]
    is_mean = len(shifted) == len(value.uses()) > 0
    return _is_variance(value) or is_mean and any(_is_variance(v) for y in shifted for v in _under_roots(y))


def _under_roots(value: ir.Value) -> Iterator[ir.Value | None]:
    """Yield the summands under the roots by which a value is divided."""
    for use in value.uses():
        root = _maker(use.node.inputs[1], "Sqrt") if operator(use.node) == "Div" and use.idx == 0 else None
        added = None if root is None else _maker(root.inputs[0], "Add")
        yield from () if added is None else added.inputs


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
