"""Reading: from a path to a checked `onnx_ir.Model` (see docs/ARCHITECTURE.md)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir import external_data

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.graph.annotations import DATA_FILES, map_types, note_maps, note_nodes, note_read
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import named
from onnxgen.options import Options
from onnxgen.reader.check import check, check_signatures
from onnxgen.reader.graph import check_functions, inline, settle_states, store_tables
from onnxgen.reader.inputs import cut_graph, fix_constants, fix_inputs, types_of
from onnxgen.reader.normal import distinct, drop_duplicates, normalize, separate
from onnxgen.reader.parsing import parse, put_elements, rehearse
from onnxgen.record.way_back import cut_of
from onnxgen.scopes.origin import note_origin, param_path
from onnxgen.scopes.recorded import note_parameter_names, note_variables

__all__ = ["param_path", "read"]


def read(path: Path, options: Options, *, rehearsed: bool = False) -> ir.Model:
    """Read an ONNX file.

    Nodes are sorted, and local functions are inlined. A node of a function that imports another opset carries its own
    `version`. Inputs with an initializer are no longer inputs. Named dims get their sizes from `options.input_shapes`.
    The graph is reduced to the part between `options.inputs` and `options.outputs`.
    Inputs in `options.const` are stored. `SCOPE` and `CLASSES` record the origin of nodes.
    No weight is read. Inline tensors stay in the protobuf; large ones stay in the file, which is held open. External
    ones are mapped when first used.

    Args:
        rehearsed: this is the process that reads a large file first (see `reader.parse`).

    Raises:
        OnnxgenError: something is wrong with the file or these options; all of it at once if the file can be parsed.
    """
    proto, source = parse(path, options.limits, None if rehearsed else lambda: rehearse(path, options))
    # Links are not resolved: external data lies beside the path that the user gave.
    folder = Path(os.path.abspath(path)).parent
    drop_duplicates(proto)
    sorted_already = check(proto, folder, options.limits)
    check_functions(proto, options.limits)
    if (cut := cut_of(options)) is not None:
        cut_graph(proto.graph, cut, _input_types(path, options))
    fix_constants(proto.graph, options.const, options.input_shapes)
    maps = map_types(proto.graph)
    normalize(proto)
    distinct(proto)
    separate(proto)
    model = _deserialize(proto)
    if source is not None:
        put_elements(model.graph, source)
    note_maps(model.graph, maps)
    if not sorted_already:
        model.graph.sort()
        for function in model.functions.values():
            function.sort()
    _leave_to_others(model)
    inline(model)
    check_signatures(model)
    store_tables(model)
    external_data.set_base_dir(model.graph, folder)
    DATA_FILES.set(model, _data_files(model.graph))
    note_read(model, path)
    _drop_default_inputs(model.graph)
    fix_inputs(model, {name: dims for name, dims in options.input_shapes.items() if name not in options.const})
    settle_states(model)
    note_origin(model)
    note_variables(model)
    note_parameter_names(model)
    note_nodes(model)
    return model


def _input_types(path: Path, options: Options) -> dict[str, onnx.TypeProto]:
    """Return the types of the values at which a part of the network begins."""
    from onnxgen.shapes import propagate  # imported here: `shapes` needs this package for the types of maps

    whole = read(path, replace(options, inputs=(), outputs=(), input_shapes={}, const={}))
    propagate(whole.graph, options)
    names = {value.name for value in (*whole.graph.inputs, *(v for node in whole.graph for v in node.outputs))}
    return types_of(whole.graph, [name for name in options.inputs if name in names])


def _leave_to_others(model: ir.Model) -> None:
    """Remove the local functions that are not inlined: a named plugin wins, and so does an operator of onnxruntime."""
    from onnxgen.shapes.infer import is_operator  # imported here: `shapes` needs this package for the types of maps

    for key, function in list(model.functions.items()):
        operator = function.domain, function.name, model.opset_imports.get(function.domain, 1)
        if named(*operator) is not None or (not function.overload and is_operator(*operator)):
            del model.functions[key]


def _deserialize(proto: onnx.ModelProto) -> ir.Model:
    try:
        return ir.from_proto(proto)
    except Exception as error:  # hostile files raise errors of every kind; all mean bad input
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise OnnxgenError(f"not a valid ONNX model: {printable(str(cause), 300)}") from None


def _data_files(graph: ir.Graph) -> set[Path]:
    """Return the files that hold external tensors."""
    attributes = (a for node in all_nodes(graph) for a in node.attributes.values())
    tensors = [value.const_value for g in (graph, *graph.subgraphs()) for value in g.initializers.values()]
    # not `as_tensor`: its protocol check takes longer than everything else here
    tensors += [a.value for a in attributes if a.type == ir.AttributeType.TENSOR and not a.is_ref()]
    return {Path(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}


def _drop_default_inputs(graph: ir.Graph) -> None:
    """Remove graph inputs with an initializer, which are weights (before IR version 4 each one was also an input)."""
    for value in [value for value in graph.inputs if value.is_initializer()]:
        graph.inputs.remove(value)
    for value in graph.initializers.values():
        if value.const_value is not None:
            # The stored data decides the type, not the declaration.
            value.shape = ir.Shape(value.const_value.shape.numpy())
            value.type = ir.TensorType(value.const_value.dtype)
