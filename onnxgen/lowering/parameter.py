"""Names, module paths and initial values of parameters.

The module path comes from the names in the file (`ParameterPaths`), the parameter's own name and
its initial value from the role of the stored tensor for its operator.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxgen.code.literals import follows_rule
from onnxgen.code.quote import call, quote
from onnxgen.code.torch_api import function_of
from onnxgen.common.names import ModulePath, unscoped
from onnxgen.graph.annotations import NAMELESS, ROOT, SCOPE, is_trained
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import Operator, find, is_a, known
from onnxgen.graph.traits import ADDS, SAME, SCALES, VIEW, WEIGHT
from onnxgen.passes.broadcasts import broadcasts_itself
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.roles import is_function_name
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import MERGED, param_path, seen_from
from onnxgen.shapes.info import info
from onnxgen.weights.provenance import Source
from onnxgen.weights.stored import folded_from, stored, view_of, viewed_from

NEWEST_OPSET = 1 << 30
INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4)  # of quantised weights
_LAYER_SCALE = re.compile(r"(layer_?scale|ls)_?\d*")
_ROLES = {"mask": "position_bias", "attn_mask": "position_bias", "q": "query", "query": "query"}  # by input; as in Swin
MAX_ROWS = 64  # of equal rows that are stored once
_EXPANDED = re.compile(r"(expand(_as)?|repeat|tile)(_\d+)?")
_RESHAPED = re.compile(r"(_?(unsafe_)?view|reshape|unsqueeze)(_\d+)?")


def role(node: ir.Node, value: ir.Value) -> str:
    """Return a name for a parameter without a name in the file."""
    if node.op_type == "Standardize" and value is not node.inputs[0]:
        return "gain" if value is node.inputs[1] else "bias"
    shape, name = info(value).shape or (), _input_name(node, value)
    if _is_layer_scale(node) or (set(shape) - {1} and _scales_branch(node)):
        return "gamma"
    if name in _ROLES:
        return _ROLES[name]
    if is_a(node, ADDS):
        return "pos_embed" if _has_positions(node, value) else "bias"
    if node.op_type == "Concat":
        return "cls_token" if value is node.inputs[0] and shape[1:-1] == (1,) else "weight"
    return "scale" if node.op_type == "Mul" else "weight"


def _has_positions(node: ir.Node, value: ir.Value) -> bool:
    """True for what is added to every sample, and has elements of its own for each position and feature."""
    own, whole = info(value).shape or (), info(node.outputs[0]).shape or ()
    own = own[1:] if own[:1] == (1,) else own
    return len(whole) == 3 and own == whole[1:] and 1 not in own


def _is_layer_scale(node: ir.Node) -> bool:
    """True for the product of a module that is a layer scale by its name (Touvron et al. 2021, arXiv 2103.17239)."""
    return node.op_type == "Mul" and any(map(_LAYER_SCALE.fullmatch, SCOPE.get(node)[-1:]))


def _scales_branch(node: ir.Node) -> bool:
    """True for the product at the end of a residual branch, which is added to what the branch was computed from."""
    output = node.outputs[0]
    user = only_user(output) if node.op_type == "Mul" else None
    while user is not None and (is_a(user, VIEW) or user.op_type == "StochasticDepth"):
        output = user.outputs[0]
        user = only_user(output)
    if user is None or user.op_type != "Add":
        return False
    skip = user.inputs[1 - user.inputs.index(output)]
    return skip is not None and skip not in node.inputs and stored(skip) is None


def vector(node: ir.Node, value: ir.Value, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape [n] of a parameter that folding gave axes of size 1, as `gamma.view(1, -1, 1, 1)`; else None.

    The dynamo exporter records such a view. The legacy exporter leaves no name, but that of a layer scale is known.
    """
    sizes = [d for d in shape if d != 1]
    is_view = bool(viewed_from(value)) and _RESHAPED.fullmatch(value.name or "") is not None
    is_vector = is_view or (_is_layer_scale(node) and NOISE.match(value.name or ""))
    return tuple(sizes) if is_vector and len(sizes) == 1 < len(shape) else None


def is_repeated(value: ir.Value | None) -> bool:
    """Return True for a tensor of equal rows that torch's dynamo exporter folded, and whose first row is stored alone.

    A parameter must have been expanded last, `log_std.expand_as(x)`: otherwise its rows may be equal before they are
    trained. The users of a constant must broadcast.
    """
    tensor = stored(value)
    shape = () if tensor is None else tuple(tensor.shape.numpy())
    if value is None or tensor is None or len(shape) < 2 or not 1 < shape[0] <= MAX_ROWS:
        return False
    if is_trained(value):
        is_expanded = _EXPANDED.fullmatch(value.name or "") is not None
    else:
        is_expanded = is_function_name(value.name or "") and all(
            broadcasts_itself(use.node, value) for use in value.uses()
        )
    if not is_expanded:
        return False
    array = tensor.numpy()
    return bool((array == array[:1]).all()) and not (array == array.flat[0]).all()


def role_in_integers(value: ir.Value | None) -> str:
    """Return what a stored tensor is to a layer that computes in integers: weight, scale, zero, bias; "" for others.

    These are state, which training leaves as it is. A matrix that follows a rule is a constant.
    """
    tensor = stored(value)
    if value is None or tensor is None or is_trained(value):
        return ""
    if tensor.dtype in INTEGERS[:2] and len(tensor.shape) > 1:
        return "" if follows_rule(tensor.numpy(), tensor.dtype) else "weight"
    users = [use.node for use in value.uses()]
    name = _input_name(users[0], value) if users and all(map(_is_in_integers, users)) else ""
    if name == "x":
        return "bias" if len(tensor.shape) == 1 and not follows_rule(tensor.numpy(), tensor.dtype) else ""
    return name.removeprefix("x_")


def _is_in_integers(node: ir.Node) -> bool:
    """True for a layer of onnxgen's own whose weight is stored in integers, and for what dequantises stored ones."""
    place = known(node).matrix if node.domain == DOMAIN else None
    if place is None and is_a(node, SAME) and len(node.inputs) > 1:
        place = 0
    weight = None if place is None else stored(node.inputs[place])
    return weight is not None and weight.dtype in (*INTEGERS, ir.DataType.INT32)


def initial(source: Source, node: ir.Node, value: ir.Value) -> ast.expr:
    """Return a parameter's initial value: ones for factors and zeros for summands that are vectors, ones for single
    numbers, else numbers that are drawn (see `drawn_shape`).
    """
    # torch.onnx stores equal tensors once, with Identity nodes for the others
    while node.op_type == "Identity" and len(takers := list(node.outputs[0].consumers())) == 1:
        value, node = node.outputs[0], takers[0]
    shape, place = source.shape, _place(node, value)
    dtype = {} if source.dtype == ir.DataType.FLOAT else {"dtype": source.dtype}
    is_vector = sum(size != 1 for size in shape) <= 1
    if is_vector and (is_a(node, SCALES) or place == "scale"):
        fill = "torch.ones"
    elif is_vector and (is_a(node, ADDS) or place == "bias"):
        fill = "torch.zeros"
    elif all(size == 1 for size in shape):
        fill = "torch.ones"
    else:
        return quote("nn.Parameter(x)", x=call("torch.normal", 0.0, 0.02, shape, **dtype))
    return quote("nn.Parameter(x)", x=call(fill, *(shape or [()]), **dtype))


def drawn_shape(build: ast.expr) -> ast.Tuple | None:
    """Return the shape of a parameter whose initial numbers are drawn, from the expression that makes it.

    The source draws them with `nn.init.trunc_normal_`. (`nn.init.normal_` and a product import the compiler on the meta
    device, where `from_pretrained` builds the network.)
    """
    tensor = build.args[0] if function_of(build) == "nn.Parameter" and isinstance(build, ast.Call) else None
    if not isinstance(tensor, ast.Call) or function_of(tensor) != "torch.normal":
        return None
    return tensor.args[-1] if isinstance(tensor.args[-1], ast.Tuple) else None


def _place(node: ir.Node, value: ir.Value) -> str:
    """Return "scale" or "bias" by the operator's schema. Inputs after a layer's input and weight are biases."""
    if _input_name(node, value) == "scale":
        return "scale"
    return "bias" if value in node.inputs[2:] and value not in node.inputs[:2] and _operator(node) else ""


def _input_name(node: ir.Node, value: ir.Value) -> str:
    """Return the name of the input that a value is, by the operator's schema, in small letters; "" if unknown."""
    operator = _operator(node)
    names = [] if operator is None else list(operator.parameters)
    at = node.inputs.index(value) if value in node.inputs else len(names)
    return names[at].lower() if at < len(names) else ""


def _operator(node: ir.Node) -> Operator | None:
    return find(node.domain, node.op_type, NEWEST_OPSET)


def is_table(path: ModulePath, source: Source, node: ir.Node) -> bool:
    """Return True for a table that is added as a whole: the exporter folded the lookup of all positions."""
    is_float = source.is_identity and source.dtype == ir.DataType.FLOAT
    is_matrix = len(source.shape) == 2 and min(source.shape) > 1
    return is_float and is_matrix and len(path) > 1 and path[-1] == "weight" and node.op_type == "Add"


_MAX_DIGITS = 10  # of a count
NOISE = re.compile(r"^(onnx::\w+|\d+|.*::.*|val_\d+)$")  # names that exporters give to unnamed tensors


class ParameterPaths:
    """The module paths of stored tensors, from their names and their users.

    Attributes:
        crowd: by scope, the different sets of weights that nodes in it take.
        shared: names of tensors that several nodes take, or that another tensor is a folded copy of.
        are_told: names of tensors say which module they are in.
    """

    def __init__(self, graph: ir.Graph) -> None:
        values = list(stored_values(graph))
        self.are_told = not NAMELESS.get(graph)
        self._counted = _counted(v.name or "" for v in values)
        self._folded = {folded_from(v) for v in values}
        self.shared = {v.name or "" for v in values if len(v.uses()) > 1} | self._folded
        self._roots = {v.name for v in values if ROOT.has(v)}
        self.crowd: dict[ModulePath, set[frozenset[ir.Value]]] = {}
        self._sets: dict[str, set[frozenset[ir.Value]]] = {}
        for node in all_nodes(graph):
            scope = SCOPE.get(node)
            weights = frozenset() if _passes(node) else frozenset(_weights(node))
            for n in range(1, len(scope) + 1 if weights else 0):
                self.crowd.setdefault(scope[:n], set()).add(weights)
            for value in weights:
                self._sets.setdefault(value.name or "", set()).add(weights)

    def is_alone(self, scope: ModulePath) -> bool:
        """Return True if the nodes of a scope have only one set of weights: the scope is one layer."""
        return len(self.crowd.get(scope, ())) <= 1

    def is_vague(self, source: Source) -> bool:
        """Return True if layers with different weights share the tensor (equal biases): its name may be another's."""
        return not source.label and len(source.names) == 1 and len(self._sets.get(source.names[0], ())) > 1

    def is_noise(self, name: str, scope: ModulePath) -> bool:
        """Return True if the name of a tensor says nothing about it.

        In a module that was found in the graph, that is any name with a number that others of the file differ in: the
        other copies of the module have the others.
        """
        if not self.are_told or NOISE.match(name):
            return True
        return self._counted.get(name, False) or (name in self._counted and bool(scope))

    def path(self, name: str, label: str, scope: ModulePath) -> ModulePath | None:
        """Return the module path of a tensor for a node in a scope; None if its name does not tell.

        `label`: a second name in the file. The legacy exporter stores equal tensors once, and names the others by
        Identity nodes. The dynamo exporter records which parameter it folded.
        """
        if not self.are_told:
            return None
        path = param_path(label) or param_path(name)
        if path is None:
            root = label if re.fullmatch(r"[A-Za-z_]\w*", label) and not NOISE.match(label) else name
            return (MERGED.sub("", unscoped(root)),) if root == label or root in self._roots else None
        return seen_from(scope, path) if name in self.shared and not self.is_exact(label) else path

    def is_exact(self, label: str) -> bool:
        """Return True if a second name is exactly this tensor's, as those of Identity nodes are."""
        return bool(label) and label not in self._folded

    def source_path(self, source: Source, scope: ModulePath) -> ModulePath | None:
        """Return the module path of a state-dict tensor, if it is made of one tensor of the file."""
        return self.path(source.names[0], source.label, scope) if len(source.names) == 1 else None


def _counted(names: Iterable[str]) -> dict[str, bool]:
    """Return the names that differ only in a number, and True for those of which some numbers are left out.

    `val_49_scale` and `val_57_scale` were counted over the whole file. An author who numbers weights leaves out none.
    """
    alike: dict[str, dict[int, str]] = {}
    for name in names:
        numbers = re.findall(r"\d+", name)
        if len(numbers) == 1 and len(numbers[0]) < _MAX_DIGITS and param_path(name) is None:
            alike.setdefault(re.sub(r"\d+", "#", name), {})[int(numbers[0])] = name
    several = [numbered for numbered in alike.values() if len(numbered) > 1]
    return {
        name: max(numbered) - min(numbered) + 1 > len(numbered) for numbered in several for name in numbered.values()
    }


def _is_view(node: ir.Node) -> bool:
    return view_of(node) is not None or is_a(node, WEIGHT)


def _passes(node: ir.Node) -> bool:
    """True if a node only rearranges stored tensors, or anything else as a view."""
    return _is_view(node) or (node.op_type == "Concat" and all(map(_leaves, node.inputs)))


def _weights(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the stored floating-point tensors that a node takes, perhaps through views and joined to one."""
    for value in node.inputs:
        for leaf in _leaves(value):
            tensor = stored(leaf)
            if (leaf.name or "").startswith("/"):  # a constant of the legacy exporter
                continue
            if tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 0:
                yield leaf


def _leaves(value: ir.Value | None, depth: int = 8) -> list[ir.Value]:
    """Return the stored tensors that a value is made of, if it is made of nothing else."""
    producer = None if value is None else value.producer()
    if value is None or stored(value) is not None:
        return [] if value is None else [value]
    if producer is None or depth == 0 or not producer.inputs:
        return []
    if _is_view(producer):
        return _leaves(producer.inputs[0], depth - 1)
    parts = [_leaves(v, depth - 1) for v in producer.inputs] if producer.op_type == "Concat" else [[]]
    return [leaf for part in parts for leaf in part] if all(parts) else []
