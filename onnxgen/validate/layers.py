"""Normalise torch layers that are functions: `nn.MaxPool2d(3, 2)(x)` is `F.max_pool2d(x, 3, 2)`.

Both get one form, with the argument names of torch's documentation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from onnxgen.code.copied import arguments, helper_names
from onnxgen.code.torch_api import DEFAULTS, LAYER_OF, SIGNATURES
from onnxgen.validate.values import Graph, Node, Unreadable

KERNEL = "kernel_size"


class Layers:
    """The functions and layers of the tables, as nodes of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        nodes, self.defaults, self.functions, self.of_layer, self.kernels = _tables()
        graph.share(nodes)
        self.identity, self.flatten = graph.dotted("nn.Identity"), graph.dotted("nn.Flatten")
        self.hardtanh = graph.dotted("nn.Hardtanh")

    def named(self, function: Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call. If the function belongs to a layer, all but the first are given by name.

        Arguments that equal torch's default are dropped. `kernel_size` and what follows it may be given in both ways.
        """
        kernel = self.kernels.get(function)
        if kernel is not None and len(args) > kernel[0] + 1:
            kwargs = dict(zip(kernel[1][kernel[0] + 1 :], args[kernel[0] + 1 :])) | kwargs
            args = args[: kernel[0] + 1]
        usual = self.defaults.get(function)
        if usual is not None:
            kwargs = {k: v for k, v in kwargs.items() if k not in usual or not _is(v, usual[k])}
        if KERNEL in kwargs and kernel is not None and kernel[0] == len(args):
            kwargs = dict(kwargs)
            args = [*args, kwargs.pop(KERNEL)]
        order = self.functions.get(function)
        if order is None or len(args) < 2:
            return args, kwargs
        if len(args) - 1 > len(order) or set(kwargs) & set(order[: len(args) - 1]):
            raise Unreadable("a call with arguments that the function does not take")
        return args[:1], dict(zip(order, args[1:])) | kwargs

    def is_identity(self, build: Node) -> bool:
        return build.key[:2] == ("call", self.identity)

    def is_stateless(self, build: Node) -> bool:
        """Return True if a layer is only a function: no tensors, no state."""
        return build.key[0] == "call" and (
            build.key[1] in self.of_layer or build.key[1] in (self.identity, self.flatten, self.hardtanh)
        )

    def function(self, build: Node, value: Any) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return what a stateless layer computes: a function, its arguments and keywords."""
        _, layer, args, kwargs = build.key
        if layer is self.flatten:
            if args or kwargs:
                raise Unreadable("an nn.Flatten of other axes than all but the first")
            return self.graph.make("attribute", value, "flatten"), [1], {}
        if layer is self.hardtanh:
            if len(args) != 2 or kwargs:
                raise Unreadable("an nn.Hardtanh without both bounds")
            return self.graph.make("attribute", value, "clamp"), list(args), {}
        function, names = self.of_layer[layer]
        if len(args) > len(names):
            raise Unreadable("a layer with more arguments than it takes")
        return function, [value], dict(zip(names, args)) | dict(kwargs)


@cache
def _tables() -> tuple[
    Graph,
    dict[Node, dict[str, Any]],
    dict[Node, tuple[str, ...]],
    dict[Node, tuple[Node, tuple[str, ...]]],
    dict[Node, tuple[int, tuple[str, ...]]],
]:
    """Return the nodes of the tables in a graph of their own; the defaults and the further arguments of functions; the
    function of each layer with its arguments; and which argument `kernel_size` is, of which ones.
    """
    graph = Graph()
    usual = DEFAULTS | {name: given for name in sorted(helper_names()) if (given := arguments(name)[1])}
    defaults = {graph.dotted(name): given for name, given in usual.items()}
    functions = {
        graph.dotted(f): SIGNATURES[f][1:] if f in SIGNATURES else SIGNATURES[layer] for f, layer in LAYER_OF.items()
    }
    of_layer = {graph.dotted(layer): (graph.dotted(f), SIGNATURES[layer]) for f, layer in LAYER_OF.items()}
    kernels = {
        graph.dotted(name): (order.index(KERNEL), order) for name, order in SIGNATURES.items() if KERNEL in order
    }
    return graph, defaults, functions, of_layer, kernels


def constant(value: Any) -> tuple[str, str]:
    """Return a constant with its type: 1, True and 1.0 differ. Floats and text may be of onnxgen's own classes."""
    for kind in (float, str):
        if isinstance(value, kind):
            return kind.__name__, kind.__repr__(value)
    return type(value).__name__, repr(value)


def _is(value: Any, usual: Any) -> bool:
    """Return True if an argument is this constant."""
    given = value.key[1:] if isinstance(value, Node) and value.key[0] == "constant" else constant(value)
    return bool(given == constant(usual))
