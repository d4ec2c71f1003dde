"""What the file says of a stored tensor that several layers take: is it one parameter, or were equal ones merged?

Both of PyTorch's exporters store equal tensors once. Both also leave the parameters' own names, where nobody removed
them:

- The legacy exporter names every merged tensor by an Identity node. Modules that share a parameter take the tensor
  itself. (It has no name for a matrix that it folded a transposition into.)
- The dynamo exporter writes the call of the original on each node, with the names of its arguments:
  `aten.linear.default](args = (%x, %p_layers_1_weight, %p_layers_0_bias)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

import onnx_ir as ir

from onnxgen.common.names import ModulePath, unscoped
from onnxgen.graph.annotations import NO_PARAMETER, PARAMETER_NAMES, SCOPE
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.traits import PASSES_ON, VIEW

Names = Mapping[ModulePath, frozenset[str]]

CALL = "pkg.torch.onnx.fx_node"  # of the original, on each node of the dynamo exporter
_ARGUMENT = re.compile(r"%([pbc]_\w+)")
# `onnx::MatMul_12`, `12` and `/fc/Constant_output_0` are no parameters
_OF_TORCH = re.compile(r"(?!val_\d+$)[A-Za-z_]\w*|\w+(\.\w+)+")
_PRODUCERS = ("pytorch", "optimum-onnx")  # optimum merges files of PyTorch
_DEPTH = 8  # of views of a stored tensor


def note_parameter_names(model: ir.Model) -> None:
    """Set the model's `PARAMETER_NAMES`, and `NO_PARAMETER` of tensors. The nodes must be the file's own."""
    values = list(model.graph.initializers.values())
    called = {node: frozenset(_ARGUMENT.findall(text)) for node, text in _calls(model)}
    found: dict[str, Names] = {}
    if any(called.values()):
        stored = {_argument(value.name or "") for value in values}
        found = {value.name or "": _by_calls(value, called, stored) for value in values}
        for value in values:
            NO_PARAMETER.set(value, _is_never_parameter(value, called))
    elif model.producer_name in _PRODUCERS and any(label for value in values for _, label in _takers(value)):
        found = {value.name or "": _by_labels(value) for value in values}
    PARAMETER_NAMES.set(model, {name: names for name, names in found.items() if names})


def _calls(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    for node in all_nodes(model.graph):
        if text := node.metadata_props.get(CALL):
            yield node, text.lower()


def _argument(name: str) -> str:
    """Return the argument that the dynamo exporter makes of a parameter (`p_` may be `b_` or `c_`)."""
    return "p_" + re.sub(r"[^a-z0-9]", "_", unscoped(name).lower())


def _by_calls(value: ir.Value, called: Mapping[ir.Node, frozenset[str]], stored: Set[str]) -> Names:
    """Return the arguments of the calls that a tensor's users come from, without those that are other tensors."""
    found: dict[ModulePath, frozenset[str]] = {}
    own = _argument(value.name or "")
    for node, _ in _takers(value):
        if names := frozenset(n for n in called.get(node, ()) if n == own or n not in stored):
            scope = SCOPE.get(node)
            found[scope] = found.get(scope, frozenset()) | names
    return found


def _is_never_parameter(value: ir.Value, called: Mapping[ir.Node, frozenset[str]]) -> bool:
    """True if all calls that take a tensor name it as a buffer or constant: no equal parameter was merged into it."""
    own = _argument(value.name or "").removeprefix("p_")
    takers = [called.get(node, frozenset()) for node, _ in _takers(value)]
    return bool(takers) and all({f"b_{own}", f"c_{own}"} & names for names in takers)


def _by_labels(value: ir.Value) -> Names:
    """Return the names that the legacy exporter gave to a tensor: its own, or those of the merged ones."""
    own = value.name or ""
    if not _OF_TORCH.fullmatch(own):
        return {}
    found: dict[ModulePath, frozenset[str]] = {}
    for node, label in _takers(value):
        scope = SCOPE.get(node)
        found[scope] = found.get(scope, frozenset()) | {label or own}
    return found


def _takers(value: ir.Value, label: str = "", depth: int = _DEPTH) -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes that use a tensor or a view of it, each with the view's own parameter name."""
    for use in value.uses():
        passes = is_a(use.node, PASSES_ON) and depth > 0
        if not passes:
            yield use.node, label
        for output in use.node.outputs if passes else ():
            name = output.name or ""
            is_name = is_a(use.node, VIEW) and _OF_TORCH.fullmatch(name) is not None and not output.is_graph_output()
            yield from _takers(output, name if is_name else label, depth - 1)
