"""The readings of a file's names, of which the one with the shorter source is taken.

Names are evidence, not orders. An author's names say which modules the layers were in (`layer1.0.conv1`). A counter
over the whole file (`conv2d_57`), a converter's prefix or the name of a function call say nothing, and a source that
obeyed them would have a class for each layer, or none. No list of exporters tells one from the other. But true modules
save source, since they repeat: so each reading is written, and the lengths are compared.

Keys of a PyTorch state dict are always obeyed, whichever tool wrote the file: someone may load them. Keys of less than
half of the tensors are none: where an exporter folded norms, the others are `onnx::Conv_110`, and no state dict fits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol, TypeVar

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import CLASSES, FOUND, NAMELESS, PRODUCER, SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.scopes.origin import param_path

_KEY = re.compile(r"weight|bias|running_")
_SMALLEST = 5  # elements of a tensor that is no operand which the author typed
LONGER = 1.05  # than without names: what a source may be, since names help its reader


class Readable(Protocol):
    """The result of a reading."""

    @property
    def length(self) -> int: ...


Made = TypeVar("Made", bound=Readable)


def shortest(model: ir.Model, options: Options, make: Callable[[], Made]) -> Made:
    """Return what `make` makes of the reading with the shorter source, and leave that reading's scopes in the model."""
    names, are_keys = _scopes(model), _are_keys(model)
    made = make()
    if options.flat or are_keys or not any(scope for scope, _ in names[0].values()):
        return made
    obeyed = _scopes(model)
    _set(model, (dict.fromkeys(names[0], ((), False)), {}), nameless=True)
    other = make()
    if made.length > LONGER * other.length:
        return other
    _set(model, obeyed, nameless=False)
    return made


def _are_keys(model: ir.Model) -> bool:
    """True if names are PyTorch's: of nodes (`/layers.0/fc/MatMul`), of classes, or of most tensors (`fc.weight`)."""
    if any((node.name or "").startswith("/") for node in model.graph) or CLASSES.get(model):
        return True
    graph = model.graph
    paths = {name: path for name in graph.initializers if (path := param_path(name))}
    keys = {name for name, path in paths.items() if _KEY.match(path[-1])}
    if PRODUCER.get(graph) != "pytorch":
        return bool(keys) and 2 * len(keys) >= len(paths)
    weights = {name for name, value in graph.initializers.items() if _is_weight(value)}
    return 2 * len(weights & paths.keys()) >= len(weights)


def _is_weight(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and tensor.size >= _SMALLEST


Scopes = tuple[dict[ir.Node, tuple[ModulePath, bool]], dict[ModulePath, str]]


def _scopes(model: ir.Model) -> Scopes:
    nodes = {node: (SCOPE.get(node), FOUND.get(node)) for node in all_nodes(model.graph)}
    return nodes, dict(CLASSES.get(model))


def _set(model: ir.Model, scopes: Scopes, nameless: bool) -> None:
    nodes, classes = scopes
    for node, (scope, found) in nodes.items():
        SCOPE.set(node, scope)
        FOUND.set(node, found)
    CLASSES.set(model, classes)
    NAMELESS.set(model.graph, nameless)
