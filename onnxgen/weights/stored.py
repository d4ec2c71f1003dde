"""Tensors that are stored in the file, and values that are only views of them."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Container
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.graph.budget import past, writable
from onnxgen.graph.catalogue import card
from onnxgen.graph.nodes import answered, told
from onnxgen.options import Options
from onnxgen.shapes.info import info
from onnxgen.weights.file_tensor import FileTensor
from onnxgen.weights.provenance import Source, concat
from onnxgen.weights.strided import Array
from onnxgen.weights.views import View


def stored(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or of a Constant node's output, else None."""
    if value is None:
        return None
    if value.const_value is not None and value.producer() is None:
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for name, attribute in node.attributes.items():
        if name == "value":
            tensor: ir.TensorProtocol = attribute.value
            return tensor
        if name in ("value_float", "value_floats"):
            return ir.tensor(np.asarray(attribute.value, np.float32), name=value.name)
        if name in ("value_int", "value_ints"):
            return ir.tensor(np.asarray(attribute.value, np.int64), name=value.name)
        if name in ("value_string", "value_strings"):
            texts = attribute.as_strings() if name == "value_strings" else [attribute.as_string()]
            shape = ir.Shape((len(texts),) if name == "value_strings" else ())
            return ir.StringTensor([t.encode() for t in texts], shape=shape, name=value.name)
    return None


def leading(tensor: ir.TensorProtocol, count: int) -> Array:
    """Return the first `count` elements of a tensor, or all of them if it has fewer."""
    if isinstance(tensor, FileTensor):
        return tensor.elements(0, min(count, tensor.size))
    return tensor.numpy().reshape(-1)[:count]


def peaks_in_order(tensor: ir.TensorProtocol) -> bool:
    """Return True if the first kernels are loudest at the frequencies 0, 1, 2, ..., as those of a Fourier transform."""
    count = tensor.shape.numpy()[0]
    length = tensor.size // count if count >= 8 else 0
    if length < 16:
        return False
    rows = tensor.numpy().reshape(-1)[: 8 * length].astype(np.float64).reshape(8, length)
    return bool((np.abs(np.fft.rfft(rows)).argmax(axis=1)[2:] == range(2, 8)).all())


def is_uniform(tensor: ir.TensorProtocol) -> bool:
    """Return True for a vector of equal numbers. Untrained layers have those, so equal vectors may be unrelated."""
    if tensor.size < 2 or max(tensor.shape.numpy()) != tensor.size:
        return False
    array = tensor.numpy()
    return bool((array == array.flat[0]).all())


def is_plain(tensor: ir.TensorProtocol) -> bool:
    """Return True for a tensor of one number, or of equal numbers, of any shape: another one may be equal by chance."""
    start = leading(tensor, 64)
    return bool((start == start[:1]).all()) and (tensor.size <= 64 or bool((tensor.numpy() == start[0]).all()))


MAX_CONCATENATED_PIECES = 32_768  # limit on the pieces of stored tensors in all concatenations together


_VIEW_NAME = re.compile(
    r"(val|t|transpose|permute|_?(unsafe_)?view|reshape|unsqueeze|squeeze|flatten|unflatten|expand|alias|clone|detach|"
    r"contiguous|slice|select|index_select|embedding|split|split_with_sizes|chunk|unbind|getitem|cat|_?to_copy|linear)"
    r"(_\d+)?"
)


def folded_names(value: ir.Value) -> list[str]:
    """Return the names of all tensors that torch's dynamo exporter recorded as those an initializer was folded from."""
    recorded = value.metadata_props.get("pkg.onnxscript.optimizer.folded_from")
    if recorded is None:
        return []
    try:
        names = ast.literal_eval(recorded)
    except (ValueError, SyntaxError):
        return []
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []


def folded_from(value: ir.Value) -> str:
    """Return the parameter that an initializer is a folded copy of (transposed, say), if torch's dynamo exporter
    records it.

    Names of constants have no dot.
    """
    names = folded_names(value)
    dotted = names if len(names) == 1 else [n for n in names if "." in n]
    return dotted[0] if len(dotted) == 1 else ""


def viewed_from(value: ir.Value) -> str:
    """Return the parameter that an initializer is a folded view of, or "" if folding computed other numbers.

    The dynamo exporter names values after the torch function that made them (`exp_1`), or numbers those inside one
    (`val_7`). CLIP's `logit_scale` is stored as its exponential: with that name, it would get a checkpoint's raw value.
    """
    return folded_from(value) if _VIEW_NAME.fullmatch(value.name or "") else ""


class Views:
    """Finds the provenance of values that are only views of stored tensors (transposed, sliced, concatenated...).

    Each answer is computed once. A view with very many pieces does not count: the module computes it when it runs.

    Args:
        through: operators, as (domain, type), whose result counts as their first input.
    """

    def __init__(self, model: ir.Model, options: Options, through: Container[tuple[str, str]] = ()) -> None:
        self.most, self.through = writable(model, options), through
        self._known: dict[ir.Value, Source | None] = {}
        self._is_view: dict[ir.Value, bool] = {}
        self._pieces = MAX_CONCATENATED_PIECES

    def __call__(self, value: ir.Value | None) -> Source | None:
        """Return the provenance of a value, or None if it is not a view of stored tensors.

        Raises:
            OnnxgenError: it is a view of more bytes than may be written.
        """
        if value is None or not self.is_view(value):
            return None
        self._refuse_large(value)
        return answered(value, self._known, self._asked, self._source)

    def is_view(self, value: ir.Value | None) -> bool:
        """Return True if a value seems to be a view of stored tensors, of any size."""
        return value is not None and answered(value, self._is_view, self._asked, self._seems)

    def _asked(self, value: ir.Value) -> list[ir.Value]:
        """Return the inputs that a view's provenance depends on."""
        node = value.producer()
        if node is None or not node.inputs or stored(value) is not None:
            return []
        if (node.domain, node.op_type) in self.through or (
            view_of(node) is not None or _is_standard(node) and node.op_type == "Split"
        ):
            return [v for v in node.inputs[:1] if v is not None]
        return [v for v in node.inputs if v is not None] if _is_standard(node) and node.op_type == "Concat" else []

    def _seems(self, value: ir.Value) -> bool:
        asked = self._asked(value)
        return stored(value) is not None or (bool(asked) and all(self._is_view[v] for v in asked))

    def _source(self, value: ir.Value) -> Source | None:
        """Return the provenance of a value, computed from that of its producer's inputs."""
        tensor, node = stored(value), value.producer()
        if tensor is not None:
            return replace(Source.of(tensor, value.name or ""), label=viewed_from(value))
        parts = [self._known.get(v) for v in self._asked(value)]
        known = [part for part in parts if part is not None]
        if node is None or not parts or len(known) < len(parts):
            return None
        if (node.domain, node.op_type) in self.through:
            return known[0]
        try:
            if node.op_type == "Concat":
                self._pieces -= sum(len(part.pieces) for part in known)
                axis = node.attributes["axis"].value % len(known[0].shape)
                return concat(known, axis) if self._pieces >= 0 else None
            if node.op_type == "Split":
                return _split(node, value, known[0])
            view = view_of(node)
            return None if view is None else view(node, known[0])
        except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError):  # the node is invalid
            return None

    def _refuse_large(self, value: ir.Value) -> None:
        facts, node = info(value), value.producer()
        if node is None or facts.dtype is None or not all(isinstance(d, int) for d in facts.shape or ()):
            return
        size = math.prod(int(d) for d in facts.shape or () if isinstance(d, int)) * int(facts.dtype.itemsize)
        if problem := past(size, self.most, f"{printable(value.name or '')}, computed from stored tensors only, has"):
            raise OnnxgenError(Problem(problem, told(node), printable(node.op_type)))


def view_of(node: ir.Node) -> View | None:
    """Return how the result of a node is made of the stored tensor that it views; None if it is no such node."""
    found: View | None = card("", node.op_type).rules.view if _is_standard(node) else None
    return found


def _is_standard(node: ir.Node) -> bool:
    return node.domain in ("", "ai.onnx")


def _split(node: ir.Node, value: ir.Value, x: Source) -> Source | None:
    axis = node.attributes["axis"].value if "axis" in node.attributes else 0
    start = 0
    for output in node.outputs:
        shape = info(output).shape
        size = None if shape is None else shape[axis]
        if not isinstance(size, int):
            return None
        if output is value:
            return x.slice(axis % len(x.shape), start, start + size)
        start += size
    return None
