"""Give inputs of a model a value (`--const NAME=VALUE`): each becomes a stored tensor, and is no longer an input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problems, did_you_mean

Given = Mapping[str, "float | Sequence[float]"]


def fix_constants(graph: onnx.GraphProto, given: Given, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs their values, in place. As ONNX has it, an input with a stored tensor is one with a default.

    Args:
        given: by input a number, which fills it, or all of its elements in row-major order; truth values for booleans.
        shapes: dims that are fixed besides (`Options.input_shapes`), -1 for those that are not.

    Raises:
        OnnxgenError: there is no such input, its sizes are open, or the value is not of its type or shape.
    """
    problems, stored = Problems(), {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in stored}
    for name, value in given.items():
        if name not in inputs:
            what = (
                f"--const: {printable(name)} is {'stored in the file' if name in stored else 'no input of the model'}"
            )
            problems.add(what, help=did_you_mean(name, map(printable, inputs)))
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
    if given and inputs.keys() <= given.keys():
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
    if not kind.HasField("shape"):
        dims = list(wanted) if wanted is not None else [-1] if count is not None else []
    elif wanted is not None and len(wanted) == len(dims):
        dims = [dim if size == -1 else size for dim, size in zip(dims, wanted)]
    if dims == [-1] and count is not None:
        return [count]
    if -1 in dims:
        shown = ", ".join(dim.dim_param or str(dim.dim_value or "?") for dim in kind.shape.dim)
        raise ValueError(f"the sizes [{printable(shown)}] of the input are open; fix them, too, with --input-shape")
    return dims


def _cast(numbers: NDArray[Any], dtype: ir.DataType) -> NDArray[Any]:
    """Return numbers in a type that holds each of them: floats may be rounded. Raises `ValueError`."""
    made = np.empty(numbers.shape, dtype.numpy())
    for place, number in np.ndenumerate(numbers):
        wrong = f"the input is {dtype.name.lower()}, which {number} is not"
        if dtype == ir.DataType.BOOL and number not in (0, 1):
            raise ValueError(wrong)
        try:
            with np.errstate(over="ignore"):
                made[place] = number
        except (OverflowError, TypeError, ValueError):
            raise ValueError(wrong) from None
        found = made[place]
        if not (np.isfinite(found.astype(np.float64)) if dtype.is_floating_point() else found == number):
            raise ValueError(wrong)
    return made
