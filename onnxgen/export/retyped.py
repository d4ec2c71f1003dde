"""Convert the original file to the floating point type that its module was generated in (`--dtype`).

An operator that does not support this type gets Cast nodes around it, and computes in single precision. The module's
layer may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import Namer
from onnxgen.export import files
from onnxgen.export.shared import CannotWriteBack
from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.schemas import types_of
from onnxgen.options import Options
from onnxgen.passes.retype import retype, retype_node
from onnxgen.shapes import propagate

STANDARD = ("", "ai.onnx")
_Formals = Sequence[onnx.defs.OpSchema.FormalParameter]


def retyped_file(source: Path, dtype: ir.DataType, options: Options, folder: Path) -> Path:
    """Write the file in another floating point type into a folder. Nodes and names stay; Cast nodes are added.

    Raises:
        CannotWriteBack: the file's opset has no such type, or it has local functions.
    """
    try:
        model = ir.load(source)
    except Exception as error:  # onnx_ir cannot read some forms, such as types of maps
        raise CannotWriteBack("onnx_ir can't read the file") from error
    is_external = any(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
    if model.functions:
        raise CannotWriteBack("the file has local functions")
    opset = model.opset_imports.get("", 1)
    model.graph.sort()  # in an unsorted file, inputs of a node may not have a known type yet
    propagate(model.graph, options)
    retype(model, dtype, is_file=True)
    casting = _Casting(model, dtype, opset)
    for node in all_nodes(model.graph):
        if node.domain in STANDARD and node.op_type != "Cast":
            casting.fit(node)
    out = folder / source.name
    values = list(model.graph.initializers.values())
    for value in values:
        if isinstance(tensor := value.const_value, ir.ExternalTensor):  # external data lies beside the original
            value.const_value = ir.tensor(np.array(tensor.numpy()), tensor.dtype, name=tensor.name)
    is_large = (
        sum(value.const_value.nbytes for value in values if value.const_value is not None) > files.MAX_PROTOBUF_BYTES
    )
    ir.save(model, out, external_data=f"{out.name}.data" if is_large or is_external else None)
    return out


class _Casting:
    """Puts Cast nodes around operators that do not support a type."""

    def __init__(self, model: ir.Model, dtype: ir.DataType, opset: int) -> None:
        self.dtype, self.opset = dtype, opset
        names = [v.name for node in all_nodes(model.graph) for v in (*node.inputs, *node.outputs) if v is not None]
        self.namer = Namer(name for name in names if name)
        cast = onnx.defs.get_schema("Cast", opset, "")
        if not _takes(cast, cast.outputs[0], dtype):
            raise CannotWriteBack(f"opset {opset} has no {dtype.name.lower()} (upgrade it with onnx.version_converter)")

    def fit(self, node: ir.Node) -> None:
        """Cast the inputs and outputs of a node that must compute in single precision."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        except onnx.defs.SchemaError:
            return
        formals = [_formal(schema.inputs, i) for i in range(len(node.inputs))]
        results = [_formal(schema.outputs, i) for i in range(len(node.outputs))]
        pairs = [*zip(formals, node.inputs, strict=True), *zip(results, node.outputs, strict=True)]
        ours = [f for f, v in pairs if self._is_ours(v) and f is not None]
        narrow = {f.type_str for f in ours if not _takes(schema, f, self.dtype)}
        for i, (formal, value) in enumerate(zip(formals, node.inputs, strict=True)):
            if formal is not None and formal.type_str in narrow and value is not None and value.dtype in FLOATS:
                node.replace_input_with(i, self._before(node, value))
        made = [value for f, value in zip(results, node.outputs, strict=True) if f is not None and f.type_str in narrow]
        for value in filter(self._is_ours, made):
            retype_node(node, ir.DataType.FLOAT)
            self._after(node, value)

    def _is_ours(self, value: ir.Value | None) -> bool:
        return value is not None and value.dtype == self.dtype

    def _before(self, node: ir.Node, value: ir.Value) -> ir.Value:
        if value.dtype == ir.DataType.FLOAT:
            return value
        cast = self._cast(value, ir.DataType.FLOAT, f"{value.name}.float")
        assert node.graph is not None
        node.graph.insert_before(node, cast)
        return cast.outputs[0]

    def _after(self, node: ir.Node, value: ir.Value) -> None:
        cast = self._cast(value, self.dtype, value.name or "made")
        made = cast.outputs[0]
        ir.convenience.replace_all_uses_with(value, made, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        assert node.graph is not None
        node.graph.insert_after(node, cast)
        made.name, value.name = value.name, self.namer.take(f"{value.name}.float")
        made.shape, made.type, value.type = value.shape, value.type, ir.TensorType(ir.DataType.FLOAT)

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
        node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))])
        node.outputs[0].name = self.namer.take(name)
        node.outputs[0].shape, node.outputs[0].type = value.shape, ir.TensorType(dtype)
        return node


def _formal(formals: _Formals, i: int) -> onnx.defs.OpSchema.FormalParameter | None:
    """Return the schema's parameter for an input or output. The last parameter may be variadic."""
    return formals[min(i, len(formals) - 1)] if formals else None


def _takes(schema: onnx.defs.OpSchema, formal: onnx.defs.OpSchema.FormalParameter, dtype: ir.DataType) -> bool:
    return f"tensor({_ONNX[dtype]})" in types_of(schema, formal)


_ONNX = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
