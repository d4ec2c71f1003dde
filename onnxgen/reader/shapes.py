"""Fix dims of graph inputs as the user asks (`options.input_shapes`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import Problems
from onnxgen.graph.annotations import RANKLESS
from onnxgen.graph.nodes import all_nodes, subgraphs


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
