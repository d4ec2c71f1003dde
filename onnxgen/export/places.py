"""Stored tensors in the protobuf of an ONNX file, to read and replace in place.

A tensor has the name that the weight record uses: the name of an initializer, of a Constant node's output, or
`reader.tables.table_name` for an attribute of a classical model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.reader.distinct import distinct
from onnxgen.reader.protos import inner_graphs
from onnxgen.reader.tables import table_name, tables_of
from onnxgen.reader.tensors import dense

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
