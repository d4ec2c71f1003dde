"""What options ask of a file's inputs and outputs: a part of the graph, values, and shapes.

- `--inputs VALUE`, `--outputs VALUE`: the model is cut to the part between values of its main graph.
- `--const NAME=VALUE`: an input becomes a stored tensor, and is no longer an input.
- `--input-shape`: dims of inputs are fixed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problems, did_you_mean
from onnxgen.graph.annotations import RANKLESS
from onnxgen.graph.nodes import all_nodes, subgraphs
from onnxgen.reader.protos import put, taken
from onnxgen.record.way_back import Cut


def cut_graph(graph: onnx.GraphProto, cut: Cut, known: Mapping[str, onnx.TypeProto]) -> None:
    """Reduce a graph to the part between the values of these names. Graph inputs that the part needs stay inputs.

    Args:
        graph: the file's graph; it is changed in place.
        known: the types of values, at least those of the part's inputs.

    Raises:
        OnnxgenError: there is no such value, or the outputs don't depend on an input.
    """
    inputs, outputs = cut
    _check(graph, cut)
    declared = {value.name: value for value in graph.input} | {name: _info(name, known) for name in inputs}
    ends = [_info(name, known) for name in outputs] or list(graph.output)
    kept, reached = _above(graph, [value.name for value in ends], inputs)
    stored = {tensor.name for tensor in graph.initializer}
    rest = [value.name for value in graph.input if value.name in reached | stored and value.name not in inputs]
    is_kept = set(map(id, kept))
    put(graph.node, [node for node in graph.node if id(node) in is_kept])
    put(graph.input, [declared[name] for name in (*inputs, *rest)])
    put(graph.output, ends)
    put(graph.value_info, [value for value in graph.value_info if value.name not in (*inputs, *outputs)])


def _above(graph: onnx.GraphProto, ends: list[str], inputs: Sequence[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes that compute values from the inputs of a part, and the values that they need.

    Raises:
        OnnxgenError: no value depends on one of the inputs.
    """
    makers = {name: node for node in graph.node for name in node.output}
    kept, reached, todo = list[onnx.NodeProto](), set[str](), ends
    while todo:
        name = todo.pop()
        if name not in reached and name in makers and name not in inputs:
            kept.append(makers[name])
            todo.extend(taken(makers[name]))
        reached.add(name)
    if idle := [printable(name) for name in inputs if name not in reached]:
        raise OnnxgenError(*(f"--inputs: no output depends on {name}" for name in idle))
    return kept, reached


def _check(graph: onnx.GraphProto, cut: Cut) -> None:
    """Check the names of a cut. Raises `OnnxgenError` for names that are unknown or contradict each other."""
    problems = Problems()
    stored = {tensor.name for tensor in graph.initializer}
    computed = {name: None for node in graph.node for name in node.output if name}
    computed |= {value.name: None for value in graph.input if value.name not in stored}
    for option, names in zip(("--inputs", "--outputs"), cut, strict=True):
        for name in names:
            if name not in computed:
                near = ", ".join(map(printable, difflib.get_close_matches(name, computed, 3, 0.4)))
                what = "is stored in the file, not computed" if name in stored else "is not a value of the graph"
                way_out = f"did you mean {near}?" if near else "a viewer such as Netron shows the names of values"
                problems.add(f"{option}: {printable(name)} {what}", help=way_out)
            elif names.count(name) > 1 or (name in cut[0] and name in cut[1]):
                problems.add(f"{option}: {printable(name)} is named twice")
    problems.raise_if_any()


def _info(name: str, known: Mapping[str, onnx.TypeProto]) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name, type=known.get(name))


def types_of(graph: ir.Graph, names: Iterable[str]) -> dict[str, onnx.TypeProto]:
    """Return the types of the named values; `propagate` must have run. Raises `OnnxgenError` if a type is unknown."""
    from onnxgen.shapes.info import info  # imported here: `shapes` needs this package for the types of maps

    problems, types = Problems(), {}
    values = {v.name: v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    for name in names:
        facts = info(values[name])
        if facts.dtype is None or facts.kind != "tensor":
            problems.add(f"--inputs: the type of {printable(name)} is unknown")
            continue
        dims = None if facts.shape is None else [d if isinstance(d, int) else str(d) for d in facts.shape]
        types[name] = onnx.helper.make_tensor_type_proto(int(facts.dtype), dims)
    problems.raise_if_any()
    return types


Given = Mapping[str, "float | Sequence[float]"]


def fix_constants(graph: onnx.GraphProto, constants: Given, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs their values, in place. As ONNX has it, an input with a stored tensor is one with a default.

    Args:
        constants: by input a number, which fills it, or all of its elements in row-major order; truth values for
            booleans.
        shapes: dims that are fixed besides (`Options.input_shapes`), -1 for those that are not.

    Raises:
        OnnxgenError: there is no such input, its sizes are open, or the value is not of its type or shape.
    """
    problems, stored = Problems(), {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in stored}
    for name, value in constants.items():
        if name not in inputs:
            why = "stored in the file" if name in stored else "no input of the model"
            problems.add(f"--const: {printable(name)} is {why}", help=did_you_mean(name, map(printable, inputs)))
            continue
        try:
            tensor = _tensor(inputs[name].type, value, shapes.get(name))
        except ValueError as error:
            problems.add(f"--const {printable(name)}: {error}")
            continue
        proto = ir.serde.serialize_tensor(tensor)
        proto.name = name
        graph.initializer.append(proto)
    problems.raise_if_any()
    if constants and inputs.keys() <= constants.keys():
        raise OnnxgenError("--const gives all inputs, so no data would reach the network", help="leave one out")


def _tensor(
    declared: onnx.TypeProto, value: float | Sequence[float], wanted: Sequence[int] | None
) -> ir.TensorProtocol:
    """Return the tensor of an input. Raises `ValueError` with what is wrong."""
    kind = declared.tensor_type.elem_type
    if not declared.HasField("tensor_type") or kind in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        raise ValueError("the input takes no numbers")
    dtype, count = ir.DataType(kind), None if isinstance(value, (int, float)) else len(value)
    sizes = _sizes(declared, wanted, count)
    if count is not None and math.prod(sizes) != count:
        raise ValueError(f"{count} numbers, but the input has {math.prod(sizes)} elements, {sizes}")
    numbers = np.broadcast_to(np.array(value, object).reshape(sizes if count is not None else ()), sizes)
    return ir.Tensor(_cast(numbers, dtype), dtype=dtype)


def _sizes(declared: onnx.TypeProto, wanted: Sequence[int] | None, count: int | None) -> list[int]:
    kind = declared.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
    if not kind.HasField("shape"):  # a number alone is a scalar
        dims = list(wanted if wanted is not None else () if count is None else (-1,))
    elif wanted is not None and len(wanted) == len(dims):
        dims = [dim if size == -1 else size for dim, size in zip(dims, wanted)]
    if dims == [-1] and count is not None:
        return [count]
    if -1 in dims:
        shown = printable(", ".join(map(_shown, kind.shape.dim)))
        raise ValueError(f"the sizes [{shown}] of the input are open; fix them, too, with --input-shape")
    return dims


def _shown(dim: onnx.TensorShapeProto.Dimension) -> str:
    return dim.dim_param or str(dim.dim_value or "?")


def _cast(numbers: NDArray[Any], dtype: ir.DataType) -> NDArray[Any]:
    """Return numbers in a type that holds each of them: floats may be rounded. Raises `ValueError`."""
    array = np.empty(numbers.shape, dtype.numpy())
    for place, number in np.ndenumerate(numbers):
        wrong = f"the input is {dtype.name.lower()}, which {number} is not"
        if dtype == ir.DataType.BOOL and number not in (0, 1):
            raise ValueError(wrong)
        try:
            with np.errstate(over="ignore"):
                array[place] = number
        except (OverflowError, TypeError, ValueError):
            raise ValueError(wrong) from None
        element = array[place]
        if not (np.isfinite(element.astype(np.float64)) if dtype.is_floating_point() else element == number):
            raise ValueError(wrong)
    return array


def fix_inputs(model: ir.Model, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Set graph inputs to the dims in `wanted` (-1: keep the dim). A named dim gets its size in the whole model.

    Raises:
        OnnxgenError: there is no such input, its rank differs, or the file fixes a dim to another size.
    """
    problems = Problems()
    inputs = {value.name: value for value in model.graph.inputs}
    sizes: dict[str, int] = {}
    for name, dims in wanted.items():
        value = inputs.get(name)
        if value is None:
            known = ", ".join(printable(str(known)) for known in inputs) or "none"
            problems.add(f"--input-shape: the model has no input {printable(name)}", help=f"its inputs are: {known}")
        elif problem := _fix(value, dims, sizes):
            problems.add(f"--input-shape of {printable(name)}: {problem}")
    problems.raise_if_any()
    for value in model.graph.inputs:
        if value.shape is None:
            RANKLESS.set(value, True)
    for value in _values(model.graph):
        if value.shape is not None and any(_size(dim, sizes) is not None for dim in value.shape):
            value.shape = ir.Shape([dim if (n := _size(dim, sizes)) is None else n for dim in value.shape])


def _fix(value: ir.Value, dims: Sequence[int], sizes: dict[str, int]) -> str | None:
    """Set one input's dims and record the sizes of its named dims. Returns an error description, or None."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return "the input is not a tensor"
    if any(dim < -1 for dim in dims):
        return f"{tuple(dims)} has a negative dim"
    old = value.shape
    if old is not None and len(old) != len(dims):
        return f"the input has {len(old)} dims, not {len(dims)}"
    new: list[int | ir.SymbolicDim | None] = []
    for axis, dim in enumerate(dims):
        before = None if old is None else old[axis]
        if dim == -1:
            new.append(before)
            continue
        if isinstance(before, int) and before != dim:
            return f"the file fixes dim {axis} at {before}, not {dim}"
        name = before.value if isinstance(before, ir.SymbolicDim) else None
        if isinstance(name, str) and sizes.setdefault(name, dim) != dim:
            return f"dim {axis} is {printable(name)}, which is {sizes[name]} elsewhere, not {dim}"
        new.append(dim)
    value.shape = ir.Shape(new)
    return None


def _size(dim: int | ir.SymbolicDim, sizes: Mapping[str, int]) -> int | None:
    return sizes.get(dim.value) if isinstance(dim, ir.SymbolicDim) and isinstance(dim.value, str) else None


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value of a graph and its subgraphs that may declare a shape."""
    yield from graph.inputs
    for node in all_nodes(graph):
        yield from node.outputs
        for inner in subgraphs(node):
            yield from inner.inputs
