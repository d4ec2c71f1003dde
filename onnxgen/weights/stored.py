"""Tensors that are stored in the file, their views and copies, and the inputs that they stand for.

- `view_of`: a value that only views a stored tensor, by the rules that operators name (`ops.rules`).
- `Copied`: stored tensors that constant folding made as copies of others, such as a weight for every step of a layer.
- `Finder`: the inputs of the file's nodes that an input of a rewritten graph's node stands for.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.graph.annotations import COPIES, NODES, SITES, Site, past, site, writable
from onnxgen.graph.nodes import all_nodes, answered, told
from onnxgen.graph.operators import card
from onnxgen.options import Options
from onnxgen.shapes.info import info
from onnxgen.weights.file_tensor import FileTensor
from onnxgen.weights.provenance import Source, concat
from onnxgen.weights.strided import Array

View = Callable[[ir.Node, Source], "Source | None"]  # None: of no tensor


def constant_ints(node: ir.Node, index: int, attribute: str) -> list[int] | None:
    """Return a list of ints that is an attribute or a constant input, depending on the opset."""
    if attribute in node.attributes:
        return [int(v) for v in node.attributes[attribute].value]
    if index < len(node.inputs) and node.inputs[index] is not None:
        constant = info(node.inputs[index]).constant
        return None if constant is None else [int(v) for v in constant.reshape(-1)]
    return None


def transpose(node: ir.Node, x: Source) -> Source | None:
    perm = constant_ints(node, 1, "perm")
    return x.transpose(tuple(perm if perm is not None else reversed(range(len(x.shape)))))


def unsqueeze(node: ir.Node, x: Source) -> Source | None:
    axes = constant_ints(node, 1, "axes")
    if axes is None:
        return None
    rank = len(x.shape) + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


def squeeze(node: ir.Node, x: Source) -> Source | None:
    axes = constant_ints(node, 1, "axes")
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    for axis in sorted((a % len(x.shape) for a in axes), reverse=True):
        x = x.squeeze(axis)
    return x


def reshape(node: ir.Node, x: Source) -> Source | None:
    shape = info(node.outputs[0]).shape
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return x.reshape(tuple(int(d) for d in shape if isinstance(d, int)))


def slices(node: ir.Node, x: Source) -> Source | None:
    starts, ends = constant_ints(node, 1, "starts"), constant_ints(node, 2, "ends")
    if starts is None or ends is None:
        return None
    axes = constant_ints(node, 3, "axes")
    steps = constant_ints(node, 4, "steps") or [1] * len(starts)
    if any(s != 1 for s in steps):
        return None
    for axis, start, end in zip(axes if axes is not None else range(len(starts)), starts, ends):
        n = x.shape[axis]
        start, stop, _ = slice(start, end).indices(n)
        x = x.slice(axis % len(x.shape), start, max(start, stop))
    return x


def unchanged(node: ir.Node, x: Source) -> Source:
    return replace(x, label=node.outputs[0].name or "")


flatten = reshape


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
        is_split = _is_standard(node) and node.op_type == "Split"
        if is_split or (node.domain, node.op_type) in self.through or view_of(node) is not None:
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
        known = list(filter(None, parts))
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
    view: View | None = card("", node.op_type).rules.view if _is_standard(node) else None
    return view


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


@dataclass(frozen=True)
class Copied:
    """The elements of the tensor `original` are those of another one, from its flat element `offset` on.

    If `original` is "", they are zeros, whatever is trained.
    """

    original: str
    offset: int


def note_copy(value: ir.Value, copies: Iterable[Copied]) -> None:
    """Note what a stored tensor has copies of."""
    COPIES.set(value, list(dict.fromkeys([*COPIES.get(value), *copies])))


def twins(keys: Mapping[str, Source], values: Iterable[ir.Value]) -> list[tuple[str, Source]]:
    """Return the provenance of the copies of state-dict tensors, by key: see `provenance.way_back`."""
    using: dict[str, list[str]] = {}
    for key, source in keys.items():
        for name in source.names:
            using.setdefault(name, []).append(key)
    copied = []
    for value in values:
        for copy in COPIES.get(value):
            for key in using.get(copy.original, ()):
                copied.append((key, _moved(keys[key], copy, value)))
    return copied


def _moved(source: Source, copy: Copied, value: ir.Value) -> Source:
    tensor, name = value.const_value, value.name or ""
    assert tensor is not None
    own = (p for p in source.pieces if p.name == copy.original)
    pieces = (replace(p, name=name, tensor=tensor, offset=p.offset + copy.offset) for p in own)
    return replace(source, pieces=tuple(pieces))


Place = tuple[int, ir.Node, int, Source]  # an input of a new node; an older node, its input, and what that is made of


class Finder:
    """Finds the sites of stored tensors in a graph that passes have rewritten."""

    def __init__(self, model: ir.Model) -> None:
        self.nodes = NODES.get(model)
        self.model = model

    def sites(self, tensor: str, node: ir.Node, indices: Iterable[int]) -> set[Site]:
        """Return the sites of `tensor` that these inputs of a node of the rewritten graph stand for."""
        sites: set[Site] = set()
        noted = SITES.get(node)
        for index in indices:
            if index in noted:
                sites |= noted[index].get(tensor, frozenset())
                continue
            value = node.inputs[index]
            inputs = dict(self.nodes.get(node.outputs[0].name or "", ()))
            if value is not None and stored(value) is None and value.name in self.nodes:
                sites |= self._above([value.name], tensor, set())
            elif inputs.get(site(node, index)) == tensor:
                sites.add(site(node, index))
            else:
                sites |= self._above([o.name for o in node.outputs if o.name], tensor, self._others)
        return sites

    def note(self, new: ir.Node, places: Iterable[Place]) -> None:
        """Note the sites of a new node's inputs, while the nodes that it stands for are still there."""
        noted = {}
        for index, node, old, source in places:
            noted[index] = {name: frozenset(self.sites(name, node, [old])) for name in source.names}
        SITES.set(new, noted)

    def _above(self, names: list[str], tensor: str, ends: Collection[str]) -> set[Site]:
        """Return the sites of `tensor` among the nodes that these values are computed by, back to `ends`."""
        sites: set[Site] = set()
        pending, seen = list(names), set(names)
        while pending:
            for where, name in self.nodes.get(pending.pop(), ()):
                if name == tensor:
                    sites.add(where)
                elif name not in seen and name not in ends:
                    seen.add(name)
                    pending.append(name)
        return sites

    @cached_property
    def _others(self) -> set[str]:
        """The values that nodes of the rewritten graph compute."""
        nodes = (node for node in all_nodes(self.model.graph) if view_of(node) is None)
        return {o.name for node in nodes for o in node.outputs if o.name}
