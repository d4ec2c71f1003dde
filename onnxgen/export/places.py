"""Stored tensors in the protobuf of an ONNX file, to read and replace in place.

A tensor has the name that the weight record uses: the name of an initializer, of a Constant node's output, or
`reader.graph.table_name` for an attribute of a classical model.

`Sharing` separates tensors that the file shares and training made different: each further value gets a new initializer.
The sidecar records which node inputs stand for which state-dict key (`onnxgen.lowering.sharing`). `Integers` converts
trained floats to the integers that the file stores for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import Namer, printable
from onnxgen.errors import OnnxgenError
from onnxgen.reader.graph import table_name, tables_of
from onnxgen.reader.normal import distinct
from onnxgen.reader.protos import inner_graphs, uses, with_inner
from onnxgen.reader.tensors import dense
from onnxgen.record.way_back import Uses, parts
from onnxgen.weights.dequantised import Dequantised
from onnxgen.weights.provenance import rebuild

Array = NDArray[Any]
# protobuf field and numpy type of typed elements; tensors of other types are written as raw bytes
_TYPED: dict[int, tuple[str, Any]] = {
    onnx.TensorProto.FLOAT: ("float_data", np.float32),
    onnx.TensorProto.DOUBLE: ("double_data", np.float64),
    onnx.TensorProto.FLOAT16: ("int32_data", np.uint16),
    onnx.TensorProto.BFLOAT16: ("int32_data", np.uint16),
    onnx.TensorProto.INT64: ("int64_data", np.int64),
    onnx.TensorProto.INT32: ("int32_data", np.int32),
}
_FIELDS: Any = "raw_data float_data int32_data int64_data double_data uint64_data string_data".split()


@dataclass
class StoredTensor:
    """One stored tensor in a protobuf.

    Attributes:
        name: see the module docstring.
        tensor: its protobuf; None if the elements are in another kind of attribute.
        sparse: its sparse protobuf, if it is sparse.
        attribute: the attribute of a Constant node or classical model that holds it, if one does.
        graph: the graph that has it as an initializer, if one does.
    """

    name: str
    tensor: onnx.TensorProto | None = None
    sparse: onnx.SparseTensorProto | None = None
    attribute: onnx.AttributeProto | None = None
    graph: onnx.GraphProto | None = None

    @property
    def is_external(self) -> bool:
        return self.tensor is not None and self.tensor.data_location == onnx.TensorProto.EXTERNAL

    def read(self, folder: Path) -> ir.TensorProtocol:
        """Return the tensor. External data (in `folder`) is mapped when it is first used."""
        if self.tensor is not None:
            return ir.serde.deserialize_tensor(self.tensor, str(folder))
        if self.sparse is not None:
            return ir.serde.deserialize_tensor(dense(self.sparse))
        assert self.attribute is not None
        value = self.attribute.f if self.attribute.name == "value_float" else list(self.attribute.floats)
        return ir.tensor(np.asarray(value, np.float32))

    def write(self, array: Array) -> bool:
        """Replace the elements. Returns False if a sparse tensor became dense, because new elements are nonzero."""
        if self.tensor is not None:
            fill(self.tensor, array)
        elif self.sparse is not None:
            return self._write_sparse(array)
        elif self.attribute is not None and self.attribute.name == "value_float":
            self.attribute.f = float(array)
        elif self.attribute is not None:
            self.attribute.floats[:] = array.reshape(-1).tolist()
        return True

    def resize(self, shape: tuple[int, ...]) -> bool:
        """Change the shape; the elements must be written afterwards. Returns False if this tensor can't change it."""
        if self.tensor is None or (self.attribute is not None and self.attribute.name != "value"):
            return self.attribute is not None and self.attribute.name == "value_floats" and len(shape) == 1
        self.tensor.dims[:] = shape
        return True

    def _write_sparse(self, array: Array) -> bool:
        assert self.sparse is not None
        where = onnx.numpy_helper.to_array(self.sparse.indices)
        flat = where if where.ndim == 1 else np.ravel_multi_index(tuple(where.T), tuple(self.sparse.dims))
        if np.count_nonzero(array) == np.count_nonzero(array.reshape(-1)[flat]):
            fill(self.sparse.values, array.reshape(-1)[flat])
            return True
        tensor = onnx.TensorProto(name=self.name, data_type=self.sparse.values.data_type, dims=array.shape)
        fill(tensor, array)
        if self.graph is not None:
            self.graph.sparse_initializer.remove(self.sparse)
            self.graph.initializer.append(tensor)
        else:
            assert self.attribute is not None
            self.attribute.Clear()
            self.attribute.name, self.attribute.type = "value", onnx.AttributeProto.TENSOR
            tensor.ClearField("name")
            self.attribute.t.CopyFrom(tensor)
        return False


def fill(tensor: onnx.TensorProto, array: Array) -> None:
    """Replace a tensor's elements, in the protobuf field that it uses."""
    field, kind = _TYPED.get(tensor.data_type, ("", None))
    is_typed = bool(field) and len(getattr(tensor, field)) > 0
    for name in _FIELDS:
        tensor.ClearField(name)
    if is_typed and kind is not None:
        getattr(tensor, field).extend(np.ascontiguousarray(array).reshape(-1).view(kind).tolist())
    else:
        tensor.raw_data = ir.tensor(np.ascontiguousarray(array), ir.DataType(tensor.data_type)).tobytes()


def places_of(file: Path) -> dict[str, StoredTensor]:
    """Return the stored tensors of a file by name."""
    model = onnx.load(file, load_external_data=False)
    distinct(model)
    return {place.name: place for place in places(model)}


def places(model: onnx.ModelProto) -> Iterator[StoredTensor]:
    """Yield every stored tensor of a model's graph and its subgraphs."""
    yield from _of_graph(model.graph)


def _of_graph(graph: onnx.GraphProto) -> Iterator[StoredTensor]:
    for tensor in graph.initializer:
        yield StoredTensor(tensor.name, tensor, graph=graph)
    for sparse in list(graph.sparse_initializer):
        yield StoredTensor(sparse.values.name, sparse=sparse, graph=graph)
    yield from places_in(graph.node)


def places_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[StoredTensor]:
    """Yield every stored tensor of nodes and their subgraphs."""
    for node in nodes:
        for graph in inner_graphs(node):
            yield from _of_graph(graph)
        for attribute in node.attribute:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx") and node.output:
                if attribute.name == "value" and attribute.HasField("t"):
                    yield StoredTensor(node.output[0], attribute.t, attribute=attribute)
                elif attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                    yield StoredTensor(node.output[0], sparse=attribute.sparse_tensor, attribute=attribute)
                elif attribute.name in ("value_float", "value_floats"):
                    yield StoredTensor(node.output[0], attribute=attribute)
            elif attribute.name in tables_of(node.domain, node.op_type):
                name = table_name(attribute.name, node.output)
                yield StoredTensor(name, attribute.t if attribute.HasField("t") else None, attribute=attribute)


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
        sources = list(parts(entries, value.shape))
        keys_of: dict[tuple[str, int], set[str]] = {}
        for key, sites in self.uses.get(name, {}).items():
            for output, index in sites:
                keys_of.setdefault((output, index), set()).add(key)
        added: dict[str, Array] = {}
        settled: set[str] = set()
        for site, keys in keys_of.items():
            here = self._value(name, [part for part in sources if part["key"] in keys], value, dtype)
            settled |= keys
            if not same(here, value):
                self._rewire(site, name, self._added(added, name, here))
        for part in sources:
            if part["key"] not in settled and not same(self._value(name, [part], value, dtype), value):
                what = f"the file stores {printable(name)} once for several tensors"
                raise CannotWriteBack(f"{what}, but the values now differ")
        return added

    def _value(self, name: str, sources: list[dict[str, Any]], value: Array, dtype: ir.DataType) -> Array:
        """Return the tensor for users of these parts alone. Elements outside the parts are those of `value`."""

        def of(chosen: list[dict[str, Any]], base: Array) -> Array:
            entry = {"shape": list(value.shape), "dtype": dtype.name, "parts": chosen, "partial": True}
            return rebuild({name: entry}, name, self.get, base)

        tensor = of(sources, value)
        if any(not same(of([part], tensor), tensor) for part in sources):
            raise CannotWriteBack(f"one node uses {printable(name)} for several tensors, but the values now differ")
        return tensor

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


Get = Callable[[str], Array]


def scales_alone(model: onnx.ModelProto) -> Callable[[Dequantised], bool]:
    """Return a function that says if nothing but one tensor of integers has its scale.

    The nodes that use the scale take these integers, too, or it is one Mul behind them.
    """
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in with_inner([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        for name in {*node.input}:
            users.setdefault(name, []).append(node)

    def alone(how: Dequantised) -> bool:
        others = [node for node in users.get(how.scales[0], ()) if how.tensor not in node.input]
        return not others or len(others) == 1 and others[0].op_type == "Mul"

    return alone


class Integers:
    """The file's integer tensors that float tensors of the record represent, and their new values.

    Args:
        tensors: the weight record: how each tensor is made of the state dict.
        record: for each float tensor that the file stores as integers, its recorded `Dequantised`.
        state: returns the state-dict tensor of a key.
        before: returns the file's tensor of a name.
        alone: of a module of floats, returns True if a tensor of integers alone has its scale, which may change then.
            None: training saw rounding and saturation, by the file's scales or learned ones.

    Attributes:
        moved: the float tensors that training changed.
        rescaled: new scales, of tensors whose trained values are beyond the range of their integers.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        record: Mapping[str, Mapping[str, Any]],
        state: Get,
        before: Get,
        alone: Callable[[Dequantised], bool] | None = None,
    ) -> None:
        self.tensors, self.state, self.before = tensors, state, before
        self.draw = alone is not None
        self.floats = {name: Dequantised.of_record(how) for name, how in record.items() if name in tensors}
        self.moved: set[str] = set()
        self.by_tensor: dict[str, list[str]] = {}
        for name, how in self.floats.items():
            self.by_tensor.setdefault(how.tensor, []).append(name)
        self.products = {how.scales[0]: how for how in self.floats.values() if how.product}
        scales = Counter(scale for how in self.floats.values() for scale in how.scales)
        self.rescaled: dict[str, Array] = {}
        for name, how in self.floats.items():
            single = len(how.scales) == 1 and scales[how.scales[0]] == 1 and how.scales[0] not in tensors
            if alone is not None and single and len(self.by_tensor[how.tensor]) == 1 and alone(how):
                floats = self.trained(name)
                scale = how.rescaled(floats, before) if floats.shape == how.shape else None  # else of a new head
                self.rescaled |= {} if scale is None else {how.scales[0]: scale}

    def rank(self, name: str) -> int:
        """Return the position in the order of writing: a tensor comes after those that are computed from it."""
        return 0 if name in self.by_tensor else 1 if name in self.products else 2

    def now(self, name: str) -> Array:
        """Return a tensor of the file that is not integers, with its trained value if it was trained."""
        if name in self.rescaled:
            return self.rescaled[name]
        before = self.before(name)
        if name in self.tensors:
            return np.asarray(rebuild(self.tensors, name, self.state, before)).astype(before.dtype, copy=False)
        how = self.products.get(name)
        if how is not None and not all(same(self.now(part), self.before(part)) for part in how.product):
            product = np.prod(np.broadcast_arrays(*(self.now(part) for part in how.product)), axis=0)
            return np.asarray(product, before.dtype).reshape(before.shape)
        return before

    def value(self, names: list[str]) -> Array:
        """Return the integers for float tensors. Raises `CannotWriteBack` if one tensor cannot hold them all."""
        values = [self._value(name) for name in names]
        if not all(same(value, values[0]) for value in values[1:]):
            tensor = printable(self.floats[names[0]].tensor)
            what = f"the file stores {tensor} once for tensors with several scales"
            raise CannotWriteBack(f"{what}, but the values now differ")
        return values[0]

    def _value(self, name: str) -> Array:
        how = self.floats[name]
        original, floats = how.floats(self.before), self.trained(name)
        entries = self.tensors[name]
        for index in range(1, len(entries) if isinstance(entries, list) else 1):
            if not np.array_equal(rebuild(self.tensors, name, self.state, floats, index), floats):
                what = f"the file stores {printable(how.tensor)} once for several tensors"
                raise CannotWriteBack(f"{what}, but the values now differ")
        if not np.array_equal(floats, original.astype(np.asarray(floats).dtype)):
            self.moved.add(name)
        try:
            return how.integers(floats, self.now, self.before, self.draw)
        except FloatingPointError as error:
            raise OnnxgenError(f"{printable(how.tensor)} cannot be written as integers: {error}") from None

    def trained(self, name: str) -> Array:
        """Return the trained floats of a tensor."""
        return np.asarray(rebuild(self.tensors, name, self.state, self.floats[name].floats(self.before)))
