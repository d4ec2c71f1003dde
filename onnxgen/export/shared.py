"""Separate tensors that the file shares and training made different: each further value gets a new initializer.

The sidecar records which node inputs stand for which state-dict key (`onnxgen.lowering.uses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import Namer, printable
from onnxgen.export.places import Array
from onnxgen.reader.protos import inner_graphs, uses, with_inner
from onnxgen.record.way_back import Uses, parts
from onnxgen.weights.provenance import rebuild


class CannotWriteBack(Exception):
    """The original graph cannot hold the trained values. The text gives the reason."""


def same(a: Array, b: Array) -> bool:
    """Return True if two arrays of one dtype have identical bytes."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    first, second = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return bool(np.array_equal(first, second))


class Sharing:
    """Gives the users of a shared tensor the trained values of their state-dict keys.

    Args:
        model: the protobuf, whose node inputs are changed.
        uses: as the sidecar recorded them.
        get: the state-dict tensor of a key.
    """

    def __init__(self, model: onnx.ModelProto, uses: Uses, get: Callable[[str], Array]) -> None:
        self.model, self.uses, self.get = model, uses, get
        self.nodes: dict[str, list[onnx.NodeProto]] = {}  # both branches of an If may have an output of one name
        for node in with_inner(model.graph.node):
            for output in filter(None, node.output):
                self.nodes.setdefault(output, []).append(node)
        self.names = Namer(used_names(model.graph))

    def separate(self, name: str, entries: list[Any], value: Array) -> dict[str, Array]:
        """Return the additional values that the users of a shared tensor need, by new names, and rewire the users to
        them.

        Raises:
            CannotWriteBack: it is not known who uses the tensor for which key.
        """
        dtype = ir.DataType.from_numpy(value.dtype)
        found = list(parts(entries, value.shape))
        keys_of: dict[tuple[str, int], set[str]] = {}
        for key, sites in self.uses.get(name, {}).items():
            for output, index in sites:
                keys_of.setdefault((output, index), set()).add(key)
        added: dict[str, Array] = {}
        settled: set[str] = set()
        for site, keys in keys_of.items():
            here = self._value(name, [part for part in found if part["key"] in keys], value, dtype)
            settled |= keys
            if not same(here, value):
                self._rewire(site, name, self._added(added, name, here))
        for part in found:
            if part["key"] not in settled and not same(self._value(name, [part], value, dtype), value):
                raise CannotWriteBack(
                    f"the file stores {printable(name)} once for several tensors, but the values now differ"
                )
        return added

    def _value(self, name: str, found: list[dict[str, Any]], value: Array, dtype: ir.DataType) -> Array:
        """Return the tensor for users of these parts alone. Elements outside the parts are those of `value`."""

        def of(chosen: list[dict[str, Any]], base: Array) -> Array:
            entry = {"shape": list(value.shape), "dtype": dtype.name, "parts": chosen, "partial": True}
            return rebuild({name: entry}, name, self.get, base)

        made = of(found, value)
        if any(not same(of([part], made), made) for part in found):
            raise CannotWriteBack(f"one node uses {printable(name)} for several tensors, but the values now differ")
        return made

    def _added(self, added: dict[str, Array], name: str, value: Array) -> str:
        for new, other in added.items():
            if same(value, other):
                return new
        new = self.names.take(name)
        added[new] = value
        return new

    def _rewire(self, site: tuple[str, int], old: str, new: str) -> None:
        output, index = site
        users = [n for n in self.nodes.get(output, ()) if index < len(n.input) and n.input[index] == old]
        if not users:
            raise CannotWriteBack(f"no node of the graph computes {printable(output)} from {printable(old)}")
        for node in users:
            node.input[index] = new


def declare(model: onnx.ModelProto, tensor: onnx.TensorProto) -> None:
    """Add an initializer. Before IR version 4 it is also added as an input of the graph."""
    model.graph.initializer.append(tensor)
    if model.ir_version < 4:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def used_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every value name in a graph and its subgraphs."""
    yield from (info.name for info in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in inner_graphs(node):
            yield from used_names(inner)


def drop_unused(graph: onnx.GraphProto, old: set[str]) -> None:
    """Remove nodes and stored tensors that were used before (`old`, see `uses`) and are not any more."""
    while True:
        gone = old - uses(graph)
        nodes = [node for node in graph.node if gone.issuperset(filter(None, node.output))]
        if not nodes:
            break
        for node in nodes:
            graph.node.remove(node)
    stored = {tensor.name for tensor in graph.initializer} & gone
    for items in (graph.initializer, graph.input):
        for item in [item for item in items if item.name in stored]:
            items.remove(item)
